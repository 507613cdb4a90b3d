"""Copies from or to pageable memory.

Fires if copies between the device and pageable host memory have enough exposed time. From pinned memory they would
overlap with compute and run at the link's speed; the saving is all of that time, on the rank with the most. Kinds of
copies that fewer than half of the steps make, such as those of a checkpoint, are left out.
"""

from __future__ import annotations

import polars as pl

from rankscope.diagnosis.advice import job_of
from rankscope.diagnosis.anchors import event_anchor
from rankscope.diagnosis.effects import MEMORY_CALLS
from rankscope.diagnosis.step_costs import (
    in_most_steps,
    on_worst_rank,
    step_ns,
    step_words,
    steps_of,
    within_available,
    worst_rank,
)
from rankscope.results import Evidence, Finding, Inputs, Rule


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run."""
    step, frame = step_ns(inputs), inputs.results.get("copies")
    unit = step_words(inputs)
    if frame is None or step is None:
        return []
    pageable = in_most_steps(frame.filter(pl.col("pageable").fill_null(False)), inputs)
    if pageable.is_empty():
        return []
    by_rank = (
        pageable.group_by("rank")
        .agg(pl.col("per_step_ns", "bytes", "total_ns", "calls").sum())
        .sort("per_step_ns", "rank", descending=[True, False])
    )
    costs = dict(by_rank.select("rank", "per_step_ns").iter_rows())
    savings = within_available(costs, ("exposed_memcpy_ns",), inputs)
    worst = worst_rank(savings, step)
    if worst is None:
        return []
    copied = by_rank.filter(pl.col("rank") == worst.rank).row(0, named=True)
    evidence = [
        Evidence(f"exposed copies of pageable memory ({unit.per}, worst rank)", costs[worst.rank], "ns"),
        Evidence("calls", copied["calls"]),
    ]
    if copied["bytes"] and copied["total_ns"]:
        evidence.append(Evidence("bandwidth", round(copied["bytes"] / copied["total_ns"], 2), "GB/s"))
    evidence.append(Evidence(unit.length, step, "ns"))
    ranks = tuple(sorted(each for each, value in costs.items() if value >= costs[worst.rank] / 2))
    whose = on_worst_rank(inputs, worst.rank, ranks)
    return [
        Finding(
            rule.name,
            worst.severity,
            f"Copies of pageable memory take {unit.share(worst.saving_ns, step)}{whose}",
            ranks=ranks,
            steps=steps_of(inputs),
            evidence=tuple(evidence),
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
