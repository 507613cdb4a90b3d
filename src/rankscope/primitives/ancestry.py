"""Which range is open at an instant: the innermost one of its thread, and those around it."""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.intervals import Int64
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
    columns = ["pid", "tid", "time_ns"]
    # One instant once: among ranges without duration a second would seem to be inside the first.
    place = instants.select(pl.struct(columns).rank("dense")).to_series().cast(pl.Int64).to_numpy() - 1
    first = np.unique(place, return_index=True)[1]
    points = instants.select(columns)[first].rename({"time_ns": "start_ns"}).with_columns(end_ns=pl.col("start_ns"))
    both = pl.concat(
        [ranges.select("pid", "tid", "start_ns", "end_ns"), points.select("pid", "tid", "start_ns", "end_ns")]
    )
    thread = both.select(pl.struct("pid", "tid").rank("dense")).to_series().cast(pl.Int32).to_numpy()
    nesting = nest(thread, both["start_ns"].to_numpy(), both["end_ns"].to_numpy())
    parent = nesting.parent[ranges.height :].astype(np.int64)
    found: Int64 = np.where(parent < ranges.height, parent, -1)[place]
    return found


def around(parent: Int64, rows: Int64) -> tuple[Int64, Int64]:
    """Each row with itself and all ranges around it.

    Args:
        parent: of each range the row of the one directly around it, −1 for none.
        rows: rows to start from; −1 for none.

    Returns:
        Positions in `rows`, and rows of ranges: a pair for each range around each.
    """
    at = np.flatnonzero(rows >= 0).astype(np.int64)
    current = rows[at]
    positions, found = [at], [current]
    while at.size:
        above = parent[current]
        keep = above >= 0
        at, current = at[keep], above[keep]
        positions.append(at)
        found.append(current)
    return np.concatenate(positions), np.concatenate(found)


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
    if not ranges.height:
        return np.full(times.size, -1, dtype=np.int64)
    row = np.searchsorted(ranges["start_ns"].to_numpy(), times, side="right") - 1
    within = (row >= 0) & (times < ranges["end_ns"].to_numpy()[np.maximum(row, 0)])
    return np.where(within, row, -1).astype(np.int64)
