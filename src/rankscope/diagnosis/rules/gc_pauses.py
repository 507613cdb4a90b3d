"""Python collects garbage during steps.

Fires if the device is idle long enough during the ranges that capture records around collections (`gc: generation 2`,
and 1), or that torch records (`Python GC`, with `record_python_gc_info`); on the CPU, if they take that long. The
saving is that time, on the rank that has most. Collections at different times on different ranks cost more than each
of them, because all ranks wait for the one that collects: the saving is then a lower bound.
"""

from __future__ import annotations

import polars as pl

from rankscope.diagnosis.effects import SLOW_HOST
from rankscope.diagnosis.step_costs import (
    on_worst_rank,
    per_step,
    relevant_ranks,
    severity_of,
    step_ns,
    step_words,
    steps_of,
    within_available,
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
    worst = next(iter(savings), None)
    severity = severity_of(savings[worst], step) if worst is not None else None
    if worst is None or severity is None:
        return []
    mine = own.filter(pl.col("rank") == worst)
    ranks = relevant_ranks(savings, step)
    return [
        Finding(
            rule.name,
            severity,
            "Python's garbage collection takes "
            f"{unit.share(savings[worst], step)}{on_worst_rank(inputs, worst, ranks)}",
            ranks=ranks,
            steps=steps_of(inputs),
            evidence=(
                Evidence(f"time in collections, {unit.per}", per_step(own, "host_in_steps_ns", inputs)[worst], "ns"),
                Evidence(f"of it with an idle device, {unit.per}", savings[worst], "ns"),
                Evidence("collections, entire file", int(mine["calls"].sum()), "count"),
                Evidence("the longest", int(mine["max_ns"].to_numpy().max()), "ns"),
                Evidence(unit.length, step, "ns"),
            ),
            saving_ns=savings[worst],
            advice=(
                "Call gc.collect(), gc.freeze() and gc.disable() before the loop, and gc.collect(1) every so many "
                "steps, on all ranks in the same one. Take gc.collect() out of the loop."
            ),
        )
    ]


rule = Rule("gc_pauses", __doc__, ("step_time", "annotations"), find, parts=("host", "data"), symptom_of=(SLOW_HOST,))
