"""The rank and step at which the page shows a finding.

In: a finding and the heat map. Out: one rank and one step.

A finding about many ranks or all steps has no single place. Of the ranks and steps that it names (all if none) this is
where it shows most: for a straggler the step in which it arrived latest at a collective, otherwise the longest step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankscope.results import Finding

_BY_LATENESS = frozenset(("straggler", "stall"))


def place_of(finding: Finding, heat: Mapping[str, Any]) -> dict[str, int | None] | None:
    """The rank and the step of a finding; None if it names neither.

    Args:
        finding: a finding of the run.
        heat: ranks, steps and their values, row-major by rank, as `heat.heat` gives them.
    """
    if not finding.ranks and not finding.steps:
        return None
    kinds = ("lateness_ns", "step_ns") if finding.id in _BY_LATENESS else ("step_ns",)
    for kind in kinds:
        best = _greatest(finding, heat, heat[kind])
        if best is not None:
            return {"rank": best[0], "step": best[1]}
    return {"rank": next(iter(finding.ranks), None), "step": next(iter(finding.steps), None)}


def _greatest(finding: Finding, heat: Mapping[str, Any], values: Sequence[int | None]) -> tuple[int, int] | None:
    """The position of the largest value above 0, the first of several; None if there is none."""
    best, most = None, 0
    for row, rank in enumerate(heat["ranks"]):
        if finding.ranks and rank not in finding.ranks:
            continue
        for column, step in enumerate(heat["steps"]):
            value = values[row * len(heat["steps"]) + column]
            if value is not None and value > most and (not finding.steps or step in finding.steps):
                best, most = (rank, step), value
    return best
