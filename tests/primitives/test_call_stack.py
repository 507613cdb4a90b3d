"""Call stacks: innermost ranges, ancestors and sums, by hand and against plain loops on random ranges."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from rankscope.primitives.call_stack import add_to_parents, innermost, is_outermost, with_ancestors
from rankscope.primitives.nesting import nest

Range = tuple[int, int, int]


def nested_ranges(random: np.random.Generator, first: int, last: int, thread: int, depth: int) -> list[Range]:
    """Ranges inside `[first, last)`, one after another, each with others inside."""
    made: list[Range] = []
    at = first
    while depth and at < last and random.random() < 0.8:
        begin = int(random.integers(at, last))
        end = int(random.integers(begin, last)) + 1
        made += [(begin, end, thread), *nested_ranges(random, begin, end, thread, depth - 1)]
        at = end
    return made


def test_innermost_against_a_plain_search() -> None:
    random = np.random.default_rng(3)
    checked = 0
    for _ in range(60):
        ranges = [each for thread in range(3) for each in nested_ranges(random, 0, 60, thread, 4)]
        ranges.sort(key=lambda each: (each[0], -each[1]))
        columns = np.array(ranges, dtype=np.int64).reshape(-1, 3).T
        nesting = nest(columns[2].astype(np.int32), columns[0], columns[1])
        frame = pl.DataFrame(
            {
                "start_ns": columns[0],
                "end_ns": columns[1],
                "pid": np.zeros(len(ranges), dtype=np.int64),
                "tid": columns[2],
                "parent_row": [None if row < 0 else int(row) for row in nesting.parent],
            },
            schema_overrides={"parent_row": pl.Int32},
        )
        at, on = random.integers(-5, 70, 40), random.integers(0, 4, 40)
        instants = pl.DataFrame({"at_ns": at, "pid": np.zeros(40, dtype=np.int64), "tid": on})
        for row, instant, tid in zip(innermost(frame, instants).tolist(), at, on, strict=True):
            open_then = [
                n for n, (first, last, thread) in enumerate(ranges) if thread == tid and first <= instant < last
            ]
            # Equal ranges are one inside the other, the later row within.
            assert row == max(open_then, key=lambda n: (nesting.depth[n], n), default=-1)
            checked += row >= 0
    assert checked > 200


def ranges(seed: int, count: int = 60) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    start = random.integers(0, 200, count)
    return pl.DataFrame(
        {
            "pid": np.ones(count, dtype=np.int64),
            "tid": random.integers(0, 3, count),
            "start_ns": start,
            "end_ns": start + random.integers(0, 60, count),
        }
    )


@pytest.mark.parametrize("seed", range(6))
def test_ancestors_and_sums_against_loops(seed: int) -> None:
    made = ranges(seed)
    nesting = nest(made["tid"].to_numpy().astype(np.int32), made["start_ns"].to_numpy(), made["end_ns"].to_numpy())
    parent = nesting.parent
    rows = np.array([3, -1, 7, 7, 50])

    def up(row: int) -> list[int]:
        found = []
        while row >= 0:
            found.append(row)
            row = int(parent[row])
        return found

    position, around = with_ancestors(parent, rows)
    pairs = sorted(zip(position.tolist(), around.tolist(), strict=True))
    assert pairs == sorted((place, one) for place, row in enumerate(rows.tolist()) for one in up(row))
    key = np.arange(made.height) % 4
    alone = [all(key[one] != key[row] for one in up(row)[1:]) for row in range(made.height)]
    assert is_outermost(parent, key).tolist() == alone
    value = np.arange(made.height, dtype=np.float64)
    wanted = [sum(float(other) for other in range(made.height) if row in up(other)) for row in range(made.height)]
    add_to_parents(parent, nesting.depth.astype(np.int16), value)
    assert value.tolist() == wanted


def test_innermost_by_hand() -> None:
    made = pl.DataFrame(
        {
            "pid": [1, 1, 1],
            "tid": [1, 1, 2],
            "start_ns": [0, 10, 0],
            "end_ns": [100, 20, 50],
            "parent_row": [None, 0, None],
        }
    )
    asked = pl.DataFrame(
        {"pid": [1] * 8, "tid": [1, 1, 1, 1, 1, 2, 3, 1], "at_ns": [0, 10, 19, 20, 100, 49, 5, 10]}
    )  # fmt: skip
    assert innermost(made, asked).tolist() == [0, 1, 1, 0, -1, 2, -1, 1]
