"""Synchronizing calls: where the host waits for the device, and the idle time that follows.

One row per rank, call and place in the code: the operator that made the call (`aten::item`, `aten::nonzero`, …) and the
named range around it, other than a step. Calls are runtime calls that return only when the device is done
(`cudaStreamSynchronize`, `hipDeviceSynchronize`, `zeEventHostSynchronize`, …); `cudaStreamWaitEvent` makes a stream
wait and not the host, so it is not included. If the trace has steps, only calls inside steps count. The profiler's own
call does not count: to stop, it waits for the device, outside of operators, after the last launch.

While the host waits it launches nothing. When the device has finished, it is idle until the host continues. `idle_ns`
is the time around the call's end, from when the device became idle (but not before the call) to its next event, and at
most the duration of the call: without it the host would have been earlier by that much. It is the potential saving
without the call; 0 if no device event follows in the file.

    idle = next start on the device − max(device became idle, start of the call), between 0 and the call's duration

How to read it: the first rows are the calls to remove from the loop, and `operator` and `range` show where they are:
`.item()` and `.cpu()` on a loss (keep it on the device, read it every few steps), `nonzero`, boolean masks.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.activity import covered_time
from rankscope.primitives.call_stack import innermost
from rankscope.primitives.intervals import Int64
from rankscope.primitives.steps import host_steps, step_rows
from rankscope.primitives.synchronization import host_waits, idle_after, without_profilers_wait
from rankscope.results import Analysis, Column, Headline, Inputs, Tables, by_window, over_ranks, top_group, total_of
from rankscope.rundir.plurals import plural

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("call", pl.String, "", "the runtime call, as recorded"),
    Column("operator", pl.String, "", "the operator that made it; null if none was open"),
    Column("range", pl.String, "", "the innermost named range around it, other than a step; null if none was open"),
    Column("calls", pl.Int64, "count", "number of calls"),
    Column("steps", pl.Int64, "count", "steps with such a call; 0 if the trace has no steps"),
    Column("total_ns", pl.Int64, "ns", "time in the calls"),
    Column("idle_ns", pl.Int64, "ns", "time that the device was idle because of them"),
    Column("per_step_ns", pl.Int64, "ns", "idle time per step"),
)
_STEP_PREFIX = "ProfilerStep#"


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The calls of a rank."""
    windows = by_window(tables, inputs)
    calls = pl.concat(
        _calls_of(window, inputs).with_columns(window=pl.lit(number)) for number, window in enumerate(windows)
    )
    steps = max(sum(_selected_steps(window, inputs).height for window in windows), 1)
    return (
        calls.group_by("call", "operator", "range")
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            pl.struct("window", "step").filter(pl.col("step") >= 0).n_unique().cast(pl.Int64).alias("steps"),
            pl.col("total_ns").sum(),
            pl.col("idle_ns").sum(),
        )
        .with_columns(pl.lit(inputs.rank, pl.Int64).alias("rank"), (pl.col("idle_ns") // steps).alias("per_step_ns"))
        .sort("idle_ns", "total_ns", "call", "operator", "range", descending=[True, True, False, False, False])
        .select(column.name for column in COLUMNS)
    )


def _selected_steps(window: Tables, inputs: Inputs) -> pl.DataFrame:
    steps = host_steps(window["annotations"])
    return inputs.options.chosen(steps)


def _calls_of(window: Tables, inputs: Inputs) -> pl.DataFrame:
    runtime, operators = window["runtime_calls"], window["host_ops"]
    calls = without_profilers_wait(host_waits(runtime), operators, window["device_events"])
    steps = _selected_steps(window, inputs)
    owner = step_rows(steps, calls["start_ns"])
    if steps.height or inputs.options.steps is not None:
        calls, owner = calls.filter(pl.Series(owner >= 0, dtype=pl.Boolean)), owner[owner >= 0]
    instants = calls.select(pl.col("start_ns").alias("at_ns"), "pid", "tid")
    ranges = _without_steps(window["annotations"])
    return calls.select(
        pl.col("name").alias("call"),
        pl.Series("operator", _names_at(operators, innermost(operators, instants)), dtype=pl.String),
        pl.Series("range", _names_at(ranges, innermost(ranges, instants)), dtype=pl.String),
        pl.Series("step", owner, dtype=pl.Int64),
        (pl.col("end_ns") - pl.col("start_ns")).alias("total_ns"),
        pl.Series("idle_ns", idle_after(calls, covered_time(window["device_events"])), dtype=pl.Int64),
    )


def _without_steps(annotations: pl.DataFrame) -> pl.DataFrame:
    """The host's ranges without steps, which are not a place in the code. Rows stay, as parent_row refers to them."""
    return annotations.with_columns(
        # Steps get no duration, so that they never contain an instant.
        pl.when(pl.col("on_device") | pl.col("name").str.starts_with(_STEP_PREFIX))
        .then(pl.col("start_ns"))
        .otherwise(pl.col("end_ns"))
        .alias("end_ns")
    )


def _names_at(ranges: pl.DataFrame, rows: Int64) -> pl.Series:
    if not ranges.height:
        return pl.Series([None] * rows.size, dtype=pl.String)
    names = ranges["name"].gather(np.maximum(rows, 0))
    return pl.select(pl.when(pl.Series(rows >= 0)).then(names)).to_series()


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    idle, calls = total_of(frame, "idle_ns"), total_of(frame, "calls")
    top = top_group(frame, "call", "idle_ns")
    if top is None:
        return None
    return Headline.of(
        f"{{calls}} synchronizing {plural('call', calls)}{over_ranks(frame)} left the device idle for {{idle}}; "
        "most of it after {call}.",
        calls=(calls, "count"),
        idle=(idle, "ns"),
        call=(top["call"], ""),
    )


analysis = Analysis(
    name="synchronization",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    headline=headline,
    reads={
        "runtime_calls": ("start_ns", "end_ns", "name", "pid", "tid"),
        "host_ops": ("start_ns", "end_ns", "name", "pid", "tid", "parent_row"),
        "device_events": ("start_ns", "end_ns", "launch_ns"),
        "annotations": ("start_ns", "end_ns", "name", "pid", "tid", "parent_row", "on_device", "step"),
    },
)
