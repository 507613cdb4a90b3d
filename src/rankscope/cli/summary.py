"""`rankscope summary`."""

from __future__ import annotations

from rich.console import Console

from rankscope.cli.options import Communication, Engine, RunId, Source, Steps, Workers, opened
from rankscope.report import terminal


def summary(
    source: Source,
    steps: Steps = None,
    run: RunId = None,
    communication: Communication = None,
    executor: Engine = "processes",
    workers: Workers = None,
) -> None:
    """What a run spent its time on, on one screen: step time, overlap, exposed communication, slowest rank."""
    with opened(source, steps, run, communication, executor, workers) as opened_run:
        console = Console(highlight=False)
        shown = terminal.summary(opened_run, console.width)
    console.print(shown)
