"""`rankscope summary`.

In: a run. Out: one screen of text.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rankscope.cli.options import DEFAULTS, RunOptions, Source, opened
from rankscope.cli.signature import with_options
from rankscope.cli.writing import show
from rankscope.report import summary as verdict
from rankscope.report.formatting import plain


@with_options()
def summary(source: Source, options: RunOptions = DEFAULTS) -> None:
    """Summarize a run on one screen: step time, where it goes, the straggler, memory, lost data, what to do.

    For the output directory of `rankscope measure` it shows the result and lists the jobs.
    """
    if len(source) == 1 and options.run is None and os.path.isdir(os.path.join(source[0], "jobs")):  # noqa: PTH112, PTH118  # pathlib raises without permission
        from rankscope.report.experiments.tables import jobs_of  # imports `measure`, which is slow

        jobs = jobs_of(source[0])
        if jobs is not None:
            _show_experiment(Path(source[0]), jobs)
            return
    with opened(source, options) as opened_run:
        console = Console(highlight=False)
        shown = verdict.summary(opened_run, console.width)
    console.print(shown)


def _show_experiment(folder: Path, jobs: Mapping[str, str]) -> None:
    """Print an experiment's results, and the commands that show its jobs."""
    from rankscope.measure.files import load_all
    from rankscope.report.experiments.terminal import measured

    for result in load_all(folder):
        show(measured(result), None)
    if not jobs:
        return
    width = max(map(len, jobs.values()))
    lines = [f"  {label:<{width}}  rankscope summary {folder / job}" for job, label in jobs.items()]
    serve_line = f"  {'all':<{width}}  rankscope serve {folder}"
    show(Text("\n".join(["", "Its jobs:", *(plain(line, limit=1000) for line in [*lines, serve_line])])), None)
