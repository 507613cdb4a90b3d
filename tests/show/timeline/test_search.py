"""The order of matches over all lanes, against a sorted list of them."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.show.timeline.search import Hits


def random_hits(seed: int) -> tuple[Hits, list[tuple[int, int, int]], dict[int, list[int]]]:
    """Hits in some of ten lanes, many of which start at the same instant, and the same as a sorted list."""
    random = np.random.default_rng(seed)
    lanes = np.flatnonzero(random.random(10) < 0.7) if seed else np.empty(0, dtype=np.int64)
    starts, rows = [np.empty(0, dtype=np.int64)], {}
    for lane in lanes.tolist():
        size = int(random.integers(1, 40))
        starts.append(np.sort(random.integers(-5, int(random.choice([3, 50, 100_000])), size)))
        rows[lane] = np.sort(random.choice(90, size, replace=False)).tolist()
    pointer = np.concatenate([[0], np.cumsum([each.size for each in starts[1:]], dtype=np.int64)]).astype(np.int64)
    place = np.array([row for each in rows.values() for row in each], dtype=np.int64)
    hits = Hits(lanes, pointer, np.concatenate(starts), place)
    listed = [
        (start, lane, row)
        for lane, mine in zip(lanes.tolist(), starts[1:], strict=True)
        for start, row in zip(mine.tolist(), rows[lane], strict=True)
    ]
    return hits, sorted(listed), rows


@pytest.mark.parametrize("seed", range(25))
def test_hits_are_in_the_order_of_a_sorted_list(seed: int) -> None:
    hits, listed, _ = random_hits(seed)
    lane, index = hits.part(0, len(listed))
    found = list(zip(hits.start[index].tolist(), lane.tolist(), hits.place[index].tolist(), strict=True))
    assert found == listed
    for first in range(0, len(listed) + 3, 7):
        lane, index = hits.part(first, 5)
        found = list(zip(hits.start[index].tolist(), lane.tolist(), hits.place[index].tolist(), strict=True))
        assert found == listed[first : first + 5]


@pytest.mark.parametrize("seed", range(25))
def test_a_place_is_counted_as_in_a_sorted_list(seed: int) -> None:
    hits, listed, _ = random_hits(seed)
    random = np.random.default_rng(1000 + seed)
    others = zip(random.integers(-7, 60, 80), random.integers(-1, 11, 80), random.integers(-1, 91, 80), strict=True)
    for at in [*listed, *((int(start), int(lane), int(row)) for start, lane, row in others)]:
        count, is_hit = hits.before(at, lambda lane, which: hits.place[which])
        assert count == sum(one < at for one in listed)
        assert is_hit == (at in listed)
