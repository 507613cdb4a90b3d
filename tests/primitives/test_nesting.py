"""Nesting against a stack."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankscope.primitives.nesting import Nesting, nest

Range = tuple[int, int, int]  # thread, start, end


@st.composite
def trees(draw: st.DrawFn) -> list[Range]:
    """Properly nested ranges of some threads, in any order; every one lasts, and siblings may touch."""
    ranges: list[Range] = []

    def grow(thread: int, start: int, end: int, depth: int) -> None:
        at = start
        while at < end and len(ranges) < 40 and draw(st.booleans()):
            first = draw(st.integers(at, end - 1))
            last = draw(st.integers(first + 1, end))
            ranges.append((thread, first, last))
            if depth < 4:
                grow(thread, first, last, depth + 1)
            at = last

    for thread in range(draw(st.integers(1, 3))):
        grow(thread, 0, 60, 0)
    return draw(st.permutations(ranges))


def nested(ranges: list[Range]) -> Nesting:
    columns = np.array(ranges, dtype=np.int64).reshape(-1, 3)
    return nest(columns[:, 0], columns[:, 1], columns[:, 2])


def stacked(ranges: list[Range]) -> tuple[list[int], list[int], list[int]]:
    depth, parent, own = [0] * len(ranges), [-1] * len(ranges), [end - start for _, start, end in ranges]
    open_: dict[int, list[int]] = {}
    for row in sorted(range(len(ranges)), key=lambda r: (ranges[r][0], ranges[r][1], -ranges[r][2])):
        thread, start, end = ranges[row]
        stack = open_.setdefault(thread, [])
        while stack and ranges[stack[-1]][2] <= start:
            stack.pop()
        depth[row] = len(stack)
        if stack:
            parent[row] = stack[-1]
            own[stack[-1]] -= end - start
        stack.append(row)
    return depth, parent, own


@given(trees())
def test_as_a_stack_does(ranges: list[Range]) -> None:
    found = nested(ranges)
    depth, parent, own = stacked(ranges)
    assert found.depth.tolist() == depth
    assert found.self_ns.tolist() == own
    # Of two equal ranges either may be the outer one: compare what the parents are, not which row they are.
    where = [None if row < 0 else ranges[row] for row in found.parent.tolist()]
    assert where == [None if row < 0 else ranges[row] for row in parent]


@given(trees())
def test_self_times_add_up_to_what_the_threads_were_busy(ranges: list[Range]) -> None:
    busy = {(thread, instant) for thread, start, end in ranges for instant in range(start, end)}
    assert nested(ranges).self_ns.sum() == len(busy)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=30))
def test_anything_at_all_keeps_the_promises(drawn: list[tuple[int, int, int]]) -> None:
    ranges = [(thread, start, start + length) for thread, start, length in drawn]
    found = nested(ranges)
    for row, (thread, start, end) in enumerate(ranges):
        mother = int(found.parent[row])
        assert (mother < 0) == (found.depth[row] == 0)
        assert 0 <= found.self_ns[row] <= end - start
        if mother >= 0:
            assert ranges[mother][0] == thread
            assert ranges[mother][1] <= start
            assert found.depth[mother] == found.depth[row] - 1


def test_depth_is_how_many_are_open_even_where_ranges_cross() -> None:
    #        0         10        20        30
    # a      |---------------------|
    # b                |--------------------|      begins in a, ends after it
    # c                               |--|         after a, in b
    found = nested([(0, 0, 22), (0, 10, 30), (0, 24, 28)])
    assert found.depth.tolist() == [0, 1, 1]
    assert found.parent.tolist()[:2] == [-1, 0]
    # a is left with what b does not cover of it; b with what c does not, if c counts as inside it.
    assert found.self_ns[0] == 10


def test_a_range_without_duration_is_inside_what_is_open() -> None:
    # At its mother's start, in the midst, and at its end, where the mother is open no more.
    found = nested([(0, 10, 20), (0, 10, 10), (0, 15, 15), (0, 20, 20)])
    assert found.depth.tolist() == [0, 1, 1, 0]
    assert found.parent.tolist() == [-1, 0, 0, -1]
    assert found.self_ns.tolist() == [10, 0, 0, 0]


def test_threads_do_not_see_each_other() -> None:
    found = nested([(1, 0, 10), (2, 2, 5)])
    assert found.depth.tolist() == [0, 0]


def test_no_ranges() -> None:
    found = nested([])
    assert found.depth.size == found.parent.size == found.self_ns.size == 0
