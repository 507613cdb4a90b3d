"""Copies from or to pageable memory.

Fires if copies between the device and pageable host memory have enough exposed time. From pinned memory they would
overlap with compute and run at the link's speed; the saving is all of that time, on the rank that has most.
"""

from __future__ import annotations

import polars as pl

from rankscope.diagnosis.step_costs import on_worst_rank, severity_of, step_ns, step_words, steps_of
from rankscope.results import Evidence, Finding, Inputs, Rule


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run."""
    step, frame = step_ns(inputs), inputs.results.get("copies")
    unit = step_words(inputs)
    if frame is None or step is None:
        return []
    pageable = frame.filter(pl.col("pageable").fill_null(False))
    if pageable.is_empty():
        return []
    by_rank = (
        pageable.group_by("rank")
        .agg(pl.col("per_step_ns", "bytes", "total_ns", "calls").sum())
        .sort("per_step_ns", "rank", descending=[True, False])
    )
    worst = by_rank.row(0, named=True)
    severity = severity_of(worst["per_step_ns"], step)
    if severity is None:
        return []
    evidence = [
        Evidence(f"exposed copies of pageable memory, {unit.per}, at worst", worst["per_step_ns"], "ns"),
        Evidence("calls", worst["calls"]),
    ]
    if worst["bytes"] and worst["total_ns"]:
        evidence.append(Evidence("bandwidth", round(worst["bytes"] / worst["total_ns"], 2), "GB/s"))
    evidence.append(Evidence(unit.length, step, "ns"))
    ranks = tuple(sorted(by_rank.filter(pl.col("per_step_ns") >= worst["per_step_ns"] / 2)["rank"].to_list()))
    whose = on_worst_rank(inputs, worst["rank"], ranks)
    return [
        Finding(
            rule.name,
            severity,
            f"Copies of pageable memory take {unit.share(worst['per_step_ns'], step)}{whose}",
            ranks=ranks,
            steps=steps_of(inputs),
            evidence=tuple(evidence),
            saving_ns=worst["per_step_ns"],
            advice="Use DataLoader(pin_memory=True) and .to(device, non_blocking=True): they overlap with compute.",
        )
    ]


rule = Rule("pageable_copies", __doc__, ("step_time", "copies"), find)
