"""The device waits for long calls into its runtime, or for the first use of a library.

Fires if the device is idle long enough in gaps before late launches in which the host is in a runtime call of more than
100 µs that neither waits for the device nor allocates memory, or in a first call (`idle --by step`): the driver loads
code, creates a context, or captures and instantiates a graph. What recurs is a warning with a saving: the time, median
over steps, on the rank with the most. What does not, is the start of the job, with the calls before the first device
event: an info that says to record after it. The title names the call with most of that time.
"""

from __future__ import annotations

import polars as pl

from rankscope.answers.diagnosis.anchors import event_anchor
from rankscope.answers.diagnosis.effects import LATE_AFTER_WAITS, MEMORY_CALLS, SLOW_HOST
from rankscope.answers.diagnosis.step_costs import (
    average_step,
    most_of,
    named_steps,
    number_of_steps,
    on_worst_rank,
    step_ns,
    step_words,
    steps_of,
    usual,
    worst_rank,
)
from rankscope.results import Evidence, Finding, Inputs, Rule, recorded_of
from rankscope.store.account import STACKS

_ONCE = 0.05
"""Of the recorded time: less of it in first calls is not worth a word."""
_FIRST = 2
"""Steps of a window: what is first used in a later one is not what the job begins with."""
_RECURS = 3
"""Steps: in fewer, nothing tells what recurs from a first use."""
_LOST = "device idle in long runtime calls and first calls"
_BEFORE = "such calls before the first device event"


def find(inputs: Inputs) -> list[Finding]:
    """At most one finding: what most steps have, else what the job does once."""
    step, frame = step_ns(inputs), inputs.results.get("idle_by_step")
    if step is None or frame is None:
        return []
    frame = frame.filter("on_device")
    return (_usually(frame, step, inputs) if number_of_steps(inputs) >= _RECURS else []) or _once(frame, inputs)


def _usually(frame: pl.DataFrame, step: int, inputs: Inputs) -> list[Finding]:
    costs = {int(rank): round(cost) for rank, cost in usual(frame, "long_calls_ns").iter_rows()}
    worst, unit = worst_rank(costs, step), step_words(inputs)
    if worst is None:
        return []
    call = _call(frame, worst.rank)
    caller = "" if STACKS in recorded_of(inputs.traces) else " --with-stack records which function calls it."
    whose = on_worst_rank(inputs, worst.rank, worst.ranks)
    return [
        Finding(
            rule.name,
            worst.severity,
            f"The device waits for long calls{f' of {call}' if call else ''} for "
            f"{unit.share(worst.saving_ns, step)}{whose}",
            ranks=worst.ranks,
            steps=steps_of(inputs),
            evidence=(
                Evidence(f"{_LOST} ({unit.per}, worst rank)", worst.saving_ns, "ns"),
                Evidence(unit.length, step, "ns"),
            ),
            saving_ns=worst.saving_ns,
            anchor=event_anchor(inputs, "long_calls", worst.rank),
            advice=f"Find out why {call or 'such a call'} is made in every step: code that is loaded or compiled "
            f"again, a new graph, a library that is initialized anew.{caller}",
        )
    ]


def _once(frame: pl.DataFrame, inputs: Inputs) -> list[Finding]:
    """What happens at the first use: of a span without steps, or in steps that are unlike the others."""
    step, unit = average_step(inputs)
    if step is None or frame.is_empty():
        return []
    # The first allocations are part of it, too.
    frame = frame.with_columns(pl.sum_horizontal("long_calls_ns", "allocator_ns", "before_first_ns").alias("first"))
    totals = frame.group_by("rank").agg(pl.col("first", "before_first_ns").sum(), pl.len().alias("steps"))
    row = totals.sort("first", "rank", descending=[True, False]).row(0, named=True)
    lost, recorded = int(row["first"]), step * row["steps"]
    if lost < _ONCE * recorded:
        return []
    rank = int(row["rank"])
    most = frame.filter((pl.col("rank") == rank) & (2 * pl.col("first") >= pl.col("first").max()))
    steps = tuple(most["step"].drop_nulls().sort().to_list())
    begins = most.join(_first_steps(frame), on=["rank", "window"])
    if begins.filter(pl.col("step") >= pl.col("first_step") + _FIRST).height:
        return []  # later in the job it is a stall
    call = _call(frame, rank)
    before = int(row["before_first_ns"])
    within = lost - before
    what = f"keep the device of rank {rank} idle"
    what += f" in {named_steps(steps)}" if steps else f" ({100 * min(within / recorded, 1):.0f} % of {unit.one})"
    if before > within:
        what = f"delay the first kernel of rank {rank}"
    costs = ((_LOST, within), (_BEFORE, before))
    return [
        Finding(
            rule.name,
            "info",
            f"First calls{f', most of all {call},' if call else ''} {what}",
            ranks=(rank,),
            steps=steps,
            evidence=(*(Evidence(name, ns, "ns") for name, ns in costs if ns), Evidence(unit.length, step, "ns")),
            advice="Record after the warm-up: libraries and code are loaded and contexts are made at their first use "
            "(--wait, --warmup, schedule(wait=…, warmup=…)).",
        )
    ]


def _first_steps(frame: pl.DataFrame) -> pl.DataFrame:
    """The first step of each file: rank, window, first_step."""
    return frame.group_by("rank", "window").agg(pl.col("step").min().alias("first_step"))


def _call(frame: pl.DataFrame, rank: int) -> str:
    """The runtime call that is the longest one in most of the rank's time."""
    return (most_of(frame, rank, "long_call", "long_calls_ns", "allocator_ns", "before_first_ns") or "")[:80]


rule = Rule(
    "long_calls",
    __doc__,
    ("step_time", "idle_by_step", "evidence_events"),
    find,
    parts=("host",),
    symptom_of=(SLOW_HOST, MEMORY_CALLS, LATE_AFTER_WAITS),
)
