"""In which range of its thread an instant lies: what operator, or what range of the user's, a call was made from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.intervals import Int64

# Stands for a process or thread without a number.
_NOBODY = -(1 << 62)


def innermost(ranges: pl.DataFrame, instants: pl.DataFrame) -> Int64:
    """For each instant the row of the innermost range that is open on its thread then; −1 for none.

    That is the last range that started before, or one of those around it. A range without duration is open at its own
    instant; of ranges that are equal the later row is within.

    Args:
        ranges: columns start_ns, end_ns, pid, tid, parent_row (of the innermost range open at its start); their rows
            are what is given back.
        instants: columns at_ns, pid, tid.

    Returns:
        Rows of `ranges`, shape ``(instants,)``.
    """
    found = np.full(instants.height, -1, dtype=np.int64)
    parent = ranges["parent_row"].fill_null(-1).to_numpy()
    start, end = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    pid, tid = (ranges[name].fill_null(_NOBODY).to_numpy() for name in ("pid", "tid"))
    asked = instants.select(pl.col("pid", "tid").fill_null(_NOBODY), "at_ns").with_row_index("place")
    # A job has few threads that launch.
    for (process, thread), here in asked.group_by("pid", "tid"):
        mine = np.flatnonzero((pid == process) & (tid == thread))
        if not mine.size:
            continue
        mine = mine[np.lexsort((start[mine] - end[mine], start[mine]))]
        at = here["at_ns"].to_numpy()
        last = np.searchsorted(start[mine], at, side="right") - 1
        row = np.where(last >= 0, mine[np.maximum(last, 0)], -1)
        over = np.flatnonzero((row >= 0) & ~_open(start, end, row, at))
        # As many rounds as the deepest nesting has levels.
        while over.size:
            row[over] = parent[row[over]]
            over = over[(row[over] >= 0) & ~_open(start, end, row[over], at[over])]
        found[here["place"].to_numpy()] = row
    return found


def _open(start: Int64, end: Int64, row: Int64, at: Int64) -> npt.NDArray[np.bool_]:
    """Whether each row's range is open at its instant; one without duration is at its own."""
    is_open: npt.NDArray[np.bool_] = (end[row] > at) | ((end[row] == at) & (start[row] == at))
    return is_open
