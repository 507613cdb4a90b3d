"""The device waits for the host to launch.

Fires if the gaps before kernels that were launched too late (`idle --by step`) are large enough and at most half of
them precede short kernels; otherwise `small_kernels` fires. Data loading, waiting calls, memory allocation
(`memory_retries`), runtime calls of more than 100 µs and an idle host are excluded. The saving is all of these gaps,
median over steps, on the rank with the most: a host that is always ahead would leave none. If only some steps have
them, but more than one, the saving is the mean over all steps, a part of the mean step. The evidence names what the
host did meanwhile (`idle`), and steps that stand out.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from rankscope.answers.diagnosis.advice import job_of
from rankscope.answers.diagnosis.anchors import event_anchor
from rankscope.answers.diagnosis.effects import LATE_AFTER_WAITS, MEMORY_CALLS, SLOW_HOST
from rankscope.answers.diagnosis.recurring_costs import in_bursts, larger_share
from rankscope.answers.diagnosis.step_costs import (
    named_steps,
    on_worst_rank,
    relevant_ranks,
    severity_of,
    step_ns,
    step_words,
    steps_of,
    unusual,
    usual,
)
from rankscope.results import Evidence, Finding, Inputs, Rule

_LONG_NS = 100_000
"""The mean idle time in an operator from which it is no launch of many that is late, but this one operator."""
_MOST = 0.5
"""Of the device's idle time."""


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run: what most steps wait or, if it is a larger share, what some steps do."""
    step, frame = step_ns(inputs), inputs.results.get("idle_by_step")
    if frame is None or step is None or not frame["on_device"].any():
        return []
    late = frame.filter("on_device")
    return larger_share(_usually(late, step, inputs), _in_bursts(late, inputs), step)


def _usually(late: pl.DataFrame, step: int, inputs: Inputs) -> list[Finding]:
    """What the median step waits."""
    unit = step_words(inputs)
    costs = usual(late, "late_ns", "late_short_ns", "pieces").sort("late_ns", "rank", descending=[True, False])
    worst = costs.row(0, named=True)
    saving = round(worst["late_ns"])
    severity = severity_of(saving, step)
    if severity is None or worst["late_short_ns"] > worst["late_ns"] / 2:
        return []
    evidence = [
        Evidence(f"device idle until a late launch ({unit.per}, worst rank)", saving, "ns"),
        Evidence("of which before kernels shorter than 10 µs", round(worst["late_short_ns"]), "ns"),
        Evidence(f"kernels {unit.per}", round(worst["pieces"]), "count"),
        Evidence(unit.length, step, "ns"),
        *unusual(late, "late_ns", worst["rank"], step),
    ]
    operator = _top_operator(inputs, worst["rank"])
    if operator is not None:
        evidence.append(Evidence("operator with the most device idle time", operator["detail"][:120]))
    ranks = relevant_ranks(dict(costs.select("rank", "late_ns").iter_rows()), step)
    whose = on_worst_rank(inputs, worst["rank"], ranks)
    return [
        Finding(
            rule.name,
            severity,
            f"The device waits for the host to launch kernels for {unit.share(saving, step)}{whose}",
            ranks=ranks,
            steps=steps_of(inputs),
            evidence=tuple(evidence),
            saving_ns=saving,
            anchor=event_anchor(inputs, "late_launch", worst["rank"]),
            advice=_advice(inputs, worst["rank"]),
        )
    ]


def _in_bursts(late: pl.DataFrame, inputs: Inputs) -> list[Finding]:
    """Some steps wait and most do not: every tenth logs, evaluates, or meets new sizes."""
    found = in_bursts(late, "late_ns", inputs)
    if found is None:
        return []
    slow = late.filter((pl.col("rank") == found.rank) & pl.col("step").is_in(found.steps))
    short = int(slow["late_short_ns"].sum())
    if short > found.total_ns / 2:
        return []
    evidence = (
        Evidence(f"device idle until a late launch, {named_steps(found.steps)}", found.total_ns, "ns"),
        Evidence("of which before kernels shorter than 10 µs", short, "ns"),
    )
    what = "The device waits for the host to launch kernels"
    return found.finding(rule.name, what, evidence, "late_launch", _advice(inputs, found.rank), inputs)


def _advice(inputs: Inputs, rank: int) -> str:
    operator = _top_operator(inputs, rank)
    if operator is not None and operator["mean_ns"] >= _LONG_NS and operator["share"] >= _MOST:
        name = operator["detail"][:120]
        return f"Look at {name}, which holds the launches up: move it out of the loop, or do it less often."
    return (
        "Launch less and earlier: torch.compile, CUDA graphs (mode='reduce-overhead'), "
        + ("fused optimizers (AdamW(fused=True)), " if job_of(inputs).trains else "")
        + "logging and metrics outside of the loop; a larger batch makes each kernel longer."
    )


def _top_operator(inputs: Inputs, rank: int) -> dict[str, Any] | None:
    """The row of `idle` of the host's operator in which the rank's device is idle longest."""
    idle = inputs.results.get("idle")
    if idle is None:
        return None
    own = idle.filter((pl.col("rank") == rank) & pl.col("stream").is_null() & (pl.col("cause") == "operator"))
    top = own.drop_nulls("detail").sort("idle_ns", "detail", descending=[True, False]).head(1)
    return None if top.is_empty() else top.row(0, named=True)


rule = Rule(
    "launch_bound",
    __doc__,
    ("step_time", "idle_by_step", "idle", "evidence_events"),
    find,
    parts=("host",),
    symptom_of=(SLOW_HOST, MEMORY_CALLS, LATE_AFTER_WAITS),
)
