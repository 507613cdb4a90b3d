"""Which operator or range was open on a thread at an instant, which ones enclose it, and which launched a kernel.

Ranges come in as tables with start_ns, end_ns, pid, tid (and parent_row); instants as tables with a time, pid and tid.
Row numbers of the ranges go out, −1 for none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.columns import values_and_validity
from rankscope.primitives.intervals import Int64, interval_at
from rankscope.primitives.nesting import Int32, in_order, nest

NO_THREAD = -(1 << 62)
"""A process or thread without a number."""


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
    parent, _ = values_and_validity(ranges["parent_row"], -1)
    start, end = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    pid, tid = (values_and_validity(ranges[name], NO_THREAD)[0] for name in ("pid", "tid"))
    process, thread = (values_and_validity(instants[name], NO_THREAD)[0] for name in ("pid", "tid"))
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
    # In a filtered table parent_row no longer points at the right rows: nest again.
    thread = ranges.select(pl.struct("pid", "tid").rank("dense")).to_series().cast(pl.Int32).to_numpy()
    nesting = nest(thread, ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy())
    nested = ranges.with_columns(pl.Series("parent_row", nesting.parent, dtype=pl.Int32))
    return innermost(nested, instants.rename({"time_ns": "at_ns"}))


def parent_rows(ranges: pl.DataFrame) -> Int64:
    """The ``parent_row`` of a table as an array, −1 for null."""
    found: Int64 = ranges["parent_row"].fill_null(-1).cast(pl.Int64).to_numpy()
    return found


def range_at(ranges: pl.DataFrame, times: Int64) -> Int64:
    """For each instant the row of the one of disjoint ranges, sorted by start, that it is in; −1 for none.

    Args:
        ranges: start_ns, end_ns, ascending.
        times: ns.
    """
    return interval_at(ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy(), times)


def launching_operators(device: pl.DataFrame, calls: pl.DataFrame, operators: pl.DataFrame) -> Int64:
    """For each device event the row of the operator that launched it; −1 where none did, or none is known.

    By External id where the event and an operator share one; else the innermost operator that was open on the
    launching thread when the launch started. (Of 60 real traces with device events, 18 write no External id that an
    operator has, some because it counts something else: launches are then all there is.)

    Args:
        device: op_row, launch_row, launch_ns.
        calls: the runtime_calls that launch_row points into: pid, tid.
        operators: the host_ops that op_row points into: pid, tid, start_ns, end_ns, parent_row.
    """
    owner, owned = values_and_validity(device["op_row"], -1)
    launch, launched = values_and_validity(device["launch_row"])
    rows = np.flatnonzero(~owned & launched)
    if not rows.size or not operators.height:
        return owner
    at = pl.Series("at_ns", values_and_validity(device["launch_ns"])[0][rows])
    threads = [pl.Series(name, values_and_validity(calls[name], NO_THREAD)[0][launch[rows]]) for name in ("pid", "tid")]
    owner = np.array(owner)
    owner[rows] = innermost(operators, pl.DataFrame([*threads, at]))
    return owner


def nested_with(operators: pl.DataFrame, others: Sequence[pl.DataFrame]) -> tuple[pl.DataFrame, pl.Series]:
    """Operators and other ranges of the host in one table, by start; and of each operator its row in it.

    Args:
        operators: start_ns, end_ns, pid, tid, and any others, which the other ranges have as null.
        others: start_ns, end_ns, pid, tid, and any of the operators' columns.

    Returns:
        The table, with parent_row, depth and self_ns (ns) for all ranges in it; rows of the table.
    """
    every = pl.concat([operators.with_row_index("operator"), *others], how="diagonal_relaxed")
    every = every.sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)
    thread = every.select(pl.struct("pid", "tid").rank("dense").cast(pl.Int32)).to_series()
    nesting = nest(thread.to_numpy(), every["start_ns"].to_numpy(), every["end_ns"].to_numpy())
    parent = pl.Series("parent_row", nesting.parent)
    every = every.with_columns(
        parent.set(parent < 0, None), pl.Series("depth", nesting.depth), pl.Series("self_ns", nesting.self_ns)
    ).with_row_index("row")
    rows = every.filter(pl.col("operator").is_not_null()).sort("operator")["row"].cast(pl.Int64)
    return every.drop("row", "operator"), rows


def with_ancestors(parent: Int32 | Int64, rows: Int64) -> tuple[Int64, Int64]:
    """Each row with itself and with every range around it, as pairs (position in `rows`, row); −1 has none.

    Args:
        parent: of each range the one around it, −1 at top level.
        rows: rows of `parent`, −1 for none.
    """
    position = np.flatnonzero(rows >= 0)
    current = rows[position]
    positions, found = [position], [current]
    # As many rounds as the deepest nesting has levels.
    while position.size:
        current = parent[current].astype(np.int64)
        inside = current >= 0
        position, current = position[inside], current[inside]
        positions.append(position)
        found.append(current)
    return np.concatenate(positions), np.concatenate(found)


def is_outermost(parent: Int32 | Int64, key: Int64) -> npt.NDArray[np.bool_]:
    """Whether no range around a range has the same key: its time is in no other's of that key."""
    alone = np.ones(key.size, dtype=np.bool_)
    position = np.flatnonzero(parent >= 0)
    around = parent[position].astype(np.int64)
    while position.size:
        alone[position[key[around] == key[position]]] = False
        around = parent[around].astype(np.int64)
        inside = around >= 0
        position, around = position[inside], around[inside]
    return alone


def add_to_parents(parent: Int32 | Int64, depth: npt.NDArray[np.int16], value: npt.NDArray[np.float64]) -> None:
    """Add to each range what is in those inside it, in place, innermost first."""
    for level in range(int(depth.max(initial=0)), 0, -1):
        rows = np.flatnonzero((depth == level) & (parent >= 0))
        np.add.at(value, parent[rows], value[rows])
