"""``rankscope measure overhead``.

In: a script. Out: a result file, printed as a table.
"""

from __future__ import annotations

from rankscope.cli.measure import options as o
from rankscope.cli.signature import with_options
from rankscope.measure.overhead import SHORT_JOBS, measure_overhead
from rankscope.measure.sampling import Sampling


@with_options()
def overhead(words: o.Words, sampling: Sampling = SHORT_JOBS, options: o.JobOptions = o.DEFAULTS) -> None:
    """Measure the cost of gradient synchronization: steps with and without it, in blocks in random order, in a few
    short jobs.

    DDP and FSDP1 with no_sync, FSDP2 with set_requires_gradient_sync. Also forward, backward and optimizer (on a GPU by
    its events), and the exposed communication in a trace of the same job.
    """
    target = o.target_of_words(words)
    start = options.start()
    o.experiment(
        "overhead", lambda folder, on_progress: measure_overhead(target, folder, start, sampling, on_progress), options
    )
