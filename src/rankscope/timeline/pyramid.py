"""A rank's lanes, and their sums in bins whose width grows by four from level to level.

Level k has bins of 256 · 4^k ns. A lane is summed beforehand at the levels where that makes less of it: from the
first at which its bins are no more than its events, upward. At finer levels a window of some thousand bins holds no
more than some thousand events, and they are summed when it is asked for. Both give the same numbers, exact to the
nanosecond: the time per category, the events that start in the bin, and the event that covers most of it.

Going up a level, counts and times are sums of four. Which event covers most is not the best of four: what crosses an
edge is longer than either part. So of each level the events that cross an edge are carried on, and of those that lie
inside a bin the longest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rankscope.primitives.intervals import Int64, IntervalSet
from rankscope.timeline.binning import Bins, Busy, add_busy, best_of, busy_of, cut

BASE_SHIFT = 8
FACTOR_SHIFT = 2
BASE_BIN_NS = 1 << BASE_SHIFT
FACTOR = 1 << FACTOR_SHIFT
MAX_LEVELS = 24
# With fewer events a lane is summed when it is asked for.
SMALL_LANE = 256
# Summed beforehand from the level at which a lane has at most so many bins per event.
WORTH = 0.8
# A whole run in so many bins is the coarsest level.
COARSEST_BINS = 64

UInt8 = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]


def shift_of(level: int) -> int:
    """log2 of a level's bin width in ns."""
    return BASE_SHIFT + FACTOR_SHIFT * level


def levels_for(span_ns: int) -> int:
    """How many levels a run of this length has."""
    level = 0
    while level < MAX_LEVELS - 1 and span_ns >> shift_of(level) > COARSEST_BINS:
        level += 1
    return level + 1


@dataclass(frozen=True)
class LaneEvents:
    """The events of a rank by lane, then start, then end, on the run's clock.

    Attributes:
        pointer: where each lane's events begin, and where the last one's end.
        start: first instants, ns.
        end: instants after the last, ns.
        category: what each is for.
        merged: of the first lane, in which events overlap, the union of each category: starts, ends, categories,
            sorted by start. All other lanes are without overlap.
    """

    pointer: Int64
    start: Int64
    end: Int64
    category: UInt8
    merged: tuple[Int64, Int64, UInt8]


def merge_lane(start: Int64, end: Int64, category: UInt8) -> tuple[Int64, Int64, UInt8]:
    """The union of each category, sorted by start."""
    parts = [(which, IntervalSet.of(start[mine], end[mine])) for which in np.unique(category)
             for mine in [category == which]]  # fmt: skip
    if not parts:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint8)
    starts = np.concatenate([union.starts for _, union in parts])
    ends = np.concatenate([union.ends for _, union in parts])
    kinds = np.concatenate([np.full(len(union), which, dtype=np.uint8) for which, union in parts])
    order = np.lexsort((kinds, starts))
    return starts[order], ends[order], kinds[order]


def build(events: LaneEvents, levels: int) -> dict[str, Array]:
    """Sum the lanes at every level at which that is worth it.

    Returns:
        for each level k that has anything, ``k.bin_ptr`` and ``k.busy_ptr`` (where each lane's begin), ``k.bin``,
        ``k.count``, ``k.best`` (the row within the lane), ``k.busy_bin``, ``k.busy_category``, ``k.busy_ns``; and
        ``from_level``, of each lane the first level it is summed at.
    """
    lanes = events.pointer.size - 1
    begin = first_levels(events, levels)
    found: dict[str, Array] = {"from_level": begin.astype(np.uint8)}
    lane = np.repeat(np.arange(lanes), np.diff(events.pointer))
    row = np.arange(events.start.size) - events.pointer[lane]
    merged_start, merged_end, merged_category = events.merged
    # What is carried up: candidates for the greatest, and the sums so far.
    none = np.empty(0, dtype=np.int64)
    c_lane, c_start, c_end, c_row = none, none, none, none
    bins = Bins(none, none, none, none)
    busy = Busy(none, none, np.empty(0, dtype=np.uint8), none)
    for level in range(levels):
        shift = shift_of(level)
        # The sums of the level below, four to one, and lanes that begin here.
        coarse = np.stack([bins.lane, bins.bin >> FACTOR_SHIFT])
        carried = _count(coarse[0], coarse[1], bins.count)
        summed = add_busy(busy.lane, busy.bin >> FACTOR_SHIFT, busy.category, busy.ns)
        new = np.flatnonzero(begin == level)
        if new.size:
            mine = np.flatnonzero((begin == level)[lane]) if new.size < lanes else np.arange(lane.size)
            n_lane, n_start, n_end = lane[mine], events.start[mine], events.end[mine]
            pieces = cut(n_start, n_end, shift)
            counted = best_of(n_lane, n_start, pieces, shift)
            if new[0] == 0:
                flat = mine >= events.pointer[1]
                m_lane = np.zeros(merged_start.size, dtype=np.int64)
                above = busy_of(m_lane, merged_category, cut(merged_start, merged_end, shift))
                rest = mine[flat]
                others = busy_of(
                    lane[rest], events.category[rest], cut(events.start[rest], events.end[rest], shift)
                )  # fmt: skip
                fresh = _join_busy(above, others)
            else:
                fresh = busy_of(n_lane, events.category[mine], pieces)
            carried = _join_counts(carried, (counted.lane, counted.bin, counted.count))
            summed = _join_busy(summed, fresh)
            c_lane, c_start, c_end, c_row = _join_candidates(
                (c_lane, c_start, c_end, c_row), (n_lane, n_start, n_end, row[mine])
            )
        if not c_lane.size:
            continue
        pieces = cut(c_start, c_end, shift)
        best = best_of(c_lane, c_start, pieces, shift)
        bins = Bins(best.lane, best.bin, carried[2], c_row[best.best])
        busy = summed
        found |= _stored(level, lanes, bins, busy)
        # On to the next: what crosses an edge here, and the longest inside each bin.
        inside = (c_start >> shift) == (np.maximum(c_end - 1, c_start) >> shift)
        within = np.flatnonzero(inside)
        own = best_of(c_lane[within], c_start[within], cut(c_start[within], c_end[within], shift), shift)
        keep = ~inside
        keep[within[own.best]] = True
        c_lane, c_start, c_end, c_row = c_lane[keep], c_start[keep], c_end[keep], c_row[keep]
    return found


def first_levels(events: LaneEvents, levels: int) -> Int64:
    """Of each lane the first level at which it is summed beforehand; `levels` where it never is."""
    sizes = np.diff(events.pointer)
    found = np.full(sizes.size, levels, dtype=np.int64)
    for each in np.flatnonzero(sizes >= SMALL_LANE):
        part = slice(events.pointer[each], events.pointer[each + 1])
        start, end = events.start[part], events.end[part]
        # No fewer bins than the time that is covered needs: finer levels need not be tried.
        room = WORTH * int(sizes[each])
        level = 0
        covered = int((end - start).sum()) if each else 0
        while level < levels and (covered >> shift_of(level)) > room:
            level += 1
        while level < levels and _touched(start, end, shift_of(level)) > room:
            level += 1
        found[each] = level
    return found


def _touched(start: Int64, end: Int64, shift: int) -> int:
    """How many bins events touch that are sorted by start."""
    first = start >> shift
    last = np.maximum((end - 1) >> shift, first)
    reach = np.maximum.accumulate(last)
    new = np.maximum(first[1:], reach[:-1] + 1)
    return int(last[0] - first[0] + 1 + np.maximum(last[1:] - new + 1, 0).sum())


def _count(lane: Int64, number: Int64, count: Int64) -> tuple[Int64, Int64, Int64]:
    if not lane.size:
        return lane, number, count
    at = np.flatnonzero(np.append(True, (np.diff(lane) != 0) | (np.diff(number) != 0)))
    return lane[at], number[at], np.add.reduceat(count, at)


def _join_counts(
    one: tuple[Int64, Int64, Int64], other: tuple[Int64, Int64, Int64]
) -> tuple[Int64, Int64, Int64]:  # fmt: skip
    """Those of two sets of lanes that share none, by lane; within a lane they are in order."""
    lane = np.concatenate([one[0], other[0]])
    order = np.argsort(lane, kind="stable")
    return lane[order], np.concatenate([one[1], other[1]])[order], np.concatenate([one[2], other[2]])[order]


def _join_busy(one: Busy, other: Busy) -> Busy:
    if not one.lane.size or not other.lane.size:
        return one if one.lane.size else other
    lane = np.concatenate([one.lane, other.lane])
    order = np.argsort(lane, kind="stable")
    return Busy(
        lane[order],
        np.concatenate([one.bin, other.bin])[order],
        np.concatenate([one.category, other.category])[order],
        np.concatenate([one.ns, other.ns])[order],
    )


def _join_candidates(one: Sequence[Int64], other: Sequence[Int64]) -> tuple[Int64, ...]:
    if not one[0].size:
        return tuple(other)
    order = np.argsort(np.concatenate([one[0], other[0]]), kind="stable")
    return tuple(np.concatenate([a, b])[order] for a, b in zip(one, other, strict=True))


def _stored(level: int, lanes: int, bins: Bins, busy: Busy) -> dict[str, Array]:
    every = np.arange(lanes + 1)
    return {
        f"{level}.bin_ptr": np.searchsorted(bins.lane, every).astype(np.int64),
        f"{level}.bin": _small(bins.bin),
        f"{level}.count": bins.count.astype(np.uint32),
        f"{level}.best": bins.best.astype(np.uint32),
        f"{level}.busy_ptr": np.searchsorted(busy.lane, every).astype(np.int64),
        f"{level}.busy_bin": _small(busy.bin),
        f"{level}.busy_category": busy.category,
        f"{level}.busy_ns": _small(busy.ns),
    }


def _small(values: Int64) -> Array:
    """As u32 where they fit."""
    fits = not values.size or (int(values.min()) >= 0 and int(values.max()) < 1 << 32)
    return values.astype(np.uint32) if fits else values


@dataclass(frozen=True)
class Tile:
    """What lies in a window of bins, by lane and bin; lanes are numbers of the rank's own."""

    lane: Int64
    bin: Int64
    count: Int64
    row: Int64
    busy_lane: Int64
    busy_bin: Int64
    busy_category: UInt8
    busy_ns: Int64


def tile(
    events: LaneEvents, sums: Mapping[str, Array], lanes: Sequence[int], level: int, low: int, high: int
) -> Tile:  # fmt: skip
    """The bins ``[low, high)`` of a level on some lanes of a rank.

    Args:
        events: the rank's events.
        sums: what `build` gave.
        lanes: the lanes, ascending.
        level: the level.
        low: the first bin.
        high: the one after the last.
    """
    begin = sums["from_level"]
    counted: list[tuple[Array, ...]] = []
    summed: list[tuple[Array, ...]] = []
    ready = [each for each in lanes if begin[each] <= level]
    if ready:
        numbers, busy_numbers = sums[f"{level}.bin"], sums[f"{level}.busy_bin"]
        pointer, busy_pointer = sums[f"{level}.bin_ptr"], sums[f"{level}.busy_ptr"]
        for each in ready:
            part = _window(numbers, int(pointer[each]), int(pointer[each + 1]), low, high)
            if part.stop > part.start:
                own = np.full(part.stop - part.start, each, dtype=np.int64)
                counted.append((own, numbers[part], sums[f"{level}.count"][part], sums[f"{level}.best"][part]))
            part = _window(busy_numbers, int(busy_pointer[each]), int(busy_pointer[each + 1]), low, high)
            if part.stop > part.start:
                own = np.full(part.stop - part.start, each, dtype=np.int64)
                kinds, times = sums[f"{level}.busy_category"][part], sums[f"{level}.busy_ns"][part]
                summed.append((own, busy_numbers[part], kinds, times))
    now = [each for each in lanes if begin[each] > level]
    if now:
        bins, busy = _direct(events, now, level, low, high)
        counted.append((bins.lane, bins.bin, bins.count, bins.best))
        summed.append((busy.lane, busy.bin, busy.category, busy.ns))
    mixed = bool(ready and now)
    return Tile(*_joined(counted, 4, mixed), *_joined(summed, 4, mixed))


def _joined(parts: list[tuple[Array, ...]], columns: int, mixed: bool) -> tuple[Array, ...]:
    if not parts:
        return tuple(np.empty(0, dtype=np.int64) for _ in range(columns))
    joined = tuple(np.concatenate(column) for column in zip(*parts, strict=True))
    if mixed:
        order = np.argsort(joined[0], kind="stable")
        joined = tuple(column[order] for column in joined)
    return joined


def _window(numbers: Array, first: int, last: int, low: int, high: int) -> slice:
    # In the array's own type: else it would be converted whole.
    part = numbers[first:last]
    limit = np.iinfo(part.dtype).max
    begin = int(np.searchsorted(part, part.dtype.type(min(low, limit)))) if low > 0 else 0
    end = int(np.searchsorted(part, part.dtype.type(high))) if high <= limit else part.size
    return slice(first + begin, first + end)


def _direct(events: LaneEvents, lanes: Sequence[int], level: int, low: int, high: int) -> tuple[Bins, Busy]:
    shift = shift_of(level)
    from_ns, to_ns = low << shift, high << shift
    places, owners = [], []
    for each in lanes:
        part = touching(events, each, from_ns, to_ns)
        places.append(part)
        owners.append(np.full(part.size, each, dtype=np.int64))
    place, lane = np.concatenate(places), np.concatenate(owners)
    start, end = events.start[place], events.end[place]
    pieces = cut(start, end, shift, low, high)
    bins = best_of(lane, start, pieces, shift)
    rows = place[bins.best] - events.pointer[bins.lane]
    if 0 not in lanes:
        return Bins(bins.lane, bins.bin, bins.count, rows), busy_of(lane, events.category[place], pieces)
    merged_start, merged_end, merged_category = events.merged
    first = busy_of(
        np.zeros(merged_start.size, dtype=np.int64), merged_category, cut(merged_start, merged_end, shift, low, high)
    )
    rest = place[lane > 0]
    pieces = cut(events.start[rest], events.end[rest], shift, low, high)
    others = busy_of(lane[lane > 0], events.category[rest], pieces)
    return Bins(bins.lane, bins.bin, bins.count, rows), _join_busy(first, others)


def touching(events: LaneEvents, lane: int, from_ns: int, to_ns: int) -> Int64:
    """Places of the events of a lane that touch ``[from_ns, to_ns)``; one without duration touches where it is."""
    first, last = int(events.pointer[lane]), int(events.pointer[lane + 1])
    start = events.start[first:last]
    high = int(np.searchsorted(start, to_ns))
    low = int(np.searchsorted(start, from_ns))
    if lane:
        # Nothing overlaps: of what starts before, only the last can reach into the window.
        low -= int(low > 0 and events.end[first + low - 1] > from_ns)
        return np.arange(first + low, first + high)
    before = np.flatnonzero(events.end[first : first + low] > from_ns)
    return np.concatenate([first + before, np.arange(first + low, first + high)])
