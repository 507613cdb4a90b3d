"""Data loading time per step, and how much of it is exposed.

One row per rank and step, over the step's window (as in `step_time`, from completion to completion); for a trace
without steps, one row from its first to its last device event.

    loading  = |host ranges that load data|        a DataLoader's `__next__`, and user ranges named for data loading
    hidden   = loading − exposed
    exposed  = the part outside every kernel, copy, fill and runtime call: `data_loading_ns` of `step_time`

|A| is the length of the union, over the threads that run the steps: a loader on another thread delays none of them. A
user range counts by its name: `data_load`, `load_batch`, `next_batch`, `get_batch`, `prefetch_data` and similar.
Loading in worker processes is not in the trace; what counts is the time waiting for them.

How to read it: exposed is the potential saving of a faster loader. Loading that is not exposed is hidden behind the
device's work and costs nothing. A long `longest_ns` with a short mean is a shuffle, a new epoch or a cold file:
use more workers, `persistent_workers=True`, a larger `prefetch_factor`. `--steps` keeps these steps.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.activity import covered_time, data_loading_ranges
from rankscope.results import (
    RANK_AND_WINDOW,
    Analysis,
    Column,
    Headline,
    Inputs,
    Tables,
    by_window,
    concat_ranks,
    greatest,
    total_of,
)

COLUMNS = (
    *RANK_AND_WINDOW,
    Column("step", pl.Int64, "", "N of `ProfilerStep#N`; null for a trace without steps"),
    Column("window_ns", pl.Int64, "ns", "duration of the step's window"),
    Column("batches", pl.Int64, "count", "data loading ranges that end in the window: batches that arrive"),
    Column("loading_ns", pl.Int64, "ns", "time in data loading"),
    Column("loading_share", pl.Float64, "ratio", "share of the window"),
    Column("exposed_ns", pl.Int64, "ns", "exposed data loading: the device was idle"),
    Column("exposed_share", pl.Float64, "ratio", "share of the window"),
    Column("longest_ns", pl.Int64, "ns", "the longest wait for a batch that arrives in the window; null without one"),
    Column("longest_start_ns", pl.Int64, "ns", "when it starts", instant=True),
)


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The steps of a rank, window by window."""
    steps = inputs.results["step_time"]
    parts = [
        _loading_of(window, steps.filter(pl.col("window") == number))
        for number, window in enumerate(by_window(tables, inputs))
    ]
    return concat_ranks(parts, COLUMNS)


def _loading_of(window: Tables, steps: pl.DataFrame) -> pl.DataFrame:
    ranges = data_loading_ranges(window["annotations"])
    times = covered_time(ranges)
    start = steps["start_ns"].to_numpy()
    end = start + steps["window_ns"].to_numpy()
    duration = (ranges["end_ns"] - ranges["start_ns"]).to_numpy()
    # Windows follow one another: a batch that arrives at the boundary belongs to the earlier one.
    arrived = ranges["end_ns"].to_numpy()
    owner = np.searchsorted(end, arrived)
    inside = np.zeros(arrived.size, dtype=np.bool_)
    if start.size:
        inside = (owner < start.size) & (arrived > start[np.minimum(owner, start.size - 1)])
    batches, longest = np.zeros(start.size, dtype=np.int64), np.full(start.size, -1, dtype=np.int64)
    np.add.at(batches, owner[inside], 1)
    np.maximum.at(longest, owner[inside], duration[inside])
    begins = np.full(start.size, -1, dtype=np.int64)
    is_longest = inside.copy()
    is_longest[inside] = duration[inside] == longest[owner[inside]]
    # Of equal ones take the first.
    begins[owner[is_longest][::-1]] = ranges["start_ns"].to_numpy()[is_longest][::-1]
    longest_ns = pl.Series("longest_ns", longest, dtype=pl.Int64)
    not_empty = pl.col("window_ns") > 0
    return steps.with_columns(
        pl.Series("batches", batches, dtype=pl.Int64),
        pl.Series("loading_ns", times.within(start, end), dtype=pl.Int64),
        pl.col("data_loading_ns").alias("exposed_ns"),
        longest_ns.set(longest_ns < 0, None),
        pl.Series("longest_start_ns", begins, dtype=pl.Int64).set(longest_ns < 0, None),
    ).with_columns(
        pl.when(not_empty).then(pl.col(f"{name}_ns") / pl.col("window_ns")).alias(f"{name}_share")
        for name in ("loading", "exposed")
    )


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    window = total_of(frame, "window_ns")
    if not window:
        return None
    worst = greatest(frame, "exposed_ns")
    if worst is None:
        if not total_of(frame, "loading_ns"):
            return Headline.of("No data loading is recorded in these traces.")
        return Headline.of("No step waits for data.")
    values = {
        "share": (total_of(frame, "exposed_ns") / window, "ratio"),
        "worst": (worst["exposed_ns"], "ns"),
        "rank": (worst["rank"], ""),
    }
    if worst["step"] is None:
        return Headline.of("Exposed data loading: {share} of the time; at most {worst}, on rank {rank}.", **values)
    text = "Exposed data loading: {share} of step time; at most {worst}, in step {step} on rank {rank}."
    return Headline.of(text, step=(worst["step"], ""), **values)


analysis = Analysis(
    name="data_loading",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    headline=headline,
    reads={"annotations": ("start_ns", "end_ns", "name", "pid", "tid", "on_device", "step")},
    requires=("step_time",),
)
