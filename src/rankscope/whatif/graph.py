"""The dependency graph of a run: the segments of all ranks' hosts and devices, joined by their collectives.

A rank's file is a line of nodes in the order of its host: C, a collective is launched; W, its device waits for one; S,
its host waits; E, a step ends. Before each node lies a segment: the host's time by part, the device's time by part, and
the paths by which the host holds the device up (host until a launch, device from there to the segment's end).

In: the moments of all ranks on one clock. Out: `Graph`, whose arrays are in the order in which a replay computes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.intervals import Int64
from rankscope.whatif.moments import COLLECTIVE, HOST_PARTS, KERNEL_GAP_NS, LONG_RETURN_NS, TOUCH_NS, WORK

Float = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

C, W, S, E = range(4)
DEVICE_PARTS = ("compute", "copies")
PARTS = (*HOST_PARTS, *DEVICE_PARTS)
NEVER = -1e18
"""ns; the time of what nothing waits for."""
_LONG_AGO = np.iinfo(np.int64).min // 2
_LEAST_VOTES, _VOTE_SHARE, _LEAST_SHARE, _AGAINST_SHARE = 3, 0.5, 0.05, 0.1
_ALL_REDUCE = r"^all_reduce \d+ (\d+)$"
_CLOCKS_NS = 5_000
_SKEW_NS = 200_000
"""A collective of devices ends on all its ranks within this; what is more is the profiler's error."""


@dataclass(frozen=True)
class Lines:
    """The ranks' files.

    Attributes:
        rank: the rank of each.
        window: the index of the file among the rank's.
        role: ranks with the same number run the same program.
        begin: when its recording begins, ns on the common clock.
        on_device: whether it has a device.
    """

    rank: Int64
    window: Int64
    role: Int64
    begin: Float
    on_device: Bool


@dataclass(frozen=True)
class Clocks:
    """When each node is reached, as recorded or in a replay; ns on the common clock, (nodes,).

    Attributes:
        host: the host is past it.
        busy: the device has done what was launched before it.
        device: the same, after W with waiting.
        start: C: it starts on its rank.
        end: C: it ends on its rank; E: the step ends there, on host and device.
    """

    host: Float
    busy: Float
    device: Float
    start: Float
    end: Float

    def at(self, nodes: Int64) -> Clocks:
        """Those of some nodes."""
        return Clocks(self.host[nodes], self.busy[nodes], self.device[nodes], self.start[nodes], self.end[nodes])


@dataclass(frozen=True)
class Graph:
    """All lines, and the collectives that join them.

    Nodes are sorted by `level`: those of a level depend on earlier levels only, and a line has at most one of them in
    it. Within a level they are sorted by kind. All times are ns on the common clock.

    Attributes:
        lines: the ranks' files.
        line: of each node, an index into `lines`.
        kind: C, W, S or E.
        level: the first node of each level, and the number of nodes at the end.
        host: (nodes, `HOST_PARTS`) the host's time in the segment before a node.
        device: (nodes, `DEVICE_PARTS`) the device's time.
        path_host: (nodes, paths, `HOST_PARTS`) the host's time until some launches of the segment.
        path_device: (nodes, paths, `DEVICE_PARTS`) the device's time from there to the segment's end.
        path_latency: (nodes, paths) from such a launch to its start on an idle device; `NEVER` for no path.
        latency: C: from its launch to its start on an idle device; `NEVER` if its launch is not known.
        delay: C: how much later it started than anything explains; S: the call's time without waiting.
        wake: W and S: from a collective's end until it is noticed; negative where the end is recorded late.
        after_device: C and S: whether it waits for what the device has to do.
        allocates: S: whether in a call for memory.
        need_start: the first of each node's entries in `needs`, and the number of entries at the end.
        needs: nodes C of the same line whose collectives it waits for.
        collective: C: an index into `transfer`; −1 for other nodes.
        skew: C: by how much later than on the first rank it ends.
        transfer: of each collective its shortest duration on any rank, less its skew there.
        program: of each collective, a number for its kind and size.
        reduced: of each all-reduce its bytes; 0 for other collectives, and where its size is not known.
        group: of each collective, a number for its ranks; −1 if only one rank has it.
        step: of each node an index into `step_names`; −1 outside of steps.
        place: of each node the number of the program's stretch that it belongs to; −1 outside.
        step_names: (window, step) of each step, in their order; the step is −1 where none are marked.
        recorded: when each node was reached.
        dropped: waits that contradicted the order of others and were left out.
    """

    lines: Lines
    line: Int64
    kind: Int64
    level: Int64
    host: Float
    device: Float
    path_host: Float
    path_device: Float
    path_latency: Float
    latency: Float
    delay: Float
    wake: Float
    after_device: Bool
    allocates: Bool
    need_start: Int64
    needs: Int64
    collective: Int64
    skew: Float
    transfer: Float
    program: Int64
    reduced: Float
    group: Int64
    step: Int64
    place: Int64
    step_names: tuple[tuple[int, int], ...]
    recorded: Clocks
    dropped: int = 0

    @cached_property
    def stretches(self) -> Stretches:
        """What each rank did at each place of each step."""
        return Stretches.of(self)

    @cached_property
    def places(self) -> Places:
        """The same in the mean of all whole steps."""
        return Places.of(self.stretches, self.lines, self.stretches.whole)

    @cached_property
    def group_ranks(self) -> dict[int, tuple[int, ...]]:
        """The ranks of each group of matched collectives."""
        nodes = np.flatnonzero(self.collective >= 0)
        group = self.group[self.collective[nodes]]
        (number, rank), _ = _distinct(group[group >= 0], self.lines.rank[self.line[nodes[group >= 0]]])
        first = np.flatnonzero(np.diff(number, prepend=-1))
        ranks = np.split(rank, first[1:])
        return {int(which): tuple(of.tolist()) for which, of in zip(number[first], ranks, strict=False)}

    @cached_property
    def mean_transfers(self) -> dict[int, tuple[Int64, Float]]:
        """By program the groups that run it, and the mean transfer of each, ns."""
        matched = self.group >= 0
        (programs, groups), inverse = _distinct(self.program[matched], self.group[matched])
        mean = np.bincount(inverse, self.transfer[matched], groups.size) / np.bincount(inverse, minlength=groups.size)
        return {int(program): (groups[at], mean[at]) for program in np.unique(programs) for at in [programs == program]}


@dataclass(frozen=True)
class Stretches:
    """The segments up to each collective, which ranks with one program have in common.

    What a rank does after the last collective of a step delays the first one of the next: it belongs to that step.

    Attributes:
        of_node: the stretch of each node; −1 for nodes in no step.
        line: of each stretch.
        step: an index into `Graph.step_names`.
        place: the number of the place in the program.
        values: (stretches, `PARTS`) ns.
        memory_waits: how many calls for memory waited for the device.
        whole: whether the step was recorded from its beginning.
    """

    of_node: Int64
    line: Int64
    step: Int64
    place: Int64
    values: Float
    memory_waits: Float
    whole: Bool

    @classmethod
    def of(cls, graph: Graph) -> Stretches:
        """Those of a graph."""
        by_line = np.argsort(graph.line, kind="stable")
        following = np.empty(by_line.size, dtype=np.int64)
        following[by_line] = _following(graph.kind[by_line] == C, graph.line[by_line])
        # After the last collective of all, the step's end is what follows.
        until = np.where(following >= 0, by_line[following], np.arange(by_line.size))
        step, place = graph.step[until], graph.place[until]
        inside = (step >= 0) & (place >= 0)
        (line, step, place), inverse = _distinct(graph.line[inside], step[inside], place[inside])
        size = line.size
        of_node = np.full(graph.line.size, -1, dtype=np.int64)
        of_node[inside] = inverse
        values = _sums(inverse, np.concatenate([graph.host, graph.device], axis=1)[inside], size)
        waits = np.bincount(inverse, graph.allocates[inside].astype(np.float64), size)
        windows = np.array([window for window, _ in graph.step_names], dtype=np.int64)
        first = np.isin(np.arange(windows.size), np.searchsorted(windows, np.unique(windows)))
        several = np.bincount(windows)[windows] > 1 if windows.size else first
        return cls(of_node, line, step, place, values, waits.astype(np.float64), ~(first & several)[step])


@dataclass(frozen=True)
class Places:
    """What each rank does at each place of its program, in the mean of some steps.

    Attributes:
        of_stretch: the row of each stretch.
        line: of each row.
        program: of each row, a number that ranks with one program have in common at one place.
        count: the number of steps.
        total: (rows, `PARTS`) ns over these steps.
        memory_waits: calls for memory that waited for the device, over these steps.
    """

    of_stretch: Int64
    line: Int64
    program: Int64
    count: Int64
    total: Float
    memory_waits: Float

    @classmethod
    def of(cls, stretches: Stretches, lines: Lines, used: Bool) -> Places:
        """Those of a graph's stretches, as far as they are used."""
        (line, place), inverse = _distinct(stretches.line, stretches.place)
        size = line.size
        _, program = _distinct(lines.role[line], lines.window[line], place)
        return cls(
            inverse, line, program, np.bincount(inverse[used], minlength=size),
            _sums(inverse[used], stretches.values[used], size),
            np.bincount(inverse[used], stretches.memory_waits[used], size).astype(np.float64),
        )  # fmt: skip

    def peer_means(self, fixed: Bool) -> tuple[Float, Float, Bool]:
        """By row the mean of the peers that are not fixed: of the parts, of the waits, and whether there are any."""
        peers = ~fixed[self.line]
        size = int(self.program.max(initial=-1)) + 1
        count = np.bincount(self.program[peers], self.count[peers], size)[self.program]
        total = _sums(self.program[peers], self.total[peers], size)[self.program]
        waits = np.bincount(self.program[peers], self.memory_waits[peers], size)[self.program]
        return total / np.maximum(count, 1)[:, None], waits / np.maximum(count, 1), count > 0


def _distinct(*columns: Int64) -> tuple[list[Int64], Int64]:
    """The distinct rows of some columns, ascending, and which of them each row is; faster than `np.unique` of rows."""
    key = np.zeros_like(columns[0])
    for column in columns:
        low = int(column.min(initial=0))
        key = key * (int(column.max(initial=0)) - low + 1) + column - low
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return [column[first] for column in columns], inverse.reshape(-1)


def _sums(index: Int64, values: Float, size: int) -> Float:
    """The sums of the rows of each index."""
    # Of nothing, `bincount` gives whole numbers.
    return np.stack([np.bincount(index, column, size) for column in values.T], axis=1).astype(np.float64)


def graph_of(moments: pl.DataFrame, roles: Mapping[int, int]) -> Graph:
    """The graph of a run.

    Args:
        moments: of all ranks (`moments.SCHEMA`), with rank and window; times on the common clock.
        roles: which program each rank runs.
    """
    rows = moments.with_columns(pl.struct("rank", "window").rank("dense").cast(pl.Int64).alias("line") - 1)
    rows = rows.sort("line", maintain_order=True)
    role = pl.col("rank").replace_strict(roles, default=-1, return_dtype=pl.Int64).alias("role")
    rows = rows.with_columns(role).with_columns(_numbered())
    kind = rows["kind"].to_numpy()
    line = rows["line"].to_numpy()
    nodes = _nodes(rows, kind, line)
    lines = _lines(rows, roles)
    graph = _graph(rows, kind, line, nodes, lines)
    return in_order(graph)


def _numbered() -> list[pl.Expr]:
    """Of collectives: which one it is, and its place in the step."""
    unmatched = -2 - pl.int_range(pl.len())
    number = pl.when(pl.col("kind") == COLLECTIVE).then(pl.coalesce("match", unmatched))
    # A range that was lost on one rank is recorded on others.
    matched = pl.when(pl.col("match").is_not_null()).then(pl.col("step").max().over("match"))
    step = pl.coalesce(matched, "step")
    nth = pl.int_range(pl.len()).over("line", step, "program")
    place = pl.when(pl.col("kind") == COLLECTIVE).then(pl.struct("role", "program", nth.alias("nth")).rank("dense"))
    return [number.alias("number"), step.alias("step"), place.cast(pl.Int64).alias("place")]


def _lines(rows: pl.DataFrame, roles: Mapping[int, int]) -> Lines:
    first = (pl.col("at_ns") - pl.sum_horizontal(f"{part}_ns" for part in HOST_PARTS)).min()
    frame = (
        rows.group_by("line")
        .agg(
            pl.col("rank").first(),
            pl.col("window").first(),
            first.alias("begin"),
            (pl.col("kind") == WORK).any().alias("device"),
        )
        .sort("line")
    )
    role = np.array([roles.get(rank, -1) for rank in frame["rank"]], dtype=np.int64)
    return Lines(
        frame["rank"].to_numpy().astype(np.int64), frame["window"].to_numpy().astype(np.int64), role,
        frame["begin"].to_numpy().astype(np.float64), frame["device"].to_numpy(),
    )  # fmt: skip


@dataclass(frozen=True)
class _Nodes:
    """Nodes in the order of lines and hosts: which row each comes from, and of W which row's collective it waits for.

    `position` is twice the row, and one more for nodes after the row's launch; a W is before it.
    """

    kind: Int64
    row: Int64
    awaited: Int64
    position: Int64


def _nodes(rows: pl.DataFrame, kind: Int64, line: Int64) -> _Nodes:
    row = np.flatnonzero(kind != WORK)
    waiting, awaited = _device_waits(rows, kind, line)
    node_kind = np.concatenate([np.array([-1, C, S, E])[kind[row]], np.full(waiting.size, W)])
    every = np.concatenate([row, waiting])
    position = np.concatenate([2 * row + 1, 2 * waiting])
    order = np.lexsort((np.concatenate([row, awaited]), position))
    awaits = np.concatenate([_awaited_on_host(rows, kind, line)[row], awaited])
    return _Nodes(node_kind[order], every[order], awaits[order], position[order])


def _device_waits(rows: pl.DataFrame, kind: Int64, line: Int64) -> tuple[Int64, Int64]:
    """The rows before whose launch the device waits, and the rows of the collectives that it waits for.

    Waits show only where a rank had to wait; so ranks and steps vote on what waits at each place of the program. What
    started before the end of its collective does not wait: on a rank with further launches, another one does.
    """
    collectives = (
        rows.with_row_index("row").filter(pl.col("kind") == COLLECTIVE).select("row", "line", "place", "woken")
    )
    collectives = collectives.with_columns(pl.len().over("place").alias("count"))
    launched = np.flatnonzero(kind <= COLLECTIVE)

    def later(places: pl.DataFrame, offset: str) -> tuple[pl.DataFrame, Int64]:
        """Those that are followed by so many launches, and the row of that launch."""
        known = places.drop_nulls(offset)
        row = known["row"].to_numpy().astype(np.int64)
        item = np.searchsorted(launched, row) + known[offset].to_numpy()
        target = launched[np.minimum(item, launched.size - 1)] if launched.size else item
        inside = (item < launched.size) & (line[target] == line[row])
        return known.filter(pl.Series(inside, dtype=pl.Boolean)), target[inside]

    seen = collectives.select("place", "woken").drop_nulls().unique()
    possible, target = later(collectives.rename({"woken": "own"}).join(seen, on="place"), "woken")
    start, end = rows["start_ns"].fill_null(0).to_numpy(), rows["end_ns"].fill_null(0).to_numpy()
    early = start[target] < end[possible["row"].to_numpy()] - TOUCH_NS
    possible = possible.with_columns(pl.Series("early", early, dtype=pl.Boolean))
    on_line = possible.group_by("line", "place", "woken").agg(
        (pl.col("own") == pl.col("woken")).sum().alias("votes"),
        pl.col("early").sum().alias("against"),
        pl.len().alias("tried"),
        pl.col("count").first(),
    )
    votes = on_line.group_by("place", "woken").agg(pl.col("votes", "against").sum(), pl.col("count").first())
    votes = votes.filter(pl.col("against") <= _AGAINST_SHARE * pl.col("votes"))
    votes = votes.with_columns(pl.col("votes").sum().over("place").alias("all"))
    enough = (
        (pl.col("votes") >= _LEAST_VOTES)
        & (pl.col("votes") >= _VOTE_SHARE * pl.col("all"))
        & (pl.col("all") >= _LEAST_SHARE * pl.col("count"))
    )
    voted = votes.filter(enough).sort("votes", "woken", descending=[True, False]).unique("place", keep="first")
    allowed = on_line.filter(pl.col("against") <= _AGAINST_SHARE * pl.col("tried"))
    by_all = allowed.join(voted.select("place", "woken"), on=["place", "woken"], how="semi")
    by_line = allowed.filter(pl.col("votes") >= 2).sort("votes", "woken", descending=[True, False])
    chosen = pl.concat([by_all, by_line]).unique(["line", "place"], keep="first", maintain_order=True)
    own = collectives.join(allowed.filter(pl.col("votes") > 0), on=["line", "place", "woken"], how="semi")
    places = collectives.select("row", "line", "place").join(
        chosen.select("line", "place", pl.col("woken").alias("usual")), on=["line", "place"], how="left"
    )
    places = places.join(own.select("row", pl.col("woken").alias("own")), on="row", how="left")
    waiting, target = later(places.with_columns(pl.min_horizontal("usual", "own").alias("later")), "later")
    return target, waiting["row"].to_numpy().astype(np.int64)


def _awaited_on_host(rows: pl.DataFrame, kind: Int64, line: Int64) -> Int64:
    """For waits on hosts without a device the row of the collective; −1 for others."""
    collectives = np.flatnonzero(kind == COLLECTIVE)
    first = np.searchsorted(line[collectives], line)
    nth = rows["awaits"].fill_null(-1).to_numpy()
    place = np.minimum(first + nth, collectives.size - 1)
    return np.where(nth >= 0, collectives[place], -1) if collectives.size else np.full(kind.size, -1, dtype=np.int64)


def _graph(rows: pl.DataFrame, kind: Int64, line: Int64, nodes: _Nodes, lines: Lines) -> Graph:
    """The graph with nodes in the order of lines."""
    count = nodes.kind.size
    node_line = line[nodes.row]
    start, end, at = (rows[name].fill_null(0).to_numpy() for name in ("start_ns", "end_ns", "at_ns"))
    host, device, path_host, path_device, path_latency = _segments(rows, kind, line, nodes, node_line)

    # What the device had been given by then, and when it had done it.
    work_end = _running_max(np.where(kind == WORK, end, _LONG_AGO), line)
    launched = (nodes.position - 1) // 2
    valid = (launched >= 0) & (line[np.maximum(launched, 0)] == node_line)
    done = np.where(valid, work_end[np.maximum(launched, 0)], _LONG_AGO)
    is_c, is_w, is_s, is_e = (nodes.kind == each for each in (C, W, S, E))
    awaited_end = np.where(is_w, end[np.maximum(nodes.awaited, 0)], _LONG_AGO)
    waited_for = _running_max(awaited_end, node_line)
    ended = _running_max(np.where(is_c, end[nodes.row], _LONG_AGO), node_line)
    on_device = lines.on_device[node_line]

    # Dependencies: which collectives of its line a node waits for.
    node_of_row = np.full(kind.size, -1, dtype=np.int64)
    node_of_row[nodes.row[is_c]] = np.flatnonzero(is_c)
    stream = rows["stream"].fill_null(-1).to_numpy()[nodes.row]
    tail = _previous(is_c, node_line, stream)
    known = rows["latency_ns"].is_not_null().to_numpy()[nodes.row]
    all_streams = rows["all_streams"].fill_null(False).to_numpy()[nodes.row]

    # Collectives: device time before it counts unless it started earlier.
    free = np.maximum(done, waited_for)
    c_start = start[nodes.row]
    after_device = on_device & is_c & (free <= c_start + TOUCH_NS)
    latency = np.where(known, rows["latency_ns"].fill_null(0).to_numpy()[nodes.row], NEVER)
    queued_first = is_c & ~known & (tail < 0)
    latency = np.where(queued_first, 0.0, latency)
    tail_end = np.where(tail >= 0, end[nodes.row[np.maximum(tail, 0)]], _LONG_AGO)
    bound = np.maximum(at[nodes.row] + np.where(latency > NEVER, latency, 0).astype(np.int64), tail_end)
    bound = np.maximum(bound, np.where(after_device, free, _LONG_AGO))
    lag = np.where(is_c & on_device, np.maximum(c_start - bound, 0), 0)

    # Waits of the host: if the device is busy when the call returns, it waited for an event, as of a collective.
    begin, until = start[nodes.row], end[nodes.row]
    target = np.maximum(free, np.where(all_streams, ended, _LONG_AGO))
    for_device = is_s & on_device & (target <= until + _CLOCKS_NS)
    for_collectives = is_s & on_device & ~for_device & (ended > begin) & (ended <= until + _CLOCKS_NS)
    for_collectives &= until - ended < LONG_RETURN_NS
    target = np.where(for_device, target, np.where(for_collectives, ended, begin))
    waited = np.clip(np.minimum(target, until) - begin, 0, None)
    own = np.where(is_s & on_device, until - begin - waited, 0)
    after_device |= for_device

    on_host = is_s & ~on_device
    single = np.where(is_c & (on_device | ~known), tail, -1)
    single = np.where(is_w | on_host, node_of_row[np.maximum(nodes.awaited, 0)], single)
    need_start, needs = _needs(
        single, (for_device & all_streams) | for_collectives | (is_e & on_device), is_c, node_line, stream
    )
    noticed = until - end[np.maximum(nodes.awaited, 0)]  # negative where the end is recorded late
    wake = np.where(is_w, KERNEL_GAP_NS, np.where(on_host, noticed, 0))

    number = rows["number"].fill_null(-1).to_numpy()[nodes.row]
    _, collective = np.unique(number[is_c], return_inverse=True)
    size = int(collective.max()) + 1 if collective.size else 0
    which = np.full(count, -1, dtype=np.int64)
    which[is_c] = collective.reshape(-1)
    program = np.zeros(size, dtype=np.int64)
    program[which[is_c]] = rows["program"].rank("dense").fill_null(0).to_numpy()[nodes.row[is_c]].astype(np.int64)
    reduced = np.zeros(size)
    of_bytes = rows["program"].str.extract(_ALL_REDUCE).cast(pl.Float64).fill_null(0).to_numpy()
    reduced[which[is_c]] = of_bytes[nodes.row[is_c]]
    group = _groups(which, node_line, size, lines)
    skew = _skew(which, c_start, end[nodes.row], node_line, group, on_device)
    transfer = np.full(size, np.inf)
    np.minimum.at(transfer, which[is_c], np.maximum((end - start)[nodes.row[is_c]] - skew[is_c], 0))
    step_names, step = _steps(rows, nodes, node_line, lines)
    step_end = np.maximum(until, np.where(on_device, np.maximum(free, ended), 0))
    recorded = Clocks(
        host=np.where(is_s, until, at[nodes.row]).astype(np.float64),
        busy=done.astype(np.float64),
        device=free.astype(np.float64),
        start=np.where(is_c, c_start, 0).astype(np.float64),
        end=np.where(is_c, until, np.where(is_e, step_end, 0)).astype(np.float64),
    )
    place = _places(rows, nodes, node_line, is_c)
    return Graph(
        lines=lines, line=node_line, kind=nodes.kind, level=np.array([0, count]), host=host, device=device,
        path_host=path_host, path_device=path_device, path_latency=path_latency, latency=latency.astype(np.float64),
        delay=np.where(is_c, lag, own).astype(np.float64), wake=wake.astype(np.float64), after_device=after_device,
        allocates=is_s & rows["allocates"].fill_null(False).to_numpy()[nodes.row], need_start=need_start, needs=needs,
        collective=which, skew=skew, transfer=transfer, program=program,
        reduced=reduced, group=group, step=step, place=place, step_names=step_names,
        recorded=recorded,
    )  # fmt: skip


def _segments(
    rows: pl.DataFrame, kind: Int64, line: Int64, nodes: _Nodes, node_line: Int64
) -> tuple[Float, Float, Float, Float, Float]:
    """The time of host and device in the segment before each node, and the launch paths: first, longest, last."""
    count = nodes.kind.size
    number = np.arange(kind.size)

    def owner(position: Int64) -> tuple[Int64, Bool]:
        node = np.searchsorted(nodes.position, position)
        at = np.minimum(node, count - 1)
        return at, (node < count) & (node_line[at] == line)

    host_node, has_node = owner(2 * number)
    parts = rows.select(f"{part}_ns" for part in HOST_PARTS).to_numpy().astype(np.float64)
    host = _sums(host_node[has_node], parts[has_node], count)
    work_node, has_work = owner(2 * number + 1)
    works = np.flatnonzero((kind == WORK) & has_work)
    node = work_node[works]
    copies = rows["is_copy"].fill_null(False).to_numpy()[works]
    cost = rows["device_ns"].fill_null(0).to_numpy()[works].astype(np.float64)
    cost = np.stack([cost * ~copies, cost * copies], axis=1)
    device = _sums(node, cost, count)
    path_host, path_device = np.zeros((count, 3, len(HOST_PARTS))), np.zeros((count, 3, len(DEVICE_PARTS)))
    path_latency = np.full((count, 3), NEVER)
    if not works.size:
        return host, device, path_host, path_device, path_latency
    spent = np.concatenate([np.zeros((1, len(HOST_PARTS))), np.cumsum(parts, axis=0)])
    first_row = _first_rows(host_node, has_node, count)
    until_launch = np.where((works >= first_row[node])[:, None], spent[works + 1] - spent[first_row[node]], 0)
    done = np.concatenate([np.zeros((1, len(DEVICE_PARTS))), np.cumsum(cost, axis=0)])
    used, first, sizes = np.unique(node, return_index=True, return_counts=True)
    last = first + sizes - 1
    to_end = np.repeat(done[last + 1], sizes, axis=0) - done[:-1]
    latency = rows["latency_ns"].fill_null(0).to_numpy()[works].astype(np.float64)
    sums = until_launch.sum(axis=1) + latency + to_end.sum(axis=1)
    longest = np.flatnonzero(sums == np.repeat(np.maximum.reduceat(sums, first), sizes))
    longest = longest[np.searchsorted(longest, first)]
    for path, chosen in enumerate((first, longest, last)):
        path_host[used, path], path_device[used, path] = until_launch[chosen], to_end[chosen]
        path_latency[used, path] = latency[chosen]
    return host, device, path_host, path_device, path_latency


def _first_rows(host_node: Int64, has_node: Bool, count: int) -> Int64:
    """The first row of each node's segment; rows after a line's last node have none."""
    rows = np.flatnonzero(has_node)
    place = np.searchsorted(host_node[rows], np.arange(count))
    return np.append(rows, host_node.size)[place]


def _running_max(values: Int64, line: Int64) -> Int64:
    """The greatest value so far on each line."""
    found = np.empty_like(values)
    bounds = np.flatnonzero(np.diff(line, prepend=-1, append=-1))
    for first, end in pairwise(bounds.tolist()):
        found[first:end] = np.maximum.accumulate(values[first:end])
    return found


def _previous(is_c: Bool, line: Int64, stream: Int64) -> Int64:
    """For each collective the one before it on its stream; −1 for none."""
    found = np.full(is_c.size, -1, dtype=np.int64)
    nodes = np.flatnonzero(is_c)
    order = nodes[np.lexsort((nodes, stream[nodes], line[nodes]))]
    same = (line[order[1:]] == line[order[:-1]]) & (stream[order[1:]] == stream[order[:-1]])
    found[order[1:][same]] = order[:-1][same]
    return found


def _needs(single: Int64, everything: Bool, is_c: Bool, line: Int64, stream: Int64) -> tuple[Int64, Int64]:
    """Entries by node: one collective, or the last one before it on each stream of its line."""
    nodes = np.flatnonzero(is_c)
    owners, needed = [np.flatnonzero(single >= 0)], [single[single >= 0]]
    asking = np.flatnonzero(everything)
    for number in np.unique(stream[nodes]):
        mine = nodes[stream[nodes] == number]
        place = np.searchsorted(mine, asking) - 1
        before = mine[np.maximum(place, 0)]
        has = (place >= 0) & (line[before] == line[asking])
        owners.append(asking[has])
        needed.append(before[has])
    owner, need = np.concatenate(owners), np.concatenate(needed)
    order = np.argsort(owner, kind="stable")
    return np.searchsorted(owner[order], np.arange(is_c.size + 1)), need[order].astype(np.int64)


def _skew(collective: Int64, start: Int64, end: Int64, line: Int64, group: Int64, on_device: Bool) -> Float:
    """By how much later each collective ends on a line than on the first, once all have arrived.

    What nearly all ends of a group have in common on a line is the error of its clock. On hosts the rest is real: a
    thread had no core to notice the end.
    """
    skew = np.zeros(collective.size)
    nodes = np.flatnonzero(collective >= 0)
    first = np.full(group.size, np.iinfo(np.int64).max)
    np.minimum.at(first, collective[nodes], end[nodes])
    np.maximum.at(first, collective[nodes], start[nodes])
    late = np.maximum(end[nodes] - first[collective[nodes]], 0).astype(np.float64)
    _, key = _distinct(line[nodes], group[collective[nodes]])
    order = np.lexsort((late, key))
    start_of_key = np.flatnonzero(np.diff(key[order], prepend=-1))
    size = np.diff(np.append(start_of_key, order.size))
    usual = np.repeat(late[order][start_of_key + size // 10], size)
    most = np.where(on_device[nodes[order]], _SKEW_NS, np.inf)
    skew[nodes[order]] = np.clip(late[order] - usual, 0, most)
    return skew


def _groups(collective: Int64, line: Int64, size: int, lines: Lines) -> Int64:
    """A number for the ranks of each collective; −1 for one rank alone."""
    is_c = np.flatnonzero(collective >= 0)
    order = is_c[np.lexsort((lines.rank[line[is_c]], collective[is_c]))]
    numbers: dict[bytes, int] = {}
    found = np.full(size, -1, dtype=np.int64)
    bounds = np.searchsorted(collective[order], np.arange(size + 1))
    ranks = lines.rank[line[order]]
    for which in range(size):
        members = ranks[bounds[which] : bounds[which + 1]]
        if members.size > 1:
            found[which] = numbers.setdefault(members.tobytes(), len(numbers))
    return found


def _steps(
    rows: pl.DataFrame, nodes: _Nodes, node_line: Int64, lines: Lines
) -> tuple[tuple[tuple[int, int], ...], Int64]:
    """The steps by window and number, and that of each node: of collectives and ends their own, of others the next."""
    step = rows["step"].to_numpy() if rows["step"].null_count() == 0 else rows["step"].fill_null(-1).to_numpy()
    marked = np.isin(nodes.kind, (C, E))
    (window, number), inverse = _distinct(lines.window[node_line][marked], step[nodes.row][marked])
    ended = np.zeros(window.size, dtype=np.bool_)
    ended[inverse[nodes.kind[marked] == E]] = True
    names = list(zip(window[ended].tolist(), number[ended].tolist(), strict=True))
    found = np.full(nodes.kind.size, -1, dtype=np.int64)
    found[marked] = np.where(ended, np.cumsum(ended) - 1, -1)[inverse]
    following = _following(marked, node_line)
    return tuple(names), np.where(following >= 0, found[np.maximum(following, 0)], -1)


def _places(rows: pl.DataFrame, nodes: _Nodes, node_line: Int64, is_c: Bool) -> Int64:
    """The place of each node: that of the next collective or end of a step on its line."""
    ends = nodes.kind == E
    place = np.where(is_c, rows["place"].fill_null(-1).to_numpy()[nodes.row], np.where(ends, 0, -1))
    following = _following(is_c | ends, node_line)
    return np.where(following >= 0, place[np.maximum(following, 0)], -1)


def _following(marked: Bool, line: Int64) -> Int64:
    """The next marked node on each node's line, or itself; −1 for none."""
    at = np.flatnonzero(marked)
    place = np.searchsorted(at, np.arange(marked.size))
    found = np.append(at, -1)[place]
    return np.where((found >= 0) & (line[np.maximum(found, 0)] == line), found, -1)


def in_order(graph: Graph) -> Graph:
    """The same with its nodes sorted by level and kind, and collectives by when they are complete."""
    level, kept, done = _levels(graph)
    order = np.lexsort((graph.kind, level))
    by_completion = np.argsort(done, kind="stable")
    position = np.empty(done.size, dtype=np.int64)
    position[by_completion] = np.arange(done.size)
    graph = _permuted(graph, order, kept)
    return replace(
        graph,
        level=np.searchsorted(level[order], np.arange(int(level.max(initial=-1)) + 2)),
        collective=np.where(graph.collective >= 0, position[np.maximum(graph.collective, 0)], -1)
        if done.size
        else graph.collective,
        transfer=graph.transfer[by_completion],
        program=graph.program[by_completion],
        reduced=graph.reduced[by_completion],
        group=graph.group[by_completion],
        dropped=int(kept.size - kept.sum()),
    )


def line_order(graph: Graph) -> Graph:
    """The same with its nodes in the order of lines and hosts, not ready to be replayed."""
    return _permuted(graph, np.argsort(graph.line, kind="stable"), np.ones(graph.needs.size, dtype=np.bool_))


def _permuted(graph: Graph, order: Int64, kept: Bool) -> Graph:
    """The graph with its nodes in another order, and some of its needs."""
    count = graph.line.size
    new = np.empty(count, dtype=np.int64)
    new[order] = np.arange(count)
    owner = np.repeat(np.arange(count), np.diff(graph.need_start))[kept]
    needs = new[graph.needs[kept]]
    by_owner = np.argsort(new[owner], kind="stable")
    needs, owner = needs[by_owner], new[owner][by_owner]
    per_node = {
        name: getattr(graph, name)[order]
        for name in (
            "line", "kind", "host", "device", "path_host", "path_device", "path_latency", "latency", "delay", "wake",
            "after_device", "allocates", "collective", "skew", "step", "place",
        )
    }  # fmt: skip
    need_start = np.searchsorted(owner, np.arange(count + 1))
    # Where its launch is not known and no wait is left, a collective starts once its host is there.
    latency = per_node["latency"]
    unbound = (per_node["kind"] == C) & ~per_node["after_device"] & (np.diff(need_start) == 0) & (latency == NEVER)
    per_node["latency"] = np.where(unbound, 0.0, latency)
    return replace(
        graph,
        **per_node,
        recorded=graph.recorded.at(order),
        need_start=need_start,
        needs=needs,
    )


def _levels(graph: Graph) -> tuple[Int64, Bool, Int64]:
    """The level of each node, which needs are kept, and the level in which each collective is complete.

    A line advances until it waits for a collective that other lines have not launched. If none can advance, what was
    matched contradicts the order of the lines: a wait is left out.
    """
    count, size = graph.line.size, graph.transfer.size
    missing = np.bincount(graph.collective[graph.collective >= 0], minlength=size).tolist()
    kind, collective = graph.kind.tolist(), graph.collective.tolist()
    needed = np.where(graph.needs >= 0, graph.collective[graph.needs], -1).tolist() if graph.needs.size else []
    start = graph.need_start.tolist()
    bounds = np.flatnonzero(np.diff(graph.line, prepend=-1, append=-1)).tolist()
    level, done = [0] * count, [0] * size
    kept = np.ones(graph.needs.size, dtype=np.bool_)
    position = dict(zip(range(len(bounds) - 1), bounds[:-1], strict=True))
    at_level = dict.fromkeys(position, 0)
    while position:
        moved = False
        for number in list(position):
            node, last, now = position[number], bounds[number + 1], at_level[number]
            while node < last:
                first, end = start[node], start[node + 1]
                if kind[node] != E:  # the end of a step holds nothing up
                    if any(kept[entry] and missing[needed[entry]] for entry in range(first, end)):
                        break
                    for entry in range(first, end):
                        if kept[entry]:
                            now = max(now, done[needed[entry]] + 1)
                level[node] = now
                which = collective[node]
                if which >= 0:
                    missing[which] -= 1
                    done[which] = max(done[which], now)
                now += 1
                node += 1
                moved = True
            if node == last:
                del position[number], at_level[number]
            else:
                position[number], at_level[number] = node, now
        if not moved:
            number = min(position, key=lambda each: (position[each] - bounds[each]) / (bounds[each + 1] - bounds[each]))
            entries = np.arange(start[position[number]], start[position[number] + 1])
            kept[entries[[missing[needed[entry]] > 0 for entry in entries]]] = False
    return np.array(level, dtype=np.int64), kept, np.array(done, dtype=np.int64)
