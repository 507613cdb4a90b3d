"""The allocator frees and allocates device memory during steps.

Fires if a rank's trace has calls of the driver's free in at least every second step, together with allocations: the
allocator has reached the limit, returns its cache and allocates again, and each such call waits for the device. The
cost is part of `idle` and `synchronization`; no saving is stated here.
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
            "The allocator returns memory to the driver and allocates it again during steps",
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
