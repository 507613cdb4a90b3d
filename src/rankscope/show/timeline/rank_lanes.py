"""One rank's lanes, cached in one file next to its tables and read in place.

In: a rank's tables and clock, in a worker's task (`draw_rank`). Out: a file that readers map, reading only what a
window needs. The file depends on the run's clock: if that changes (other ranks are added), the file is rebuilt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.engine.pipeline.clock import RankClock
from rankscope.ingest.task import ingest_again
from rankscope.primitives.allocations import device_name
from rankscope.primitives.intervals import Int64
from rankscope.primitives.steps import step_windows
from rankscope.show.timeline.lanes import lay_out
from rankscope.show.timeline.pyramid import LaneEvents, build, merge_lane
from rankscope.show.timeline.tracks import READS, Track, read_events
from rankscope.store.cache import CachedTrace, DamagedTablesError
from rankscope.store.sidecar import Sidecar, read_sidecar, write_sidecar

VERSION = 2
FILE = "timeline.bin"

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Lane:
    """One lane of a rank: track, depth, whether it holds overlaps, number of events, first and last instant."""

    track: int
    depth: int
    overflow: bool
    events: int
    first_ns: int
    last_ns: int


class RankLanes:
    """A rank's lanes in the cache, or in memory if the cache is full.

    Args:
        rank: the rank.
        sidecar: the arrays, and the tracks and steps as facts.
    """

    def __init__(self, rank: int, sidecar: Sidecar) -> None:
        self.rank = rank
        self._facts = sidecar.facts
        self.arrays = sidecar.arrays

    @property
    def tracks(self) -> list[Track]:
        """Its tracks, the summary track first."""
        return [Track(*each) for each in self._facts["tracks"]]

    @property
    def steps(self) -> list[tuple[int | None, int, int]]:
        """Its steps: number, begin and end in ns on the run's clock; windows as in `step_time`."""
        return [tuple(each) for each in self._facts["steps"]]

    @property
    def counters(self) -> list[str]:
        """Names of its counters."""
        return list(self._facts["counters"])

    @cached_property
    def lanes(self) -> list[Lane]:
        """Its lanes, in the order of tracks and depths."""
        columns = (self.arrays[f"lane_{name}"].tolist() for name in ("track", "depth", "overflow", "first", "last"))
        sizes = np.diff(self.arrays["pointer"]).tolist()
        return [
            Lane(track, depth, bool(overflow), size, first, last)
            for track, depth, overflow, first, last, size in zip(*columns, sizes, strict=True)
        ]

    @cached_property
    def events(self) -> LaneEvents:
        """Its events by lane."""
        arrays = self.arrays
        merged = arrays["merged_start"], arrays["merged_end"], arrays["merged_category"]
        return LaneEvents(arrays["pointer"], arrays["start"], arrays["end"], arrays["category"], merged)

    def names(self) -> list[str]:
        """The names that its events have; an event's name is an index into this list."""
        ends = self.arrays["name_ends"]
        text = self.arrays["name_text"].tobytes()
        return [text[low:high].decode("utf-8", "replace") for low, high in pairwise([0, *ends.tolist()])]


def key_of(traces: Sequence[CachedTrace], clock: RankClock, levels: int, communication: str | None) -> str:
    """The cache key of a rank's lanes: their inputs as one text."""
    files = [(trace.key, trace.incomplete_steps) for trace in traces]
    what = (VERSION, files, clock.bases, clock.drift, clock.at, levels, communication)
    return hashlib.sha256(repr(what).encode("utf-8", "backslashreplace")).hexdigest()


def find_rank(
    rank: int, traces: Sequence[CachedTrace], clock: RankClock, levels: int, communication: str | None
) -> RankLanes | None:  # fmt: skip
    """A rank's lanes from the cache, or None."""
    found = read_sidecar(traces[0].folder, FILE, key_of(traces, clock, levels, communication))
    return None if found is None else RankLanes(rank, found)


def draw_rank(
    rank: int, traces: Sequence[CachedTrace], clock: RankClock, levels: int, communication: str | None
) -> Sidecar | None:
    """Build a rank's lanes and cache them; returns them only if the cache is full.

    Raises:
        TraceError: its tables cannot be read, nor the trace again.
    """
    key = key_of(traces, clock, levels, communication)
    if read_sidecar(traces[0].folder, FILE, key) is not None:
        return None
    try:
        tables = [_load(trace) for trace in traces]
    except DamagedTablesError:
        traces = [ingest_again(trace) for trace in traces]
        tables = [_load(trace) for trace in traces]
    facts, arrays = draw(tables, clock, levels, communication)
    if write_sidecar(traces[0].folder, FILE, key, facts, arrays):
        return None
    return Sidecar(key, facts, arrays)


def _load(trace: CachedTrace) -> dict[str, pl.DataFrame]:
    tables = {name: trace.load(name, columns) for name, columns in READS.items()}
    memory = trace.load("memory_events", ["device_type", "device"]).unique()
    return {**tables, "memory_events": memory}


def draw(
    tables: Sequence[Mapping[str, pl.DataFrame]], clock: RankClock, levels: int, communication: str | None
) -> tuple[dict[str, Any], dict[str, Array]]:
    """A rank's lanes: facts and arrays.

    Args:
        tables: the tables of each of its files, with the columns of `tracks.READS`, and `memory_events`.
        clock: how its times become the run's.
        levels: how many levels the run has.
        communication: a regular expression of further kernel names that are communication.
    """
    found = read_events(tables, communication)
    frame = found.frame
    start, end = np.empty(frame.height, dtype=np.int64), np.empty(frame.height, dtype=np.int64)
    window = frame["window"].to_numpy()
    for number in range(len(tables)):
        mine = window == number if len(tables) > 1 else slice(None)
        start[mine] = clock.run_time(number, frame["start_ns"].to_numpy()[mine])
        end[mine] = clock.run_time(number, frame["end_ns"].to_numpy()[mine])
    flat = np.array([track.kind == "rank" for track in found.tracks], dtype=np.bool_)
    # The rank's summary lane exists even if it is empty: it is the first of every rank.
    lanes = lay_out(frame["track"].to_numpy().astype(np.int32), start, end, flat)
    order, pointer = lanes.order, lanes.pointer
    of_track, depth, overflow = np.asarray(lanes.track), np.asarray(lanes.depth), np.asarray(lanes.overflow)
    if not of_track.size or of_track[0] != 0:
        pointer = np.concatenate([[0], pointer]) if of_track.size else np.zeros(2, dtype=np.int64)
        of_track, depth, overflow = np.append(0, of_track), np.append(0, depth), np.append(False, overflow)
    start, end = start[order], end[order]
    category = frame["category"].to_numpy()[order]
    codes, spelled = _names(frame["name"], order)
    head = slice(0, int(pointer[1]))
    events = LaneEvents(pointer, start, end, category, merge_lane(start[head], end[head], category[head]))
    first, last = _extents(pointer, start, end)
    text = [name.encode("utf-8", "surrogatepass") for name in spelled]
    arrays: dict[str, Array] = {
        "pointer": pointer,
        "lane_track": of_track.astype(np.int32),
        "lane_depth": depth.astype(np.int32),
        "lane_overflow": overflow.astype(np.uint8),
        "lane_first": first,
        "lane_last": last,
        "start": start,
        "end": end,
        "category": category,
        "name": codes,
        "table": frame["table"].to_numpy()[order],
        "window": window[order],
        "row": frame["row"].to_numpy()[order],
        "merged_start": events.merged[0],
        "merged_end": events.merged[1],
        "merged_category": events.merged[2],
        "name_text": np.frombuffer(b"".join(text), dtype=np.uint8),
        "name_ends": np.cumsum([len(each) for each in text], dtype=np.int64),
        **build(events, levels),
    }
    facts = {
        "tracks": [[track.kind, track.title, track.folded] for track in found.tracks],
        "steps": [step for number, each in enumerate(tables) for step in _steps(each, clock, number)],
        "counters": _counters(tables),
    }
    return facts, arrays


def _names(names: pl.Series, order: Int64) -> tuple[Array, list[str]]:
    """Names as numbers, in the events' order, and what the numbers mean."""
    different = names.unique(maintain_order=True)
    numbers = names.to_frame("name").join(
        different.to_frame("name").with_row_index("number"), on="name", how="left", maintain_order="left"
    )
    return numbers["number"].to_numpy()[order], different.to_list()


def _extents(pointer: Int64, start: Int64, end: Int64) -> tuple[Int64, Int64]:
    """First and last instant of each lane; 0 where it is empty."""
    first, last = np.zeros(pointer.size - 1, dtype=np.int64), np.zeros(pointer.size - 1, dtype=np.int64)
    some = np.flatnonzero(np.diff(pointer))
    if some.size:
        first[some] = start[pointer[some]]
        last[some] = np.maximum.reduceat(end, pointer[some])
    return first, last


def _steps(tables: Mapping[str, pl.DataFrame], clock: RankClock, window: int) -> list[list[int | None]]:
    """The windows of a file's steps, as `step_time` has them, on the run's clock."""
    steps, found = step_windows(tables["annotations"], tables["device_events"])
    if not steps.height:
        return []
    begin, end = clock.run_time(window, found.start), clock.run_time(window, found.end)
    return [list(row) for row in zip(steps["step"].to_list(), begin.tolist(), end.tolist(), strict=True)]


def _counters(tables: Sequence[Mapping[str, pl.DataFrame]]) -> list[str]:
    devices = pl.concat([each["memory_events"] for each in tables]).unique().sort("device_type", "device")
    named = devices.select(device_name()).to_series().unique(maintain_order=True)
    queued = any(each["device_events"]["launch_ns"].is_not_null().any() for each in tables)
    both = [f"memory:{name}:{which}" for name in named for which in ("allocated", "reserved")]
    return [*both, *(["queue"] if queued else [])]
