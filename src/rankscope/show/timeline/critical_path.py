"""The critical path of one step as events of the timeline: the chain whose sums the analysis `critical_path` shows.

In: a timeline, the results that `critical_path` needs, and an instant in the step. Out: the parts of the path in order
of time, each with its rank, category and event, as a column file.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.clocks import base_times
from rankscope.primitives.columns import values_and_validity
from rankscope.primitives.critical_path import chain_before
from rankscope.primitives.dependencies import CATEGORIES, CODE
from rankscope.primitives.intervals import Int64
from rankscope.primitives.marked_nodes import READS, MarkedNodes, last_arrivals, marked_nodes, matched_starts
from rankscope.primitives.steps import distinct_steps
from rankscope.show.timeline.column_file import column_file
from rankscope.show.timeline.timeline import RankInRun, Timeline
from rankscope.show.timeline.tracks import TABLES

NEEDED = ("collectives", "clock", "step_time")
"""Analyses whose results a path needs."""
_NODE_TABLES = ("device_events", "host_ops", "runtime_calls", "annotations")
_KEPT = 8  # files whose nodes are kept for the next step


@dataclass(frozen=True)
class _Part:
    """Parts of the path on one rank, on the run's clock; lane −1 where nothing is recorded."""

    rank: int
    start: Int64
    end: Int64
    category: Int64
    lane: Int64
    row: Int64


@dataclass(frozen=True)
class _File:
    """A file's nodes, with what finds marked ones and their events."""

    own: MarkedNodes
    is_marked: npt.NDArray[np.bool_]
    of_match: Mapping[int, int]
    keys: Int64
    places: Int64


@dataclass(frozen=True)
class StepPath:
    """The path of a step.

    Attributes:
        step: the step's number; None for a trace without steps.
        windows: start and end of the step on each rank that it is of, ns on the run's clock.
        path: the path as a column file; None if there is none.
    """

    step: int | None
    windows: list[tuple[int, int]]
    path: bytes | None


class CriticalPaths:
    """Finds the critical paths of steps.

    Args:
        timeline: the run, with all of its ranks.
        results: the frames of the analyses in `NEEDED`.
        communication: a regular expression of further kernel names that are communication.
    """

    def __init__(self, timeline: Timeline, results: Mapping[str, pl.DataFrame], communication: str | None) -> None:
        self._timeline = timeline
        self._clock, self._collectives = results["clock"], results["collectives"]
        drawn = pl.col("rank").is_in([in_run.lanes.rank for in_run in timeline.drawn()])
        self._steps = results["step_time"].filter((pl.col("window_ns") > 0) & drawn)
        self._names, (self._numbered,) = distinct_steps([self._steps])
        self._communication = communication
        self._residuals = dict(self._clock.select("rank", "residual_ns").drop_nulls().iter_rows())
        self._files: dict[tuple[int, int], _File] = {}
        self._lock = threading.Lock()
        infos = [trace.info for traces in timeline.traces.values() for trace in traces]
        self._bases = base_times(infos)

    def path(self, at_ns: int, rank: int | None = None) -> bytes | None:
        """The path of the step at an instant, as a column file; None if no step of these ranks has a path.

        Args:
            at_ns: on the run's clock; outside of all steps, the nearest one is meant.
            rank: whose own path; None for the path across all ranks.
        """
        wanted = self._wanted(rank)
        if not wanted.height:
            return None
        begin, end = self._windows(wanted)
        away = np.maximum(np.maximum(begin - at_ns, at_ns - end), 0)
        middle = np.abs(begin + end - 2 * at_ns)
        nearest = int(np.lexsort((middle, away))[0])
        return self._path(wanted["step"][nearest], rank)

    def all_paths(self, rank: int | None = None) -> list[StepPath]:
        """The paths of all steps: of a rank, or across all ranks."""
        found = []
        wanted = self._wanted(rank)
        for number in wanted["step"].unique(maintain_order=True):
            begin, end = self._windows(wanted.filter(pl.col("step").eq_missing(number)))
            windows = list(zip(begin.tolist(), end.tolist(), strict=True))
            found.append(StepPath(self._names.get(number, number), windows, self._path(number, rank)))
        return found

    def _path(self, number: int | None, rank: int | None) -> bytes | None:
        """The path of a step, by its number among all steps."""
        steps = self._numbered.filter(pl.col("step").eq_missing(number)).with_columns(
            pl.col("step").replace(self._names)
        )
        if not steps.height or not (rank is None or (steps["rank"] == rank).any()):
            return None
        rows = self._rows(steps)
        last, arrived, end = last_arrivals(rows, self._clock, self._bases)
        finals = np.flatnonzero(rows["match"].is_null().to_numpy())
        if rank is not None:
            first = int(finals[rows["rank"].to_numpy()[finals] == rank][0])
        elif end[finals].any():
            first = int(finals[np.lexsort((finals, end[finals]))[-1]])
        else:
            return None  # no clock in common: which rank ended last is unknown
        with self._lock:
            parts = self._walk(rows, first, last, arrived, across=rank is None)
        return _column_file(parts, steps["step"].item(0), rank)

    def _wanted(self, rank: int | None) -> pl.DataFrame:
        """The rows of `step_time` of all ranks, or of one; each step has a number of its own."""
        return self._numbered if rank is None else self._numbered.filter(pl.col("rank") == rank)

    def _windows(self, steps: pl.DataFrame) -> tuple[Int64, Int64]:
        """Start and end of steps on the run's clock."""
        begin = np.zeros(steps.height, dtype=np.int64)
        for place, (of, window, start) in enumerate(steps.select("rank", "window", "start_ns").iter_rows()):
            begin[place] = self._on_run_clock(of, window, np.array([start]))[0]
        return begin, begin + steps["window_ns"].to_numpy()

    def _rows(self, steps: pl.DataFrame) -> pl.DataFrame:
        """Matched collectives that end in these steps and the steps' ends, as `last_arrivals` takes them."""
        window = steps.select("rank", "window", "step", pl.col("start_ns").alias("from"), "window_ns")
        parts = []
        within = self._collectives.select("rank", "window", "start_ns", "end_ns", "source", "stream", "match").join(
            window, on=["rank", "window"], how="inner", maintain_order="left"
        )
        ends = pl.col("end_ns") - pl.col("from")
        for _, own in within.filter((ends > 0) & (ends <= pl.col("window_ns"))).group_by(
            "rank", "window", maintain_order=True
        ):
            parts.append(matched_starts(own).unique("match", keep="first", maintain_order=True))
        columns = ("rank", "window", "step", "match", "start_ns", "end_ns")
        finals = window.with_columns((pl.col("from") + pl.col("window_ns")).alias("start_ns")).with_columns(
            pl.col("start_ns").alias("end_ns"), pl.lit(None, pl.Int64).alias("match")
        )
        return pl.concat([each.select(pl.col(columns).cast(pl.Int64)) for each in [*parts, finals]])

    def _walk(self, rows: pl.DataFrame, first: int, last: Int64, arrived: Int64, *, across: bool) -> list[_Part]:
        """The parts of the path that ends at a row, latest first."""
        ranks, windows = rows["rank"].to_list(), rows["window"].to_list()
        match = values_and_validity(rows["match"], -1)[0]
        row_of = {(ranks[i], windows[i], int(match[i])): i for i in range(rows.height)}
        step_end = {(ranks[i], windows[i]): int(rows["end_ns"][i]) for i in range(rows.height) if match[i] < 0}
        parts: list[_Part] = []
        seen: set[int] = set()
        at = first
        while at >= 0 and at not in seen:
            seen.add(at)  # clocks that are wrong by more than they seem could make ranks wait in a circle
            file, node = self._node(ranks[at], windows[at], int(match[at]), step_end)
            if node is None:
                break
            own = file.own
            to, until = int(last[at]), int(arrived[at])
            # A host's collective can end before its range does, where the thread that waits for it goes on.
            bound = max(self._residuals.get(ranks[at], 0), self._residuals.get(ranks[to], 0))
            if until - int(own.nodes.end[node]) > bound:
                to, until = at, int(own.nodes.start[node])
            if own.clipped.own_ns[node]:
                end = int(own.nodes.end[node])
                start = end - int(own.clipped.own_ns[node])
                split = min(max(until, start), end)
                cuts = [("communication", split, end), *([] if across else [("wait", start, split)])]
                kept = [(CODE[name], low, high) for name, low, high in cuts if high > low]
                code, low, high = np.array(kept, dtype=np.int64).reshape(-1, 3).T
                parts.append(self._placed(ranks[at], windows[at], file, np.full(code.size, node), low, high, code))
            if across and to != at:
                at = to
                file, other = self._node(ranks[at], windows[at], int(match[at]), step_end)
                if other is None:
                    break
                node = other
            rank, window = ranks[at], windows[at]
            chain = chain_before(file.own.nodes, file.own.clipped, file.is_marked, node)
            parts.append(self._placed(rank, window, file, chain.node, chain.start, chain.end, chain.category))
            position = int(np.searchsorted(file.own.marked, chain.previous)) if chain.previous >= 0 else -1
            at = row_of.get((rank, window, int(file.own.match[position])), -1) if position >= 0 else -1
        return parts

    def _node(
        self, rank: int, window: int, match: int, step_end: Mapping[tuple[int, int], int]
    ) -> tuple[_File, int | None]:
        """The node of a row: of its collective, or of the step's end."""
        file = self._file(rank, window)
        if match >= 0:
            return file, file.of_match.get(match)
        nodes = file.own.nodes
        finals = np.arange(nodes.start.size - nodes.finals, nodes.start.size)
        found = finals[nodes.end[finals] == step_end[rank, window]]
        return file, int(found[0]) if found.size else None

    def _file(self, rank: int, window: int) -> _File:
        key = rank, window
        if key in self._files:
            self._files[key] = self._files.pop(key)  # the latest used is the last
            return self._files[key]
        trace = self._timeline.traces[rank][window]
        tables = {name: trace.load(name, columns) for name, columns in READS.items()}
        here = (pl.col("rank") == rank) & (pl.col("window") == window)
        steps = self._steps.filter(here).sort("start_ns")
        own = marked_nodes(tables, self._collectives.filter(here), steps, self._communication)
        is_marked = np.zeros(own.nodes.start.size, dtype=np.bool_)
        is_marked[own.marked] = True
        matched = np.flatnonzero(own.match >= 0)
        of_match = dict(zip(own.match[matched].tolist(), own.marked[matched].tolist(), strict=True))
        keys, places = _event_places(self._timeline.ranks[rank], window)
        while len(self._files) >= _KEPT:
            del self._files[next(iter(self._files))]
        self._files[key] = _File(own, is_marked, of_match, keys, places)
        return self._files[key]

    def _placed(
        self, rank: int, window: int, file: _File, node: Int64, start: Int64, end: Int64, category: Int64
    ) -> _Part:
        """Parts with their events' lanes and rows."""
        in_run, nodes = self._timeline.ranks[rank], file.own.nodes
        table, row = nodes.table[np.maximum(node, 0)].astype(np.int64), nodes.row[np.maximum(node, 0)]
        is_event = (node >= 0) & (row >= 0)
        wanted = _key(table, row)
        at = np.minimum(np.searchsorted(file.keys, wanted), max(file.keys.size - 1, 0))
        is_event &= (file.keys[at] == wanted) if file.keys.size else False
        place = file.places[at] if file.keys.size else np.zeros(node.size, dtype=np.int64)
        events = in_run.lanes.events
        lane = np.searchsorted(events.pointer, place, side="right") - 1
        start, end = (self._on_run_clock(rank, window, time) for time in (start, end))
        # A launch lasts until its event starts: longer than the call, behind which nothing is recorded.
        until = np.where(is_event, np.clip(events.end[place], start, end), end)
        behind = until < end
        parts = _Part(
            rank, start, until, category,
            np.where(is_event, lane + in_run.first_lane, -1), np.where(is_event, place - events.pointer[lane], 0),
        )  # fmt: skip
        at, nothing = np.flatnonzero(behind), np.full(int(behind.sum()), -1, dtype=np.int64)
        return _Part(
            rank,
            np.insert(parts.start, at, until[at]),
            np.insert(parts.end, at, end[at]),
            np.insert(parts.category, at, category[at]),
            np.insert(parts.lane, at, nothing),
            np.insert(parts.row, at, nothing + 1),
        )

    def _on_run_clock(self, rank: int, window: int, time: Int64) -> Int64:
        return self._timeline.clock.ranks[rank].run_time(window, time)


def _key(table: Int64, row: Int64) -> Int64:
    return (table << 48) + row


def _event_places(in_run: RankInRun, window: int) -> tuple[Int64, Int64]:
    """Events of a file by table and row: sorted keys, and the events' places in the rank's lanes."""
    arrays, events = in_run.lanes.arrays, in_run.lanes.events
    first = int(events.pointer[1])
    table = arrays["table"][first:]
    numbers = [TABLES.index(name) for name in _NODE_TABLES]
    own = np.flatnonzero((arrays["window"][first:] == window) & np.isin(table, numbers))
    code = np.zeros(len(TABLES), dtype=np.int64)
    code[numbers] = np.arange(len(numbers))
    keys = _key(code[table[own]], arrays["row"][first:][own].astype(np.int64))
    order = np.argsort(keys, kind="stable")
    return keys[order], own[order] + first


def _column_file(parts: list[_Part], step: int | None, rank: int | None) -> bytes:
    """Parts, latest first, as columns in order of time."""
    none = np.empty(0, dtype=np.int64)
    columns = {
        name: np.concatenate([none, *(getattr(part, name) for part in parts)])[::-1]
        for name in ("start", "end", "category", "lane", "row")
    }
    ranks = np.concatenate([none, *(np.full(part.start.size, part.rank) for part in parts)])[::-1]
    kinds = (("start", "f64"), ("end", "f64"), ("category", "u8"), ("lane", "i32"), ("row", "u32"))
    named = {"start": "start_ns", "end": "end_ns"}
    return column_file(
        {"rank": ("u32", ranks), **{named.get(name, name): (kind, columns[name]) for name, kind in kinds}},
        {"step": step, "of_rank": rank, "categories": list(CATEGORIES)},
    )
