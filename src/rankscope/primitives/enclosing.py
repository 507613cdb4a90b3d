"""In which range of its thread an instant lies: what operator, or what range of the user's, a call was made from."""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.intervals import Int64


def innermost(ranges: pl.DataFrame, instants: pl.DataFrame) -> Int64:
    """For each instant the row of the innermost range that is open then on its thread; −1 for none.

    Args:
        ranges: columns start_ns, end_ns, pid, tid, parent_row (of the innermost range open at its start), sorted by
            start; their rows are what is given back.
        instants: columns at_ns, pid, tid.

    Returns:
        Rows of `ranges`, shape ``(instants,)``.
    """
    found = np.full(instants.height, -1, dtype=np.int64)
    if not ranges.height or not instants.height:
        return found
    codes = (
        pl.concat([frame.select("pid", "tid") for frame in (ranges, instants)])
        .select(pl.struct("pid", "tid").rank("dense"))
        .to_series()
        .to_numpy()
        .astype(np.int64)
    )
    mine, theirs = codes[: ranges.height], codes[ranges.height :]
    start, end = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    parent = ranges["parent_row"].fill_null(-1).to_numpy().astype(np.int64)
    at = instants["at_ns"].to_numpy()
    # By thread, then by start, the deeper of two that start at once last: the last one at or before the instant is
    # the innermost, or ended already, and then one of those around it is.
    order = np.lexsort((np.arange(start.size), start, mine))
    bounds = np.searchsorted(mine[order], theirs)
    for code in np.unique(theirs):
        wanted = np.flatnonzero(theirs == code)
        rows = order[bounds[wanted[0]] : np.searchsorted(mine[order], code, side="right")]
        place = np.searchsorted(start[rows], at[wanted], side="right") - 1
        has = place >= 0
        found[wanted[has]] = rows[place[has]]
    while True:
        over = np.flatnonzero((found >= 0) & (end[found] <= at))
        if not over.size:
            return found
        found[over] = parent[found[over]]
