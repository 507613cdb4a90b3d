"""Which operator a device event belongs to, and which operators are around that one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.enclosing import NOBODY, innermost
from rankscope.primitives.intervals import Int64
from rankscope.primitives.nesting import Int32
from rankscope.primitives.nulls import values_and_known


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
    owner, owned = values_and_known(device["op_row"], -1)
    launch, launched = values_and_known(device["launch_row"])
    rows = np.flatnonzero(~owned & launched)
    if not rows.size or not operators.height:
        return owner
    at = pl.Series("at_ns", values_and_known(device["launch_ns"])[0][rows])
    threads = [pl.Series(name, values_and_known(calls[name], NOBODY)[0][launch[rows]]) for name in ("pid", "tid")]
    owner = np.array(owner)
    owner[rows] = innermost(operators, pl.DataFrame([*threads, at]))
    return owner


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


def outermost(parent: Int32 | Int64, key: Int64) -> npt.NDArray[np.bool_]:
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


def summed_upwards(parent: Int32 | Int64, depth: npt.NDArray[np.int16], value: npt.NDArray[np.float64]) -> None:
    """Add to each range what is in those inside it, in place, innermost first."""
    for level in range(int(depth.max(initial=0)), 0, -1):
        rows = np.flatnonzero((depth == level) & (parent >= 0))
        np.add.at(value, parent[rows], value[rows])
