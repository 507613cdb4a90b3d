"""Arguments, shapes and stacks of a rank's longest events, for a report.

In: a rank's tables. Out: a block of the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from rankscope.primitives.intervals import Int64
from rankscope.show.report.embed.stages import StagedRank
from rankscope.show.timeline.event_details import (
    FRAMED,
    RECORDED,
    SHAPES,
    arguments_of,
    as_written,
    cut,
    has_shapes,
    shapes_of,
    stack_of,
)
from rankscope.show.timeline.tracks import TABLES
from rankscope.store.cache import CachedTrace

LONGEST = 1000
"""Events per rank whose details are in the report."""


def longest_events(
    rank: StagedRank, traces: Sequence[CachedTrace], bound: int, most: int = LONGEST
) -> dict[str, dict[str, Any]]:
    """By number of an event, its arguments, shapes and stack; as `timeline.details` has them.

    Args:
        rank: the rank.
        traces: its files.
        bound: numbers below this are in the report.
        most: how many events; half of them of the device, as far as there are.
    """
    found: dict[str, dict[str, Any]] = {}
    arrays = rank.in_run.lanes.arrays
    chosen = _chosen(rank, bound, most)
    at = rank.order[chosen]
    window, table, row = (arrays[name][at] for name in ("window", "table", "row"))
    for which, trace in enumerate(traces):
        for number, name in enumerate(TABLES):
            mine = (window == which) & (table == number)
            if mine.any():
                details = _details(rank, trace, name, row[mine].astype(np.int64), chosen[mine])
                found |= {str(event): each for event, each in zip(chosen[mine].tolist(), details, strict=True)}
    return found


def _chosen(rank: StagedRank, bound: int, most: int) -> Int64:
    """The numbers of the longest events, rising: of the device, and of the host."""
    length = (rank.end - rank.start)[rank.order[:bound]]
    device = min(rank.bounds[0][1], bound)
    host = min(rank.bounds[1][1], bound)
    first = _greatest(length[:device], max(most // 2, most - (host - device)))
    rest = device + _greatest(length[device:host], most - first.size)
    return np.sort(np.concatenate([first, rest]))


def _greatest(values: Int64, most: int) -> Int64:
    return np.argsort(-values, kind="stable")[: max(most, 0)]


def _details(rank: StagedRank, trace: CachedTrace, table: str, rows: Int64, numbers: Int64) -> list[dict[str, Any]]:
    """Arguments, shapes and stacks of some rows of a table."""
    frame = trace.load(table)
    values = [as_written(each, frame.schema) for each in frame[rows.tolist()].iter_rows(named=True)]
    recorded: dict[int, list[dict[str, Any]]] = {}
    if table in RECORDED:
        for each in trace.load("collectives").filter(pl.col("source") == table).iter_rows(named=True):
            recorded.setdefault(each["row"], []).append(each)
    operators = _operators(rank, trace, numbers)
    frames = _Frames(trace) if table in FRAMED else None
    found = []
    for number, row, each in zip(numbers.tolist(), rows.tolist(), values, strict=True):
        operator = operators.get(number, {})
        details = {
            "args": arguments_of(each, recorded.get(row, ())),
            "shapes": shapes_of(each if has_shapes(each) else operator),
            "stack": stack_of(each) or (frames.around(each) if frames else []),
        }
        found.append({name: value for name, value in details.items() if value})
    return found


def _operators(rank: StagedRank, trace: CachedTrace, numbers: Int64) -> dict[int, dict[str, Any]]:
    """By number of an event, the row of its operator."""
    operator = rank.links.operator[numbers]
    some = np.flatnonzero(operator >= 0)
    rows = rank.in_run.lanes.arrays["row"][rank.order[operator[some]]].astype(np.int64)
    found = trace.load("host_ops", SHAPES)[rows.tolist()].iter_rows(named=True)
    return dict(zip(numbers[some].tolist(), found, strict=True))


class _Frames:
    """The Python frames of a file, by thread."""

    def __init__(self, trace: CachedTrace) -> None:
        frames = trace.load("python_frames", ["start_ns", "end_ns", "name", "pid", "tid"])
        ordered = frames.sort("start_ns", -pl.col("end_ns"))
        self._of = {
            thread: (mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy(), mine["name"].fill_null(""))
            for thread, mine in ordered.partition_by("pid", "tid", as_dict=True, maintain_order=True).items()
        }

    def around(self, event: Mapping[str, Any]) -> list[str]:
        """The frames around an event of its thread, innermost first."""
        thread = self._of.get((event["pid"], event["tid"]))
        if thread is None:
            return []
        start, end, name = thread
        before = int(np.searchsorted(start, event["start_ns"], side="right"))
        around = np.flatnonzero(end[:before] >= event["end_ns"])
        return [cut(text) for text in reversed(name[around.tolist()].to_list())]
