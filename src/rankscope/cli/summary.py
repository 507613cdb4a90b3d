"""`rankscope summary`."""

from __future__ import annotations

from rich.console import Console

from rankscope.cli.options import Communication, Engine, RunId, Source, Steps, Workers, opened
from rankscope.report import summary as verdict


def summary(
    source: Source,
    steps: Steps = None,
    run: RunId = None,
    communication: Communication = None,
    executor: Engine = "processes",
    workers: Workers = None,
) -> None:
    """A run's verdict on one screen: step time, where it goes, who holds it up, memory, what was lost, what to do."""
    with opened(source, steps, run, communication, executor, workers) as opened_run:
        console = Console(highlight=False)
        shown = verdict.summary(opened_run, console.width)
    console.print(shown)
