"""Find the operator or range open on a thread at an instant, its ancestors, and the operator that launched a kernel.

In: ranges with start_ns, end_ns, pid, tid (and parent_row); instants with a time, pid and tid. Out: row numbers of the
ranges, −1 for none.
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
    """For each instant the row of the innermost range open on its thread; −1 for none.

    That is the last range that started before it, or one of its ancestors. A range without duration is open at its own
    instant; of equal ranges the later row is the inner one.

    Args:
        ranges: start_ns, end_ns, pid, tid, parent_row (the innermost range open at its start).
        instants: at_ns, pid, tid.

    Returns:
        Rows of `ranges`, shape ``(instants,)``.
    """
    row_of_instant = np.full(instants.height, -1, dtype=np.int64)
    parent, _ = values_and_validity(ranges["parent_row"], -1)
    start, end = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    pid, tid = (values_and_validity(ranges[name], NO_THREAD)[0] for name in ("pid", "tid"))
    process, thread = (values_and_validity(instants[name], NO_THREAD)[0] for name in ("pid", "tid"))
    instant = instants["at_ns"].to_numpy()
    remaining = np.arange(instants.height)
    # Thread by thread: a job has few threads that launch.
    while remaining.size:
        first = remaining[0]
        same_thread = (process[remaining] == process[first]) & (thread[remaining] == thread[first])
        on_thread, remaining = remaining[same_thread], remaining[~same_thread]
        rows = _in_order(np.flatnonzero((pid == process[first]) & (tid == thread[first])), start, end)
        if not rows.size:
            continue
        at = instant[on_thread]
        last = np.searchsorted(start[rows], at, side="right") - 1
        row = np.where(last >= 0, rows[np.maximum(last, 0)], -1)
        closed = np.flatnonzero((row >= 0) & ~_open(start, end, row, at))
        # As many rounds as the deepest nesting has levels.
        while closed.size:
            row[closed] = parent[row[closed]]
            closed = closed[(row[closed] >= 0) & ~_open(start, end, row[closed], at[closed])]
        row_of_instant[on_thread] = row
    return row_of_instant


def _in_order(rows: Int64, start: Int64, end: Int64) -> Int64:
    """A thread's ranges sorted by start, the longest first."""
    begins, until = start[rows], end[rows]
    if in_order(begins, until):
        return rows
    return rows[np.lexsort((begins - until, begins))]


def _open(start: Int64, end: Int64, row: Int64, at: Int64) -> npt.NDArray[np.bool_]:
    """Whether each row's range is open at its instant; one without duration is at its own."""
    is_open: npt.NDArray[np.bool_] = (end[row] > at) | ((end[row] == at) & (start[row] == at))
    return is_open


def enclosing(ranges: pl.DataFrame, instants: pl.DataFrame) -> Int64:
    """For each instant the row of the innermost range open on its thread; −1 for none. Needs no parent_row.

    A range is open from its start to just before its end; one without duration is open at its instant.

    Args:
        ranges: start_ns, end_ns, pid, tid.
        instants: time_ns, pid, tid.

    Returns:
        Row numbers of `ranges`, shape ``(instants.height,)``.
    """
    if not ranges.height or not instants.height:
        return np.full(instants.height, -1, dtype=np.int64)
    # In a filtered table parent_row refers to other rows, so nest again.
    thread = ranges.select(pl.struct("pid", "tid").rank("dense")).to_series().cast(pl.Int32).to_numpy()
    nesting = nest(thread, ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy())
    nested = ranges.with_columns(pl.Series("parent_row", nesting.parent, dtype=pl.Int32))
    return innermost(nested, instants.rename({"time_ns": "at_ns"}))


def is_inside(ranges: pl.DataFrame, pid: pl.Series, tid: pl.Series, at: Int64) -> npt.NDArray[np.bool_]:
    """Whether each instant of a thread is inside a range of that thread, from its start to just before its end.

    Args:
        ranges: start_ns, end_ns, pid, tid.
        pid: the process of each instant.
        tid: its thread.
        at: ns.
    """
    inside = np.zeros(at.size, dtype=np.bool_)
    if not ranges.height or not at.size:
        return inside
    process, thread = (values_and_validity(column, NO_THREAD)[0] for column in (pid, tid))
    for pid_value, tid_value in ranges.select("pid", "tid").unique().iter_rows():
        same_process = process == (NO_THREAD if pid_value is None else pid_value)
        indices = np.flatnonzero(same_process & (thread == (NO_THREAD if tid_value is None else tid_value)))
        on_thread = pl.col("pid").eq_missing(pid_value) & pl.col("tid").eq_missing(tid_value)
        ranges_here = ranges.filter(on_thread).sort("start_ns")
        reached = np.maximum.accumulate(ranges_here["end_ns"].to_numpy())
        last = np.searchsorted(ranges_here["start_ns"].to_numpy(), at[indices], side="right") - 1
        inside[indices] = (last >= 0) & (reached[np.maximum(last, 0)] > at[indices])
    return inside


def parent_rows(ranges: pl.DataFrame) -> Int64:
    """The ``parent_row`` of a table as an array, −1 for null."""
    rows: Int64 = ranges["parent_row"].fill_null(-1).cast(pl.Int64).to_numpy()
    return rows


def range_at(ranges: pl.DataFrame, times: Int64) -> Int64:
    """For each instant the row of the range that contains it, of disjoint ranges sorted by start; −1 for none.

    Args:
        ranges: start_ns, end_ns, ascending.
        times: ns.
    """
    return interval_at(ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy(), times)


def launch_instants(device: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """When and on which thread device events were launched: time_ns, pid, tid.

    Args:
        device: launch_row (no nulls), launch_ns.
        calls: runtime_calls, to which launch_row refers: pid, tid.
    """
    launch = device["launch_row"]
    return pl.DataFrame(
        {"time_ns": device["launch_ns"], "pid": calls["pid"].gather(launch), "tid": calls["tid"].gather(launch)}
    )


def launching_operators(device: pl.DataFrame, calls: pl.DataFrame, operators: pl.DataFrame) -> Int64:
    """For each device event the row of the operator that launched it; −1 if none did, or it is unknown.

    By External id if the event and an operator share one; else the innermost operator open on the launching thread at
    the launch. (Of 60 real traces with device events, 18 have no External id in common with operators, some because it
    counts something else.)

    Args:
        device: op_row, launch_row, launch_ns.
        calls: runtime_calls, to which launch_row refers: pid, tid.
        operators: host_ops, to which op_row refers: pid, tid, start_ns, end_ns, parent_row.
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
    """Operators and other ranges of the host in one table, by start; and each operator's row in it.

    Args:
        operators: start_ns, end_ns, pid, tid, and any others, which are null for the other ranges.
        others: start_ns, end_ns, pid, tid, and any of the operators' columns.

    Returns:
        The table, with parent_row, depth and self_ns (ns) for all ranges in it; rows of the table.
    """
    combined = pl.concat([operators.with_row_index("operator"), *others], how="diagonal_relaxed")
    combined = combined.sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)
    thread = combined.select(pl.struct("pid", "tid").rank("dense").cast(pl.Int32)).to_series()
    nesting = nest(thread.to_numpy(), combined["start_ns"].to_numpy(), combined["end_ns"].to_numpy())
    parent = pl.Series("parent_row", nesting.parent)
    combined = combined.with_columns(
        parent.set(parent < 0, None), pl.Series("depth", nesting.depth), pl.Series("self_ns", nesting.self_ns)
    ).with_row_index("row")
    rows = combined.filter(pl.col("operator").is_not_null()).sort("operator")["row"].cast(pl.Int64)
    return combined.drop("row", "operator"), rows


def with_ancestors(parent: Int32 | Int64, rows: Int64) -> tuple[Int64, Int64]:
    """Each row paired with itself and with every ancestor, as (position in `rows`, row); −1 has no pairs.

    Args:
        parent: the parent of each range, −1 at top level.
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
    """Whether no ancestor of a range has the same key, so that no other range of the key contains it."""
    outermost = np.ones(key.size, dtype=np.bool_)
    position = np.flatnonzero(parent >= 0)
    ancestor = parent[position].astype(np.int64)
    while position.size:
        outermost[position[key[ancestor] == key[position]]] = False
        ancestor = parent[ancestor].astype(np.int64)
        inside = ancestor >= 0
        position, ancestor = position[inside], ancestor[inside]
    return outermost


def add_to_parents(parent: Int32 | Int64, depth: npt.NDArray[np.int16], value: npt.NDArray[np.float64]) -> None:
    """Add to each range the values of its descendants, in place, innermost first."""
    for level in range(int(depth.max(initial=0)), 0, -1):
        rows = np.flatnonzero((depth == level) & (parent >= 0))
        np.add.at(value, parent[rows], value[rows])
