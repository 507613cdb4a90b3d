"""The host waits for the device during a step.

Fires if calls such as `.item()`, `.cpu()`, `nonzero` or an explicit synchronize leave the device idle: the host
launches nothing while it waits. The saving is the device's idle time after them (`synchronization`), on the rank with
the most, a part of the mean step. What a single step of several does is left out.
"""

from __future__ import annotations

import polars as pl

from rankscope.answers.diagnosis.advice import job_of
from rankscope.answers.diagnosis.anchors import event_anchor
from rankscope.answers.diagnosis.effects import LATE_DATA, LOADING, MEMORY_CALLS, SLOW_HOST
from rankscope.answers.diagnosis.recurring_costs import cost_of
from rankscope.answers.diagnosis.step_costs import on_worst_rank, steps_of
from rankscope.primitives.activity import IDLE
from rankscope.results import Evidence, Finding, Inputs, Rule
from rankscope.rundir.plurals import counted

_SHOWN = 3


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run, naming the places that cost most."""
    frame = inputs.results.get("synchronization")
    cost = None if frame is None else cost_of(frame, "idle_ns", IDLE, inputs)
    if cost is None:
        return []
    worst, idle = cost.worst, cost.by_rank[cost.worst.rank]
    places = cost.rows.filter(pl.col("rank") == worst.rank).head(_SHOWN)
    evidence = [Evidence(f"device idle after such calls ({cost.unit.per}, worst rank)", idle, "ns")]
    if worst.saving_ns < idle:
        evidence.append(Evidence("at most, by the device's idle time in its steps", worst.saving_ns, "ns"))
    for row in places.iter_rows(named=True):
        where = row["operator"] or "no operator"
        inside = f" in {row['range']}" if row["range"] else ""
        calls = counted(row["calls"], "call")
        evidence.append(Evidence(f"{row['call']} from {where}{inside}, {calls}", row["per_step_ns"], "ns"))
    whose = on_worst_rank(inputs, worst.rank, worst.ranks)
    return [
        Finding(
            rule.name,
            worst.severity,
            f"Calls that wait for the device leave it idle for {cost.share}{whose}",
            ranks=worst.ranks,
            steps=steps_of(inputs),
            evidence=(*evidence, cost.length),
            saving_ns=worst.saving_ns,
            anchor=event_anchor(inputs, "host_wait", worst.rank),
            advice=(
                "Keep values on the device: "
                + (
                    "copy sampled tokens to the host while the next step runs"
                    if job_of(inputs).infers
                    else "accumulate the loss there and read it every few steps instead of calling .item() in each"
                )
                + ", copy with non_blocking=True from pinned memory, replace nonzero and boolean masks by where, and "
                "take torch.cuda.synchronize() out of the loop."
            ),
        )
    ]


rule = Rule(
    "synchronizing_calls",
    __doc__,
    ("step_time", "synchronization", "evidence_events"),
    find,
    parts=("host", "data"),
    symptom_of=(SLOW_HOST, MEMORY_CALLS, LATE_DATA, LOADING),
)
