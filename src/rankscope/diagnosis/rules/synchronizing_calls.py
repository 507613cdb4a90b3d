"""The host waits for the device during a step.

Fires if calls such as `.item()`, `.cpu()`, `nonzero` or an explicit synchronize leave the device idle: the host
launches nothing while it waits. The saving is the device's idle time after them (`synchronization`), on the rank with
the most. Places in the code with such a call in fewer than half of the steps are left out.
"""

from __future__ import annotations

import polars as pl

from rankscope.diagnosis.advice import job_of
from rankscope.diagnosis.anchors import event_anchor
from rankscope.diagnosis.effects import LATE_DATA, LOADING, MEMORY_CALLS, SLOW_HOST
from rankscope.diagnosis.step_costs import (
    IDLE,
    in_most_steps,
    on_worst_rank,
    step_ns,
    step_words,
    steps_of,
    within_available,
    worst_rank,
)
from rankscope.results import Evidence, Finding, Inputs, Rule
from rankscope.rundir.plurals import counted

_SHOWN = 3


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run, naming the places that cost most."""
    step, frame = step_ns(inputs), inputs.results.get("synchronization")
    unit = step_words(inputs)
    if frame is None or step is None:
        return []
    frame = in_most_steps(frame, inputs)
    by_rank = dict(frame.group_by("rank").agg(pl.col("per_step_ns").sum()).iter_rows())
    savings = within_available(by_rank, IDLE, inputs)
    worst = worst_rank(savings, step)
    if worst is None:
        return []
    places = frame.filter(pl.col("rank") == worst.rank).head(_SHOWN)
    evidence = [Evidence(f"device idle after such calls ({unit.per}, worst rank)", by_rank[worst.rank], "ns")]
    if worst.saving_ns < by_rank[worst.rank]:
        evidence.append(Evidence("device idle in its median step, for any reason", worst.saving_ns, "ns"))
    for row in places.iter_rows(named=True):
        where = row["operator"] or "no operator"
        inside = f" in {row['range']}" if row["range"] else ""
        calls = counted(row["calls"], "call")
        evidence.append(Evidence(f"{row['call']} from {where}{inside}, {calls}", row["per_step_ns"], "ns"))
    evidence.append(Evidence(unit.length, step, "ns"))
    ranks = tuple(sorted(rank for rank, value in by_rank.items() if value >= by_rank[worst.rank] / 2))
    whose = on_worst_rank(inputs, worst.rank, ranks)
    return [
        Finding(
            rule.name,
            worst.severity,
            f"Calls that wait for the device leave it idle for {unit.share(worst.saving_ns, step)}{whose}",
            ranks=ranks,
            steps=steps_of(inputs),
            evidence=tuple(evidence),
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
