"""Assigns events to lanes by track and depth, so that nothing in a lane overlaps.

An event's depth is the number of ranges of its track that are open when it starts (`primitives.nesting`). Ranges that
overlap without nesting can collide at one depth; the later one is then put into a lane marked `overflow`, of which
there are as few as possible. No event is dropped.

In: starts, ends and tracks of events. Out: a lane for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from rankscope.primitives.intervals import Int64
from rankscope.primitives.nesting import nest

Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Lanes:
    """Events laid out in lanes.

    Attributes:
        order: the events by lane, then start, then end.
        pointer: where each lane's events begin in that order; one more than there are lanes.
        track: which track each lane is of.
        depth: its depth there.
        overflow: whether it holds what overlapped elsewhere.
    """

    order: Int64
    pointer: Int64
    track: Int32
    depth: Int32
    overflow: Bool


def lay_out(track: Int32, start: Int64, end: Int64, flat: Bool) -> Lanes:
    """Give each event a lane.

    Args:
        track: of each event, numbers from 0, shape ``(n,)``.
        start: first instants, ns.
        end: instants after the last, ns.
        flat: of each track, whether all its events go to one lane though they overlap.
    """
    depth = np.where(flat[track], 0, nest(track, start, end).depth) if track.size else np.empty(0, dtype=np.int32)
    overflow = np.zeros(track.size, dtype=np.bool_)
    order = np.lexsort((end, start, depth, track))
    places = track[order].astype(np.int64) << 32 | depth[order]
    bounds = np.flatnonzero(np.diff(places, prepend=-1)) if order.size else np.empty(0, dtype=np.int64)
    for low, high in pairwise([*bounds, order.size]):
        rows = order[low:high]
        if high - low > 1 and not flat[track[rows[0]]]:
            overlaps = start[rows[1:]] < np.maximum.accumulate(end[rows[:-1]])
            overflow[rows[1:][overlaps]] = True
    for each in np.unique(track[overflow]):
        rows = np.flatnonzero(overflow & (track == each))
        depth[rows] = _fewest(start[rows], end[rows])
    order = np.lexsort((end, start, depth, overflow, track))
    lane = (track[order].astype(np.int64) << 33) | (overflow[order].astype(np.int64) << 32) | depth[order]
    begins = np.flatnonzero(np.diff(lane, prepend=-1)) if lane.size else np.empty(0, dtype=np.int64)
    first = order[begins]
    return Lanes(
        order,
        np.append(begins, order.size).astype(np.int64),
        track[first].astype(np.int32),
        depth[first].astype(np.int32),
        overflow[first],
    )


def _fewest(start: Int64, end: Int64) -> Int32:
    """A lane for each of some ranges, as few lanes as there are ranges open at once.

    In the order of starts, a range that finds more ranges open than any before it needs a new lane. Any other takes
    over the lane of the range that ended first and was not followed yet: the k-th that follows has the k-th end.
    """
    order = np.lexsort((end, start))
    # A range without duration counts as open at its instant: it ends half a nanosecond later.
    ends = (2 * end + (end == start))[order]
    by_end = np.argsort(ends, kind="stable")
    position = np.arange(order.size, dtype=np.int64)
    open_now = position + 1 - np.searchsorted(ends[by_end], 2 * start[order], side="right")
    lanes = np.maximum.accumulate(open_now)
    opens = np.diff(lanes, prepend=0) > 0
    before = np.where(opens, position, by_end[np.where(opens, 0, position - lanes)])
    while (further := before[before]).tobytes() != before.tobytes():
        before = further
    found = np.empty(order.size, dtype=np.int32)
    found[order] = lanes[before] - 1
    return found
