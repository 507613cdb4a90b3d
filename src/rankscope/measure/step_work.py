"""Whether steps of two conditions did the same work: LBFGS calls its closure as often as it likes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from rankscope.measure.jobs import Outcome

_UNLIKE = 0.02


def unequal_work(outcomes: Sequence[Outcome], one: str, other: str) -> list[str]:
    """What to say where the steps of two conditions went backward unlike often; nothing where they did not.

    Args:
        outcomes: the jobs.
        one: a condition.
        other: the one that it is compared with.
    """
    passes = {name: _passes(outcomes, name) for name in (one, other)}
    if not all(passes.values()):
        return []
    a, b = (fmean(each) for each in passes.values())
    if abs(a - b) <= _UNLIKE * max(a, b):
        return []
    return [
        f"a step of {one} went backward {a:.3g} times in the mean, one of {other} {b:.3g} times: an optimizer that "
        "calls its closure as often as it needs (LBFGS) does unlike work in them, and their times differ by more than "
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
