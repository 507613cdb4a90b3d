"""Sets of time against sets of integers."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.primitives.intervals import EMPTY, IntervalSet, union_length_by

SPANS = st.lists(st.tuples(st.integers(-20, 40), st.integers(-20, 40)), max_size=12)
INSTANTS = st.lists(st.integers(-25, 45), max_size=8)


def made(spans: list[tuple[int, int]]) -> IntervalSet:
    return IntervalSet.of([start for start, _ in spans], [end for _, end in spans])


def instants(spans: list[tuple[int, int]]) -> set[int]:
    return {instant for start, end in spans for instant in range(start, end)}


def members(found: IntervalSet) -> set[int]:
    """The instants of a set; that it has the form which everything relies on is checked on the way."""
    starts, ends = found.starts.tolist(), found.ends.tolist()
    assert all(start < end for start, end in zip(starts, ends, strict=True))
    assert all(end <= start for end, start in zip(ends[:-1], starts[1:], strict=True))
    assert found.starts.dtype == found.ends.dtype == np.int64
    return instants(list(zip(starts, ends, strict=True)))


@given(SPANS)
def test_of_is_the_union(spans: list[tuple[int, int]]) -> None:
    found = made(spans)
    assert members(found) == instants(spans)
    assert found.length == len(instants(spans))
    # Touching intervals are one.
    assert all(end < start for end, start in zip(found.ends[:-1], found.starts[1:], strict=True))


@given(SPANS, SPANS)
def test_union_intersection_difference(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    a, b = made(one), made(other)
    assert members(a | b) == instants(one) | instants(other)
    assert members(a & b) == instants(one) & instants(other)
    assert members(a - b) == instants(one) - instants(other)


@given(SPANS, SPANS)
def test_split(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    a, b = made(one), made(other)
    inside, outside, whose = a.split(b)
    assert members(inside) == instants(one) & instants(other)
    assert members(outside) == instants(one) - instants(other)
    for start, end, row in zip(inside.starts, inside.ends, whose, strict=True):
        assert b.starts[row] <= start < end <= b.ends[row]


@given(SPANS, SPANS, SPANS)
def test_operations_on_what_operations_gave(
    one: list[tuple[int, int]], other: list[tuple[int, int]], third: list[tuple[int, int]]
) -> None:
    # An intersection may touch itself, where a union never does: it must be as good an operand.
    met = (made(one) & made(other)) - made(third)
    expected = (instants(one) & instants(other)) - instants(third)
    assert members(met) == expected
    assert members(met | made(third)) == expected | instants(third)
    assert met.within([-30], [50]).tolist() == [len(expected)]


@given(SPANS, st.integers(-25, 45), st.integers(-25, 45))
def test_complement(spans: list[tuple[int, int]], start: int, end: int) -> None:
    assert members(made(spans).complement(start, end)) == set(range(start, end)) - instants(spans)


@given(SPANS, INSTANTS)
def test_before(spans: list[tuple[int, int]], at: list[int]) -> None:
    expected = [sum(1 for instant in instants(spans) if instant < limit) for limit in at]
    assert made(spans).before(at).tolist() == expected


@given(SPANS, st.lists(st.tuples(st.integers(-25, 45), st.integers(0, 30)), max_size=6))
def test_within(spans: list[tuple[int, int]], windows: list[tuple[int, int]]) -> None:
    starts = [start for start, _ in windows]
    ends = [start + length for start, length in windows]
    expected = [len(instants(spans) & set(range(start, end))) for start, end in zip(starts, ends, strict=True)]
    assert made(spans).within(starts, ends).tolist() == expected


def test_nothing_at_all() -> None:
    assert len(EMPTY) == EMPTY.length == 0
    assert members(EMPTY | EMPTY) == members(EMPTY & EMPTY) == members(EMPTY - EMPTY) == set()
    assert members(EMPTY.complement(3, 6)) == {3, 4, 5}
    assert EMPTY.within([1, 2], [5, 9]).tolist() == [0, 0]


def test_epoch_nanoseconds_lose_nothing() -> None:
    epoch = 1_700_000_000_000_000_001
    found = IntervalSet.of([epoch, epoch + 1], [epoch + 2, epoch + 5])
    assert (found.starts.tolist(), found.ends.tolist(), found.length) == ([epoch], [epoch + 5], 5)


@pytest.mark.parametrize("seed", range(6))
def test_union_length_of_each_group(seed: int) -> None:
    random = np.random.default_rng(seed)
    start = random.integers(0, 200, 60)
    frame = pl.DataFrame(
        {"tid": random.integers(0, 3, 60), "start_ns": start, "end_ns": start + random.integers(0, 60, 60)}
    )
    found = dict(union_length_by(frame, ["tid"], "union_ns").rows())
    for thread in set(frame["tid"]):
        assert found[thread] == len(instants(frame.filter(tid=thread).select("start_ns", "end_ns").rows()))
