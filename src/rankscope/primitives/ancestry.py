"""Which range is open at an instant: the innermost one of its thread, and those around it."""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.enclosing import innermost
from rankscope.primitives.intervals import Int64, holding
from rankscope.primitives.nesting import nest


def enclosing(ranges: pl.DataFrame, instants: pl.DataFrame) -> Int64:
    """For each instant the row of the innermost range of its thread that is open then; −1 for none.

    A range is open from its start to just before its end; one without duration is open at its instant.

    Args:
        ranges: start_ns, end_ns, pid, tid.
        instants: time_ns, pid, tid.

    Returns:
        Row numbers of `ranges`, shape ``(instants.height,)``.
    """
    if not ranges.height or not instants.height:
        return np.full(instants.height, -1, dtype=np.int64)
    # The rows of a table that was filtered are not those that its parent_row speaks of: they are nested anew.
    thread = ranges.select(pl.struct("pid", "tid").rank("dense")).to_series().cast(pl.Int32).to_numpy()
    nesting = nest(thread, ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy())
    nested = ranges.with_columns(pl.Series("parent_row", nesting.parent, dtype=pl.Int32))
    return innermost(nested, instants.rename({"time_ns": "at_ns"}))


def parents(ranges: pl.DataFrame) -> Int64:
    """The ``parent_row`` of a table as an array, −1 for null."""
    found: Int64 = ranges["parent_row"].fill_null(-1).cast(pl.Int64).to_numpy()
    return found


def inside(ranges: pl.DataFrame, times: Int64) -> Int64:
    """For each instant the row of the one of disjoint ranges, sorted by start, that it is in; −1 for none.

    Args:
        ranges: start_ns, end_ns, ascending.
        times: ns.
    """
    return holding(ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy(), times)
