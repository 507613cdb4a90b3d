"""Lanes: everything is in one, nothing in one overlaps, and no more of them than the overlaps need."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from rankscope.show.timeline.lanes import Lanes, lay_out

Span = tuple[int, int]


def laid(tracks: list[list[Span]], flat: list[bool] | None = None) -> tuple[Lanes, list[list[Span]]]:
    """The lanes, and each one's events."""
    spans = [(track, *span) for track, each in enumerate(tracks) for span in each]
    track, start, end = (np.array([span[i] for span in spans], dtype=np.int64) for i in range(3))
    lanes = lay_out(track.astype(np.int32), start, end, np.array(flat or [False] * len(tracks)))
    bounds = lanes.pointer.tolist()
    return lanes, [
        [(int(start[row]), int(end[row])) for row in lanes.order[low:high]] for low, high in pairwise(bounds)
    ]


def most_open(spans: list[Span]) -> int:
    """How many are open at once; one without duration is open at its instant."""
    marks = sorted((at, change) for s, e in spans for at, change in ((2 * s, 1), (2 * e + (e == s), -1)))
    most = now = 0
    for _, change in marks:
        now += change
        most = max(most, now)
    return most


def test_nested_ranges_lie_below_each_other() -> None:
    lanes, spans = laid([[(0, 100), (10, 40), (20, 30), (50, 90), (100, 120)]])
    assert spans == [[(0, 100), (100, 120)], [(10, 40), (50, 90)], [(20, 30)]]
    assert lanes.depth.tolist() == [0, 1, 2]
    assert not lanes.overflow.any()


def test_what_crosses_goes_to_an_overflow_lane() -> None:
    # The second is open when the third starts, the first is not: both are one deep, and overlap.
    lanes, spans = laid([[(0, 10), (5, 20), (12, 30)]])
    assert spans == [[(0, 10)], [(5, 20)], [(12, 30)]]
    assert lanes.overflow.tolist() == [False, False, True]
    assert lanes.depth.tolist() == [0, 1, 0]


def test_a_flat_track_has_one_lane() -> None:
    lanes, spans = laid([[(0, 10), (5, 20)], [(0, 10), (5, 20)]], [True, False])
    assert spans == [[(0, 10), (5, 20)], [(0, 10)], [(5, 20)]]
    assert lanes.track.tolist() == [0, 1, 1]


def test_no_event_no_lane() -> None:
    lanes, spans = laid([[]])
    assert spans == []
    assert lanes.pointer.tolist() == [0]


@pytest.mark.parametrize("seed", range(30))
def test_nothing_overlaps_and_nothing_is_dropped(seed: int) -> None:
    random_ = random.Random(seed)
    reach, longest = random_.choice(((50, 20), (1000, 30), (300, 300)))
    tracks = [
        [(start, start + random_.randrange(longest)) for start in
         (random_.randrange(reach) for _ in range(random_.randrange(1, 150)))]
        for _ in range(3)
    ]  # fmt: skip
    lanes, spans = laid(tracks)
    for track, wanted in enumerate(tracks):
        mine = [lane for lane in range(len(spans)) if lanes.track[lane] == track]
        assert sorted(span for lane in mine for span in spans[lane]) == sorted(wanted)
        overflowing = [span for lane in mine if lanes.overflow[lane] for span in spans[lane]]
        assert sum(bool(lanes.overflow[lane]) for lane in mine) == most_open(overflowing)
        assert sum(not lanes.overflow[lane] for lane in mine) <= most_open(wanted)
    for each in spans:
        assert all(before[1] <= after[0] for before, after in pairwise(each))


def test_a_stair_of_overlaps_needs_few_lanes() -> None:
    """Each overlaps the next alone: a lane for each of a thousand would be no picture."""
    _, spans = laid([[(10 * i, 10 * i + 15) for i in range(1000)]])
    assert len(spans) <= 4
    assert sum(map(len, spans)) == 1000
