"""Link rows of one trace: kernels to launches and operators, ranges to their parent ranges.

In: columns of the spool. Out: columns with rows of other tables, depths and self times.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from rankscope.primitives.columns import values_and_validity
from rankscope.primitives.nesting import Int32, nest
from rankscope.store.spool import Spool

# The tables whose ranges nest, and the columns that identify a thread.
_NESTED = {"host_ops": ("pid", "tid"), "python_frames": ("pid", "tid"), "annotations": ("pid", "tid", "on_device")}

# Keys are looked up by sorting if fewer than one in this many numbers is a key.
_SPARSE = 8


def linked_columns(spool: Spool, name: str, launches: Sequence[str] = ()) -> pl.DataFrame | None:
    """The link columns of a table, in its final order; None if it has none or no rows.

    Args:
        launches: the categories of arrows that lead from an operator to the device event that it launched.
    """
    if not spool.rows(name):
        return None
    if name == "device_events":
        keys = spool.columns(name, ["correlation", "external_id"])
        calls = spool.columns("runtime_calls", ["start_ns", "correlation"])
        columns = _launch_columns(keys, calls).with_columns(
            _operator_rows(keys, spool.columns("host_ops", ["external_id"]))
        )
        return _with_arrows(columns, spool, launches) if launches else columns
    if name == "collectives":
        return _event_rows(spool.columns(name, ["source", "row"]), spool)
    return _nested(spool, name) if name in _NESTED else None


def _nested(spool: Spool, name: str) -> pl.DataFrame:
    # One column at a time, each freed before the next: with millions of rows each takes tens of megabytes.
    thread = np.zeros(spool.rows(name), dtype=np.int32)
    for column in _NESTED[name]:
        numbers = _numbered(spool.columns(name, [column])[column])
        if (int(thread.max()) + 1) * (int(numbers.max()) + 1) >= 1 << 31:
            # Too many processes and threads to compute a number for each pair: rank the pairs.
            pairs = pl.DataFrame([pl.Series("thread", thread), pl.Series("number", numbers)])
            thread = pairs.select(pl.struct("thread", "number").rank("dense")).to_series().cast(pl.Int32).to_numpy()
        else:
            thread = thread * (numbers.max() + 1) + numbers
    start, end = (spool.columns(name, [column])[column].to_numpy() for column in ("start_ns", "end_ns"))
    nesting = nest(thread, start, end)
    parent = pl.Series("parent_row", nesting.parent, dtype=pl.Int32)
    return pl.DataFrame(
        [
            pl.Series("depth", np.minimum(nesting.depth, 32767), dtype=pl.Int16),
            parent.set(parent < 0, None),
            pl.Series("self_ns", nesting.self_ns),
        ]
    )


def _numbered(values: pl.Series) -> Int32:
    """Each value's index among the sorted distinct values; nulls come first."""
    known = values.cast(pl.Int64)
    found, null = known.to_numpy(), None
    if known.null_count():
        found, valid = values_and_validity(known)
        null = ~valid
    # Threads and processes are few, and events of one follow each other: looking up each value is less work than
    # sorting all.
    changes = np.flatnonzero(found[1:] != found[:-1])
    distinct = np.unique(np.append(found[changes], found[-1:]))
    numbers: Int32 = np.searchsorted(distinct, found).astype(np.int32)
    if null is not None:
        numbers += 1
        numbers[null] = 0
    return numbers


def _event_rows(collectives: pl.DataFrame, spool: Spool) -> pl.DataFrame:
    """The rows of collectives' events in their tables' final order."""
    rows = collectives["row"].to_numpy().copy()
    for source in ("device_events", "host_ops"):
        mask = (collectives["source"] == source).to_numpy()
        if mask.any():
            rows[mask] = spool.final_rows(source)[rows[mask]]
    return pl.DataFrame([pl.Series("row", rows, dtype=pl.Int32)])


def _look_up(wanted: pl.Series, keys: pl.Series, name: str) -> pl.Series:
    """For each wanted key, the first row that has it; null if none has it or the wanted key is null."""
    values, valid = values_and_validity(keys)
    rows = np.flatnonzero(valid).astype(np.int32)
    if not rows.size:
        return pl.Series(name, [None] * len(wanted), dtype=pl.Int32)
    values = values if rows.size == values.size else values[rows]
    wanted_values, wanted_valid = values_and_validity(wanted)
    least, most = int(values.min()), int(values.max())
    if most - least < _SPARSE * rows.size:
        # Profilers count their ids, so a row for each number takes less time and memory than sorting.
        first = np.full(most - least + 1, -1, dtype=np.int32)
        # Of several rows the last that is assigned stays.
        first[values[::-1] - least] = rows[::-1]
        inside = wanted_valid & (wanted_values >= least) & (wanted_values <= most)
        found = first[np.where(inside, wanted_values, least) - least]
        missing = ~inside | (found < 0)
    else:
        distinct, index = np.unique(values, return_index=True)
        place = np.minimum(np.searchsorted(distinct, wanted_values), distinct.size - 1)
        found = rows[index[place]]
        missing = (distinct[place] != wanted_values) | ~wanted_valid
    series = pl.Series(name, found)
    return series.set(pl.Series(missing), None) if missing.any() else series


def _launch_columns(device: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Launches by correlation id: all kernels of a graph launch share one call. Id 0 links nothing."""
    correlation = calls["correlation"]
    row = _look_up(device["correlation"], correlation.set(correlation == 0, None), "launch_row")
    return pl.DataFrame([row, calls["start_ns"].gather(row).alias("launch_ns")])


def _with_arrows(columns: pl.DataFrame, spool: Spool, launches: Sequence[str]) -> pl.DataFrame:
    """The links of device events, with those by arrows where there is none: each end is an instant of a thread."""
    place = ["pid", "tid", "time_ns"]
    arrows = spool.columns("flows", ["category", "phase", "id", *place]).filter(pl.col("category").is_in(launches))
    begins, ends = arrows.filter(pl.col("phase") == "s"), arrows.filter(pl.col("phase") != "s")
    begins = begins.unique(["category", "id"], keep="first", maintain_order=True)
    pairs = ends.join(begins, on=["category", "id"], suffix="_begin").unique(place, keep="first", maintain_order=True)
    operators = spool.columns("host_ops", ["pid", "tid", "start_ns"]).rename({"start_ns": "time_ns"})
    # The innermost of those that begin at the same instant comes last.
    operators = operators.with_row_index("row").unique(place, keep="last")
    at = ["pid_begin", "tid_begin", "time_ns_begin"]
    pairs = pairs.join(operators, left_on=at, right_on=place, how="left").select(*place, "time_ns_begin", "row")
    device = spool.columns("device_events", ["pid", "tid", "start_ns"]).rename({"start_ns": "time_ns"})
    found = device.join(pairs, on=place, how="left", maintain_order="left")
    return columns.with_columns(
        columns["launch_ns"].fill_null(found["time_ns_begin"]),
        columns["op_row"].fill_null(found["row"].cast(pl.Int32)),
    )


def _operator_rows(device: pl.DataFrame, operators: pl.DataFrame) -> pl.Series:
    """Operators by External id, which is unique to an operator. Id 0 links nothing."""
    external = operators["external_id"]
    return _look_up(device["external_id"], external.set(external == 0, None), "op_row")
