"""Finds events by name over all ranks, in order of time.

In: a query and a place. Out: the next or previous match, the number of matches, and any part of the list of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.intervals import Int64
from rankscope.show.timeline.last_used import LastUsed
from rankscope.show.timeline.timeline import Timeline

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
    """Events whose name matches, by lane, then start: their order over all lanes is computed where it is needed.

    Attributes:
        lane: the lanes that have any, ascending.
        pointer: where the hits of each of these lanes begin, and where those of the last one end.
        start: first instants, ns.
        place: their places in the arrays of their rank.
    """

    lane: Int64
    pointer: Int64
    start: Int64
    place: Int64

    def before(self, at: tuple[int, int, int], rows: Callable[[int, slice], Int64]) -> tuple[int, bool]:
        """How many hits are before a place in the order of start, lane and row, and whether that place is one.

        Args:
            at: start, lane and row.
            rows: the rows of hits of a lane.
        """
        start, lane, row = at
        first = self._starting(start, self.pointer[:-1], self.pointer[1:])
        beyond = self._starting(start + 1, first, self.pointer[1:])
        count = int((first - self.pointer[:-1]).sum())
        own = int(np.searchsorted(self.lane, lane))
        count += int((beyond - first)[:own].sum())
        if own == self.lane.size or self.lane[own] != lane:
            return count, False
        same = rows(lane, slice(int(first[own]), int(beyond[own])))
        index = int(np.searchsorted(same, row))
        return count + index, index < same.size and int(same[index]) == row

    def part(self, first: int, count: int) -> tuple[Int64, Int64]:
        """The hits from number `first` on, in order of start, lane and row: the lane and the index here of each."""
        last = min(first + count, self.start.size) - 1
        if first < 0 or last < first:
            return self.lane[:0], self.lane[:0]
        low = self._starting(self._start_of(first), self.pointer[:-1], self.pointer[1:])
        high = self._starting(self._start_of(last) + 1, low, self.pointer[1:])
        sizes = high - low
        index = np.arange(sizes.sum()) + np.repeat(low - np.cumsum(sizes) + sizes, sizes)
        skipped = first - int((low - self.pointer[:-1]).sum())  # others start when the first does
        order = np.argsort(self.start[index], kind="stable")[skipped : skipped + last - first + 1]
        return np.repeat(self.lane, sizes)[order], index[order]

    def _start_of(self, index: int) -> int:
        """When a hit starts, by its number in the order of time."""
        low, high = self.pointer[:-1], self.pointer[1:]
        earliest, latest = int(self.start[low].min()), int(self.start[high - 1].max())
        while earliest < latest:
            middle = (earliest + latest) >> 1
            beyond = self._starting(middle + 1, low, high)
            if int((beyond - self.pointer[:-1]).sum()) > index:
                latest, high = middle, beyond
            else:
                earliest, low = middle + 1, beyond
        return earliest

    def _starting(self, at: int, low: Int64, high: Int64) -> Int64:
        """The first hit of each lane that starts at an instant or later; it is from `low` to `high`."""
        low, high = low.copy(), high.copy()
        while (lanes := np.flatnonzero(low < high)).size:
            middle = (low[lanes] + high[lanes]) >> 1
            earlier = self.start[middle] < at
            low[lanes[earlier]] = middle[earlier] + 1
            high[lanes[~earlier]] = middle[~earlier]
        return low


@dataclass
class Search:
    """Searches of one timeline; the last few are kept, because the next hit is usually requested after one."""

    timeline: Timeline
    _kept: LastUsed[Hits] = field(default_factory=lambda: LastUsed(_KEPT))

    def hits(self, query: Query, rank: int | None = None) -> Hits:
        """Every event whose name matches, without the summary lanes, which repeat others."""
        key = (query, rank, self.timeline.version)
        return self._kept.get(key, lambda: self._find(query, rank))

    def _find(self, query: Query, rank: int | None) -> Hits:
        matching = query.matching(list(self.timeline.names))
        none = np.empty(0, dtype=np.int64)
        lanes, counts, starts, places = [none], [none], [none], [none]
        for in_run in sorted(self.timeline.drawn(), key=lambda one: one.first_lane):
            if rank is not None and in_run.lanes.rank != rank:
                continue
            local = matching[in_run.names]
            if not local.any():
                continue
            events, arrays = in_run.lanes.events, in_run.lanes.arrays
            first = int(events.pointer[1])
            place = np.flatnonzero(local[arrays["name"][first:]])
            place += first
            # How many of them each lane has: they are in its order.
            of_lane = np.diff(np.searchsorted(place, events.pointer))
            some = np.flatnonzero(of_lane)
            lanes.append(some + in_run.first_lane)
            counts.append(of_lane[some])
            starts.append(events.start[place])
            places.append(place)
        pointer = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
        return Hits(np.concatenate(lanes), pointer, np.concatenate(starts), np.concatenate(places))

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
        before, is_hit = hits.before(at, lambda lane, which: hits.place[which] - self._first(lane))
        index = before + is_hit if forward else before - 1
        found = self._described(hits, index, 1)
        return (found[0], hits.start.size, index) if found else (None, hits.start.size, -1)

    def part(self, query: Query, first: int, count: int, rank: int | None = None) -> list[dict[str, Any]]:
        """The hits from number `first` on, at most `count`, in order of time."""
        return self._described(self.hits(query, rank), max(0, first), count)

    def _described(self, hits: Hits, first: int, count: int) -> list[dict[str, Any]]:
        lanes, index = hits.part(first, count)
        return [self._hit(int(lane), int(hits.place[each])) for lane, each in zip(lanes, index, strict=True)]

    def _first(self, lane: int) -> int:
        in_run, own = self.timeline.place(lane)
        return int(in_run.lanes.events.pointer[own])

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

    def _hit(self, lane: int, place: int) -> dict[str, Any]:
        in_run, own = self.timeline.place(lane)
        return {
            "lane": lane,
            "row": place - int(in_run.lanes.events.pointer[own]),
            "start_ns": int(in_run.lanes.events.start[place]),
            "end_ns": int(in_run.lanes.events.end[place]),
            "name": self.timeline.names[int(in_run.names[in_run.lanes.arrays["name"][place]])],
        }
