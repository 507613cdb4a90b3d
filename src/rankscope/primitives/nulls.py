"""Columns of whole numbers as arrays, which know no null."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.intervals import Int64


def values_and_known(column: pl.Series, null: int = 0) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """A column's values, `null` where there is none, and whether there is one; shapes ``(n,)``."""
    if column.null_count():
        known = column.is_not_null().to_numpy()
        column = column.fill_null(null)
    else:
        known = np.ones(len(column), dtype=np.bool_)
    return column.to_numpy().astype(np.int64, copy=False), known
