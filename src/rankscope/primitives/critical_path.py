"""Critical paths along predecessors: the nodes on them, and the time by category between marked nodes.

In: nodes with predecessors. Out: the sums between marked nodes, and reachable nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankscope.primitives.dependencies import CATEGORIES, CODE, Nodes
from rankscope.primitives.intervals import Int64

Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Clipped:
    """Nodes cut at the windows of steps.

    Attributes:
        window: the window in which a node ends, −1 for none.
        own_ns: its duration in the window.
        gap_ns: the time in the window between its predecessor's end and its start.
        before: its predecessor if that is in the same window, else −1.
    """

    window: Int64
    own_ns: Int64
    gap_ns: Int64
    before: Int64


def clip(nodes: Nodes, begin: Int64, end: Int64, finals: Int64) -> Clipped:
    """Cut nodes at the beginnings of their windows.

    Args:
        nodes: the nodes of one file.
        begin: beginnings of disjoint windows, ns, ascending.
        end: their ends, ns.
        finals: the windows of the last nodes, which have no duration.
    """
    # A node that ends at the beginning of a window belongs to the one before.
    window = np.searchsorted(begin, nodes.end, side="left") - 1
    if nodes.finals:
        window[-nodes.finals :] = finals
    inside = (window >= 0) & (nodes.end <= end[np.maximum(window, 0)]) if begin.size else window > 0
    window = np.where(inside, window, -1)
    first = begin[np.maximum(window, 0)] if begin.size else nodes.end
    before = nodes.before
    previous_end = np.where(before >= 0, nodes.end[np.maximum(before, 0)], first) if before.size else first
    node_time = np.where(inside, nodes.end - np.maximum(nodes.start, first), 0)
    gap = np.where(inside, np.maximum(nodes.start - np.maximum(previous_end, first), 0), 0)
    linked = inside & (before >= 0) & (previous_end > first) & (nodes.start > first)
    return Clipped(window, node_time, gap, np.where(linked, before, -1))


def reachable(following: Int64, first: Int64) -> Bool:
    """Which nodes are on the paths that start at some nodes.

    Args:
        following: each node's next node on its path, −1 at the end; without cycles.
        first: the starts of the paths.
    """
    on_path = np.zeros(following.size, dtype=np.bool_)
    on_path[first] = True
    # Each round doubles the distance: one, two, four, … nodes. The number of rounds is bounded, because large clock
    # errors can make ranks seem to wait for each other in a cycle.
    ahead = following
    for _ in range(following.size.bit_length()):
        rows = ahead[on_path]
        on_path[rows[rows >= 0]] = True
        ahead = np.where(ahead >= 0, ahead[np.maximum(ahead, 0)], -1)
        if (ahead < 0).all():
            break
    return on_path


@dataclass(frozen=True)
class Chains:
    """The time between marked nodes, along predecessors.

    Attributes:
        previous: for each marked node the marked node at which its chain ends, −1 if the chain ends at the window's
            beginning; as positions among the marked nodes.
        time: from the end of that node to this one's start, ns, by category; shape ``(marked, categories)``.
    """

    previous: Int64
    time: npt.NDArray[np.int64]


def chains(nodes: Nodes, clipped: Clipped, marked: Int64) -> Chains:
    """Sum up the time between marked nodes.

    Args:
        nodes: the nodes of one file.
        clipped: the same, cut at the windows.
        marked: rows of nodes.
    """
    position = np.full(nodes.start.size, -1, dtype=np.int64)
    position[marked] = np.arange(marked.size)
    before = clipped.before
    stops = (before >= 0) & (position[np.maximum(before, 0)] >= 0) if before.size else before >= 0
    following = np.where(stops, -1, before)
    used = np.flatnonzero(reachable(following, marked))
    index = np.full(nodes.start.size, -1, dtype=np.int64)
    index[used] = np.arange(used.size)
    number = np.arange(used.size)
    time = np.zeros((used.size, len(CATEGORIES)), dtype=np.int64)
    np.add.at(time, (number, nodes.gap[used].astype(np.int64)), clipped.gap_ns[used])
    after = following[used]
    has = after >= 0
    np.add.at(time, (number[has], nodes.category[after[has]].astype(np.int64)), clipped.own_ns[after[has]])
    # A chain ends at a marked node, or at the window's beginning.
    last = np.where(stops[used], position[np.maximum(before[used], 0)], -1)
    ahead = np.where(has, index[np.maximum(after, 0)], -1)
    while (ahead >= 0).any():
        unfinished = ahead >= 0
        rows = ahead[unfinished]
        time[unfinished] += time[rows]
        last[unfinished] = last[rows]
        ahead[unfinished] = ahead[rows]
    rows = index[marked]
    return Chains(last[rows], time[rows])


@dataclass(frozen=True)
class Chain:
    """The parts of the path before a node, latest first.

    Attributes:
        node: the node of each part, −1 for time between two nodes.
        start: ns.
        end: ns.
        category: index into `CATEGORIES`.
        previous: the marked node at which it ends, −1 if it ends at the window's beginning.
    """

    node: Int64
    start: Int64
    end: Int64
    category: Int64
    previous: int


def chain_before(nodes: Nodes, clipped: Clipped, is_marked: Bool, node: int) -> Chain:
    """The parts that `chains` sums up for one node, without empty ones.

    Args:
        nodes: the nodes of one file.
        clipped: the same, cut at the windows.
        is_marked: which nodes are marked.
        node: the node; its own time is not part of it.
    """
    parts: list[tuple[int, int, int, int]] = []
    while True:
        gap, before = int(clipped.gap_ns[node]), int(clipped.before[node])
        start = int(nodes.end[node] - clipped.own_ns[node])
        if gap:
            parts.append((-1, start - gap, start, int(nodes.gap[node])))
        if before < 0 or is_marked[before]:
            break
        end = int(nodes.end[before])
        if clipped.own_ns[before]:
            parts.append((before, end - int(clipped.own_ns[before]), end, int(nodes.category[before])))
        node = before
    columns = np.array(parts, dtype=np.int64).reshape(-1, 4).T
    return Chain(columns[0], columns[1], columns[2], columns[3], before)


def with_waits(start: Int64, end: Int64, arrived: Int64) -> npt.NDArray[np.int64]:
    """The time of collectives by category: waiting until the last rank arrived, then communication.

    Args:
        start: starts of a rank's part on the path, ns.
        end: ends, ns.
        arrived: when the last rank arrived, on the same clock; before the start if this rank was last.

    Returns:
        ns, shape ``(n, categories)``.
    """
    time = np.zeros((start.size, len(CATEGORIES)), dtype=np.int64)
    time[:, CODE["wait"]] = np.clip(arrived - start, 0, end - start)
    time[:, CODE["communication"]] = end - start - time[:, CODE["wait"]]
    return time
