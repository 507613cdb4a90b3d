"""What belongs to what inside one trace: kernels to launches and operators, ranges to the ranges around them."""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.intervals import Int64
from rankscope.primitives.nesting import nest

Tables = dict[str, pl.DataFrame]


def link(tables: Tables) -> Tables:
    """The tables with launches, operators and nesting filled in."""
    linked = dict(tables)
    for name in ("host_ops", "python_frames", "annotations"):
        linked[name] = _nested(linked[name], by_device=name == "annotations")
    linked["device_events"] = _launched(linked["device_events"], linked["runtime_calls"])
    linked["device_events"] = _owned(linked["device_events"], linked["host_ops"])
    return linked


def _nested(frame: pl.DataFrame, *, by_device: bool) -> pl.DataFrame:
    if frame.is_empty():
        return frame
    keys = ["pid", "tid", "on_device"] if by_device else ["pid", "tid"]
    thread = frame.select(pl.struct(keys).rank("dense")).to_series().to_numpy().astype(np.int64)
    nesting = nest(thread, frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy())
    parent = pl.Series("parent_row", nesting.parent, dtype=pl.Int32)
    return frame.with_columns(
        pl.Series("depth", np.minimum(nesting.depth, 32767), dtype=pl.Int16),
        parent.set(parent < 0, None),
        pl.Series("self_ns", nesting.self_ns),
    )


def _first_rows(keys: pl.Series) -> tuple[Int64, Int64]:
    """The distinct keys, sorted, and the first row of each; nulls left out."""
    rows = np.flatnonzero(keys.is_not_null().to_numpy())
    values, first = np.unique(keys.drop_nulls().to_numpy(), return_index=True)
    return values, rows[first]


def _look_up(wanted: pl.Series, keys: pl.Series, name: str) -> pl.Series:
    """For each wanted key the first row that has it; null where none does, or nothing is wanted."""
    values, rows = _first_rows(keys)
    if not values.size:
        return pl.Series(name, [None] * len(wanted), dtype=pl.Int32)
    sought = wanted.fill_null(0).to_numpy()
    place = np.minimum(np.searchsorted(values, sought), values.size - 1)
    found = pl.Series(name, rows[place], dtype=pl.Int32)
    missing = pl.Series(values[place] != sought) | wanted.is_null()
    return found.set(missing, None)


def _launched(device: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Launches by correlation: all kernels of a graph launch share one call. Correlation 0 ties nothing."""
    correlation = calls["correlation"]
    row = _look_up(device["correlation"], correlation.set(correlation == 0, None), "launch_row")
    return device.with_columns(row, calls["start_ns"].gather(row).alias("launch_ns"))


def _owned(device: pl.DataFrame, operators: pl.DataFrame) -> pl.DataFrame:
    """Operators by External id, which is unique to an operator; 0 ties nothing."""
    external = operators["external_id"]
    return device.with_columns(_look_up(device["external_id"], external.set(external == 0, None), "op_row"))
