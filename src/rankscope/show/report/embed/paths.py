"""The critical paths of all steps for a report.

In: the paths of a timeline, and its ranks with their events numbered. Out: a block per kind of path: across all ranks,
and a rank's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rankscope.primitives.intervals import Int64
from rankscope.show.report.embed.encoding import block, fold, steps_of
from rankscope.show.report.embed.stages import StagedRank
from rankscope.show.timeline.column_file import read_column_file
from rankscope.show.timeline.critical_path import CriticalPaths

MOST_RANKS = 8
"""Ranks whose own paths are in a report: each takes a walk through all of its events."""
OWN_END, NEXT_STARTS, BY_DURATION = 0, 1, 2
"""Where a part ends: with its event, where the next part's event starts, or after its `duration`."""


def path_block(
    paths: CriticalPaths, ranks: Mapping[int, StagedRank], bound: Callable[[int], int], rank: int | None
) -> bytes | None:
    """The paths of all steps, one after the other; None if there is none.

    Args:
        paths: finds them.
        ranks: the ranks whose events are in the report.
        bound: of a rank, the number below which its events are in the report.
        rank: whose own paths; None for those across all ranks.
    """
    steps: list[dict[str, Any]] = []
    found = []
    meta: Mapping[str, Any] = {}
    for each in paths.all_paths(rank):
        parts = None
        if each.path is not None:
            meta, columns = read_column_file(each.path)
            parts = int(columns["rank"].size)
            found.append(columns)
        steps.append({"step": each.step, "windows": each.windows, "parts": parts})
    if not found:
        return None
    part = {name: np.concatenate([each[name].astype(np.int64) for each in found]) for name in found[0]}
    place, begins, ends = _events(ranks, bound, part)
    start, end, recorded = part["start_ns"], part["end_ns"], place >= 0
    # A part ends with its event, or where the next one starts; it starts where the last one ended.
    until = np.full(place.size, BY_DURATION)
    until[:-1][recorded[1:] & (end[:-1] == begins[1:])] = NEXT_STARTS
    until[recorded & (end == ends)] = OWN_END
    columns = {
        "rank": steps_of(part["rank"]),
        "category": part["category"],
        "recorded": recorded.astype(np.int64),
        "event": steps_of(place[recorded]),
        "gap": fold(start - np.concatenate([[0], end[:-1]])),
        "until": until,
        "duration": (end - start)[until == BY_DURATION],
    }
    return block(columns, {"steps": steps, "categories": meta["categories"]})


def _events(
    ranks: Mapping[int, StagedRank], bound: Callable[[int], int], part: Mapping[str, Int64]
) -> tuple[Int64, Int64, Int64]:
    """The event of each part: its place among the device and host events of its rank by start, its start and its end.

    The place is −1 where nothing is recorded, or the event is not in the report.
    """
    place = np.full(part["rank"].size, -1, dtype=np.int64)
    start, end = np.zeros_like(place), np.zeros_like(place)
    for rank in np.unique(part["rank"]).tolist():
        staged = ranks.get(rank)
        if staged is None:
            continue
        mine = np.flatnonzero((part["rank"] == rank) & (part["lane"] >= 0))
        at = staged.pointer[part["lane"][mine] - staged.in_run.first_lane] + part["row"][mine]
        number, last = staged.number[at], min(bound(rank), staged.bounds[1][1])
        there = (number >= 0) & (number < last)
        by_start = np.empty(last, dtype=np.int64)
        by_start[np.argsort(staged.start[staged.order[:last]], kind="stable")] = np.arange(last)
        mine, at = mine[there], at[there]
        place[mine], start[mine], end[mine] = by_start[number[there]], staged.start[at], staged.end[at]
    return place, start, end
