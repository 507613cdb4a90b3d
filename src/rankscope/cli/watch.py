"""`rankscope watch`.

In: the run directory of a watched job. Out: its state, on the terminal or as JSON.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from rankscope.answers.watch.log import WatchLogs
from rankscope.answers.watch.status import JUDGED_STEPS, read_status
from rankscope.answers.watch.status_json import as_json
from rankscope.cli.writing import TextFormat
from rankscope.show.monitor.job import JobState, WatchedJob, pause_after
from rankscope.show.report.watch import watch_view


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory of a watched job.")],
    once: Annotated[bool, typer.Option("--once", help="Show the state once; the default in a pipe.")] = False,
    form: Annotated[
        TextFormat, typer.Option("--format", "-f", help="Output format; json is written once.")
    ] = TextFormat.table,
    steps: Annotated[int, typer.Option(min=1, help="How many of the latest steps to evaluate.")] = JUDGED_STEPS,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between updates.")] = 2.0,
) -> None:
    """Show a watched job while it runs, without a trace: step time, last arrivals, stragglers and since when, hangs.

    The job is started by `rankscope run` or `exec`, or has a `rankscope.Profiler`. Ends with the job, or on Ctrl-C.
    """
    if form is TextFormat.json:
        typer.echo(json.dumps(as_json(read_status(run, WatchLogs(run), steps)), indent=1))
        return
    job = WatchedJob(run, steps)
    console = Console(highlight=False)
    if once or not console.is_terminal:
        console.print(_view(job.read()), soft_wrap=not console.is_terminal)
        return
    try:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                began = time.monotonic()
                state = job.read()
                live.update(_view(state), refresh=True)
                if state.status.ended:
                    return
                took = time.monotonic() - began
                time.sleep(pause_after(took, interval) - took)
    except KeyboardInterrupt:
        return


def _view(state: JobState) -> RenderableType:
    return watch_view(state.status, state.verdict.summary if state.lasts and state.verdict is not None else "")
