"""``rankscope measure profiler``."""

from __future__ import annotations

from rankscope.cli.measure import options as o
from rankscope.measure.profiler import SAMPLING, measure_profiler


def profiler(
    words: o.Words,
    output: o.Output = None,
    nproc: o.Nproc = None,
    blocks: o.Blocks = SAMPLING.blocks,
    block_steps: o.BlockSteps = SAMPLING.block_steps,
    settle: o.Settle = SAMPLING.settle_steps,
    warmup: o.Warmup = SAMPLING.warmup_steps,
    repeats: o.Repeats = SAMPLING.repeats,
    seed: o.Seed = SAMPLING.seed,
    limit: o.Limit = SAMPLING.limit_s,
    timeout: o.Timeout = SAMPLING.timeout_s,
    launcher: o.Launcher = None,
    torchrun: o.Torchrun = "",
    oversubscribe: o.Oversubscribe = False,
    form: o.Form = o.Format.table,
) -> None:
    """What profiling costs on this job: while it waits, while it records, and for each switch.

    Blocks of steps without a profiler, with one that waits, with one that records, and with each of record_shapes,
    with_stack, profile_memory, with_flops and with_modules, in random order in one job.
    """
    target = o.target_of_words(words)
    folder = o.folder_of(output, "profiler")
    sampling = o.sampling_of(blocks, block_steps, settle, warmup, repeats, 0, seed, limit, timeout)
    start = o.start_of(nproc, launcher, torchrun, oversubscribe)
    with o.progress("profiler", folder, output) as on_progress:
        result = measure_profiler(target, folder, start, sampling, on_progress)
    o.finish(result, folder, form)
