"""A device's memory is nearly full.

Fires if the peak of allocated memory is 85 % of the device's memory or more (a warning from 95 %). It saves no time:
the next longer sequence ends the job, and near the limit the allocator begins to free and retry. Needs
`profile_memory`, and a trace that records the device's size.
"""

from __future__ import annotations

import polars as pl

from rankscope.answers.diagnosis.advice import job_of
from rankscope.answers.diagnosis.anchors import event_anchor
from rankscope.answers.diagnosis.step_costs import memory_severity
from rankscope.primitives.job_kind import FSDP
from rankscope.results import Evidence, Finding, Inputs, Rule


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run."""
    frame = inputs.results.get("memory")
    if frame is None:
        return []
    known = frame.filter((pl.col("total_memory") > 0) & pl.col("peak_allocated").is_not_null()).with_columns(
        (pl.col("peak_allocated") / pl.col("total_memory")).alias("share")
    )
    full = known.sort("share", "rank", descending=[True, False])
    worst = full.row(0, named=True) if full.height else None
    severity = memory_severity(worst["share"]) if worst else None
    if worst is None or severity is None:
        return []
    return [
        Finding(
            rule.name,
            severity,
            f"{100 * worst['share']:.0f} % of the memory of rank {worst['rank']}'s device is allocated at the peak",
            ranks=tuple(full.filter(pl.col("share").map_elements(_near, pl.Boolean))["rank"].unique().sort().to_list()),
            steps=() if worst["peak_step"] is None else (worst["peak_step"],),
            evidence=(
                Evidence("allocated at the peak", worst["peak_allocated"], "bytes"),
                Evidence("memory of the device", worst["total_memory"], "bytes"),
                Evidence("operator at the peak", worst["peak_operator"] or "no operator"),
            ),
            anchor=event_anchor(inputs, "memory_peak", worst["rank"], detail=worst["device"]),
            advice=(
                "Before it grows: "
                + (
                    "a smaller cache of keys and values, fewer or shorter requests at once, quantized weights"
                    if job_of(inputs).infers
                    else "a smaller batch with gradient accumulation, activation checkpointing, "
                    + ("FSDP, " if job_of(inputs).wrapper != FSDP else "more ranks to shard over, ")
                    + "or an optimizer with less state"
                )
                + ". `rankscope analyze memory --by operator` shows what holds it."
            ),
        )
    ]


def _near(share: float) -> bool:
    return memory_severity(share) is not None


rule = Rule("memory_limit", __doc__, ("memory", "evidence_events"), find)
