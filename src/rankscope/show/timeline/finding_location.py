"""The rank, step and event at which the page shows a finding.

In: a finding, the heat map and the run's clock. Out: one rank and one step, and the event on the run's clock.

A finding about many ranks or all steps has no single place. Of the ranks and steps that it names (all if none) this is
where it shows most: for a straggler the step in which it arrived latest at a collective, otherwise the longest step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rankscope.engine.pipeline.clock import RunClock
from rankscope.results import Anchor, Finding

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


def event_of(anchor: Anchor, clock: RunClock) -> dict[str, Any] | None:
    """A finding's event and its peers on the run's clock; None if the rank is not on it.

    Returns:
        rank, start_ns, end_ns, since_ns, reason and peers (their ranks, and those to compare with); from_ns and to_ns
        contain all of the events, and the gap before the first.
    """
    times = {each.rank: _on(clock, each) for each in (anchor, *anchor.peers) if each.rank in clock.ranks}
    if anchor.rank not in times:
        return None
    start, end = times[anchor.rank]
    since = None if anchor.since_ns is None else _on(clock, replace(anchor, start_ns=anchor.since_ns))[0]
    begins = [first for first, _ in times.values()] + ([] if since is None else [since])
    peers = dict.fromkeys([peer.rank for peer in anchor.peers] + list(anchor.compared))
    return {
        "rank": anchor.rank,
        "start_ns": start,
        "end_ns": end,
        "since_ns": since,
        "reason": anchor.reason,
        "peers": [rank for rank in peers if rank in clock.ranks and rank != anchor.rank],
        "from_ns": min(begins),
        "to_ns": max(last for _, last in times.values()),
    }


def _on(clock: RunClock, anchor: Anchor) -> tuple[int, int]:
    first, last = clock.ranks[anchor.rank].run_time(anchor.window, np.array([anchor.start_ns, anchor.end_ns]))
    return int(first), int(last)


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
