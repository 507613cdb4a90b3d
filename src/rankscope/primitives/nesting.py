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
        parent: index of the innermost range that is open then, −1 at top level.
        self_ns: duration less the durations of the ranges directly inside, cut at its own end; never negative.
    """

    depth: Int32
    parent: Int32
    self_ns: Int64


def nest(thread: Int32, start: Int64, end: Int64) -> Nesting:
    """Nest ranges by thread.

    In the order of (start, longest first) a range's depth is the number of earlier ones that have not ended when it
    starts. Ends at or before its start belong to earlier ranges alone, so that number is its position less the count
    of such ends: one sort and one binary search, where a stack would visit each range. Ranges that cross
    (a profiler hook that starts in one and ends in another) are kept: the later one counts as inside while the
    earlier is open.

    Args:
        thread: any integers that tell threads apart, shape ``(n,)``.
        start: first instants, ns.
        end: instants after the last, ns. A range without duration is inside what is open at its instant.
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
    mother = parent[child]
    covered = np.maximum(np.minimum(end[child], end[mother]) - start[child], 0)
    np.subtract.at(self_ns, mother, covered)
    return Nesting(depth, parent, np.maximum(self_ns, 0, out=self_ns))


def in_order(start: Int64, end: Int64) -> bool:
    """Whether ranges come by their starts, of equal starts the longest first: as tables have them, threads aside."""
    ahead = start[1:] > start[:-1]
    ahead |= (start[1:] == start[:-1]) & (end[1:] <= end[:-1])
    return bool(ahead.all())


def _order(thread: Int32, start: Int64, end: Int64) -> Int32:
    """By thread, then start, then longest first."""
    if not in_order(start, end):
        return np.lexsort((start - end, start, thread)).astype(np.int32)
    # Small numbers are sorted digit by digit.
    small = thread.astype(np.int16) if thread.min() >= 0 and thread.max() < 1 << 15 else thread
    return np.argsort(small, kind="stable").astype(np.int32)


def _nest_thread(rows: Int32, start: Int64, end: Int64, depth: Int32, parent: Int32) -> None:
    # Twice the time leaves room for "just after": a range without duration ends half a nanosecond later, so that
    # it is open at its own instant and is counted as inside what is open there.
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
    # A key names its own position.
    found = key[np.searchsorted(key, wanted, side="left") - 1] % rows.size
    parent[rows[inside]] = rows[found]
