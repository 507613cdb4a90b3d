"""Copies from or to pageable memory.

Fires if copies between the device and pageable host memory have enough exposed time. From pinned memory they would
overlap with compute and run at the link's speed; the saving is all of that time, on the rank with the most, a part of
the mean step. Kinds of copies that only a single step of several makes, such as a checkpoint's, are left out.
"""

from __future__ import annotations

import polars as pl

from rankscope.answers.diagnosis.advice import job_of
from rankscope.answers.diagnosis.anchors import event_anchor
from rankscope.answers.diagnosis.effects import MEMORY_CALLS
from rankscope.answers.diagnosis.recurring_costs import cost_of
from rankscope.answers.diagnosis.step_costs import on_worst_rank, steps_of
from rankscope.results import Evidence, Finding, Inputs, Rule


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run."""
    frame = inputs.results.get("copies")
    pageable = None if frame is None else frame.filter(pl.col("pageable").fill_null(False))
    cost = None if pageable is None else cost_of(pageable, "exposed_ns", ("exposed_memcpy_ns",), inputs)
    if cost is None:
        return []
    worst = cost.worst
    copied = cost.rows.filter(pl.col("rank") == worst.rank).select(pl.col("bytes", "total_ns", "calls").sum())
    size, total, calls = copied.row(0)
    exposed = cost.by_rank[worst.rank]
    evidence = [
        Evidence(f"exposed copies of pageable memory ({cost.unit.per}, worst rank)", exposed, "ns"),
        Evidence("calls", calls),
    ]
    if size and total:
        evidence.append(Evidence("bandwidth", round(size / total, 2), "GB/s"))
    whose = on_worst_rank(inputs, worst.rank, worst.ranks)
    return [
        Finding(
            rule.name,
            worst.severity,
            f"Copies of pageable memory take {cost.share}{whose}",
            ranks=worst.ranks,
            steps=steps_of(inputs),
            evidence=(*evidence, cost.length),
            saving_ns=worst.saving_ns,
            anchor=event_anchor(inputs, "pageable_copy", worst.rank),
            advice=(
                "Copy from pinned memory (tensor.pin_memory()) with non_blocking=True: that overlaps with compute."
                if job_of(inputs).infers
                else "Use DataLoader(pin_memory=True) and .to(device, non_blocking=True): they overlap with compute."
            ),
        )
    ]


rule = Rule(
    "pageable_copies",
    __doc__,
    ("step_time", "copies", "evidence_events"),
    find,
    parts=("copies",),
    symptom_of=(MEMORY_CALLS,),
)
