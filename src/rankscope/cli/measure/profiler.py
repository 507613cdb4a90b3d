"""``rankscope measure profiler``.

In: a script. Out: a result file, printed as a table.
"""

from __future__ import annotations

from rankscope.cli.measure import options as o
from rankscope.cli.signature import with_options
from rankscope.experiments.measure.profiler import SAMPLING, measure_profiler
from rankscope.experiments.measure.sampling import Sampling


@with_options(without=("traced_steps",))
def profiler(words: o.Words, sampling: Sampling = SAMPLING, options: o.JobOptions = o.DEFAULTS) -> None:
    """Measure the cost of profiling this job: while waiting, while recording, and for each switch.

    Blocks of steps without a profiler, with a waiting one, with a recording one, and with each of record_shapes,
    with_stack, profile_memory, with_flops and with_modules, in random order in one job.
    """
    target = o.target_of_words(words)
    start = options.start()
    o.experiment(
        "profiler", lambda folder, on_progress: measure_profiler(target, folder, start, sampling, on_progress), options
    )
