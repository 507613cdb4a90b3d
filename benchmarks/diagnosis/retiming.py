"""Recomputes a real job's tables as if one rank had been slower.

What must hold of any run of the same program is kept as constraints, each with the least lag that the recorded run
shows, and the earliest time that satisfies all of them is each event's new one:

- a kernel starts after its launch, after the kernel before it on its stream, a collective's also after the compute
  launched before it, and compute that the recorded run let wait for a collective after that collective
- a collective ends, on every rank, its transfer after the last rank's arrival; what the recorded run took beyond the
  last arrival is the transfer
- the host runs on as it did, except where it waits: a call that synchronizes returns after the device work it waited
  for, a gap that ends with a Gloo collective ends after that

Whatever binds in the recorded run keeps the lag it has there, so that without a perturbation every event stays where
it was (tested). A rank's host is one time line: its threads move together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from rankscope.primitives.activity import (
    computing_operators,
    covered_time,
    data_loading_time,
    gloo_ranges,
    with_category,
)
from rankscope.primitives.intervals import Int64
from rankscope.primitives.kernels import COMMUNICATION, COMPUTE

LATENCY_NS = 10_000  # from a launch's start to its kernel's, at least
GAP_NS = 1_000  # between kernels of a stream, at least
WAKE_NS = 30_000  # compute that starts so soon after a collective, having been launched long before, waited for it
SYNC_NS = 200_000  # a call that returns so soon after device work waited for it
SHORT_CALL_NS = 5_000
PASSES = 4

Tables = dict[str, pl.DataFrame]


@dataclass(frozen=True)
class Slower:
    """The perturbation of one rank.

    Attributes:
        rank: the rank.
        host: its host takes so much longer for everything, 0.1 for a tenth.
        kernels: its compute kernels do.
        launch_ns: each of its launches takes so much longer; without a device each of its operators.
    """

    rank: int
    host: float = 0.0
    kernels: float = 0.0
    launch_ns: int = 0


@dataclass
class _Wait:
    """A stretch of a rank's host in which it waits: from when until when, for which of its rows, with what lag."""

    start: int
    end: int
    row: int
    lag: int


@dataclass
class Rank:
    """One rank's recorded times and what binds them; times on the common clock."""

    rank: int
    tables: Tables
    shift: int
    on_device: bool
    start: Int64
    end: Int64
    launch: Int64
    """-1 if unknown."""
    compute: np.ndarray
    before: list[list[tuple[int, int]]]
    """By row: the rows that must have ended, each with the least lag."""
    launch_lag: Int64
    group: Int64
    """By row: its collective, or -1."""
    waits: list[_Wait]
    launches: Int64
    """Starts of the calls that launch."""
    new_start: Int64 = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    new_end: Int64 = field(default_factory=lambda: np.empty(0, dtype=np.int64))


class Retiming:
    """A recorded run, to be run again."""

    def __init__(self, tables: Mapping[int, Tables], collectives: pl.DataFrame, shift: Mapping[int, int]) -> None:
        """Find what binds.

        Args:
            tables: by rank: device_events, host_ops, runtime_calls, annotations of its only file.
            collectives: rank, match, start_ns, end_ns, stream.
            shift: by rank, what makes its clock the common one.
        """
        matched = collectives.drop_nulls("match")
        self.ranks = {
            rank: _rank(rank, each, matched.filter(pl.col("rank") == rank), shift[rank])
            for rank, each in tables.items()
        }
        arrivals: dict[int, list[tuple[int, int]]] = {}
        for rank, each in self.ranks.items():
            for row in np.flatnonzero(each.group >= 0).tolist():
                arrivals.setdefault(int(each.group[row]), []).append((rank, row))
        self.members = {match: members for match, members in arrivals.items() if self._overlap(members)}
        # By collective and rank: from the last arrival to its end there.
        self.transfer = {
            (match, rank): int(self.ranks[rank].end[row]) - max(int(self.ranks[other].start[r]) for other, r in members)
            for match, members in self.members.items()
            for rank, row in members
        }
        order = [
            (int(time), kind, rank, row)
            for rank, each in self.ranks.items()
            for kind, times in (("start", each.start), ("wait", np.array([w.end for w in each.waits], dtype=np.int64)))
            for row, time in enumerate(times.tolist())
        ]
        self.order = sorted(order)

    def _overlap(self, members: list[tuple[int, int]]) -> bool:
        """Whether what was matched can be one collective: nobody left it before the last had come."""
        return min(int(self.ranks[rank].end[row]) for rank, row in members) >= max(
            int(self.ranks[rank].start[row]) for rank, row in members
        )

    def run(self, slower: Slower | None = None) -> dict[int, Tables]:
        """The tables as they would have been."""
        for each in self.ranks.values():
            each.new_start, each.new_end = each.start.copy(), each.end.copy()
        hosts = {}
        for _ in range(PASSES):
            before = [np.concatenate([each.new_start, each.new_end]) for each in self.ranks.values()]
            hosts = {rank: _Host(each, slower) for rank, each in self.ranks.items()}
            for _, kind, rank, row in self.order:
                each = self.ranks[rank]
                if kind == "wait":
                    hosts[rank].wait(each.waits[row], int(each.new_end[each.waits[row].row]))
                else:
                    self._start(each, row, hosts[rank], slower)
            after = [np.concatenate([each.new_start, each.new_end]) for each in self.ranks.values()]
            if all(bool((a == b).all()) for a, b in zip(before, after, strict=True)):
                break
        return {rank: _moved(each, hosts[rank]) for rank, each in self.ranks.items()}

    def _start(self, each: Rank, row: int, host: _Host, slower: Slower | None) -> None:
        old = int(each.start[row])
        bounds = [(int(each.end[other]) + lag, int(each.new_end[other]) + lag) for other, lag in each.before[row]]
        if each.launch[row] >= 0:
            launch = int(each.launch[row])
            lag = int(each.launch_lag[row])
            bounds.append((launch + lag, host.at(launch) + lag))
        if bounds:
            # The one that binds in the recorded run keeps all the lag it has there.
            binding = max(range(len(bounds)), key=lambda i: bounds[i][0])
            slack = old - bounds[binding][0]
            new = max(after + (slack if i == binding else 0) for i, (_, after) in enumerate(bounds))
        else:
            new = old
        each.new_start[row] = new
        match = int(each.group[row])
        if match not in self.members:
            length = int(each.end[row]) - old
            if slower is not None and slower.rank == each.rank and each.compute[row]:
                length = round(length * (1 + slower.kernels))
            each.new_end[row] = new + length
            return
        last = max(int(self.ranks[rank].new_start[r]) for rank, r in self.members[match])
        for rank, r in self.members[match]:
            self.ranks[rank].new_end[r] = last + self.transfer[match, rank]


class _Host:
    """A rank's host time line as it moves: pairs of old and new instants, in order."""

    def __init__(self, rank: Rank, slower: Slower | None) -> None:
        first = min([int(rank.start.min()) if rank.start.size else 0, *(int(w.start) for w in rank.waits[:1])])
        for name in ("host_ops", "runtime_calls", "annotations"):
            if rank.tables[name].height:
                first = min(first, int(rank.tables[name]["start_ns"].min()) + rank.shift)  # type: ignore[arg-type]
        self.first = first
        mine = slower if slower is not None and slower.rank == rank.rank else Slower(rank.rank)
        self.rate = mine.host
        self.launches = rank.launches if mine.launch_ns else rank.launches[:0]
        self.launch_ns = mine.launch_ns
        self.old, self.new = [first], [first]

    def _taken(self, start: int, end: int) -> int:
        """How long the host takes for what it did between two instants without waiting."""
        launched = int(np.searchsorted(self.launches, end) - np.searchsorted(self.launches, start))
        return end - start + round((end - start) * self.rate) + launched * self.launch_ns

    def at(self, instant: int) -> int:
        """Where an instant moves to."""
        place = bisect_right(self.old, instant) - 1
        if place < 0:
            return instant
        if place + 1 < len(self.old) and self.new[place + 1] - self.new[place] != 0:
            # Inside a wait, or before one: not beyond where the next known instant has moved to.
            return min(self.new[place] + self._taken(self.old[place], instant), self.new[place + 1])
        return self.new[place] + self._taken(self.old[place], instant)

    def wait(self, wait: _Wait, ended: int) -> None:
        """The host waits for something that now ends at ``ended``."""
        begun = self.at(wait.start)
        least = min(wait.end - wait.start, SHORT_CALL_NS)
        self.old += [max(wait.start, self.old[-1]), max(wait.end, self.old[-1])]
        self.new += [max(begun, self.new[-1]), max(begun + least, ended + wait.lag, self.new[-1])]

    def many(self, instants: Int64) -> Int64:
        """Where many instants move to."""
        knots = np.unique(np.concatenate([np.array(self.old), self.launches, self.launches + 1, instants]))
        knots = knots[knots >= self.first]
        values = np.array([self.at(int(knot)) for knot in knots], dtype=np.int64)
        values = np.maximum.accumulate(values)
        found: Int64 = values[np.searchsorted(knots, np.maximum(instants, self.first))]
        return found


def _rank(rank: int, tables: Tables, matched: pl.DataFrame, shift: int) -> Rank:
    device = tables["device_events"]
    return _device_rank(rank, tables, matched, shift) if device.height else _host_rank(rank, tables, matched, shift)


def _device_rank(rank: int, tables: Tables, matched: pl.DataFrame, shift: int) -> Rank:
    device = with_category(tables["device_events"], None).with_row_index("row")
    category = device["category"].to_numpy()
    start, end = device["start_ns"].to_numpy() + shift, device["end_ns"].to_numpy() + shift
    launch = (device["launch_ns"] + shift).fill_null(-1).to_numpy().astype(np.int64)
    stream = device["stream"].fill_null(-1).to_numpy()
    at = {(s, e, w): row for row, s, e, w in device.select("row", "start_ns", "end_ns", "stream").iter_rows()}
    group = np.full(start.size, -1, dtype=np.int64)
    for match, s, e, w in matched.select("match", "start_ns", "end_ns", "stream").iter_rows():
        if (s, e, w) in at:
            group[at[s, e, w]] = match
    order = np.lexsort((end, start))
    before: list[list[tuple[int, int]]] = [[] for _ in range(start.size)]
    last: dict[int, int] = {}
    computed: list[tuple[int, int]] = []  # (launch, row) of compute, in order of launch
    by_launch = sorted((int(launch[r]), int(r)) for r in np.flatnonzero((category == COMPUTE) & (launch >= 0)))
    computed = by_launch
    launches_of_compute = [each for each, _ in computed]
    collectives = [int(r) for r in order if category[r] == COMMUNICATION]
    ends = np.sort(end[collectives]) if collectives else np.empty(0, dtype=np.int64)
    by_end = sorted(collectives, key=lambda r: int(end[r]))
    for row in order.tolist():
        previous = last.get(int(stream[row]))
        if previous is not None and end[previous] <= start[row]:
            before[row].append((previous, int(min(start[row] - end[previous], GAP_NS))))
        last[int(stream[row])] = row
        if category[row] == COMMUNICATION and launch[row] >= 0:
            place = bisect_right(launches_of_compute, int(launch[row])) - 1
            if place >= 0:
                other = computed[place][1]
                if end[other] <= start[row]:
                    before[row].append((other, int(min(start[row] - end[other], GAP_NS))))
        elif category[row] != COMMUNICATION and ends.size:
            place = int(np.searchsorted(ends, start[row], side="right")) - 1
            stalled = previous is None or start[row] - end[previous] > GAP_NS * 4
            woken = place >= 0 and start[row] - ends[place] < WAKE_NS
            queued = launch[row] < 0 or start[row] - launch[row] > 2 * LATENCY_NS
            if woken and queued and stalled:
                other = by_end[place]
                before[row].append((other, int(min(start[row] - end[other], GAP_NS))))
    lag = np.where(launch >= 0, np.minimum(start - launch, LATENCY_NS), 0).astype(np.int64)
    calls = tables["runtime_calls"]
    launches = np.sort(np.unique(launch[launch >= 0]))
    waits = _syncs(calls, shift, start, end, launch)
    return Rank(rank, tables, shift, True, start, end, launch, category == COMPUTE, before, lag, group, waits, launches)


def _syncs(calls: pl.DataFrame, shift: int, start: Int64, end: Int64, launch: Int64) -> list[_Wait]:
    waiting = calls.filter(
        pl.col("name").str.contains("Synchronize|[mM]emcpy")
        & ((pl.col("end_ns") - pl.col("start_ns")) > 2 * LATENCY_NS)
    ).sort("start_ns")
    order = np.argsort(end, kind="stable")
    ends = end[order]
    found: list[_Wait] = []
    for s, e in waiting.select("start_ns", "end_ns").iter_rows():
        s, e = s + shift, e + shift
        place = int(np.searchsorted(ends, e, side="right")) - 1
        if place < 0 or e - ends[place] > SYNC_NS or ends[place] <= s or (found and found[-1].end > s):
            continue
        row = int(order[place])
        if launch[row] < e:
            found.append(_Wait(s, e, row, int(e - end[row])))
    return found


def _host_rank(rank: int, tables: Tables, matched: pl.DataFrame, shift: int) -> Rank:
    ranges = gloo_ranges(tables["host_ops"], tables["annotations"])
    rows = matched.sort("start_ns")
    start, end = rows["start_ns"].to_numpy() + shift, rows["end_ns"].to_numpy() + shift
    group, thread = rows["match"].to_numpy().astype(np.int64), rows["stream"].to_numpy()
    before: list[list[tuple[int, int]]] = [[] for _ in range(start.size)]
    last: dict[int, int] = {}
    queued = np.zeros(start.size, dtype=np.bool_)
    for row in range(start.size):
        previous = last.get(int(thread[row]))
        if previous is not None and end[previous] <= start[row]:
            gap = int(start[row] - end[previous])
            before[row].append((previous, min(gap, GAP_NS)))
            queued[row] = gap < WAKE_NS
        last[int(thread[row])] = row
    # A range that began as soon as its thread was free was asked for earlier, nobody knows when.
    launch = np.where(queued, -1, start)
    operators = computing_operators(tables["host_ops"], ranges)
    busy = covered_time(operators) | data_loading_time(tables["annotations"])
    starts, stops = np.asarray(busy.starts) + shift, np.asarray(busy.ends) + shift
    waits: list[_Wait] = []
    for row in np.argsort(end, kind="stable").tolist():
        place = int(np.searchsorted(stops, end[row], side="right")) - 1
        if place < 0 or (place + 1 < starts.size and starts[place + 1] < end[row]):
            continue
        begun = max(int(stops[place]), waits[-1].end if waits else 0)
        if end[row] - begun > 2 * LATENCY_NS and start[row] < end[row]:
            waits.append(_Wait(begun, int(end[row]), row, 0))
    return Rank(
        rank, tables, shift, False, start, end, launch.astype(np.int64), np.zeros(start.size, dtype=np.bool_), before,
        np.zeros(start.size, dtype=np.int64), group, waits, np.sort(operators["start_ns"].to_numpy() + shift),
    )  # fmt: skip


def _moved(each: Rank, host: _Host) -> Tables:
    shift = each.shift

    def instants(column: pl.Series) -> pl.Series:
        known = column.is_not_null().to_numpy()
        moved = column.fill_null(0).to_numpy() + shift
        moved[known] = host.many(moved[known])
        return pl.select(pl.when(pl.Series(known)).then(pl.Series(moved - shift))).to_series().alias(column.name)

    found = dict(each.tables)
    device = found["device_events"]
    if each.on_device:
        found["device_events"] = device.with_columns(
            pl.Series("start_ns", each.new_start - shift),
            pl.Series("end_ns", each.new_end - shift),
            instants(device["launch_ns"]),
        )
    for name in ("host_ops", "runtime_calls", "annotations"):
        table = found[name]
        if table.height:
            found[name] = table.with_columns(instants(table["start_ns"]), instants(table["end_ns"]))
    if "on_device" in found["annotations"].columns:
        found["annotations"] = found["annotations"].filter(~pl.col("on_device"))
    if not each.on_device:
        # Gloo's own ranges end when their collectives do.
        old = dict(
            zip(
                zip((each.start - shift).tolist(), (each.end - shift).tolist(), strict=True),
                range(each.start.size),
                strict=True,
            )
        )
        for name in ("host_ops", "annotations"):
            original = each.tables[name]
            if name == "annotations" and "on_device" in original.columns:
                original = original.filter(~pl.col("on_device"))
            rows = [
                old.get(key, -1) if text.startswith("gloo:") else -1
                for *key_, text in original.select("start_ns", "end_ns", "name").iter_rows()
                for key in [tuple(key_)]
            ]
            place = np.array(rows, dtype=np.int64)
            hit = place >= 0
            start, end = found[name]["start_ns"].to_numpy().copy(), found[name]["end_ns"].to_numpy().copy()
            start[hit], end[hit] = each.new_start[place[hit]] - shift, each.new_end[place[hit]] - shift
            found[name] = found[name].with_columns(pl.Series("start_ns", start), pl.Series("end_ns", end))
    return found


def lengths(tables: Sequence[Tables]) -> int:
    """From the first to the last instant of device work, or of operators, the greatest over ranks."""
    spans = []
    for each in tables:
        frame = each["device_events"] if each["device_events"].height else each["host_ops"]
        spans.append(int(frame["end_ns"].max()) - int(frame["start_ns"].min()))  # type: ignore[arg-type]
    return max(spans)
