"""In which range of its thread an instant lies: what operator, or what range of the user's, a call was made from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.intervals import Int64
from rankscope.primitives.nesting import in_order
from rankscope.primitives.nulls import values_and_known

NOBODY = -(1 << 62)
"""Stands for a process or thread without a number."""


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
    parent, _ = values_and_known(ranges["parent_row"], -1)
    start, end = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    pid, tid = (values_and_known(ranges[name], NOBODY)[0] for name in ("pid", "tid"))
    process, thread = (values_and_known(instants[name], NOBODY)[0] for name in ("pid", "tid"))
    instant = instants["at_ns"].to_numpy()
    left = np.arange(instants.height)
    # A job has few threads that launch: one at a time, until no instant is left.
    while left.size:
        one = left[0]
        of_it = (process[left] == process[one]) & (thread[left] == thread[one])
        here, left = left[of_it], left[~of_it]
        mine = _in_order(np.flatnonzero((pid == process[one]) & (tid == thread[one])), start, end)
        if not mine.size:
            continue
        at = instant[here]
        last = np.searchsorted(start[mine], at, side="right") - 1
        row = np.where(last >= 0, mine[np.maximum(last, 0)], -1)
        over = np.flatnonzero((row >= 0) & ~_open(start, end, row, at))
        # As many rounds as the deepest nesting has levels.
        while over.size:
            row[over] = parent[row[over]]
            over = over[(row[over] >= 0) & ~_open(start, end, row[over], at[over])]
        found[here] = row
    return found


def _in_order(rows: Int64, start: Int64, end: Int64) -> Int64:
    """A thread's ranges by their starts, of equal starts the longest first."""
    begins, until = start[rows], end[rows]
    if in_order(begins, until):
        return rows
    return rows[np.lexsort((begins - until, begins))]


def _open(start: Int64, end: Int64, row: Int64, at: Int64) -> npt.NDArray[np.bool_]:
    """Whether each row's range is open at its instant; one without duration is at its own."""
    is_open: npt.NDArray[np.bool_] = (end[row] > at) | ((end[row] == at) & (start[row] == at))
    return is_open
