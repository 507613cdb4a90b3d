"""The allocator frees and allocates device memory in the middle of steps.

Speaks where a rank's trace has calls of the driver's own free in at least every second step, and allocations beside
them: the allocator has run into the limit, gives its cache back and asks anew, and each such call waits for the device.
How much that costs is in `idle` and `synchronization`; here no saving is stated.
"""

from __future__ import annotations

import polars as pl

from rankscope.diagnosis.step_costs import step_counts, steps_of
from rankscope.results import Evidence, Finding, Inputs, Rule


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run."""
    frame, counts = inputs.results.get("memory"), step_counts(inputs)
    if frame is None or frame.is_empty() or not counts:
        return []
    calls = frame.group_by("rank").agg(pl.col("device_frees").sum(), pl.col("device_allocations").sum())
    enough = pl.col("rank").replace_strict(counts, default=1, return_dtype=pl.Int64) / 2
    retrying = calls.filter((pl.col("device_frees") > 0) & (pl.col("device_frees") >= enough))
    retrying = retrying.filter(pl.col("device_allocations") > 0).sort("device_frees", "rank", descending=[True, False])
    if retrying.is_empty():
        return []
    worst = retrying.row(0, named=True)
    return [
        Finding(
            rule.name,
            "warning",
            "The allocator gives memory back to the driver and asks for it again while steps run",
            ranks=tuple(retrying["rank"].sort().to_list()),
            steps=steps_of(inputs),
            evidence=(
                Evidence(f"the driver's free was called, rank {worst['rank']}", worst["device_frees"], "count"),
                Evidence("its malloc", worst["device_allocations"], "count"),
                Evidence("steps", counts.get(worst["rank"], 1), "count"),
            ),
            advice=(
                "Use less memory (a smaller batch, activation checkpointing), take torch.cuda.empty_cache() out of the "
                "loop, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
            ),
        )
    ]


rule = Rule("memory_retries", __doc__, ("step_time", "memory"), find)
