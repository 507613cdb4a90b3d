"""One step as lanes: what each rank's host and device do, and when its collectives wait and transfer.

In: a graph, costs, and the clocks of its nodes, as recorded or in a replay. Out: `Lanes`, intervals of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.primitives.intervals import Int64
from rankscope.whatif.graph import PARTS, C, Clocks, E, Float, Graph, S, W
from rankscope.whatif.replay import Costs
from rankscope.whatif.scenarios import component_parts
from rankscope.whatif.step_times import Steps

LANES = ("host", "device", "collectives")
KINDS = ("data_loading", "allocation", "host", "compute", "copies", "waiting", "transfer")
_WAITING, _TRANSFER = KINDS.index("waiting"), KINDS.index("transfer")
PIECES = 600
"""A step is shown in so many pieces at most: what is nearer than one of them is joined."""
MOST_RANKS = 8


@dataclass(frozen=True)
class Lanes:
    """Intervals of one step; times are ns since it began, as recorded or as replayed.

    Attributes:
        duration_ns: of the step.
        rank: of each interval.
        lane: an index into `LANES`.
        kind: an index into `KINDS`.
        start: when it starts.
        end: when it ends.
        busy: how much of it is of this kind: less than its length if several were joined.
    """

    duration_ns: float
    rank: Int64
    lane: Int64
    kind: Int64
    start: Float
    end: Float
    busy: Float


def typical_step(graph: Graph, steps: Steps) -> int:
    """The place in `steps` of the step whose recorded duration is nearest to the median."""
    ends = np.flatnonzero(graph.kind == E)
    durations = steps.durations(graph, graph.recorded.end[ends][:, None])[:, 0]
    return int(np.argmin(np.abs(durations - np.median(durations))))


def step_lanes(graph: Graph, costs: Costs, clocks: Clocks, span: tuple[float, float], ranks: Sequence[int]) -> Lanes:
    """What some ranks do between two instants.

    Args:
        graph: the run.
        costs: of its segments.
        clocks: when its nodes are reached with these costs.
        span: begin and end of the step (`step_span`).
        ranks: which, in this order.
    """
    lines = np.flatnonzero(np.isin(graph.lines.rank, ranks))
    found = [
        intervals
        for line in lines.tolist()
        for intervals in (*_host(graph, costs, clocks, line), *_device(graph, costs, clocks, line))
    ]
    found += _collectives(graph, clocks, lines)
    line, lane, kind, start, end = (np.concatenate(each) for each in zip(*found, strict=True))
    begin, until = span
    start, end = np.maximum(start, begin) - begin, np.minimum(end, until) - begin
    kept = end > start
    rank = graph.lines.rank[line]
    return _joined(until - begin, rank[kept], np.stack([lane, kind])[:, kept], start[kept], end[kept])


_Intervals = tuple[Int64, Int64, Int64, Float, Float]
"""Line, lane, kind, start, end."""


def _intervals(line: int, lane: str, kind: int, start: Float, end: Float) -> _Intervals:
    size = start.size
    return np.full(size, line), np.full(size, LANES.index(lane)), np.full(size, kind), start, end


def step_span(graph: Graph, steps: Steps, place: int, clocks: Clocks) -> tuple[float, float]:
    """Begin and end of a step over all ranks, ns: from the end of the step before it."""
    ends = np.flatnonzero(graph.kind == E)

    def last(step: int) -> float:
        return float(clocks.end[ends][graph.step[ends] == step].max())

    before = int(steps.before[place])
    return last(before) if before >= 0 else float(steps.begin[place]), last(int(steps.index[place]))


def _host(graph: Graph, costs: Costs, clocks: Clocks, line: int) -> list[_Intervals]:
    """The host's time in each segment, its parts in the order of `KINDS`, and its waits."""
    nodes = np.flatnonzero(graph.line == line)
    before = np.concatenate([[graph.lines.begin[line]], clocks.host[nodes][:-1]])
    parts_of = component_parts(graph)
    values = np.concatenate([costs.host[nodes], np.zeros_like(costs.device[nodes])], axis=1)
    found, at = [], before
    for kind, name in enumerate(KINDS[: KINDS.index("copies")]):
        until = at + values[:, parts_of[name][line]].sum(axis=1)
        found.append(_intervals(line, "host", kind, at, until))
        at = until
    waits = graph.kind[nodes] == S
    found.append(_intervals(line, "host", _WAITING, at[waits], clocks.host[nodes][waits]))
    return found


def _device(graph: Graph, costs: Costs, clocks: Clocks, line: int) -> list[_Intervals]:
    """The device's time in each segment, just before it is done, and its waits for collectives."""
    if not graph.lines.on_device[line]:
        return []
    nodes = np.flatnonzero(graph.line == line)
    before = np.concatenate([[graph.lines.begin[line]], clocks.device[nodes][:-1]])
    device = costs.device[nodes]
    done, found = clocks.busy[nodes], []
    at = np.maximum(done - device.sum(axis=1), before)
    for column, name in enumerate(PARTS[-device.shape[1] :]):
        until = np.minimum(at + device[:, column], done)
        found.append(_intervals(line, "device", KINDS.index(name), at, until))
        at = until
    waits = graph.kind[nodes] == W
    since = np.maximum(done, before)[waits]
    found.append(_intervals(line, "device", _WAITING, since, clocks.device[nodes][waits]))
    return found


def _collectives(graph: Graph, clocks: Clocks, lines: Int64) -> list[_Intervals]:
    """Each collective: it waits for its last rank, then transfers."""
    every = np.flatnonzero(graph.kind == C)
    last = np.full(graph.transfer.size, -np.inf)
    np.maximum.at(last, graph.collective[every], clocks.start[every])
    nodes = every[np.isin(graph.line[every], lines)]
    start, end = clocks.start[nodes], clocks.end[nodes]
    complete = np.clip(last[graph.collective[nodes]], start, np.maximum(start, end))
    return [
        (graph.line[nodes], np.full(nodes.size, LANES.index("collectives")), np.full(nodes.size, kind), since, until)
        for kind, since, until in ((_WAITING, start, complete), (_TRANSFER, complete, end))
    ]


def _joined(duration: float, rank: Int64, what: Int64, start: Float, end: Float) -> Lanes:
    """Intervals of one rank, lane and kind are joined if the gap between them would not be seen."""
    order = np.lexsort((start, what[1], what[0], rank))
    rank, (lane, kind), start, end = rank[order], what[:, order], start[order], end[order]
    busy = end - start
    same = np.zeros(rank.size, dtype=np.bool_)
    same[1:] = (np.diff(rank) == 0) & (np.diff(lane) == 0) & (np.diff(kind) == 0)
    key = np.cumsum(~same)
    # Each group in a stretch of time of its own, so that one running maximum serves all.
    apart = key * (2 * duration + 1)
    reached = np.maximum.accumulate(end + apart) - apart
    opens = ~same
    opens[1:] |= start[1:] - reached[:-1] > duration / PIECES
    first = np.flatnonzero(opens)
    if not first.size:
        return Lanes(duration, rank, lane, kind, start, end, busy)
    until = np.maximum.reduceat(end, first)
    total = np.minimum(np.add.reduceat(busy, first), until - start[first])
    return Lanes(duration, rank[first], lane[first], kind[first], start[first], until, total)


def ranks_that_differ(graph: Graph, span: tuple[float, float], named: Sequence[int] = ()) -> list[int]:
    """At most `MOST_RANKS` ranks to look at: named ones, and others from who waits least to who waits most.

    Args:
        graph: the run.
        span: the step in the recording.
        named: ranks that come first.
    """
    every = np.unique(graph.lines.rank)
    if every.size <= MOST_RANKS:
        return [int(rank) for rank in every]
    nodes = np.flatnonzero(graph.kind == C)
    start, end = (np.clip(times[nodes], *span) for times in (graph.recorded.start, graph.recorded.end))
    place = np.searchsorted(every, graph.lines.rank[graph.line[nodes]])
    by_wait = every[np.argsort(np.bincount(place, end - start, every.size), kind="stable")]
    chosen = [rank for rank in dict.fromkeys(named) if rank in every][:MOST_RANKS]
    others = by_wait[~np.isin(by_wait, chosen)]
    spread = np.linspace(0, others.size - 1, MOST_RANKS - len(chosen)).round().astype(np.int64)
    return sorted({*chosen, *others[spread].tolist()})
