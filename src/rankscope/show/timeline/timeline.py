"""The timeline of a run: the lanes of all ranks under one numbering.

In: ranks, as they are drawn. Out: the layout, and tiles and events of a window.

Ranks are added in any order and keep their lane numbers. No events are held in memory: each rank's file is mapped, and
a request reads the parts that it needs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from rankscope.engine.pipeline.clock import RunClock
from rankscope.primitives.intervals import Int64
from rankscope.show.timeline.categories import CATEGORIES
from rankscope.show.timeline.column_file import TypedNumbers, column_file
from rankscope.show.timeline.pyramid import BASE_BIN_NS, FACTOR, Tile, levels_for, shift_of, tile, touching
from rankscope.show.timeline.rank_lanes import RankLanes
from rankscope.store.cache import CachedTrace

Array = npt.NDArray[Any]
_LANE_COLUMNS = {"first": "first_ns", "last": "last_ns"}


@dataclass(frozen=True)
class RankInRun:
    """A rank's lanes and their numbers in the run.

    Attributes:
        lanes: the rank's own lanes.
        first_lane: the run's number of its first lane.
        first_track: the run's number of its first track.
        names: the run's number of each of its names.
    """

    lanes: RankLanes
    first_lane: int
    first_track: int
    names: Array


@dataclass
class Timeline:
    """The timeline of a run, as far as its ranks are drawn.

    Attributes:
        clock: the run's clock.
        traces: the files of each rank.
        ranks: the ranks that are drawn.
        names: every event name, by number.
        version: grows with each rank.
    """

    clock: RunClock
    traces: Mapping[int, Sequence[CachedTrace]]
    ranks: dict[int, RankInRun] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    version: int = 0
    _numbers: dict[str, int] = field(default_factory=dict)
    _by_lane: list[RankInRun] = field(default_factory=list)
    _tracks: int = 0
    _lanes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def levels(self) -> int:
        """How many levels the run has."""
        return levels_for(self.clock.span_ns)

    @property
    def lane_count(self) -> int:
        """Lanes so far."""
        return self._lanes

    def add(self, lanes: RankLanes) -> None:
        """Add a rank that was built."""
        names = lanes.names()
        with self._lock:
            if lanes.rank in self.ranks:
                return
            numbers = np.empty(len(names), dtype=np.uint32)
            for place, name in enumerate(names):
                number = self._numbers.get(name)
                if number is None:
                    number = self._numbers[name] = len(self.names)
                    self.names.append(name)
                numbers[place] = number
            in_run = RankInRun(lanes, self._lanes, self._tracks, numbers)
            self._lanes += len(lanes.lanes)
            self._tracks += len(lanes.tracks)
            self._by_lane.append(in_run)
            self.ranks[lanes.rank] = in_run
            self.version += 1

    def emptied(self) -> Timeline:
        """A timeline without ranks, with the same clock and the same numbers of names."""
        return Timeline(self.clock, self.traces, names=self.names, _numbers=self._numbers)

    def drawn(self) -> list[RankInRun]:
        """The ranks that are drawn, in the order of lanes."""
        return list(self._by_lane)

    def place(self, lane: int) -> tuple[RankInRun, int]:
        """The rank of a lane, and the lane's number in that rank.

        Raises:
            KeyError: there is no such lane.
        """
        for in_run in self._by_lane:
            if in_run.first_lane <= lane < in_run.first_lane + len(in_run.lanes.lanes):
                return in_run, lane - in_run.first_lane
        raise KeyError(lane)

    def _owners(self, lanes: Sequence[int]) -> Iterator[tuple[RankInRun, list[int], Int64]]:
        """Lanes by rank: the rank, its own lane numbers, and for each the index in `lanes`."""
        drawn = self.drawn()
        firsts = np.array([in_run.first_lane for in_run in drawn], dtype=np.int64)
        wanted = np.asarray(lanes, dtype=np.int64)
        owner = np.searchsorted(firsts, wanted, side="right") - 1
        for which, places in groupby(range(wanted.size), key=lambda place: int(owner[place])):
            own = list(places)
            in_run = drawn[which]
            local = (wanted[own] - in_run.first_lane).tolist()
            index = np.zeros(len(in_run.lanes.lanes), dtype=np.int64)
            index[local] = own
            yield in_run, local, index

    # -- requests of the page --------------------------------------------------------------------------------------

    def layout(self) -> dict[str, Any]:
        """Ranks, tracks and lanes as JSON values."""
        with self._lock:
            drawn, names = list(self._by_lane), len(self.names)
        ranks, tracks = [], []
        columns: dict[str, list[Any]] = {
            name: [] for name in ("track", "depth", "overflow", "events", "first_ns", "last_ns")
        }
        ranks_in_run = {in_run.lanes.rank: in_run for in_run in drawn}
        for in_run in drawn:
            lanes = in_run.lanes
            track_of = lanes.arrays["lane_track"]
            sizes = np.bincount(track_of, minlength=len(lanes.tracks))
            first = in_run.first_lane
            for track, size in zip(lanes.tracks, sizes.tolist(), strict=True):
                tracks.append(
                    {
                        "rank": lanes.rank,
                        "kind": track.kind,
                        "title": track.title,
                        "lanes": [first, size],
                        "folded": track.folded,
                    }
                )
                first += size
            columns["track"] += (track_of + in_run.first_track).tolist()
            columns["events"] += np.diff(lanes.arrays["pointer"]).tolist()
            for name in ("depth", "overflow", "first", "last"):
                columns[_LANE_COLUMNS.get(name, name)] += lanes.arrays[f"lane_{name}"].tolist()
        for rank, files in self.traces.items():
            drawn_rank, info, own = ranks_in_run.get(rank), files[0].info, self.clock.ranks[rank]
            ranks.append(
                {
                    "rank": rank,
                    "host": info.host,
                    "device": info.device,
                    "mesh": dict(info.mesh),
                    "offset_ns": own.offset_ns,
                    "residual_ns": own.residual_ns,
                    "steps": drawn_rank.lanes.steps if drawn_rank else [],
                    "tracks": [drawn_rank.first_track, len(drawn_rank.lanes.tracks)] if drawn_rank else [0, 0],
                    "counters": drawn_rank.lanes.counters if drawn_rank else [],
                }
            )
        return {
            "origin_ns": str(self.clock.origin_ns),
            "span_ns": self.clock.span_ns,
            "aligned": self.clock.aligned,
            "residual_ns": self.clock.residual_ns,
            "names": names,
            "base_bin_ns": BASE_BIN_NS,
            "factor": FACTOR,
            "levels": self.levels,
            "categories": [{"name": name, "title": title} for name, title in CATEGORIES],
            "ranks": ranks,
            "tracks": tracks,
            "lanes": columns,
        }

    def tiles(self, level: int, first: int, bins: int, lanes: Sequence[int]) -> bytes:
        """A window of the pyramid as a column file.

        Args:
            level: the level.
            first: the first bin.
            bins: how many.
            lanes: the run's numbers of lanes, ascending.
        """
        parts: list[tuple[Array, ...]] = []
        for in_run, local, index in self._owners(lanes):
            found: Tile = tile(in_run.lanes.events, in_run.lanes.arrays, local, level, first, first + bins)
            rows = in_run.lanes.events.pointer[found.lane] + found.row
            names = in_run.names[in_run.lanes.arrays["name"][rows]] if rows.size else rows
            parts.append(
                (
                    index[found.lane], found.bin, found.count, names, found.row,
                    index[found.busy_lane], found.busy_bin, found.busy_category, found.busy_ns,
                )
            )  # fmt: skip
        kinds = (
            ("bin_lane", "u32"), ("bin", "u32"), ("bin_count", "u32"), ("bin_name", "u32"), ("bin_row", "u32"),
            ("busy_lane", "u32"), ("busy_bin", "u32"), ("busy_category", "u8"), ("busy_ns", "f64"),
        )  # fmt: skip
        meta = {"level": level, "bin_ns": 1 << shift_of(level), "lanes": list(lanes)}
        return column_file(_columns(kinds, parts), meta)

    def events(self, lanes: Sequence[int], from_ns: int, to_ns: int, limit: int) -> bytes:
        """The events of some lanes that touch a window, as a column file; no more than `limit` of them."""
        parts: list[tuple[Array, ...]] = []
        left, more = limit, False
        for in_run, local, index in self._owners(lanes):
            events, arrays = in_run.lanes.events, in_run.lanes.arrays
            for lane in local:
                place = touching(events, lane, from_ns, to_ns)
                if place.size > left:
                    place, more = place[:left], True
                left -= place.size
                parts.append(
                    (
                        np.full(place.size, index[lane]),
                        place - events.pointer[lane],
                        events.start[place],
                        events.end[place],
                        in_run.names[arrays["name"][place]],
                        arrays["category"][place],
                    )
                )
        kinds = (
            ("lane", "u32"), ("row", "u32"), ("start_ns", "f64"), ("end_ns", "f64"), ("name", "u32"),
            ("category", "u8"),
        )  # fmt: skip
        return column_file(_columns(kinds, parts), {"more": more, "lanes": list(lanes)})


def _columns(kinds: Sequence[tuple[str, str]], parts: Sequence[tuple[Array, ...]]) -> dict[str, TypedNumbers]:
    """Columns of all parts, concatenated."""
    none = np.empty(0)
    joined = [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else [none] * len(kinds)
    return {name: (kind, values) for (name, kind), values in zip(kinds, joined, strict=True)}
