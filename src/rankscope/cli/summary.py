"""`rankscope summary`.

In: a run. Out: one screen of text.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from rankscope.cli.options import DEFAULTS, RunOptions, Source, opened
from rankscope.cli.signature import with_options
from rankscope.cli.writing import show
from rankscope.errors import NoTracesError, RankscopeError
from rankscope.show.report import summary as verdict
from rankscope.show.report.formatting import plain


@with_options()
def summary(source: Source, options: RunOptions = DEFAULTS) -> None:
    """Summarize a run on one screen: step time, where it goes, the straggler, memory, lost data, what to do.

    For the output directory of `rankscope measure` it shows the result and lists the jobs.
    """
    if len(source) == 1 and options.run is None and os.path.isdir(os.path.join(source[0], "jobs")):  # noqa: PTH112, PTH118  # pathlib raises without permission
        from rankscope.show.report.experiments.tables import jobs_of  # imports `measure`, which is slow

        jobs = jobs_of(source[0])
        if jobs is not None:
            _show_experiment(Path(source[0]), jobs)
            return
    console = Console(highlight=False)
    try:
        with opened(source, options) as opened_run:
            end = _end(source, opened_run.run_id)
            console.print(verdict.summary(opened_run, console.width, end))
    except NoTracesError:
        if not _show_watched(source, console):
            raise


def _end(source: Sequence[str], run_id: str | None) -> tuple[str, str] | None:
    """Why the job hangs or has failed, and what to type to see more; None if nothing is known of that."""
    if not _is_directory(source):
        return None
    from rankscope.answers.hang import end_of_job

    found = end_of_job(source[0], run_id)
    return None if found is None else (found.summary, f"rankscope hang {shlex.quote(source[0])}")


def _is_directory(source: Sequence[str]) -> bool:
    """Whether it may be a run directory on this machine, with what the watch wrote."""
    return len(source) == 1 and "://" not in source[0]


def _show_watched(source: Sequence[str], console: Console) -> bool:
    """Show what the watch of a job without traces wrote; False if there is none."""
    if not _is_directory(source):
        return False
    from rankscope.answers.watch.log import WatchLogs
    from rankscope.answers.watch.status import read_status
    from rankscope.show.report.watch import watch_view

    shown: list[RenderableType] = []
    if (end := _end(source, None)) is not None:
        shown.append(Text(f"{plain(end[0], limit=600)}\n  {plain(end[1], limit=4096)}", style="bold red"))
    with suppress(RankscopeError, OSError):  # no log, or none that can be read
        shown.append(watch_view(read_status(source[0], WatchLogs(source[0]))))
    if shown:
        console.print(Text("There is no trace in this directory; this is from the watch."), *shown, sep="\n\n")
    return bool(shown)


def _show_experiment(folder: Path, jobs: Mapping[str, str]) -> None:
    """Print an experiment's results, and the commands that show its jobs."""
    from rankscope.experiments.measure.files import load_all
    from rankscope.show.report.experiments.terminal import measured

    for result in load_all(folder):
        show(measured(result), None)
    if not jobs:
        return
    width = max(map(len, jobs.values()))
    lines = [f"  {label:<{width}}  rankscope summary {folder / job}" for job, label in jobs.items()]
    serve_line = f"  {'all':<{width}}  rankscope serve {folder}"
    show(Text("\n".join(["", "Its jobs:", *(plain(line, limit=1000) for line in [*lines, serve_line])])), None)
