"""``rankscope measure overhead``.

In: a script. Out: a result file, printed as a table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankscope.cli.measure import options as o
from rankscope.cli.signature import with_options
from rankscope.experiments.measure.experiment import LINE
from rankscope.experiments.measure.jobs import ProgressCallback
from rankscope.experiments.measure.overhead import LEAST_JOBS, PRECISION, SHORT_JOBS, measure_overhead
from rankscope.experiments.measure.results import Overhead
from rankscope.experiments.measure.sampling import Sampling
from rankscope.rundir.plurals import counted
from rankscope.show.report.experiments.statements import statements
from rankscope.show.report.formatting import sentence


@with_options()
def overhead(
    words: o.Words,
    precision: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="POINTS",
            help=f"No further job starts, after at least {LEAST_JOBS}, once the interval of the overhead extends no "
            "further than these percentage points on either side; 0 for all --repeats.",
        ),
    ] = 100 * PRECISION,
    sampling: Sampling = SHORT_JOBS,
    options: o.JobOptions = o.DEFAULTS,
) -> None:
    """Measure the cost of gradient synchronization: steps with and without it, in blocks in random order, in a few
    short jobs.

    DDP and FSDP1 with no_sync, FSDP2 with set_requires_gradient_sync. Also forward, backward and optimizer (on a GPU by
    its events), and the exposed communication in a trace of the same job.
    """
    target = o.target_of_words(words)
    start = options.start()

    def run(folder: Path, on_progress: ProgressCallback) -> Overhead:
        def so_far(result: Overhead) -> None:
            jobs = result.setting.repeats
            said = sentence(statements(result)[0])
            only = ", of this job only" if jobs == 1 else ""
            on_progress(f"after {counted(jobs, 'job')}{only}: {said}", jobs, sampling.repeats, LINE)

        return measure_overhead(
            target, folder, start, sampling, on_progress, precision=precision / 100, on_result=so_far
        )

    o.experiment("overhead", run, options)
