"""Python collects garbage during steps.

Fires if the device is idle long enough during the ranges that capture records around collections (`gc: generation 2`,
and 1), or that torch records (`Python GC`, with `record_python_gc_info`); on the CPU, if they take that long. The
saving is that time, on the rank with the most, a part of the mean step. What a single step of several does is left
out. Collections at different times on different ranks cost more than each of them, because all ranks wait for the one
that collects: the saving is then a lower bound.
"""

from __future__ import annotations

import polars as pl

from rankscope.answers.diagnosis.anchors import event_anchor
from rankscope.answers.diagnosis.effects import SLOW_HOST
from rankscope.answers.diagnosis.recurring_costs import cost_of
from rankscope.answers.diagnosis.step_costs import on_worst_rank, per_step, steps_of
from rankscope.primitives.activity import IDLE
from rankscope.primitives.annotation_origin import garbage_collections
from rankscope.results import Evidence, Finding, Inputs, Rule


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run."""
    frame = inputs.results.get("annotations")
    if frame is None:
        return []
    # A collection costs nothing while the device works on what was launched before it.
    idle = pl.coalesce("idle_in_steps_ns", "host_in_steps_ns").alias("idle")
    own = garbage_collections(frame)
    available = IDLE if own["idle_in_steps_ns"].drop_nulls().len() else ("window_ns",)
    cost = cost_of(own.with_columns(idle), "idle", available, inputs)
    if cost is None:
        return []
    worst, unit = cost.worst, cost.unit
    mine = own.filter(pl.col("rank") == worst.rank)
    taken = per_step(cost.rows, "host_in_steps_ns", inputs)[worst.rank]
    return [
        Finding(
            rule.name,
            worst.severity,
            f"Python's garbage collection takes {cost.share}{on_worst_rank(inputs, worst.rank, worst.ranks)}",
            ranks=worst.ranks,
            steps=steps_of(inputs),
            evidence=(
                Evidence(f"time in collections, {unit.per}", taken, "ns"),
                Evidence(f"of which with an idle device, {unit.per}", worst.saving_ns, "ns"),
                Evidence("collections, entire file", int(mine["calls"].sum()), "count"),
                Evidence("the longest", int(mine["max_ns"].to_numpy().max()), "ns"),
                cost.length,
            ),
            saving_ns=worst.saving_ns,
            anchor=event_anchor(inputs, "garbage_collection", worst.rank),
            advice=(
                "Call gc.collect(), gc.freeze() and gc.disable() before the loop, and gc.collect(1) every few "
                "hundred steps, on all ranks in the same step. Remove other gc.collect() calls from the loop."
            ),
        )
    ]


rule = Rule(
    "gc_pauses",
    __doc__,
    ("step_time", "annotations", "evidence_events"),
    find,
    parts=("host", "data"),
    symptom_of=(SLOW_HOST,),
)
