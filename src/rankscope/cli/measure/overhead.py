"""``rankscope measure overhead``."""

from __future__ import annotations

from rankscope.cli.measure import options as o
from rankscope.cli.signature import with_options
from rankscope.measure.overhead import SHORT_JOBS, measure_overhead
from rankscope.measure.sampling import Sampling


@with_options()
def overhead(
    words: o.Words,
    sampling: Sampling = SHORT_JOBS,
    options: o.JobOptions = o.DEFAULTS,
) -> None:
    """What gradient synchronization costs: the step with it and without, block by block in random order, in a few
    short jobs.

    DDP and FSDP1 by no_sync, FSDP2 by set_requires_gradient_sync. Forward, backward and optimizer beside it, by the
    device's events on a GPU; and what a trace of the same job calls exposed communication.
    """
    target = o.target_of_words(words)
    start = options.start()
    o.experiment(
        "overhead", lambda folder, on_progress: measure_overhead(target, folder, start, sampling, on_progress), options
    )
