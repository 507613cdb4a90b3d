"""Check whether steps of two conditions did the same work: LBFGS calls its closure a varying number of times.

In: the measured work of steps. Out: a note, if it differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from rankscope.experiments.measure.jobs import Outcome

_TOLERANCE = 0.02


def unequal_work_notes(outcomes: Sequence[Outcome], one: str, other: str) -> list[str]:
    """The note on two conditions whose steps ran different numbers of backward passes; empty if they did not.

    Args:
        outcomes: the jobs.
        one: a condition.
        other: the condition to compare with.
    """
    passes = {name: _passes(outcomes, name) for name in (one, other)}
    if not all(passes.values()):
        return []
    a, b = (fmean(counts) for counts in passes.values())
    if abs(a - b) <= _TOLERANCE * max(a, b):
        return []
    return [
        f"a step of {one} ran {a:.3g} backward passes on average, a step of {other} {b:.3g}: an optimizer that calls "
        "its closure a varying number of times (LBFGS) does different work in them, so their times differ by more than "
        "synchronization. Give it a fixed number of evaluations, or measure with another optimizer"
    ]


def _passes(outcomes: Sequence[Outcome], condition: str) -> list[int]:
    return [
        passes
        for outcome in outcomes
        for rank in outcome.ranks
        for block in rank.blocks
        if block.condition == condition
        for passes in block.backward_passes
    ]
