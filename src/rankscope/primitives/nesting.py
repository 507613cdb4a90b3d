"""Who is inside whom: depth, parent and self time of the ranges of one thread, without a Python loop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.primitives.intervals import Int64


@dataclass(frozen=True)
class Nesting:
    """The nesting of ranges, in the order in which they were given.

    Attributes:
        depth: how many ranges of the same thread are open when this one starts; 0 is top level.
        parent: index of the innermost range that is open then, −1 at top level.
        self_ns: duration less the durations of the ranges directly inside, cut at its own end; never negative.
    """

    depth: Int64
    parent: Int64
    self_ns: Int64


def nest(thread: Int64, start: Int64, end: Int64) -> Nesting:
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
    depth = np.zeros(count, dtype=np.int64)
    parent = np.full(count, -1, dtype=np.int64)
    self_ns = (end - start).astype(np.int64)
    if count == 0:
        return Nesting(depth, parent, self_ns)
    order = np.lexsort((start - end, start, thread))
    bounds = np.flatnonzero(np.diff(thread[order])) + 1
    for rows in np.split(order, bounds):
        _nest_thread(rows, start[rows], end[rows], depth, parent)
    inside = parent >= 0
    child, mother = np.flatnonzero(inside), parent[inside]
    covered = np.minimum(end[child], end[mother]) - start[child]
    spent = np.zeros(count, dtype=np.int64)
    np.add.at(spent, mother, np.maximum(covered, 0))
    return Nesting(depth, parent, np.maximum(self_ns - spent, 0))


def _nest_thread(rows: Int64, start: Int64, end: Int64, depth: Int64, parent: Int64) -> None:
    # Twice the time leaves room for "just after": a range without duration ends half a nanosecond later, so that
    # it is open at its own instant and is counted as inside what is open there.
    ends = np.sort(2 * end + (end == start))
    position = np.arange(rows.size)
    level = position - np.searchsorted(ends, 2 * start, side="right")
    depth[rows] = level
    # The parent is the last earlier range one level up: the greatest key below (level − 1, position).
    key = level * rows.size + position
    by_key = np.argsort(key, kind="stable")
    found = np.searchsorted(key[by_key], (level - 1) * rows.size + position, side="left") - 1
    inside = level > 0
    parent[rows[inside]] = rows[by_key[found[inside]]]
