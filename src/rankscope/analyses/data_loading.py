"""How long each step waits for its data.

One row per rank and step, over the step's window (as in `step_time`, from completion to completion); of a file without
steps, one row over the whole file.

    loading  = |host ranges that load data|        a DataLoader's `__next__`, and ranges of the user's that say so
    hidden   = loading − exposed
    exposed  = what of it lies in no kernel, copy, fill or call of the runtime: `data_loading_ns` of `step_time`

|A| is the length of the union, over all threads. A range of the user's says so by its name: `data_load`, `load_batch`,
`next_batch`, `get_batch`, `prefetch_data` and their like. Loading in worker processes is in no trace: what counts is
the wait for them.

How to read it: exposed is what a faster loader would save at most. Loading with little exposed is hidden behind the
device's work and costs nothing. A long `longest_ns` beside a short mean is a shuffle, a new epoch or a cold file:
more workers, `persistent_workers=True`, a larger `prefetch_factor`. `--steps` keeps these steps.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.activity import covered_time, data_loading_ranges
from rankscope.results import (
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
    Column("rank", pl.Int64, "", "the rank"),
    Column("window", pl.Int64, "", "which of the rank's files it is in"),
    Column("step", pl.Int64, "", "N of `ProfilerStep#N`; null for the whole of a file without steps"),
    Column("window_ns", pl.Int64, "ns", "how long the step's window lasts"),
    Column("batches", pl.Int64, "count", "ranges that load data and end in the window: batches that arrive"),
    Column("loading_ns", pl.Int64, "ns", "time in them"),
    Column("loading_share", pl.Float64, "ratio", "of the window"),
    Column("exposed_ns", pl.Int64, "ns", "what of it nothing hides"),
    Column("exposed_share", pl.Float64, "ratio", "of the window"),
    Column("longest_ns", pl.Int64, "ns", "the longest of those that arrive; null without any"),
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
    lasted = (ranges["end_ns"] - ranges["start_ns"]).to_numpy()
    # Windows follow one another: what arrives as one ends and the next begins belongs to the first.
    arrived = ranges["end_ns"].to_numpy()
    owner = np.searchsorted(end, arrived)
    inside = np.zeros(arrived.size, dtype=np.bool_)
    if start.size:
        inside = (owner < start.size) & (arrived > start[np.minimum(owner, start.size - 1)])
    batches, longest = np.zeros(start.size, dtype=np.int64), np.full(start.size, -1, dtype=np.int64)
    np.add.at(batches, owner[inside], 1)
    np.maximum.at(longest, owner[inside], lasted[inside])
    longest_ns = pl.Series("longest_ns", longest, dtype=pl.Int64)
    wide = pl.col("window_ns") > 0
    return steps.with_columns(
        pl.Series("batches", batches, dtype=pl.Int64),
        pl.Series("loading_ns", times.within(start, end), dtype=pl.Int64),
        pl.col("data_loading_ns").alias("exposed_ns"),
        longest_ns.set(longest_ns < 0, None),
    ).with_columns(
        pl.when(wide).then(pl.col(f"{name}_ns") / pl.col("window_ns")).alias(f"{name}_share")
        for name in ("loading", "exposed")
    )


def headline(frame: pl.DataFrame) -> Headline | None:
    """The answer in one sentence."""
    window = total_of(frame, "window_ns")
    if not window:
        return None
    worst = greatest(frame, "exposed_ns")
    if worst is None:
        if not total_of(frame, "loading_ns"):
            return Headline.of("Nothing in these traces says that it loads data.")
        return Headline.of("No step waits for its data.")
    values = {
        "share": (total_of(frame, "exposed_ns") / window, "ratio"),
        "worst": (worst["exposed_ns"], "ns"),
        "rank": (worst["rank"], ""),
    }
    if worst["step"] is None:
        return Headline.of("Waiting for data takes {share} of the time; {worst} of it on rank {rank}.", **values)
    text = "Waiting for data takes {share} of the steps’ time; at worst {worst}, in step {step} on rank {rank}."
    return Headline.of(text, step=(worst["step"], ""), **values)


analysis = Analysis(
    name="data_loading",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    headline=headline,
    reads={"annotations": ("start_ns", "end_ns", "name", "on_device")},
    requires=("step_time",),
)
