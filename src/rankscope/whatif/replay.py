"""The replay of a run: when its steps end, from what each segment costs.

Max-plus algebra with two clocks per rank, H of its host and D of its device:

    segment   D = max(D + d, H + max over launch paths (a + b))     H = H + h
    C         arrival = max(H + latency, D, end of the stream's last collective) + delay
              end[k] = max over ranks of arrival + transfer[k]
    W         D = max(D, end[k] + wake)
    S         H = max(H, D, ends) + own

where h and d are the time that host and device work in a segment, and a launch path is the host's time a until a
launch and the device's time b from there to the segment's end. Costs as recorded give the recorded steps again, up to
the replay's error.

In: a graph, and costs of some scenarios. Out: the ends of steps, one column per scenario.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.primitives.intervals import Int64
from rankscope.whatif.graph import NEVER, Bool, C, Clocks, E, Float, Graph

BLOCK_BYTES = 1 << 27
"""The memory that the costs of the scenarios which are replayed together may take."""


@dataclass(frozen=True)
class Costs:
    """What the segments of a run cost in a scenario; ns.

    Attributes:
        host: (nodes, parts) as `Graph.host`.
        device: (nodes, parts) as `Graph.device`.
        transfer: as `Graph.transfer`.
        overlapped: how much of each transfer nothing waits for.
        skew: (nodes) as `Graph.skew`.
        waits: whether the host waits at a node S.
    """

    host: Float
    device: Float
    transfer: Float
    overlapped: Float
    skew: Float
    waits: Bool

    @classmethod
    def recorded(cls, graph: Graph) -> Costs:
        """The costs as recorded."""
        waits = np.ones(graph.line.size, dtype=np.bool_)
        return cls(graph.host, graph.device, graph.transfer, np.zeros(graph.transfer.size), graph.skew, waits)


@dataclass(frozen=True)
class Replayed:
    """The outcome of a replay.

    Attributes:
        arrival: (nodes C, in their order, scenarios) when each collective starts on each rank, were it alone.
        step_end: (nodes E, in their order, scenarios) when each rank has finished each step.
        end: (collectives, scenarios) when each ends on its first rank.
    """

    arrival: Float
    step_end: Float
    end: Float


def replay(graph: Graph, scenarios: Sequence[Costs]) -> Replayed:
    """Replay a run with the costs of each scenario."""
    block = max(BLOCK_BYTES // max(graph.line.size * 8 * 6, 1), 1)
    parts = [_replay(graph, scenarios[first : first + block]) for first in range(0, len(scenarios), block)]
    return Replayed(
        np.concatenate([part.arrival for part in parts], axis=1),
        np.concatenate([part.step_end for part in parts], axis=1),
        np.concatenate([part.end for part in parts], axis=1),
    )


def clocks(graph: Graph, costs: Costs) -> Clocks:
    """When a replay with some costs reaches each node."""
    zeros = np.zeros(graph.line.size)
    found = Clocks(zeros, zeros.copy(), zeros.copy(), zeros.copy(), zeros.copy())
    replayed = _replay(graph, [costs], found)
    is_c, is_e = graph.kind == C, graph.kind == E
    found.start[is_c] = replayed.arrival[:, 0]
    found.end[is_c] = replayed.end[graph.collective[is_c], 0] + costs.skew[is_c]
    found.end[is_e] = replayed.step_end[:, 0]
    return found


def _replay(graph: Graph, scenarios: Sequence[Costs], reached: Clocks | None = None) -> Replayed:
    """The replay; with `reached`, which is filled, of a single scenario."""
    count = len(scenarios)
    # What changes transfers alone has the others' segments.
    keys = [(id(costs.host), id(costs.device)) for costs in scenarios]
    by_key = dict(zip(keys, scenarios, strict=True))
    different, column = list(by_key.values()), [list(by_key).index(key) for key in keys]
    # Matrix products: sums over so few columns take five times as long.
    host = np.stack([costs.host @ np.ones(costs.host.shape[1]) for costs in different], axis=1)[:, column]
    device = np.stack([costs.device @ np.ones(costs.device.shape[1]) for costs in different], axis=1)[:, column]
    lead = _lead(graph, different)[:, column]
    transfer = np.stack([costs.transfer for costs in scenarios], axis=1)
    overlapped = np.stack([costs.overlapped for costs in scenarios], axis=1)
    waits = np.stack([costs.waits for costs in scenarios], axis=1)
    is_overlapped, is_waiting = bool(overlapped.any()), bool(waits.all())
    host_clock = np.repeat(graph.lines.begin[:, None], count, axis=1)
    device_clock = host_clock.copy()
    is_c = graph.kind == C
    arrival_row = np.cumsum(is_c) - 1
    arrival = np.zeros((int(is_c.sum()), count))
    step_row = np.cumsum(graph.kind == E) - 1
    step_end = np.zeros((int((graph.kind == E).sum()), count))
    end = np.zeros((graph.transfer.size, count))
    order = np.flatnonzero(is_c)
    order = order[np.argsort(graph.collective[order], kind="stable")]
    members, member_start = arrival_row[order], np.searchsorted(graph.collective[order], np.arange(end.shape[0] + 1))
    complete = _completed(graph, order, member_start)
    bounds = _kind_bounds(graph)
    need_start, needs = graph.need_start, graph.needs
    needed, skew = graph.collective[needs], np.stack([costs.skew[needs] for costs in scenarios], axis=1)
    delay, latency, wake = graph.delay[:, None], graph.latency[:, None], graph.wake[:, None]
    after = np.where(graph.after_device, 0.0, NEVER)[:, None]
    empty = np.diff(need_start) == 0

    def ends(first: int, last: int, *, hidden: bool) -> Float:
        """The latest end of what each of some nodes waits for."""
        low, high = need_start[first], need_start[last]
        if low == high:
            return np.full((last - first, count), NEVER)
        instants = end[needed[low:high]] + skew[low:high]
        if hidden:
            instants -= overlapped[needed[low:high]]
        if high - low == last - first and not empty[first:last].any():
            return instants
        some = np.flatnonzero(~empty[first:last]) + first
        latest = np.full((last - first, count), NEVER)
        latest[some - first] = np.maximum.reduceat(instants, need_start[some] - low)
        return latest

    for number in range(graph.level.size - 1):
        first, wait, sync, final, last = bounds[number]
        line = graph.line[first:last]
        before = host_clock[line]
        busy = np.maximum(device_clock[line] + device[first:last], before + lead[first:last])
        now = before + host[first:last]
        if wait > first:
            nodes = slice(first, wait)
            start = np.maximum(now[: wait - first] + latency[nodes], busy[: wait - first] + after[nodes])
            start = np.maximum(start, ends(first, wait, hidden=False)) + delay[nodes]
            row = arrival_row[first]
            arrival[row : row + wait - first] = start
        if reached is not None:
            reached.busy[first:last] = busy[:, 0]
        if sync > wait:
            span = slice(wait - first, sync - first)
            busy[span] = np.maximum(busy[span], ends(wait, sync, hidden=is_overlapped) + wake[wait:sync])
        if final > sync:
            span, nodes = slice(sync - first, final - first), slice(sync, final)
            woken = np.maximum(busy[span] + after[nodes], ends(sync, final, hidden=is_overlapped) + wake[nodes])
            woken = np.maximum(now[span], woken) + delay[nodes]
            now[span] = woken if is_waiting else np.where(waits[nodes], woken, now[span])
        if last > final:
            span = slice(final - first, last - first)
            row = step_row[final]
            on_device = graph.lines.on_device[line[span]][:, None]
            step_end[row : row + last - final] = np.maximum(now[span], np.where(on_device, busy[span], NEVER))
        host_clock[line], device_clock[line] = now, busy
        if reached is not None:
            reached.host[first:last], reached.device[first:last] = now[:, 0], busy[:, 0]
        low, high = complete[number], complete[number + 1]
        if high > low:
            rows = members[member_start[low] : member_start[high]]
            starts = member_start[low:high] - member_start[low]
            end[low:high] = np.maximum.reduceat(arrival[rows], starts) + transfer[low:high]
    nodes_e = np.flatnonzero(graph.kind == E)
    for row, node in enumerate(nodes_e.tolist()):
        if not empty[node]:
            step_end[row] = np.maximum(step_end[row], ends(node, node + 1, hidden=is_overlapped)[0])
    return Replayed(arrival, step_end, end)


def _lead(graph: Graph, scenarios: Sequence[Costs]) -> Float:
    """(nodes, scenarios) how long after the segment's beginning on the host its device is done, by its launch paths.

    A path has a share of each part of the segment, whatever that part costs.
    """
    lead = np.full((graph.line.size, len(scenarios)), NEVER)
    some = np.flatnonzero(graph.path_latency[:, 0] > NEVER)
    host_before, device_before = graph.host[some], graph.device[some]
    path_host, path_device, latency = graph.path_host[some], graph.path_device[some], graph.path_latency[some]
    for number, costs in enumerate(scenarios):
        host = np.divide(costs.host[some], host_before, out=np.ones_like(host_before), where=host_before > 0)
        device = np.divide(costs.device[some], device_before, out=np.ones_like(device_before), where=device_before > 0)
        reached = latency + np.einsum("npk,nk->np", path_host, host) + np.einsum("npk,nk->np", path_device, device)
        lead[some, number] = reached.max(axis=1)
    return lead


def _kind_bounds(graph: Graph) -> list[tuple[int, int, int, int, int]]:
    """Of each level the first node, the first W, S and E, and the end."""
    level = np.repeat(np.arange(graph.level.size - 1), np.diff(graph.level))
    key = level * 4 + graph.kind
    starts = np.searchsorted(key, np.arange(graph.level.size * 4 - 3))
    quads = starts[:-1].reshape(-1, 4)
    return [(*quad, last) for quad, last in zip(quads.tolist(), graph.level[1:].tolist(), strict=True)]


def _completed(graph: Graph, members: Int64, member_start: Int64) -> Int64:
    """How many collectives are complete before each level; they are in the order of their completion."""
    level = np.repeat(np.arange(graph.level.size - 1), np.diff(graph.level))
    last = np.maximum.reduceat(level[members], member_start[:-1]) if members.size else members
    return np.searchsorted(last, np.arange(graph.level.size))
