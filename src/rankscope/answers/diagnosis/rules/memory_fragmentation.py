"""The allocator holds memory that it cannot use.

Fires if a snapshot's free memory is scattered: free blocks in segments that also have blocks in use are 15 % of the
reserved memory and 100 MB or more, and more than half of that is outside the largest free block. Segments without a
block in use are cache, which the allocator gives back when the device runs out. It does not fire if 85 % of what is
reserved was in use at the recorded peak. Without a snapshot: if the allocator holds 85 % of the device's memory or more
and 20 % of that is not allocated. Only a snapshot distinguishes fragments from cache. It saves memory, not time.
"""

from __future__ import annotations

import polars as pl

from rankscope.answers.diagnosis.step_costs import memory_severity
from rankscope.results import Evidence, Finding, Inputs, Rule

_SCATTERED = 0.5
"""Of what is scattered: how much is outside the largest free block."""
_OF_RESERVED = 0.15
"""Of the reserved memory: how much is scattered."""
_IN_USE = 0.85
"""Of the reserved memory at the recorded peak: then it was needed, and the allocator could use it."""
_WORTH_A_NOTE = 100_000_000
"""Bytes: the allocator takes segments of 2 to 20 MB, so a few of them are always free in part."""
_UNUSED = 0.2
"""Of what the allocator holds, without a snapshot: how much is not allocated."""


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run."""
    snapshots = inputs.results.get("memory_snapshot")
    has_snapshot = snapshots is not None and not snapshots.is_empty()
    found = _of_snapshot(snapshots) if has_snapshot else _of_trace(inputs.results.get("memory"))
    return [] if found is None else [found]


def _of_snapshot(frame: pl.DataFrame | None) -> Finding | None:
    if frame is None or frame.is_empty():
        return None
    scattered = frame.filter(
        (pl.col("largest_free") < (1 - _SCATTERED) * pl.col("scattered"))
        & (pl.col("scattered") >= _OF_RESERVED * pl.col("reserved"))
        & (pl.col("scattered") >= _WORTH_A_NOTE)
        & (pl.col("peak_allocated").fill_null(0) < _IN_USE * pl.col("reserved"))
    ).sort("scattered", "rank", descending=[True, False])
    if scattered.is_empty():
        return None
    worst = scattered.row(0, named=True)
    return Finding(
        rule.name,
        "warning" if worst["out_of_memory"] else "info",
        f"{worst['scattered'] / 1e9:.2g} GB of rank {worst['rank']}'s memory is free but scattered",
        ranks=tuple(scattered["rank"].unique().sort().to_list()),
        evidence=(
            Evidence("free in segments that have blocks in use", worst["scattered"], "bytes"),
            Evidence("free in all", worst["free"], "bytes"),
            Evidence("largest free block", worst["largest_free"], "bytes"),
            Evidence("reserved", worst["reserved"], "bytes"),
            Evidence("requests that failed", worst["out_of_memory"], "count"),
        ),
        advice=_WAYS,
    )


def _of_trace(frame: pl.DataFrame | None) -> Finding | None:
    if frame is None or frame.is_empty():
        return None
    held = frame.filter((pl.col("total_memory") > 0) & (pl.col("unused_reserved") >= _UNUSED)).with_columns(
        (pl.col("peak_reserved") / pl.col("total_memory")).alias("share")
    )
    held = held.sort("share", "rank", descending=[True, False])
    if held.is_empty() or memory_severity(held["share"][0]) is None:
        return None
    worst = held.row(0, named=True)
    return Finding(
        rule.name,
        "info",
        f"{100 * worst['unused_reserved']:.0f} % of the memory held by rank {worst['rank']}'s allocator is not in use",
        ranks=(worst["rank"],),
        evidence=(
            Evidence("reserved", worst["peak_reserved"], "bytes"),
            Evidence("share of reserved memory not allocated", worst["unused_reserved"], "ratio"),
            Evidence("memory of the device", worst["total_memory"], "bytes"),
        ),
        advice=_ADVICE,
    )


_WAYS = "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; pad sequences to a few lengths instead of all."
_ADVICE = (
    f"{_WAYS} A snapshot (torch.cuda.memory._dump_snapshot) next to the traces distinguishes fragments from cache."
)
rule = Rule("memory_fragmentation", __doc__, ("memory", "memory_snapshot"), find)
