"""Aggregates a rank's lanes in bins whose width grows by four from level to level.

In: events by lane. Out: bins of any window and level: time per category, event count, and the event that covers most.

Level k has bins of 256 · 4^k ns. A lane is aggregated in advance where that saves space: from the first level at which
it has no more bins than events, upward. At finer levels a window of a few thousand bins has at most a few thousand
events, which are aggregated on request. Both give the same numbers, exact to the nanosecond.

One level up, counts and times are sums of four bins. The event that covers most is not the best of the four, because an
event that crosses an edge is longer than either part: crossing events are carried up, and of those inside a bin the
longest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rankscope.primitives.intervals import Int64, IntervalSet
from rankscope.show.timeline.binning import Bins, Busy, add_busy, best_of, busy_of, cut, first_greatest, groups_of

BASE_SHIFT = 8
FACTOR_SHIFT = 2
BASE_BIN_NS = 1 << BASE_SHIFT
FACTOR = 1 << FACTOR_SHIFT
MAX_LEVELS = 24
# With fewer events a lane is aggregated on request.
SMALL_LANE = 256
# Summed beforehand from the level at which a lane has at most this many bins per event.
WORTH = 0.8
# The coarsest level divides the run into this many bins.
COARSEST_BINS = 64

# Lanes are aggregated in batches of about this many events.
EVENTS_AT_ONCE = 1 << 17
_NONE = np.empty(0, dtype=np.int64)

UInt8 = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]


def shift_of(level: int) -> int:
    """log2 of a level's bin width in ns."""
    return BASE_SHIFT + FACTOR_SHIFT * level


def levels_for(span_ns: int) -> int:
    """The number of levels of a run of this length."""
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
    """Aggregate the lanes at every level at which that saves space.

    Returns:
        for each level k that has anything, ``k.bin_ptr`` and ``k.busy_ptr`` (where each lane's begin), ``k.bin``,
        ``k.count``, ``k.best`` (the row within the lane), ``k.busy_bin``, ``k.busy_category``, ``k.busy_ns``; and
        ``from_level``, the first level at which each lane is aggregated.
    """
    begin = first_levels(events, levels)
    bins: dict[int, list[Bins]] = {}
    busy: dict[int, list[Busy]] = {}
    # Lanes are aggregated a few at a time, so that the data stays in the processor's cache.
    worth = np.flatnonzero(begin < levels)
    before = np.cumsum(np.diff(events.pointer)[worth]) // EVENTS_AT_ONCE
    for some in np.split(worth, np.flatnonzero(np.diff(before)) + 1):
        for lanes in (some[some == 0], some[some > 0]):
            for level, counted, summed in _sum_up(events, lanes, begin, levels):
                bins.setdefault(level, []).append(counted)
                busy.setdefault(level, []).append(summed)
    found: dict[str, Array] = {"from_level": begin.astype(np.uint8)}
    for level in sorted(bins):
        found |= _stored(level, begin.size, bins[level], busy[level])
    return found


def _sum_up(events: LaneEvents, lanes: Int64, begin: Int64, levels: int) -> Iterator[tuple[int, Bins, Busy]]:
    """Aggregate some lanes at each level from their first one up; a bin's longest event as its row within the lane.

    Times are carried up, and the events that can cover most of a bin on a higher level. Such an event also represents
    the events next to it that cannot: its weight is the number of events that start in the same bin.
    """
    if not lanes.size:
        return
    place, lane, weight = _NONE, _NONE, _NONE
    busy = Busy(_NONE, _NONE, np.empty(0, dtype=np.uint8), _NONE)
    for level in range(int(begin[lanes].min()), levels):
        shift = shift_of(level)
        busy = add_busy(busy.lane, busy.bin >> FACTOR_SHIFT, busy.category, busy.ns)
        new = lanes[begin[lanes] == level]
        if new.size:
            more = np.concatenate([np.arange(events.pointer[each], events.pointer[each + 1]) for each in new])
            which = np.repeat(new, np.diff(events.pointer)[new])
            busy = _join_busy(busy, _busy(events, which, more, shift))
            place, lane = np.concatenate([place, more]), np.concatenate([lane, which])
            weight = np.concatenate([weight, np.ones(more.size, dtype=np.int64)])
            if place.size > more.size:
                order = np.argsort(lane, kind="stable")
                place, lane, weight = place[order], lane[order], weight[order]
        start, end = events.start[place], events.end[place]
        found = best_of(lane, start, cut(start, end, shift), shift, weight)
        rows = place[found.best] - events.pointer[found.lane]
        yield level, Bins(found.lane, found.bin, found.count, rows), busy
        number = start >> shift
        crosses = number != np.maximum((end - 1) >> shift, number)
        inside = np.flatnonzero(~crosses)
        at = groups_of(lane[inside], number[inside])
        if at.size:
            best = inside[first_greatest((end - start)[inside], at)]
            weight[best] = np.add.reduceat(weight[inside], at)
            crosses[best] = True
        place, lane, weight = place[crosses], lane[crosses], weight[crosses]


def _busy(events: LaneEvents, lane: Int64, place: Int64, shift: int) -> Busy:
    """The times of all events of some lanes; the summary lane is alone or not among them."""
    if lane[0] == 0:
        start, end, category = events.merged
        return busy_of(np.zeros(start.size, dtype=np.int64), category, cut(start, end, shift))
    return busy_of(lane, events.category[place], cut(events.start[place], events.end[place], shift))


def first_levels(events: LaneEvents, levels: int) -> Int64:
    """The first level of each lane at which it is aggregated in advance; `levels` if it never is."""
    sizes = np.diff(events.pointer)
    found = np.full(sizes.size, levels, dtype=np.int64)
    for each in np.flatnonzero(sizes >= SMALL_LANE):
        part = slice(events.pointer[each], events.pointer[each + 1])
        start, end = events.start[part], events.end[part]
        # There are at least as many bins as the covered time needs: finer levels need not be tried.
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
    """The number of bins that events, sorted by start, touch."""
    first = start >> shift
    last = np.maximum((end - 1) >> shift, first)
    reach = np.maximum.accumulate(last)
    new = np.maximum(first[1:], reach[:-1] + 1)
    return int(last[0] - first[0] + 1 + np.maximum(last[1:] - new + 1, 0).sum())


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


def _stored(level: int, lanes: int, bins: Sequence[Bins], busy: Sequence[Busy]) -> dict[str, Array]:
    every = np.arange(lanes + 1)
    return {
        f"{level}.bin_ptr": np.searchsorted(np.concatenate([each.lane for each in bins]), every).astype(np.int64),
        f"{level}.bin": _small(np.concatenate([each.bin for each in bins])),
        f"{level}.count": np.concatenate([each.count for each in bins]).astype(np.uint32),
        f"{level}.best": np.concatenate([each.best for each in bins]).astype(np.uint32),
        f"{level}.busy_ptr": np.searchsorted(np.concatenate([each.lane for each in busy]), every).astype(np.int64),
        f"{level}.busy_bin": _small(np.concatenate([each.bin for each in busy])),
        f"{level}.busy_category": np.concatenate([each.category for each in busy]),
        f"{level}.busy_ns": _small(np.concatenate([each.ns for each in busy])),
    }


def _small(values: Int64) -> Array:
    """As u32 where they fit."""
    fits = not values.size or (int(values.min()) >= 0 and int(values.max()) < 1 << 32)
    return values.astype(np.uint32) if fits else values


@dataclass(frozen=True)
class Tile:
    """The content of a window of bins, by lane and bin, with the rank's own lane numbers."""

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
    # In the array's own type: otherwise all of it would be converted.
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
