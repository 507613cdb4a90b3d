"""``rankscope measure overhead``."""

from __future__ import annotations

from rankscope.cli.measure import options as o
from rankscope.measure.overhead import measure_overhead


def overhead(
    words: o.Words,
    output: o.Output = None,
    nproc: o.Nproc = None,
    blocks: o.Blocks = 5,
    block_steps: o.BlockSteps = 5,
    settle: o.Settle = 1,
    warmup: o.Warmup = 8,
    repeats: o.Repeats = 5,
    trace_steps: o.TraceSteps = 4,
    seed: o.Seed = 0,
    limit: o.Limit = 300,
    timeout: o.Timeout = 3600,
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
    with o.progress("overhead", folder, output) as told:
        result = measure_overhead(target, folder, start, sampling, told)
    o.finish(result, folder, form)
