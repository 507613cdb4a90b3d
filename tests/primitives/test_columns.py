"""Columns with and without nulls as arrays, and columns of one value: by hand."""

from __future__ import annotations

import polars as pl
import pytest

from rankscope.primitives.columns import constant, values_and_validity


@pytest.mark.parametrize("dtype", [pl.Int16, pl.Int32, pl.Int64])
def test_values_and_which_are_known(dtype: pl.DataType) -> None:
    large = 2**53 + 1 if dtype == pl.Int64 else 7
    values, known = values_and_validity(pl.Series("launch_ns", [None, large, None, 0], dtype=dtype), -1)
    assert values.tolist() == [-1, large, -1, 0]
    assert known.tolist() == [False, True, False, True]
    assert (values.dtype, known.dtype) == ("int64", "bool")


def test_without_nulls_and_without_values() -> None:
    values, known = values_and_validity(pl.Series([3, 1], dtype=pl.Int32))
    assert (values.tolist(), known.tolist()) == ([3, 1], [True, True])
    for column in (pl.Series([], dtype=pl.Int64), pl.Series([None, None], dtype=pl.Int32)):
        values, known = values_and_validity(column)
        assert (values.tolist(), known.tolist()) == ([0] * column.len(), [False] * column.len())


def test_one_value_as_often_as_wanted() -> None:
    assert constant("rank", 3, pl.Int64, 2).to_list() == [3, 3]
    nothing = constant("name", None, pl.String, 3)
    assert (nothing.name, nothing.dtype, nothing.to_list()) == ("name", pl.String, [None] * 3)
    assert constant("name", "a", pl.String, 0).to_list() == []
