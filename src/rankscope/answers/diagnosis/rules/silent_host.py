"""The device waits for a host that records no operator.

Fires if the device is idle long enough in gaps before late launches in which the host records neither an operator nor a
runtime call for longer than 100 µs (`idle --by step`): it runs Python or another library's code, sleeps, or has no
core. The title names the job's own function that it is mostly in, where stacks are recorded. Data loading, garbage
collection, compiling and Gloo have rules of their own and do not count. The saving is that time, median over steps, on
the rank with the most. If only some steps have it, but more than one, it is the mean over all steps, a part of the mean
step. It does not fire if operators are not recorded.
"""

from __future__ import annotations

import polars as pl

from rankscope.answers.diagnosis.advice import job_of
from rankscope.answers.diagnosis.anchors import event_anchor
from rankscope.answers.diagnosis.effects import SILENT_AFTER_WAITS, SLOW_HOST
from rankscope.answers.diagnosis.recurring_costs import in_bursts, larger_share
from rankscope.answers.diagnosis.step_costs import (
    most_of,
    named_steps,
    on_worst_rank,
    step_ns,
    step_words,
    steps_of,
    unusual,
    usual,
    worst_rank,
)
from rankscope.primitives.stragglers.host_scopes import function_place
from rankscope.primitives.stragglers.thread_excess import CodePlace
from rankscope.results import Evidence, Finding, Inputs, Rule, recorded_of
from rankscope.store.account import STACKS

_TITLE = "The device waits for a host that records no operator"
_LOST = "device idle while the host records no operator"


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run: what most steps lose or, if it is a larger share, what some steps do."""
    step, frame = step_ns(inputs), inputs.results.get("idle_by_step")
    if step is None or frame is None:
        return []
    frame = frame.filter("on_device")
    return larger_share(_usually(frame, step, inputs), _in_bursts(frame, inputs), step)


def _usually(frame: pl.DataFrame, step: int, inputs: Inputs) -> list[Finding]:
    """What the median step loses."""
    costs = {int(rank): round(cost) for rank, cost in usual(frame, "silent_ns").iter_rows()}
    worst, unit = worst_rank(costs, step), step_words(inputs)
    if worst is None:
        return []
    whose = on_worst_rank(inputs, worst.rank, worst.ranks)
    function = _function(frame, worst.rank)
    return [
        Finding(
            rule.name,
            worst.severity,
            f"{_TITLE}{f', mostly in {function},' if function else ''} for {unit.share(worst.saving_ns, step)}{whose}",
            ranks=worst.ranks,
            steps=steps_of(inputs),
            evidence=(
                Evidence(f"{_LOST} ({unit.per}, worst rank)", worst.saving_ns, "ns"),
                Evidence(unit.length, step, "ns"),
                *unusual(frame, "silent_ns", worst.rank, step),
            ),
            saving_ns=worst.saving_ns,
            anchor=event_anchor(inputs, "silent_host", worst.rank),
            advice=f"Look at {function}: nothing is launched while it runs." if function else _advice(inputs),
        )
    ]


def _function(frame: pl.DataFrame, rank: int) -> str:
    """The function of the job that the host is in, where stacks are recorded: in most of the steps that have any."""
    most = most_of(frame, rank, "silent_frame", "silent_ns")
    place = function_place(most) if most is not None else None
    return "" if place is None else str(CodePlace(*place))


def _in_bursts(frame: pl.DataFrame, inputs: Inputs) -> list[Finding]:
    """Some steps lose time and most do not: every tenth logs, saves or evaluates."""
    found = in_bursts(frame, "silent_ns", inputs)
    if found is None:
        return []
    evidence = (Evidence(f"{_LOST}, {named_steps(found.steps)}", found.total_ns, "ns"),)
    return found.finding(rule.name, _TITLE, evidence, "silent_host", _advice(inputs), inputs)


def _advice(inputs: Inputs) -> str:
    often = (
        "Python between the steps (sampling, tokenizing, scheduling), or waiting for requests"
        if job_of(inputs).infers
        else "data that is loaded without a DataLoader, logging, checkpoints or evaluation"
    )
    stacks = "" if STACKS in recorded_of(inputs.traces) else "with_stack=True records its Python functions, "
    return (
        f"Find out what the host does then: {stacks}torch.profiler.record_function names parts of the loop. Often it "
        f"is {often}, a lock, or too few CPU cores."
    )


rule = Rule(
    "silent_host",
    __doc__,
    ("step_time", "idle_by_step", "evidence_events"),
    find,
    parts=("host",),
    symptom_of=(SLOW_HOST, SILENT_AFTER_WAITS),
)
