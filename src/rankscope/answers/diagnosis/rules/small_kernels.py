"""Kernels so short that launching them takes longer than running them.

Fires if the gaps before compute kernels shorter than 10 µs (`idle --by step`) are large enough and are most of the gaps
from late launches (otherwise `launch_bound` fires): a launch costs the host some microseconds, so it can hardly keep
a device supplied with shorter kernels. The saving is these gaps. On the CPU the pieces are operators shorter than 20
µs, and the saving is the time in them and before them, less the profiler's measured cost per step: fused into a few,
they would take very little. On the CPU it needs ten of them per step or more, and a saving of most of a step without
the profiler's cost.
"""

from __future__ import annotations

import polars as pl

from rankscope.answers.diagnosis.advice import job_of
from rankscope.answers.diagnosis.anchors import event_anchor
from rankscope.answers.diagnosis.effects import MEMORY_CALLS, SLOW_HOST
from rankscope.answers.diagnosis.step_costs import (
    recording_overhead,
    relevant_ranks,
    severity_of,
    step_ns,
    step_words,
    steps_of,
    usual,
)
from rankscope.results import Evidence, Finding, Inputs, Rule

_SHARE = 0.5
"""Of the gaps from late launches: if more are before short kernels, these are the cause."""
_MANY = 0.5
"""Of a step on the CPU: every model has some short operators, and these do not matter."""
_FEW = 10
"""Operators a step: fewer are a few already."""


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run."""
    step, frame = step_ns(inputs), inputs.results.get("idle_by_step")
    unit = step_words(inputs)
    if frame is None or step is None or frame.is_empty():
        return []
    frame = frame.with_columns((pl.col("short_ns") + pl.col("late_short_ns")).alias("cost"))
    costs = usual(frame, "pieces", "short", "short_ns", "late_ns", "late_short_ns", "cost").join(
        frame.select("rank", "on_device").unique(), on="rank"
    )
    added = recording_overhead(inputs)
    extra = pl.col("rank").replace_strict(added, default=0)
    alone = pl.col("cost") - extra
    found = (
        costs.with_columns(pl.when("on_device").then("late_short_ns").otherwise(alone.clip(0)).alias("saving"))
        .filter(
            pl.when("on_device")
            .then(pl.col("late_short_ns") > _SHARE * pl.col("late_ns"))
            # Both without the profiler's cost: operators that fill a step still fill it where recording is expensive.
            .otherwise((pl.col("short") >= _FEW) & (pl.col("saving") > _MANY * (step - extra)))
        )
        .sort("saving", "rank", descending=[True, False])
    )
    if found.is_empty():
        return []
    worst = found.row(0, named=True)
    saving = round(worst["saving"])
    severity = severity_of(saving, step)
    if severity is None:
        return []
    what, limit = ("compute kernels", "10 µs") if worst["on_device"] else ("operators", "20 µs")
    meanwhile = "with the device idle before them" if worst["on_device"] else "and the time between them dominates"
    evidence = [
        Evidence(f"{what} {unit.per}", round(worst["pieces"]), "count"),
        Evidence(f"shorter than {limit}", round(worst["short"]), "count"),
        Evidence(f"time in these, {unit.per}", round(worst["short_ns"]), "ns"),
        Evidence(f"gaps before these, {unit.per}", round(worst["late_short_ns"]), "ns"),
    ]
    if not worst["on_device"] and worst["rank"] in added:
        evidence.append(Evidence(f"what the profiler adds to {unit.one}", added[worst["rank"]], "ns"))
    return [
        Finding(
            rule.name,
            severity,
            f"{100 * worst['short'] / worst['pieces']:.0f} % of the {what} are shorter than {limit}, {meanwhile}",
            ranks=relevant_ranks(dict(found.select("rank", "saving").iter_rows()), step),
            steps=steps_of(inputs),
            evidence=tuple(evidence),
            saving_ns=saving,
            anchor=event_anchor(inputs, "late_short_launch", worst["rank"]),
            advice=(
                "Let torch.compile fuse them, "
                + ("use CUDA graphs (mode='reduce-overhead'), " if worst["on_device"] else "use ")
                + ("fused optimizers (AdamW(fused=True)) and " if job_of(inputs).trains else "")
                + "foreach operations, or a larger batch."
            ),
        )
    ]


rule = Rule(
    "small_kernels",
    __doc__,
    ("step_time", "idle_by_step", "evidence_events"),
    find,
    parts=("host", "compute"),
    symptom_of=(SLOW_HOST, MEMORY_CALLS),
)
