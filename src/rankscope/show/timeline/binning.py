"""Aggregates events in time bins: event count, the event that covers most, and time per category.

The events come sorted by lane and start. A bin is named by its lane and its number, which is its start over its
width; widths are powers of two, so a shift finds it. Exact in int64 nanoseconds.

In: arrays of events. Out: arrays of bins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankscope.primitives.intervals import Int64

UInt8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Bins:
    """The content of each bin that is not empty, by lane and bin.

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
        bin: the bin that it is in.
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


def groups_of(lane: Int64, number: Int64) -> Int64:
    """Where a new bin begins, in pieces that are sorted by lane and bin."""
    if not lane.size:
        return np.empty(0, dtype=np.int64)
    new = np.empty(lane.size, dtype=np.bool_)
    new[0] = True
    np.not_equal(number[1:], number[:-1], out=new[1:])
    if lane[0] != lane[-1]:
        new[1:] |= lane[1:] != lane[:-1]
    return np.flatnonzero(new)


def first_greatest(value: Int64, at: Int64) -> Int64:
    """The index of the maximum in each group, the first of several.

    Args:
        value: by group.
        at: where each group begins.
    """
    size = np.diff(at, append=value.size)
    several = np.flatnonzero(size > 1)
    best: Int64 = at.copy()
    if several.size:
        most = np.repeat(np.maximum.reduceat(value, at), size)
        reach = np.flatnonzero(value == most)
        group = np.repeat(np.arange(at.size), size)[reach]
        new = np.empty(reach.size, dtype=np.bool_)
        new[0] = True
        np.not_equal(group[1:], group[:-1], out=new[1:])
        best = reach[new]
    return best


def _in_order(lane: Int64, number: Int64) -> bool:
    """Whether pieces are sorted by lane and bin. Only in a rank's own lane, the first, events overlap."""
    if not lane.size or lane[0] != 0:
        return True
    own = number[: int(np.searchsorted(lane, 0, side="right"))]
    return not bool((own[1:] < own[:-1]).any())


def best_of(lane: Int64, start: Int64, pieces: Pieces, shift: int, weight: Int64 | None = None) -> Bins:
    """The bins that events touch, how many start in each, and which covers most.

    Args:
        lane: of each event, its lane.
        start: of each event, ns.
        pieces: the events, cut.
        shift: log2 of the bins' width.
        weight: the number of events that each represents where it starts; None for one.
    """
    event, number, ns = pieces.event, pieces.bin, pieces.ns
    lanes = lane[event]
    if not _in_order(lanes, number):
        order = np.lexsort((event, number, lanes))
        event, number, ns, lanes = event[order], number[order], ns[order], lanes[order]
    at = groups_of(lanes, number)
    if not at.size:
        none = np.empty(0, dtype=np.int64)
        return Bins(none, none, none, none)
    starts = (start[event] >> shift) == number
    count = np.add.reduceat(starts if weight is None else starts * weight[event], at, dtype=np.int64)
    return Bins(lanes[at], number[at], count, event[first_greatest(ns, at)])


def busy_of(lane: Int64, category: UInt8, pieces: Pieces) -> Busy:
    """The time of each category in each bin; events of one lane and category do not overlap.

    Args:
        lane: of each event, its lane.
        category: of each event.
        pieces: the events, cut.
    """
    event, number, ns = pieces.event, pieces.bin, pieces.ns
    some = ns > 0
    if not some.all():
        event, number, ns = event[some], number[some], ns[some]
    lanes, kinds = lane[event], category[event]
    if not _in_order(lanes, number):
        order = np.lexsort((number, lanes))
        lanes, number, kinds, ns = lanes[order], number[order], kinds[order], ns[order]
    return add_busy(lanes, number, kinds, ns)


def add_busy(lane: Int64, number: Int64, category: UInt8, ns: Int64) -> Busy:
    """Add up times of one lane, bin and category; they come by lane and bin."""
    at = groups_of(lane, number)
    if not at.size:
        none = np.empty(0, dtype=np.int64)
        return Busy(none, none, np.empty(0, dtype=np.uint8), none)
    present = np.flatnonzero(np.bincount(category))
    if present.size == 1:
        return Busy(lane[at], number[at], category[at], np.add.reduceat(ns, at))
    # A row a bin and a column a category that there is: what is not zero, in the order of rows.
    column = np.zeros(int(present[-1]) + 1, dtype=np.int64)
    column[present] = np.arange(present.size)
    cell = np.repeat(np.arange(0, at.size * present.size, present.size), np.diff(at, append=lane.size))
    cell += column[category]
    # Sums of doubles are exact: a bin holds less than 2**53 ns of anything.
    sums = np.bincount(cell, weights=ns, minlength=at.size * present.size)
    found = np.flatnonzero(sums)
    row, which = np.divmod(found, present.size)
    first = at[row]
    return Busy(lane[first], number[first], present[which].astype(np.uint8), sums[found].astype(np.int64))
