"""Owners, ancestors and unions: by hand and against plain loops on random ranges."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from rankscope.primitives.enclosing import innermost
from rankscope.primitives.nesting import nest
from rankscope.primitives.owning import outermost, summed_upwards, with_ancestors
from rankscope.primitives.unions import covered_by


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
    assert outermost(parent, key).tolist() == alone
    value = np.arange(made.height, dtype=np.float64)
    wanted = [sum(float(other) for other in range(made.height) if row in up(other)) for row in range(made.height)]
    summed_upwards(parent, nesting.depth.astype(np.int16), value)
    assert value.tolist() == wanted


@pytest.mark.parametrize("seed", range(6))
def test_unions_against_sets(seed: int) -> None:
    made = ranges(seed)
    found = dict(covered_by(made, ["tid"], "union_ns").rows())
    for thread in set(made["tid"]):
        covered: set[int] = set()
        for start, end in made.filter(tid=thread).select("start_ns", "end_ns").rows():
            covered |= set(range(start, end))
        assert found[thread] == len(covered)


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
