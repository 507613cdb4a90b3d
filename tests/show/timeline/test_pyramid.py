"""The pyramid against a drawing in plain Python: equal to the nanosecond at every level, stored or not."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tests.show.timeline import drawing
from tests.show.timeline.drawing import Drawn, draw

from rankscope.show.timeline import pyramid
from rankscope.show.timeline.pyramid import LaneEvents, build, levels_for, merge_lane, shift_of, tile, touching


def lane_of(random_: random.Random, size: int, mean: int, categories: int, overlap: bool) -> list[Drawn]:
    """Events of a lane: bursts and gaps, some without duration, some long."""
    events, at = [], random_.randrange(5000)
    for _ in range(size):
        at += random_.choice((0, 0, random_.randrange(mean), random_.randrange(20 * mean)))
        length = random_.choice((0, random_.randrange(1, 2 * mean), random_.randrange(1, 2 * mean), 30 * mean))
        events.append(Drawn(at, at + length, random_.randrange(categories)))
        at += random_.randrange(length + 1) if overlap else length
    return sorted(events, key=lambda event: (event.start, event.end))


def made(lanes: list[list[Drawn]]) -> LaneEvents:
    flat = [event for lane in lanes for event in lane]
    start, end = (np.array([getattr(event, name) for event in flat], dtype=np.int64) for name in ("start", "end"))
    category = np.array([event.category for event in flat], dtype=np.uint8)
    pointer = np.cumsum([0, *map(len, lanes)], dtype=np.int64)
    own = slice(0, len(lanes[0]))
    return LaneEvents(pointer, start, end, category, merge_lane(start[own], end[own], category[own]))


def check(lanes: list[list[Drawn]], events: LaneEvents, sums: dict[str, np.ndarray], random_: random.Random) -> int:
    """Random windows at every level; how many bins were compared."""
    span = max((event.end for lane in lanes for event in lane), default=1)
    compared = 0
    for level in range(levels_for(span)):
        width = 1 << shift_of(level)
        first, bins = random_.randrange(span // width + 2), random_.randrange(1, 40)
        asked = sorted(random_.sample(range(len(lanes)), random_.randrange(1, len(lanes) + 1)))
        found = tile(events, sums, asked, level, first, first + bins)
        got: dict[tuple[int, int], drawing.Bin] = {}
        for lane, number, count, row in zip(found.lane, found.bin, found.count, found.row, strict=True):
            got[int(lane), int(number)] = drawing.Bin(int(count), {}, {int(row): 0})
        parts = zip(found.busy_lane, found.busy_bin, found.busy_category, found.busy_ns, strict=True)
        for lane, number, category, ns in parts:
            got[int(lane), int(number)].busy[int(category)] = int(ns)
        expected = {
            (lane, number): one for lane in asked for number, one in draw(lanes[lane], width, first, bins).items()
        }
        assert list(got) == sorted(expected), (level, first, bins)
        for place, one in expected.items():
            assert got[place].count == one.count, (level, place)
            assert got[place].busy == one.busy, (level, place)
            (row,) = got[place].covers
            assert one.covers[row] == max(one.covers.values()), (level, place)
        assert list(zip(found.busy_lane, found.busy_bin, found.busy_category, strict=True)) == sorted(
            zip(found.busy_lane, found.busy_bin, found.busy_category, strict=True)
        )
        compared += len(expected)
    return compared


@pytest.mark.parametrize("seed", range(12))
def test_every_level_is_the_drawing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random_ = random.Random(seed)
    # Small lanes are summed beforehand too, in several lots, and the rank's own lane overlaps.
    monkeypatch.setattr(pyramid, "SMALL_LANE", random_.choice((1, 8, 64)))
    monkeypatch.setattr(pyramid, "EVENTS_AT_ONCE", random_.choice((16, 1 << 17)))
    lanes = [
        lane_of(random_, random_.randrange(0 if place else 1, 120), random_.choice((3, 200, 40_000)),
                random_.choice((1, 4)), overlap=place == 0)
        for place in range(5)
    ]  # fmt: skip
    events = made(lanes)
    levels = levels_for(int(events.end.max()))
    sums = build(events, levels)
    compared = sum(check(lanes, events, sums, random_) for _ in range(12))
    assert compared > 100
    assert (sums["from_level"] < levels).any()


def test_a_lane_is_summed_where_that_makes_less_of_it() -> None:
    random_ = random.Random(3)
    lanes = [[Drawn(0, 10, 0)], lane_of(random_, 4000, 300, 3, overlap=False)]
    events = made(lanes)
    levels = levels_for(int(events.end.max()))
    sums = build(events, levels)
    assert sums["from_level"][0] == levels  # one event is summed when it is asked for
    first = int(sums["from_level"][1])
    assert 0 < first < levels
    assert sums[f"{first}.bin"].size <= pyramid.WORTH * 4000
    assert f"{first - 1}.bin" not in sums
    assert sum(int(sums[f"{level}.count"].sum()) for level in range(first, levels)) == 4000 * (levels - first)


def test_what_crosses_an_edge_is_longest_where_it_is() -> None:
    """Two halves of one event are each shorter than their neighbors; together they are longer (worked by hand)."""
    lanes = [[], [Drawn(0, 110, 0), Drawn(156, 356, 1), Drawn(400, 510, 0)]]
    events = made([[Drawn(0, 1, 0)], lanes[1]])
    assert (tile(events, build(events, 2), [1], 0, 0, 2).row == [0, 2]).all()
    assert (tile(events, build(events, 2), [1], 1, 0, 1).row == [1]).all()


def test_the_longest_is_carried_up_across_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyramid, "SMALL_LANE", 1)
    monkeypatch.setattr(pyramid, "WORTH", 10.0)  # from the finest level
    events = made([[Drawn(0, 1, 0)], [Drawn(0, 110, 0), Drawn(156, 356, 1), Drawn(400, 510, 0)]])
    sums = build(events, 2)
    assert sums["from_level"][1] == 0
    assert (tile(events, sums, [1], 0, 0, 2).row == [0, 2]).all()
    assert (tile(events, sums, [1], 1, 0, 1).row == [1]).all()


@pytest.mark.parametrize("seed", range(4))
def test_exact_events_of_a_window(seed: int) -> None:
    random_ = random.Random(seed)
    lanes = [lane_of(random_, 80, 500, 2, overlap=place == 0) for place in range(3)]
    events = made(lanes)
    span = int(events.end.max())
    for _ in range(200):
        low = random_.randrange(span + 1)
        high = low + random_.choice((0, 1, random_.randrange(1, 20_000)))
        lane = random_.randrange(3)
        got = touching(events, lane, low, high) - events.pointer[lane]
        assert sorted(got.tolist()) == drawing.touching(lanes[lane], low, high)


def test_levels_hold_the_whole_run_in_few_bins() -> None:
    assert levels_for(0) == 1
    assert levels_for(256 * 64) == 1
    assert levels_for(256 * 65) == 2
    assert levels_for(1 << 62) == pyramid.MAX_LEVELS
