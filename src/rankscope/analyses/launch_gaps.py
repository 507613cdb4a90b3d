"""Idle gaps between kernels that are due to late launches, per step.

One row per rank and step. A piece of work is a device event; if the trace has no device, a top-level operator that
computes. A gap is time in the step's window in which nothing ran, up to the next piece. On a device it counts only if
the host was late: the next piece's launch began after the device had become idle. Of each gap these are left out:

    data loading           reported by `data_loading`
    waiting calls          a host that waits for its device launches nothing (reported by `synchronization`)
    unrecorded intervals   longer than 100 µs, in which the host recorded neither an operator nor a runtime call:
                           asleep, descheduled, or user code that no faster launch would shorten
    communication          without a device: Gloo's ranges

    late        = Σ gaps, less what is left out
    late_short  = Σ gaps before a compute kernel shorter than 10 µs, or an operator whose name has a median duration
                  below 20 µs, if the gap is at most 100 µs: launching takes less, so a longer gap has another cause

How to read it: `late` is an upper bound of the potential saving per step if nothing ever waited for a launch. If most
of it is before short pieces, use fewer and larger ones (fused operators, `torch.compile`, CUDA graphs).
"""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.activity import (
    computing_operators,
    covered_time,
    data_loading_time,
    gloo_ranges,
    with_category,
)
from rankscope.primitives.intervals import IntervalSet
from rankscope.primitives.kernels import COMPUTE
from rankscope.primitives.steps import step_windows
from rankscope.primitives.synchronization import host_waits
from rankscope.results import Analysis, Column, Inputs, Tables, steps_by_window

SHORT_NS = 10_000
"""A launch takes the host some microseconds: with shorter pieces it can hardly keep a device busy."""
SHORT_OPERATOR_NS = 20_000
"""On the CPU: recording an operator takes about as long as calling it, and is part of its duration."""
SILENCE_NS = 100_000
"""A host that is busy launching records an event more often than this."""
COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("window", pl.Int64, "", "index of the rank's trace file, from 0"),
    Column("step", pl.Int64, "", "the step; null for a trace without steps"),
    Column("pieces", pl.Int64, "count", "compute kernels; without a device, top-level operators"),
    Column(
        "short", pl.Int64, "count", "of these, shorter than 10 µs; for operators, of a name with a median below 20 µs"
    ),
    Column("short_ns", pl.Int64, "ns", "sum of the short ones' durations"),
    Column("late_ns", pl.Int64, "ns", "gaps due to a late launch of the next piece"),
    Column("late_short_ns", pl.Int64, "ns", "of these, before short pieces and at most 100 µs long"),
    Column("on_device", pl.Boolean, "", "whether pieces are kernels"),
)


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """A rank's steps."""
    return steps_by_window(tables, inputs, COLUMNS, _of_window)


def _of_window(window: Tables, inputs: Inputs) -> pl.DataFrame:
    device, annotations = window["device_events"], window["annotations"]
    on_device = bool(device.height)
    gloo = gloo_ranges(window["host_ops"], annotations)
    if on_device:
        pieces = with_category(device, inputs.options.communication).select(
            "start_ns", "end_ns", "launch_ns", (pl.col("category") == COMPUTE).alias("counts")
        )
    else:
        pieces = computing_operators(window["host_ops"], gloo).select(
            "start_ns", "end_ns", "name", pl.col("start_ns").alias("launch_ns"), pl.lit(True).alias("counts")
        )
    duration = pl.col("end_ns") - pl.col("start_ns")
    # A host that is descheduled in the middle of a short operator makes that one long.
    short = duration < SHORT_NS if on_device else duration.median().over("name") < SHORT_OPERATOR_NS
    pieces = pieces.sort("start_ns").with_columns((pl.col("counts") & short).alias("short"), duration.alias("duration"))
    steps, found = step_windows(annotations, device)
    number, starts, ends = steps["step"], found.start, found.end
    if not steps.height:
        # A file without any piece has nothing to say.
        whole = covered_time(pieces)
        starts, ends = whole.starts[:1], whole.ends[-1:]
        number = pl.Series("step", [None] * starts.size, dtype=pl.Int64)
    gaps = _gaps(pieces, _left_out(window, gloo, on_device))
    placed = _placed(pieces, starts, ends).filter("counts")
    rows = pl.DataFrame({"place": np.arange(starts.size), "step": number}, schema={"place": pl.Int64, "step": pl.Int64})
    own = placed.group_by("place").agg(
        pl.len().cast(pl.Int64).alias("pieces"),
        pl.col("short").sum().cast(pl.Int64).alias("short"),
        pl.col("duration").filter("short").sum().alias("short_ns"),
    )
    late = (
        _placed(gaps, starts, ends)
        .group_by("place")
        .agg(
            pl.col("late").sum().alias("late_ns"),
            pl.col("late").filter(pl.col("short") & (pl.col("late") <= SILENCE_NS)).sum().alias("late_short_ns"),
        )
    )
    return (
        rows.join(own, on="place", how="left", maintain_order="left")
        .join(late, on="place", how="left", maintain_order="left")
        .with_columns(
            pl.col("pieces", "short", "short_ns", "late_ns", "late_short_ns").fill_null(0),
            pl.lit(on_device).alias("on_device"),
        )
    )


def _left_out(window: Tables, gloo: pl.DataFrame, on_device: bool) -> IntervalSet:
    """Time that is never waiting for a launch."""
    known = data_loading_time(window["annotations"]) | covered_time(host_waits(window["runtime_calls"]))
    if not on_device:
        known = known | covered_time(gloo)
    recorded = covered_time(window["host_ops"]) | covered_time(window["runtime_calls"])
    if not len(recorded):
        return known
    silent = recorded.complement(int(recorded.starts[0]), int(recorded.ends[-1]))
    long = silent.ends - silent.starts > SILENCE_NS
    return known | IntervalSet(silent.starts[long], silent.ends[long])


def _gaps(pieces: pl.DataFrame, left_out: IntervalSet) -> pl.DataFrame:
    """Gaps before pieces whose launch came late: start_ns (of the piece), late, short."""
    reached = pl.col("end_ns").cum_max().shift(1)
    found = pieces.with_columns(reached.alias("reached")).filter(
        (pl.col("start_ns") > pl.col("reached")) & (pl.col("launch_ns") > pl.col("reached"))
    )
    start, end = found["reached"].to_numpy(), found["start_ns"].to_numpy()
    return found.select(
        "start_ns", pl.Series("late", end - start - left_out.within(start, end), dtype=pl.Int64), "short"
    )


def _placed(frame: pl.DataFrame, starts: np.ndarray, ends: np.ndarray) -> pl.DataFrame:
    """Rows with the step's window that they start in; others are left out."""
    if not starts.size:
        return frame.with_columns(pl.lit(None, pl.Int64).alias("place")).clear()
    at = frame["start_ns"].to_numpy()
    place = np.searchsorted(starts, at, side="right") - 1
    inside = (place >= 0) & (at < ends[np.maximum(place, 0)])
    return frame.with_columns(pl.Series("place", place, dtype=pl.Int64)).filter(pl.Series(inside))


analysis = Analysis(
    name="launch_gaps",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    reads={
        "device_events": ("start_ns", "end_ns", "name", "kind", "is_collective", "device", "stream", "launch_ns"),
        "host_ops": ("start_ns", "end_ns", "name", "pid", "tid", "depth"),
        "runtime_calls": ("start_ns", "end_ns", "name"),
        "annotations": ("start_ns", "end_ns", "name", "pid", "tid", "on_device", "step"),
    },
    in_report=False,
)
