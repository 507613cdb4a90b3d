"""Nesting of the ranges of a thread: depth, parent and self time, without a Python loop.

In: starts and ends in ns, by thread. Out: depths, parents and self times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankscope.primitives.intervals import Int64

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Nesting:
    """The nesting of ranges, in the order in which they were given.

    Attributes:
        depth: how many ranges of the same thread are open when this one starts; 0 is top level.
        parent: index of the innermost of them, −1 at top level.
        self_ns: duration minus the durations of its direct children, cut at its own end; never negative.
    """

    depth: Int32
    parent: Int32
    self_ns: Int64


def nest(thread: Int32, start: Int64, end: Int64) -> Nesting:
    """Nest ranges by thread.

    In the order of (start, longest first), a range's depth is the number of earlier ranges that have not ended when it
    starts. Only earlier ranges end at or before its start, so the depth is its position minus the number of such ends:
    one sort and one binary search, where a stack would visit each range. If ranges cross (a profiler hook that starts
    in one and ends in another), the later one counts as inside the earlier one while that is open.

    Args:
        thread: any integers that identify threads, shape ``(n,)``.
        start: starts, ns.
        end: ends (exclusive), ns. A range without duration is inside the range open at its instant.
    """
    count = start.size
    depth = np.zeros(count, dtype=np.int32)
    parent = np.full(count, -1, dtype=np.int32)
    if count == 0:
        return Nesting(depth, parent, np.empty(0, dtype=np.int64))
    order = _order(thread, start, end)
    bounds = np.flatnonzero(np.diff(thread[order])) + 1
    for rows in np.split(order, bounds):
        _nest_thread(rows, start[rows], end[rows], depth, parent)
    del order
    self_ns = (end - start).astype(np.int64)
    child = np.flatnonzero(parent >= 0).astype(np.int32)
    parent_of_child = parent[child]
    covered = np.maximum(np.minimum(end[child], end[parent_of_child]) - start[child], 0)
    np.subtract.at(self_ns, parent_of_child, covered)
    return Nesting(depth, parent, np.maximum(self_ns, 0, out=self_ns))


def in_order(start: Int64, end: Int64) -> bool:
    """Whether ranges are sorted by start, the longest first, as tables are within a thread."""
    ordered = start[1:] > start[:-1]
    ordered |= (start[1:] == start[:-1]) & (end[1:] <= end[:-1])
    return bool(ordered.all())


def _order(thread: Int32, start: Int64, end: Int64) -> Int32:
    """The order by thread, then start, the longest first."""
    if not in_order(start, end):
        return np.lexsort((start - end, start, thread)).astype(np.int32)
    # NumPy radix-sorts 16-bit integers, which is faster.
    small = thread.astype(np.int16) if thread.min() >= 0 and thread.max() < 1 << 15 else thread
    return np.argsort(small, kind="stable").astype(np.int32)


def _nest_thread(rows: Int32, start: Int64, end: Int64, depth: Int32, parent: Int32) -> None:
    # Double all times, so that a range without duration can end half a nanosecond later: then it is open at its own
    # instant, and inside the range that is open there.
    ends = 2 * end
    ends += end == start
    ends.sort()
    position = np.arange(rows.size, dtype=np.int64)
    level = position - np.searchsorted(ends, 2 * start, side="right")
    del ends
    depth[rows] = level
    # The parent is the last earlier range one level up: the largest key below (level − 1, position).
    inside = np.flatnonzero(level > 0)
    key = level * rows.size + position
    wanted = key[inside] - rows.size
    key.sort()
    # A key contains its position.
    found = key[np.searchsorted(key, wanted, side="left") - 1] % rows.size
    parent[rows[inside]] = rows[found]
