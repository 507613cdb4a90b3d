"""A rank's events in three stages, so that a report can leave out the last ones when they do not fit.

In: a rank's lanes and tables. Out: columns per stage. `device` has the streams, `host` the threads and named ranges,
`python` the Python frames. Events are numbered through the stages, lane by lane, so that a number means the same with
or without the later stages. Within a lane nothing overlaps: an event is the gap since the previous one, its duration,
and a code for its name, category and table. The summary lane repeats other lanes, so it is a mark at each repeated
event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.intervals import Int64
from rankscope.show.report.embed.encoding import steps_of
from rankscope.show.timeline.event_links import AUTOGRAD, autograd_links
from rankscope.show.timeline.timeline import RankInRun
from rankscope.show.timeline.tracks import TABLES
from rankscope.store.cache import CachedTrace

STAGES = ("device", "host", "python")
STAGE_OF = {"stream": 0, "thread": 1, "annotation": 1, "python": 2}
"""The stage of a track's kind."""
DEVICE, OPERATORS, CALLS = (TABLES.index(name) for name in ("device_events", "host_ops", "runtime_calls"))

Array = npt.NDArray[Any]
NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Codes:
    """What the codes of events mean, for all ranks: the most frequent first, so that most codes are small.

    Attributes:
        keys: name, category and table of each code as one number, rising.
        code: the code of each key.
        name: of each code, the run's number of the name.
        category: of each code.
        table: of each code, its place in `TABLES`.
    """

    keys: Int64
    code: Int64
    name: Int64
    category: Int64
    table: Int64


@dataclass(frozen=True)
class Links:
    """By number of an event, the number of another; −1 for none.

    Attributes:
        launch: of a device event, the call that launched it.
        operator: of a device event, a call and an operator, the operator that it belongs to.
        around: the operator that encloses it, or its launch.
    """

    launch: Int64
    operator: Int64
    around: Int64


def codes_of(ranks: Sequence[StagedRank]) -> Codes:
    """The codes of some ranks' events."""
    found = [np.unique(rank.keys, return_counts=True) for rank in ranks]
    keys, group = np.unique(np.concatenate([NONE, *(each for each, _ in found)]), return_inverse=True)
    counts = np.bincount(
        group.reshape(-1), weights=np.concatenate([NONE, *(each for _, each in found)]), minlength=keys.size
    )
    order = np.lexsort((keys, -counts))
    code = np.empty(keys.size, dtype=np.int64)
    code[order] = np.arange(keys.size)
    ranked = keys[order]
    return Codes(keys, code, ranked >> 8, (ranked >> 4) & 15, ranked & 15)


class StagedRank:
    """A rank of a timeline, its events numbered by stage.

    Args:
        in_run: the rank's lanes.
        traces: its files.
    """

    def __init__(self, in_run: RankInRun, traces: Sequence[CachedTrace]) -> None:
        self.in_run = in_run
        self.rank = in_run.lanes.rank
        self._traces = traces
        self._arrays = in_run.lanes.arrays
        events = in_run.lanes.events
        self.pointer = np.asarray(events.pointer, dtype=np.int64)
        self.start, self.end = np.asarray(events.start, dtype=np.int64), np.asarray(events.end, dtype=np.int64)
        tracks = in_run.lanes.tracks
        self.lane_stage = np.array([STAGE_OF.get(tracks[lane.track].kind, -1) for lane in in_run.lanes.lanes])
        lanes = [np.flatnonzero(self.lane_stage == stage) for stage in range(len(STAGES))]
        self.lanes = np.concatenate([NONE, *lanes])
        sizes = np.diff(self.pointer)[self.lanes]
        self.order = _ranges(self.pointer[self.lanes], sizes)
        begins = np.concatenate([[0], np.cumsum(sizes)])
        self.first_of_lane = begins[:-1]
        ends = [int(sizes[: sum(len(each) for each in lanes[: stage + 1])].sum()) for stage in range(len(STAGES))]
        self.bounds = [(low, high) for low, high in zip([0, *ends], ends, strict=False)]
        self.number = np.full(self.start.size, -1, dtype=np.int64)
        self.number[self.order] = np.arange(self.order.size)

    @cached_property
    def keys(self) -> Int64:
        """Name, category and table of each event as one number, in the order of numbers."""
        at = self.order
        name = self.in_run.names[self._arrays["name"][at]].astype(np.int64)
        category, table = (self._arrays[each][at].astype(np.int64) for each in ("category", "table"))
        return name << 8 | category << 4 | table

    @cached_property
    def _places(self) -> tuple[Int64, Int64]:
        """Window, table and row of each event as one number, rising, and the events' numbers."""
        place = self._place(self._arrays["window"], self._arrays["table"], self._arrays["row"])[self.order]
        by_place = np.argsort(place, kind="stable")
        return place[by_place], by_place

    @staticmethod
    def _place(window: Array | int, table: Array | int, row: Array) -> Int64:
        first = np.asarray(window, dtype=np.int64) << 52 | np.asarray(table, dtype=np.int64) << 48
        return np.asarray(first | np.asarray(row, dtype=np.int64))

    def numbers_of(self, window: int, table: int, rows: Array) -> Int64:
        """The numbers of the events that are these rows of a table; −1 where there is none."""
        return self._find(self._place(window, table, rows))

    def _find(self, wanted: Int64) -> Int64:
        places, numbers = self._places
        at = np.minimum(np.searchsorted(places, wanted), max(places.size - 1, 0))
        if not places.size:
            return np.full(wanted.size, -1, dtype=np.int64)
        return np.where(places[at] == wanted, numbers[at], -1)

    def columns(self, stage: int, codes: Codes) -> tuple[dict[str, Int64], dict[str, Any]]:
        """The columns of a stage's events, and their common facts.

        Returns:
            ``gap`` and ``duration`` (both over ``unit``) and ``code``; with them the summary lane, and the links.
        """
        low, high = self.bounds[stage]
        at = self.order[low:high]
        start, end = self.start[at], self.end[at]
        before = np.concatenate([start[:1], end[:-1]])
        begins = self.first_of_lane[(self.first_of_lane >= low) & (self.first_of_lane < high)] - low
        before[begins] = start[begins]
        gap, duration = start - before, end - start
        # Where a trace has microseconds, so have all differences.
        unit = int(np.gcd.reduce(np.concatenate([gap, duration]))) if at.size else 1
        unit = max(unit, 1)
        code = codes.code[np.searchsorted(codes.keys, self.keys[low:high])]
        columns = {"gap": gap // unit, "duration": duration // unit, "code": code}
        meta: dict[str, Any] = {"unit": unit}
        if self.summary_stage == stage:
            more, summary = self._summary_lane()
            columns |= more
            meta |= summary
        if stage == 1:
            columns |= self._link_columns() | self._autograd_columns()
        return columns, meta

    # -- the summary lane --------------------------------------------------------------------------------------

    @cached_property
    def _repeated(self) -> Int64:
        """Of each event of the summary lane, the number of the event that it repeats."""
        own = slice(0, int(self.pointer[1]))
        window, table, row = (self._arrays[name][own] for name in ("window", "table", "row"))
        return self._find(self._place(window, table, row))

    @cached_property
    def summary_stage(self) -> int:
        """The stage with which all is there that the summary lane repeats."""
        last = int(self._repeated.max(initial=-1))
        return next((stage for stage, (_, high) in enumerate(self.bounds) if last < high), 0)

    def _summary_lane(self) -> tuple[dict[str, Int64], dict[str, Any]]:
        """Which events the summary lane repeats, by start, end and number, and with which category."""
        repeated = self._repeated
        count = self.bounds[self.summary_stage][1]
        marks = np.zeros(count, dtype=np.int64)
        marks[repeated] = 1
        member = np.flatnonzero(marks)
        at = self.order[member]
        usual = member[np.lexsort((self.end[at], self.start[at]))]
        columns: dict[str, Int64] = {}
        if member.size < count:
            columns["whole"] = marks
        if not np.array_equal(usual, repeated):
            columns["whole_order"] = steps_of(repeated)
        category = self._arrays["category"][: repeated.size].astype(np.int64)
        if not np.array_equal(category, self._arrays["category"][self.order[repeated]]):
            columns["whole_category"] = category
        return columns, {"whole": int(repeated.size)}

    # -- what launched what ---------------------------------------------------------------------------------------

    @cached_property
    def links(self) -> Links:
        """What launched each event, and its operator, by number."""
        table = self.keys & 15
        device, operators, calls = (np.flatnonzero(table == each) for each in (DEVICE, OPERATORS, CALLS))
        launch, operator = self._linked(DEVICE, "launch_row", CALLS), self._linked(DEVICE, "op_row", OPERATORS)
        operator[operators] = self._linked(OPERATORS, "parent_row", OPERATORS)[operators]
        around = np.full(self.order.size, -1, dtype=np.int64)
        launched = device[launch[device] >= 0]
        inner = np.concatenate([launch[launched], operators, calls])
        around[np.concatenate([launched, operators, calls])] = self._around(inner)
        # A device event takes its own operator where it names one, else the one around its launch.
        operator[device] = np.where(operator[device] >= 0, operator[device], around[device])
        operator[calls] = around[calls]
        return Links(launch, operator, around)

    def _link_columns(self) -> dict[str, Int64]:
        """The links as columns: the operator only where it is not simply the one around."""
        device = np.flatnonzero((self.keys & 15) == DEVICE)
        other = np.flatnonzero(self.links.operator != self.links.around)
        return {
            "launch": steps_of(self.links.launch[device] + 1),
            "operator_of": steps_of(other),
            "operator": self.links.operator[other] + 1,
        }

    def _autograd_columns(self) -> dict[str, Int64]:
        """The forward operator of each backward one, and the backward of each forward one, where they are known."""
        columns: dict[str, Int64] = {}
        for side in ("forward", "backward"):
            pairs = [np.empty((2, 0), dtype=np.int64)]
            for window, trace in enumerate(self._traces):
                links = autograd_links(trace.load("host_ops", AUTOGRAD).with_row_index("row")).drop_nulls(side)
                own, other = (self.numbers_of(window, OPERATORS, links[each].to_numpy()) for each in ("row", side))
                pairs.append(np.stack([own, other])[:, (own >= 0) & (other >= 0)])
            own, other = np.concatenate(pairs, axis=1)
            order = np.argsort(own)
            columns |= {f"{side}_of": steps_of(own[order]), side: steps_of(other[order])}
        return columns

    def _linked(self, table: int, column: str, target: int) -> Int64:
        """By number of an event of one table: the number of the event whose row in another table it names; or −1."""
        found = np.full(self.order.size, -1, dtype=np.int64)
        for window, trace in enumerate(self._traces):
            rows = trace.load(TABLES[table], [column])[column]
            named = np.flatnonzero(rows.is_not_null().to_numpy())
            own = self.numbers_of(window, table, named)
            other = self.numbers_of(window, target, rows.drop_nulls().cast(pl.Int64).to_numpy())
            found[own[own >= 0]] = other[own >= 0]
        return found

    def _around(self, inner: Int64) -> Int64:
        """The innermost operator around each event of a thread: in the lanes above its own, the nearest first."""
        found = np.full(inner.size, -1, dtype=np.int64)
        at = self.order[inner]
        lane = np.searchsorted(self.pointer, at, side="right") - 1
        track = np.array([each.track for each in self.in_run.lanes.lanes])
        start, end, table = self.start[at], self.end[at], self._arrays["table"]
        above = lane - 1
        while (left := np.flatnonzero((found < 0) & (above > 0) & (track[np.maximum(above, 0)] == track[lane]))).size:
            for each in np.unique(above[left]).tolist():
                mine = left[above[left] == each]
                first, last = int(self.pointer[each]), int(self.pointer[each + 1])
                place = first + np.searchsorted(self.start[first:last], start[mine], side="right") - 1
                there = np.maximum(place, first)
                covers = (place >= first) & (self.end[there] >= end[mine]) & (table[there] == OPERATORS)
                found[mine[covers]] = self.number[there[covers]]
            above[left] -= 1
        return found


def _ranges(first: Int64, size: Int64) -> Int64:
    """The numbers from each first on, one range after the other."""
    total = int(size.sum())
    before = np.cumsum(size) - size
    return np.arange(total, dtype=np.int64) - np.repeat(before - first, size)


def names_used(keys: Sequence[Int64], names: Sequence[str]) -> Mapping[int, str]:
    """The names that some events have, by the run's number."""
    used = np.unique(np.concatenate([NONE, *(each >> 8 for each in keys)]))
    return {int(number): names[number] for number in used.tolist()}
