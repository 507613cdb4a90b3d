"""Finds events by name over all ranks, in order of time.

In: a query and a place. Out: the next or previous match, the number of matches, and any part of the list of them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.intervals import Int64
from rankscope.timeline.timeline import Timeline

Array = npt.NDArray[Any]
_KEPT = 4


class InvalidPatternError(ValueError):
    """The query is not a valid regular expression."""


@dataclass(frozen=True)
class Query:
    """Which names match: those that contain `text`, ignoring case, match it as a regular expression, or equal it.

    Regular expressions are Rust's (`polars.Series.str.contains`): their time is linear in the text, whoever wrote them.
    """

    text: str
    match: Literal["text", "regex", "name"] = "text"

    def matching(self, names: list[str]) -> npt.NDArray[np.bool_]:
        """Which of these names match.

        Raises:
            InvalidPatternError: `text` is not a regular expression.
        """
        if self.match == "name":
            return np.array([name == self.text for name in names], dtype=np.bool_)
        if self.match == "text":
            wanted = self.text.casefold()
            return np.array([wanted in name.casefold() for name in names], dtype=np.bool_)
        try:
            return pl.Series(names, dtype=pl.String).str.contains(f"(?i){self.text}").to_numpy()
        except pl.exceptions.ComputeError as error:
            raise InvalidPatternError(str(error)) from error


@dataclass(frozen=True)
class Hits:
    """Events whose name matches: their places, in the order of start, lane and row."""

    start: Int64
    lane: Int64
    row: Int64


@dataclass
class Search:
    """Searches of one timeline; the last few are kept, because the next hit is usually requested after one."""

    timeline: Timeline
    _kept: OrderedDict[tuple[Query, int | None, int], Hits] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hits(self, query: Query, rank: int | None = None) -> Hits:
        """Every event whose name matches, without the summary lanes, which repeat others."""
        key = (query, rank, self.timeline.version)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        found = self._find(query, rank)
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found

    def _find(self, query: Query, rank: int | None) -> Hits:
        matching = query.matching(list(self.timeline.names))
        starts, lanes, rows = [], [], []
        for in_run in sorted(self.timeline.drawn(), key=lambda one: one.first_lane):
            if rank is not None and in_run.lanes.rank != rank:
                continue
            local = matching[in_run.names]
            if not local.any():
                continue
            events, arrays = in_run.lanes.events, in_run.lanes.arrays
            first = int(events.pointer[1])
            place = first + np.flatnonzero(local[arrays["name"][first:]])
            # How many of them each lane has: they are in its order.
            counts = np.diff(np.searchsorted(place, events.pointer))
            starts.append(events.start[place])
            lanes.append(np.repeat(np.arange(counts.size) + in_run.first_lane, counts))
            rows.append(place - np.repeat(events.pointer[:-1], counts))
        if not starts:
            none = np.empty(0, dtype=np.int64)
            return Hits(none, none, none)
        start, lane, row = np.concatenate(starts), np.concatenate(lanes), np.concatenate(rows)
        # They are in order of lane and row already, and by start within each lane: runs, which a merge sort uses.
        order = np.argsort(start, kind="stable")
        return Hits(start[order], lane[order], row[order])

    def step(
        self, query: Query, at: tuple[int, int, int], *, forward: bool = True, rank: int | None = None
    ) -> tuple[dict[str, Any] | None, int, int]:
        """The hit after (or before) a place: its description, the number of hits, and its position among them.

        Args:
            query: which names match.
            at: start, lane and row of the place; a lane of −1 is before all events that start there.
            forward: whether to look for a later one.
            rank: only there.
        """
        hits = self.hits(query, rank)
        low = int(np.searchsorted(hits.start, at[0]))
        high = int(np.searchsorted(hits.start, at[0], side="right"))
        # Of the events that start at the same instant: those before the place, and whether it is one of them.
        same = [(int(hits.lane[i]), int(hits.row[i])) for i in range(low, min(high, low + 100_000))]
        before = sum(one < at[1:] for one in same)
        index = low + before + (at[1:] in same) if forward else low + before - 1
        if not 0 <= index < hits.start.size:
            return None, hits.start.size, -1
        return self._hit(hits, index), hits.start.size, index

    def part(self, query: Query, first: int, count: int, rank: int | None = None) -> list[dict[str, Any]]:
        """The hits from number `first` on, at most `count`, in order of time."""
        hits = self.hits(query, rank)
        return [self._hit(hits, index) for index in range(max(0, first), min(first + count, hits.start.size))]

    def name_at(self, lane: int, row: int) -> str | None:
        """The name of an event; None if there is no such event."""
        try:
            in_run, own = self.timeline.place(lane)
        except KeyError:
            return None
        pointer = in_run.lanes.events.pointer
        if not 0 <= row < int(pointer[own + 1]) - int(pointer[own]):
            return None
        return self.timeline.names[int(in_run.names[in_run.lanes.arrays["name"][int(pointer[own]) + row]])]

    def _hit(self, hits: Hits, index: int) -> dict[str, Any]:
        lane, row = int(hits.lane[index]), int(hits.row[index])
        in_run, own = self.timeline.place(lane)
        place = int(in_run.lanes.events.pointer[own]) + row
        return {
            "lane": lane,
            "row": row,
            "start_ns": int(in_run.lanes.events.start[place]),
            "end_ns": int(in_run.lanes.events.end[place]),
            "name": self.timeline.names[int(in_run.names[in_run.lanes.arrays["name"][place]])],
        }
