"""`rankscope summary`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rankscope.cli.options import DEFAULTS, RunOptions, Source, opened
from rankscope.cli.signature import with_options
from rankscope.cli.writing import show
from rankscope.measure.files import load_all
from rankscope.report import summary as verdict
from rankscope.report.experiments.tables import jobs_of
from rankscope.report.experiments.terminal import measured
from rankscope.report.formatting import plain


@with_options()
def summary(
    source: Source,
    options: RunOptions = DEFAULTS,
) -> None:
    """Summarize a run on one screen: step time, where it goes, the straggler, memory, lost data, what to do.

    For the output directory of `rankscope measure` it shows the result and lists the jobs.
    """
    jobs = jobs_of(source[0]) if len(source) == 1 and options.run is None else None
    if jobs is not None:
        _study(Path(source[0]), jobs)
        return
    with opened(source, options) as opened_run:
        console = Console(highlight=False)
        shown = verdict.summary(opened_run, console.width)
    console.print(shown)


def _study(folder: Path, jobs: Mapping[str, str]) -> None:
    """What was measured, and how each of its jobs is looked at."""
    for result in load_all(folder):
        show(measured(result), None)
    if not jobs:
        return
    width = max(map(len, jobs.values()))
    lines = [f"  {label:<{width}}  rankscope summary {folder / job}" for job, label in jobs.items()]
    served = f"  {'all':<{width}}  rankscope serve {folder}"
    show(Text("\n".join(["", "Its jobs:", *(plain(line, limit=1000) for line in [*lines, served])])), None)
