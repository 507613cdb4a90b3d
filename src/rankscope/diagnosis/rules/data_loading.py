"""The job waits for data.

Fires if nothing but data loading runs for 1 % of the step or more on a rank: its device is idle then, or without one,
no operator runs. The saving is that time, median over steps, on the rank with the most: a loader that is always ready
would leave none. Workers that are too slow deliver in bursts: if only some steps wait, but more than one, the saving is
the mean over all steps.
"""

from __future__ import annotations

import polars as pl

from rankscope.diagnosis.anchors import event_anchor
from rankscope.diagnosis.effects import LATE_DATA
from rankscope.diagnosis.step_costs import (
    WARNING_SHARE,
    named_steps,
    on_worst_rank,
    severity_of,
    step_ns,
    step_words,
    steps_of,
    unusual,
    usual_per_step,
)
from rankscope.results import Evidence, Finding, Inputs, Rule

_AGAIN = 2
"""Steps that wait: one alone may be the start of an epoch."""
_ADVICE = (
    "Give the DataLoader more workers (num_workers), persistent_workers=True and a larger prefetch_factor, "
    "pin_memory=True with non_blocking copies, or move the transforms out of the training process."
)


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run, with the ranks whose loading is worth it."""
    step, frame = step_ns(inputs), inputs.results.get("step_time")
    if step is None or frame is None:
        return []
    loading = usual_per_step(inputs, "data_loading_ns")
    worst = max(loading, key=lambda rank: loading[rank], default=None)
    severity = None if worst is None else severity_of(loading[worst], step)
    unit = step_words(inputs)
    if worst is None or severity is None:
        return _in_bursts(frame, step, inputs)
    ranks = tuple(rank for rank, value in loading.items() if severity_of(value, step) is not None)
    return [
        Finding(
            rule.name,
            severity,
            f"The job waits for data for {unit.share(loading[worst], step)}{on_worst_rank(inputs, worst, ranks)}",
            ranks=ranks,
            steps=steps_of(inputs),
            evidence=(
                Evidence(f"data loading, nothing else running ({unit.per}, worst rank)", loading[worst], "ns"),
                Evidence("mean over ranks", round(sum(loading.values()) / len(loading)), "ns"),
                Evidence(unit.length, step, "ns"),
                *unusual(frame, "data_loading_ns", worst, step),
            ),
            saving_ns=loading[worst],
            anchor=event_anchor(inputs, "data_loading", worst),
            advice=_ADVICE,
        )
    ]


def _in_bursts(frame: pl.DataFrame, step: int, inputs: Inputs) -> list[Finding]:
    """Workers that are too slow give a batch each and then make the job wait: in some steps, again and again."""
    slow = frame.filter(pl.col("step").is_not_null() & (pl.col("data_loading_ns") >= WARNING_SHARE * step))
    often = slow.group_by("rank").agg(pl.len().alias("times"), pl.col("data_loading_ns").sum())
    of_all = frame.group_by("rank").agg(pl.len().alias("steps"))
    rows = often.filter(pl.col("times") >= _AGAIN).join(of_all, on="rank")
    rows = rows.sort("data_loading_ns", "rank", descending=[True, False])
    if rows.is_empty():
        return []
    worst = rows.row(0, named=True)
    saving = min(step, round(worst["data_loading_ns"] / worst["steps"]))
    severity = severity_of(saving, step)
    if severity is None:
        return []
    steps = slow.filter(pl.col("rank") == worst["rank"])["step"].sort().to_list()
    whose = on_worst_rank(inputs, worst["rank"], tuple(rows["rank"].sort().to_list()))
    return [
        Finding(
            rule.name,
            severity,
            f"The job waits for data in {worst['times']} of {worst['steps']} steps{whose}",
            ranks=tuple(rows["rank"].sort().to_list()),
            steps=tuple(steps),
            evidence=(
                Evidence(f"data loading, nothing else running, {named_steps(steps)}", worst["data_loading_ns"], "ns"),
                Evidence("mean over all steps", round(worst["data_loading_ns"] / worst["steps"]), "ns"),
                Evidence(step_words(inputs).length, step, "ns"),
            ),
            saving_ns=saving,
            anchor=event_anchor(inputs, "data_loading", worst["rank"], steps=steps),
            advice=_ADVICE,
        )
    ]


rule = Rule("data_loading", __doc__, ("step_time", "evidence_events"), find, parts=("data",), symptom_of=(LATE_DATA,))
