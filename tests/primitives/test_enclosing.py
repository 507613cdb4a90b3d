"""The innermost open range, against a search through all of them."""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.enclosing import innermost
from rankscope.primitives.nesting import nest

Range = tuple[int, int, int]


def nested(random: np.random.Generator, first: int, last: int, thread: int, depth: int) -> list[Range]:
    """Ranges inside `[first, last)`, one after another, each with others inside."""
    made: list[Range] = []
    at = first
    while depth and at < last and random.random() < 0.8:
        begin = int(random.integers(at, last))
        end = int(random.integers(begin, last)) + 1
        made += [(begin, end, thread), *nested(random, begin, end, thread, depth - 1)]
        at = end
    return made


def test_against_a_plain_search() -> None:
    random = np.random.default_rng(3)
    checked = 0
    for _ in range(60):
        ranges = [each for thread in range(3) for each in nested(random, 0, 60, thread, 4)]
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
