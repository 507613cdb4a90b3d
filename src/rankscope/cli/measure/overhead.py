"""``rankscope measure overhead``."""

from __future__ import annotations

from rankscope.cli.measure import options as o
from rankscope.measure.overhead import SHORT_JOBS, measure_overhead


def overhead(
    words: o.Words,
    output: o.Output = None,
    nproc: o.Nproc = None,
    blocks: o.Blocks = SHORT_JOBS.blocks,
    block_steps: o.BlockSteps = SHORT_JOBS.block_steps,
    settle: o.Settle = SHORT_JOBS.settle_steps,
    warmup: o.Warmup = SHORT_JOBS.warmup_steps,
    repeats: o.Repeats = SHORT_JOBS.repeats,
    trace_steps: o.TraceSteps = SHORT_JOBS.traced_steps,
    seed: o.Seed = SHORT_JOBS.seed,
    limit: o.Limit = SHORT_JOBS.limit_s,
    timeout: o.Timeout = SHORT_JOBS.timeout_s,
    launcher: o.Launcher = None,
    torchrun: o.Torchrun = "",
    oversubscribe: o.Oversubscribe = False,
    form: o.Form = o.Format.table,
) -> None:
    """What gradient synchronization costs: the step with it and without, block by block in random order, in a few
    short jobs.

    DDP and FSDP1 by no_sync, FSDP2 by set_requires_gradient_sync. Forward, backward and optimizer beside it, by the
    device's events on a GPU; and what a trace of the same job calls exposed communication.
    """
    target = o.target_of_words(words)
    folder = o.folder_of(output, "overhead")
    sampling = o.sampling_of(blocks, block_steps, settle, warmup, repeats, trace_steps, seed, limit, timeout)
    start = o.start_of(nproc, launcher, torchrun, oversubscribe)
    with o.progress("overhead", folder, output) as on_progress:
        result = measure_overhead(target, folder, start, sampling, on_progress)
    o.finish(result, folder, form)
