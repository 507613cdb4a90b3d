"""streams: order and reach against a plain walk over the events."""

from __future__ import annotations

import itertools

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from rankscope.primitives.columns import values_and_validity
from rankscope.primitives.streams import Streams, stream_numbers

NUMBERS = st.none() | st.integers(0, 2) | st.sampled_from([-(1 << 62), 7, 140_737_488_355_328, (1 << 63) - 1])
EVENTS = st.lists(st.tuples(NUMBERS, NUMBERS, st.integers(0, 20), st.integers(0, 9)), max_size=20)


def made(events: list[tuple[int | None, int | None, int, int]]) -> pl.DataFrame:
    return pl.DataFrame(
        [(device, stream, start, start + length) for device, stream, start, length in events],
        schema={"device": pl.Int64, "stream": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64},
        orient="row",
    )


def key(row: tuple[int | None, int | None, int, int]) -> tuple[bool, int, bool, int]:
    """Streams in order: null first."""
    device, stream = row[:2]
    return device is not None, device or 0, stream is not None, stream or 0


@given(EVENTS)
def test_against_a_walk(events: list[tuple[int | None, int | None, int, int]]) -> None:
    streams = Streams.of(made(events))
    order = sorted(range(len(events)), key=lambda row: (*key(events[row]), events[row][2]))
    assert streams.order.tolist() == order
    reached: dict[object, int] = {}
    expected, first = [], []
    for place, row in enumerate(order):
        stream, end = events[row][:2], events[row][2] + events[row][3]
        if stream not in reached:
            first.append(place)
        reached[stream] = max(reached.get(stream, end), end)
        expected.append(reached[stream])
    assert streams.reached.tolist() == expected
    assert streams.first.tolist() == first
    bounds = [*first, len(order)]
    assert streams.number.tolist() == [sum(at <= place for at in first) - 1 for place in range(len(order))]
    assert [part.tolist() for part in streams.rows()] == [order[a:b] for a, b in itertools.pairwise(bounds)]


@given(EVENTS)
def test_numbers(events: list[tuple[int | None, int | None, int, int]]) -> None:
    numbers = stream_numbers(made(events)).tolist()
    for number, row in zip(numbers, events, strict=True):
        for other, another in zip(numbers, events, strict=True):
            assert (number < other) == (key(row) < key(another))
            assert (number == other) == (key(row) == key(another))


def test_values_of_a_column_with_nulls() -> None:
    for column in (pl.Series([3, None, 5], dtype=pl.Int32), pl.Series([3, 4], dtype=pl.Int64)):
        values, known = values_and_validity(column, -1)
        assert values.tolist() == [-1 if value is None else value for value in column]
        assert known.tolist() == [value is not None for value in column]
