"""Idle gaps between kernels that are due to late launches, per step.

One row per rank and step. A piece of work is a device event; if the trace has no device, a top-level operator that
computes. A gap is time in the step's window in which nothing ran, up to the next piece. On a device it counts only if
the host was late: the next piece's launch began after the device had become idle. These parts of a gap do not count:

    data loading           reported by `data_loading`
    waiting calls          a host that waits for its device launches nothing (reported by `synchronization`)
    memory                 driver calls that allocate or free memory (`allocator_ns`, the rule `memory_retries`)
    long runtime calls     longer than 100 µs: the driver loads code or creates a context (`long_calls_ns`)
    unrecorded intervals   longer than 100 µs, in which the host recorded neither an operator nor a runtime call:
                           asleep, descheduled, or user code that no faster launch would shorten (`silent_ns`)
    first calls            longer than 10 ms, in which neither an operator nor a runtime call began or ended: inside
                           one operator a library is loaded, or code compiled (`long_calls_ns`); not if more than a
                           quarter of the steps have one
    communication          without a device: Gloo's ranges

    late        = |gaps in the step's window − the parts above|
    allocator   = |gaps in the step's window in which the host allocates or frees memory|
    before_first = |long runtime calls, first calls and allocations before the file's first device event|; in its first
                  row, as no gap is before that event
    silent      = |gaps in the step's window ∩ unrecorded intervals, without data loading, garbage collection,
                  compiling and Gloo's ranges|
    late_short  = Σ gaps before a compute kernel shorter than 10 µs, or an operator whose name has a median duration
                  below 20 µs, if the gap is at most 100 µs: launching takes less, so a longer gap has another cause

How to read it: `late` is an upper bound of the potential saving per step if nothing ever waited for a launch. If most
of it is before short pieces, use fewer and larger ones (fused operators, `torch.compile`, CUDA graphs).
"""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.activity import covered_time
from rankscope.primitives.allocations import DEVICE_FREE, DEVICE_MALLOC, PINNED_MEMORY
from rankscope.primitives.intervals import Int64, IntervalSet, interval_at
from rankscope.primitives.late_launches import SILENCE_NS, LateLaunches, before_short
from rankscope.primitives.steps import step_windows, with_step_row
from rankscope.primitives.stragglers.host_scopes import is_own_function
from rankscope.results import RANK_AND_WINDOW, Analysis, Column, Inputs, Tables, steps_by_window

_MOST = 0.5
"""Of the longest, which may be the loop's own: a function that is nested deeper and has so much explains it."""
COLUMNS = (
    *RANK_AND_WINDOW,
    Column("step", pl.Int64, "", "the step; null for a trace without steps"),
    Column("pieces", pl.Int64, "count", "compute kernels; without a device, top-level operators"),
    Column(
        "short", pl.Int64, "count", "of these, shorter than 10 µs; for operators, of a name with a median below 20 µs"
    ),
    Column("short_ns", pl.Int64, "ns", "sum of the short ones' durations"),
    Column("late_ns", pl.Int64, "ns", "gaps due to a late launch of the next piece"),
    Column("late_short_ns", pl.Int64, "ns", "of these, before short pieces and at most 100 µs long"),
    Column("allocator_ns", pl.Int64, "ns", "gaps due to driver calls that allocate or free memory"),
    Column("long_calls_ns", pl.Int64, "ns", "gaps due to long runtime calls and first calls"),
    Column("before_first_ns", pl.Int64, "ns", "in a file's first row, such calls before its first device event"),
    Column("long_call", pl.String, "", "the runtime call of more than 100 µs with most of both; null without any"),
    Column("silent_ns", pl.Int64, "ns", "gaps due to an unrecorded interval on the host; 0 without operators"),
    Column(
        "silent_frame",
        pl.String,
        "",
        "the innermost of the job's own Python functions with half of `silent_ns` or more; null without stacks",
    ),
    Column("allocations", pl.Int64, "count", "driver calls that allocate device memory in the window"),
    Column("frees", pl.Int64, "count", "driver calls that free device memory in the window"),
    Column("pinned", pl.Int64, "count", "driver calls that allocate, free or register pinned host memory"),
    Column("on_device", pl.Boolean, "", "whether pieces are kernels"),
)


def _window_gaps(window: Tables, inputs: Inputs) -> pl.DataFrame:
    work = inputs.once("late launches", lambda: LateLaunches.of(window, inputs.options.communication))
    steps, windows = step_windows(window["annotations"], window["device_events"])
    number, starts, ends = steps["step"], windows.start, windows.end
    if not steps.height:
        # A file without any piece has no row.
        recorded = covered_time(work.pieces)
        starts, ends = recorded.starts[:1], recorded.ends[-1:]
        number = pl.Series("step", [None] * starts.size, dtype=pl.Int64)
    # Before a piece outside the steps the host may have been outside them, too.
    gaps = work.gaps.filter(interval_at(starts, ends, work.gaps["end_ns"].to_numpy()) >= 0)
    waiting = covered_time(gaps)
    late = waiting - work.left_out
    pieces = with_step_row(work.pieces, starts, ends).filter("counts")
    rows = pl.DataFrame(
        {"step_row": np.arange(starts.size), "step": number}, schema={"step_row": pl.Int64, "step": pl.Int64}
    )
    by_step = pieces.group_by("step_row").agg(
        pl.len().cast(pl.Int64).alias("pieces"),
        pl.col("short").sum().cast(pl.Int64).alias("short"),
        pl.col("duration").filter("short").sum().alias("short_ns"),
    )
    # A free before the first launch makes the context (`cudaFree(0)`).
    first = pl.lit(work.pieces["launch_ns"].min(), pl.Int64)
    of_context = (pl.col("name").str.contains(DEVICE_FREE) & (pl.col("start_ns") < first)).fill_null(False)
    calls = (
        with_step_row(work.allocator.filter(~of_context), starts, ends)
        .group_by("step_row")
        .agg(
            pl.col("name").str.contains(pattern).sum().cast(pl.Int64).alias(name)
            for name, pattern in (("allocations", DEVICE_MALLOC), ("frees", DEVICE_FREE), ("pinned", PINNED_MEMORY))
        )
    )
    gap = (waiting | work.before_first).within(work.calls["start_ns"].to_numpy(), work.calls["end_ns"].to_numpy())
    # A call before the first window belongs to it.
    begin = pl.col("start_ns").clip(lower_bound=int(starts[0]) if starts.size else None)
    by_call = with_step_row(work.calls.select(begin, "name", pl.Series("gap", gap)), starts, ends)
    by_call = by_call.group_by("step_row", "name").agg(pl.col("gap").sum()).filter(pl.col("gap") > 0)
    by_call = (
        by_call.sort("gap", "name", descending=[True, False])
        .group_by("step_row")
        .agg(pl.col("name").first().alias("long_call"))
    )
    frames = _silent_frames(window["python_frames"], waiting & work.silent, starts, ends)
    return (
        rows.join(by_step, on="step_row", how="left", maintain_order="left")
        .join(calls, on="step_row", how="left", maintain_order="left")
        .join(by_call, on="step_row", how="left", maintain_order="left")
        .join(frames, on="step_row", how="left", maintain_order="left")
        .with_columns(
            pl.col("pieces", "short", "short_ns", "allocations", "frees", "pinned").fill_null(0),
            pl.Series("late_ns", late.within(starts, ends)),
            pl.Series("late_short_ns", (late & before_short(gaps, work.left_out)).within(starts, ends)),
            pl.Series("allocator_ns", (waiting & work.memory).within(starts, ends)),
            pl.Series("long_calls_ns", (waiting & work.long_calls).within(starts, ends)),
            pl.Series("before_first_ns", [work.before_first.length] + [0] * (starts.size - 1))[: starts.size],
            pl.Series("silent_ns", (waiting & work.silent).within(starts, ends)),
            pl.lit(work.on_device).alias("on_device"),
        )
    )


def _silent_frames(frames: pl.DataFrame, silent: IntervalSet, starts: Int64, ends: Int64) -> pl.DataFrame:
    """The function that each step's silence is in: step_row, silent_frame."""
    long = frames.filter(pl.col("end_ns") - pl.col("start_ns") > SILENCE_NS)
    names = long["name"].unique().drop_nulls()
    long = long.filter(pl.col("name").is_in([name for name in names if is_own_function(name)]))
    found: list[tuple[int, str]] = []
    for row, (begin, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        inside = long.filter((pl.col("start_ns") < end) & (pl.col("end_ns") > begin))
        if inside.is_empty():
            continue
        own = silent & IntervalSet.of(np.array([begin]), np.array([end]))
        cost = own.within(inside["start_ns"].to_numpy(), inside["end_ns"].to_numpy())
        by_name = (
            inside.select("name", "depth", pl.Series("cost", cost))
            .group_by("name")
            .agg(pl.col("cost").sum(), pl.col("depth").max())
        )
        most = by_name.filter((pl.col("cost") > 0) & (pl.col("cost") >= _MOST * pl.col("cost").max()))
        if most.height:
            found.append((row, most.sort("depth", "cost", "name", descending=True)["name"][0]))
    return pl.DataFrame(found, schema={"step_row": pl.Int64, "silent_frame": pl.String}, orient="row")


analysis = Analysis(
    name="launch_gaps",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=steps_by_window(COLUMNS, _window_gaps),
    reads={
        "device_events": ("start_ns", "end_ns", "name", "kind", "is_collective", "device", "stream", "launch_ns"),
        "host_ops": ("start_ns", "end_ns", "name", "pid", "tid", "depth"),
        "runtime_calls": ("start_ns", "end_ns", "name"),
        "annotations": ("start_ns", "end_ns", "name", "pid", "tid", "on_device", "step"),
        "python_frames": ("start_ns", "end_ns", "name", "depth"),
    },
    in_report=False,
)
