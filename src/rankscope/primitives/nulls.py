"""Columns of whole numbers as arrays, which know no null."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.intervals import Int64


def values_and_known(column: pl.Series, null: int = 0) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """A column's values, `null` where there is none, and whether there is one; shapes ``(n,)``."""
    if not column.null_count():
        return column.to_numpy().astype(np.int64, copy=False), np.ones(len(column), dtype=np.bool_)
    # Both in one call, which costs more than what it does.
    both = column.alias("value").to_frame().select_seq(_filled(null), _KNOWN)
    return both["value"].to_numpy().astype(np.int64, copy=False), both["known"].to_numpy()


_KNOWN = pl.col("value").is_not_null().alias("known")


@lru_cache
def _filled(null: int) -> pl.Expr:
    return pl.col("value").fill_null(null)
