"""The job waits for data.

Fires if nothing but data loading runs for 1 % of the step or more on a rank: its device is idle then, or without one,
no operator runs. The saving is that time, median over steps, on the rank with the most: a loader that is always ready
would leave none. Workers that are too slow deliver in bursts: if only some steps wait, but more than one, the saving is
the mean over all steps, a part of the mean step.
"""

from __future__ import annotations

import polars as pl

from rankscope.answers.diagnosis.anchors import event_anchor
from rankscope.answers.diagnosis.effects import LATE_DATA
from rankscope.answers.diagnosis.recurring_costs import in_bursts, larger_share
from rankscope.answers.diagnosis.step_costs import (
    named_steps,
    on_device,
    on_worst_rank,
    step_ns,
    step_words,
    steps_of,
    unusual,
    usual_per_step,
    worst_rank,
)
from rankscope.results import Evidence, Finding, Inputs, Rule

_ADVICE = (
    "Give the DataLoader more workers (num_workers), persistent_workers=True and a larger prefetch_factor{pinned}, or "
    "move the transforms out of the training process."
)
_PINNED = ", pin_memory=True with non_blocking copies"


def _advice(inputs: Inputs) -> str:
    return _ADVICE.format(pinned=_PINNED if on_device(inputs) else "")


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run: what most steps wait or, if it is a larger share, what some steps do."""
    step, frame = step_ns(inputs), inputs.results.get("step_time")
    if step is None or frame is None:
        return []
    return larger_share(_usually(frame, step, inputs), _in_bursts(frame, inputs), step)


def _usually(frame: pl.DataFrame, step: int, inputs: Inputs) -> list[Finding]:
    """What the median step waits."""
    loading = usual_per_step(inputs, "data_loading_ns")
    worst = worst_rank(loading, step)
    if worst is None:
        return []
    unit, rank, mean = step_words(inputs), worst.rank, round(sum(loading.values()) / len(loading))
    share = unit.share(worst.saving_ns, step)
    return [
        Finding(
            rule.name,
            worst.severity,
            f"The job waits for data for {share}{on_worst_rank(inputs, rank, worst.ranks)}",
            ranks=worst.ranks,
            steps=steps_of(inputs),
            evidence=(
                Evidence(f"data loading, nothing else running ({unit.per}, worst rank)", worst.saving_ns, "ns"),
                Evidence("mean over ranks", mean, "ns"),
                Evidence(unit.length, step, "ns"),
                *unusual(frame, "data_loading_ns", rank, step),
            ),
            saving_ns=worst.saving_ns,
            anchor=event_anchor(inputs, "data_loading", rank),
            advice=_advice(inputs),
        )
    ]


def _in_bursts(frame: pl.DataFrame, inputs: Inputs) -> list[Finding]:
    """Workers that are too slow give a batch each and then make the job wait: in some steps, again and again."""
    found = in_bursts(frame, "data_loading_ns", inputs)
    if found is None:
        return []
    loading = f"data loading, nothing else running, {named_steps(found.steps)}"
    evidence = (Evidence(loading, found.total_ns, "ns"),)
    return found.finding(rule.name, "The job waits for data", evidence, "data_loading", _advice(inputs), inputs)


rule = Rule("data_loading", __doc__, ("step_time", "evidence_events"), find, parts=("data",), symptom_of=(LATE_DATA,))
