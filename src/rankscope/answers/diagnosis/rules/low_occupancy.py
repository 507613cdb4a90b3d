"""Kernels with too few blocks to fill the device.

Fires if compute kernels of 10 µs or more have less than one block per multiprocessor. The saving is their time on
multiprocessors without a block, `time · (1 − blocks per SM)`: the work spread over all of them; a part of the mean
step, and at most its compute. Only time in which nothing else runs on the device counts: another kernel may use these
multiprocessors. Shorter kernels are covered by `small_kernels`, and kernels that only a single step of several launches
are left out. A low occupancy with enough blocks is a property of the kernel: it has no saving here.
"""

from __future__ import annotations

import polars as pl

from rankscope.answers.diagnosis.anchors import event_anchor
from rankscope.answers.diagnosis.recurring_costs import cost_of
from rankscope.answers.diagnosis.step_costs import steps_of
from rankscope.primitives.kernels import COMPUTE
from rankscope.results import Evidence, Finding, Inputs, Rule
from rankscope.rundir.plurals import counted

_LONG_NS = 10_000
"""Shorter kernels are a matter of `small_kernels`."""
_SHOWN = 3


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run, naming the kernels that cost most."""
    frame = inputs.results.get("kernels")
    if frame is None:
        return []
    few = frame.filter(
        (pl.col("category") == COMPUTE)
        & (pl.col("median_ns") >= _LONG_NS)
        & (pl.col("blocks_per_sm") < 1)
        & (pl.col("unfilled_ns") > 0)
    )
    cost = cost_of(few, "unfilled_ns", ("compute_ns",), inputs)
    if cost is None:
        return []
    worst, lost = cost.worst, cost.by_rank[cost.worst.rank]
    shown = (
        cost.rows.filter(pl.col("rank") == worst.rank)
        .sort("unfilled_ns", "name", descending=[True, False])
        .head(_SHOWN)
    )
    evidence = [Evidence(f"time without blocks, nothing else running ({cost.unit.per}, worst rank)", lost, "ns")]
    for row in shown.iter_rows(named=True):
        said = f"{row['name'][:120]}: {row['blocks_per_sm']:.2f} blocks per SM, {counted(row['calls'], 'call')}"
        evidence.append(Evidence(said, row["total_ns"], "ns"))
    return [
        Finding(
            rule.name,
            worst.severity,
            "Kernels with less than one block per multiprocessor leave part of the device without work",
            ranks=worst.ranks,
            steps=steps_of(inputs),
            evidence=(*evidence, cost.length),
            saving_ns=worst.saving_ns,
            anchor=event_anchor(inputs, "unfilled", worst.rank),
            advice="Give them more blocks (a larger batch, longer rows), or run several at once on several streams.",
        )
    ]


rule = Rule("low_occupancy", __doc__, ("step_time", "kernels", "evidence_events"), find, parts=("compute",))
