"""Python collects garbage during steps.

Fires if the device is idle long enough during the ranges that capture records around collections (`gc: generation 2`,
and 1), or that torch records (`Python GC`, with `record_python_gc_info`); on the CPU, if they take that long. The
saving is that time, on the rank with the most. Collections at different times on different ranks cost more than each
of them, because all ranks wait for the one that collects: the saving is then a lower bound.
"""

from __future__ import annotations

import polars as pl

from rankscope.diagnosis.anchors import event_anchor
from rankscope.diagnosis.effects import SLOW_HOST
from rankscope.diagnosis.step_costs import (
    on_worst_rank,
    per_step,
    relevant_ranks,
    step_ns,
    step_words,
    steps_of,
    within_available,
    worst_rank,
)
from rankscope.primitives.annotation_origin import garbage_collections
from rankscope.results import Evidence, Finding, Inputs, Rule


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run."""
    step, frame = step_ns(inputs), inputs.results.get("annotations")
    unit = step_words(inputs)
    if frame is None or step is None:
        return []
    own = garbage_collections(frame)
    # A collection costs nothing while the device works on what was launched before it.
    cost = own.with_columns(pl.coalesce("idle_in_steps_ns", "host_in_steps_ns").alias("cost"))
    savings = within_available(per_step(cost, "cost", inputs), ("window_ns",), inputs)
    worst = worst_rank(savings, step)
    if worst is None:
        return []
    mine = own.filter(pl.col("rank") == worst.rank)
    ranks = relevant_ranks(savings, step)
    return [
        Finding(
            rule.name,
            worst.severity,
            "Python's garbage collection takes "
            f"{unit.share(worst.saving_ns, step)}{on_worst_rank(inputs, worst.rank, ranks)}",
            ranks=ranks,
            steps=steps_of(inputs),
            evidence=(
                Evidence(
                    f"time in collections, {unit.per}", per_step(own, "host_in_steps_ns", inputs)[worst.rank], "ns"
                ),
                Evidence(f"of it with an idle device, {unit.per}", worst.saving_ns, "ns"),
                Evidence("collections, entire file", int(mine["calls"].sum()), "count"),
                Evidence("the longest", int(mine["max_ns"].to_numpy().max()), "ns"),
                Evidence(unit.length, step, "ns"),
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
