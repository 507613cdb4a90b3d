from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankscope.primitives.arrival_skew import arrivals_by_event, median_of_others, union_length_by_code
from rankscope.primitives.intervals import IntervalSet


@given(st.lists(st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=6), min_size=1, max_size=8))
def test_median_of_others(groups: list[list[int]]) -> None:
    event = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    value = np.array([each for group in groups for each in group], dtype=np.int64)
    found = median_of_others(event, value, missing=5)
    at = 0
    for group in groups:
        for index in range(len(group)):
            rest = sorted(group[:index] + group[index + 1 :])
            low, high = (rest[(len(rest) - 1) // 2], rest[len(rest) // 2]) if rest else (5, 5)
            assert found[at] == low + (high - low) // 2
            at += 1


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1000), st.integers(0, 300)), max_size=30))
def test_union_by(intervals: list[tuple[int, int, int]]) -> None:
    code = np.array([c for c, _, _ in intervals], dtype=np.int64)
    start = np.array([s for _, s, _ in intervals], dtype=np.int64)
    end = start + np.array([d for _, _, d in intervals], dtype=np.int64)
    found = union_length_by_code(code, start, end, 4)
    for each in range(4):
        assert found[each] == IntervalSet.of(start[code == each], end[code == each]).length


def test_union_of_many_ranks_over_many_days() -> None:
    code = np.arange(1024 * 20)
    start = (code % 20) * 43_200 * 10**9  # a window every twelve hours
    assert set(union_length_by_code(code, start, start + 1000, code.size).tolist()) == {1000}


def test_who_came_last() -> None:
    event = np.array([0, 0, 0, 1, 1])
    found = arrivals_by_event(event, np.array([10, 50, 20, 7, 3]))
    assert found.last.tolist() == [1, 3]
    assert found.first_ns.tolist() == [10, 3]
    assert found.second_ns.tolist() == [20, 3]
    assert found.last_ns.tolist() == [50, 7]
    assert found.late.tolist() == [-25, 35, -10, 4, -4]
