"""Events summed in bins of time: how many start there, which covers most of each, and the time per category.

The events come sorted by lane and start. A bin is named by its lane and its number, which is its start over its
width; widths are powers of two, so a shift finds it. All is exact in int64 nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankscope.primitives.intervals import Int64

Array = npt.NDArray[np.generic]
UInt8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Bins:
    """What lies in each bin in which anything is, by lane and bin.

    Attributes:
        lane: the lane.
        bin: the bin's number.
        count: events that start in it.
        best: of the events that were given, the one that covers most of it; the first of several.
    """

    lane: Int64
    bin: Int64
    count: Int64
    best: Int64


@dataclass(frozen=True)
class Busy:
    """Time per category, by lane, bin and category.

    Attributes:
        lane: the lane.
        bin: the bin's number.
        category: the category's number.
        ns: how much of the bin it takes up.
    """

    lane: Int64
    bin: Int64
    category: UInt8
    ns: Int64


@dataclass(frozen=True)
class Pieces:
    """Events cut at the edges of bins.

    Attributes:
        event: which event each piece is of.
        bin: the bin it lies in.
        ns: how long it is.
    """

    event: Int64
    bin: Int64
    ns: Int64


def cut(start: Int64, end: Int64, shift: int, low: int | None = None, high: int | None = None) -> Pieces:
    """Cut events at the edges of bins that are ``2**shift`` ns wide; one without duration is a piece of its own.

    Args:
        start: first instants, ns, shape ``(n,)``.
        end: instants after the last, ns.
        shift: log2 of the bins' width.
        low: the first bin that is wanted.
        high: the one after the last.
    """
    first = start >> shift
    last = np.maximum((end - 1) >> shift, first)
    if low is not None and high is not None:
        first, last = np.maximum(first, low), np.minimum(last, high - 1)
        touching = np.flatnonzero(first <= last)
        if touching.size < first.size:
            found = _cut(first[touching], last[touching], start[touching], end[touching], shift)
            return Pieces(touching[found.event], found.bin, found.ns)
    return _cut(first, last, start, end, shift)


def _cut(first: Int64, last: Int64, start: Int64, end: Int64, shift: int) -> Pieces:
    spans = last - first + 1
    if (spans == 1).all():
        event = np.arange(start.size)
        edge = first << shift
        ns = np.minimum(end, edge + (1 << shift)) - np.maximum(start, edge)
        return Pieces(event, first, ns)
    event = np.repeat(np.arange(start.size), spans)
    number = np.arange(event.size) - np.repeat(np.cumsum(spans) - spans, spans) + first[event]
    edge = number << shift
    ns = np.minimum(end[event], edge + (1 << shift)) - np.maximum(start[event], edge)
    return Pieces(event, number, ns)


def _groups(lane: Int64, number: Int64) -> Int64:
    """Where a new bin begins, in pieces that are sorted by lane and bin."""
    if not lane.size:
        return np.empty(0, dtype=np.int64)
    new = np.empty(lane.size, dtype=np.bool_)
    new[0] = True
    np.not_equal(number[1:], number[:-1], out=new[1:])
    new[1:] |= lane[1:] != lane[:-1]
    return np.flatnonzero(new)


def _sorted(lane: Int64, number: Int64) -> bool:
    step = np.diff(lane)
    return not bool((step < 0).any() or ((step == 0) & (np.diff(number) < 0)).any())


def best_of(lane: Int64, start: Int64, pieces: Pieces, shift: int) -> Bins:
    """The bins that events touch, how many start in each, and which covers most.

    Args:
        lane: of each event, its lane.
        start: of each event, ns.
        pieces: the events, cut.
        shift: log2 of the bins' width.
    """
    event, number, ns = pieces.event, pieces.bin, pieces.ns
    lanes = lane[event]
    if not _sorted(lanes, number):
        # Only where events of a lane overlap.
        order = np.lexsort((event, number, lanes))
        event, number, ns, lanes = event[order], number[order], ns[order], lanes[order]
    at = _groups(lanes, number)
    if not at.size:
        none = np.empty(0, dtype=np.int64)
        return Bins(none, none, none, none)
    starts_here = (start[event] >> shift) == number
    count = np.add.reduceat(starts_here, at, dtype=np.int64)
    best = event[at]
    several = np.diff(at, append=event.size) > 1
    if several.any():
        # The most covered wins, the earliest of these: places where a piece reaches its bin's greatest.
        most = np.maximum.reduceat(ns, at)
        size = np.diff(at, append=event.size)
        reach = np.flatnonzero(ns == np.repeat(most, size))
        group = np.searchsorted(at, reach, side="right") - 1
        first = np.concatenate([[True], group[1:] != group[:-1]])
        best = event[reach[first]]
    return Bins(lanes[at], number[at], count, best)


def busy_of(lane: Int64, category: UInt8, pieces: Pieces) -> Busy:
    """The time of each category in each bin; events of one lane and category do not overlap.

    Args:
        lane: of each event, its lane.
        category: of each event.
        pieces: the events, cut.
    """
    some = pieces.ns > 0
    event, number, ns = pieces.event[some], pieces.bin[some], pieces.ns[some]
    return add_busy(lane[event], number, category[event], ns)


def add_busy(lane: Int64, number: Int64, category: UInt8, ns: Int64) -> Busy:
    """Add up times of one lane, bin and category."""
    if not lane.size:
        none = np.empty(0, dtype=np.int64)
        return Busy(none, none, np.empty(0, dtype=np.uint8), none)
    if not _sorted(lane, number):
        order = np.lexsort((number, lane))
        lane, number, category, ns = lane[order], number[order], category[order], ns[order]
    at = _groups(lane, number)
    group = np.repeat(np.arange(at.size), np.diff(at, append=lane.size))
    present = np.unique(category)
    # A row a bin and a column a category that there is: what is not zero, in the order of rows.
    place = np.zeros(256, dtype=np.int64)
    place[present] = np.arange(present.size)
    sums = np.zeros(at.size * present.size, dtype=np.int64)
    if at.size == lane.size:
        sums[group * present.size + place[category]] = ns
    else:
        # Sums of doubles are exact: a bin holds less than 2**53 ns of anything.
        sums = np.bincount(group * present.size + place[category], weights=ns, minlength=sums.size).astype(np.int64)
    found = np.flatnonzero(sums)
    row = found // present.size
    return Busy(lane[at][row], number[at][row], present[found % present.size].astype(np.uint8), sums[found])
