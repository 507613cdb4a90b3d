"""Utilization of each device: GPU utilization, SM efficiency, occupancy.

One row per rank and device it used, over the span of its steps: from the start of the first window to the end of the
last (windows as in `step_time`); for a trace without steps, over the recorded span, from the first to the last device
event.

    utilization          = |kernels| / span                       |A|: the union over all streams, without copies
    compute utilization  = |kernels other than communication| / span
    SM efficiency        = Σ min(Σ blocks per SM of the kernels that run, 1) · dt / span        (estimated)
    occupancy            = Σ occupancy · duration / Σ duration, over kernels that record it     (estimated, achieved)

The definitions are those of the TensorBoard plugin. Kernels without blocks per SM add nothing to the SM efficiency, so
it is then a lower bound; both estimates are null if no kernel records them (AMD, Intel, some engines).

How to read it: utilization says that something ran, not how much of the device it used. High utilization with a low SM
efficiency means many small kernels or small grids; with a low occupancy, kernels that use many registers or much shared
memory. The difference between utilization and compute utilization is time in which the device only communicated.
`--steps` uses the span of these steps.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.activity import covered_time, with_category
from rankscope.primitives.intervals import Int64
from rankscope.primitives.kernels import COMMUNICATION
from rankscope.primitives.steps import recorded_span, step_windows
from rankscope.results import Analysis, Column, Headline, Inputs, Tables, by_window, total_of

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("device", pl.Int64, "", "device index; null if the trace has no device"),
    Column("span_ns", pl.Int64, "ns", "the span of the steps; the recorded span without steps"),
    Column("kernel_ns", pl.Int64, "ns", "time with kernels running; null without a device"),
    Column("utilization", pl.Float64, "ratio", "share of the span in which kernels ran; null without a device"),
    Column("compute_utilization", pl.Float64, "ratio", "the same without communication kernels"),
    Column("sm_efficiency", pl.Float64, "ratio", "estimated share of the SMs that had work, over the span"),
    Column("occupancy", pl.Float64, "%", "estimated achieved occupancy while kernels ran, weighted by duration"),
)
_SUMS = ("kernel_ns", "compute_ns", "efficient_ns", "weighted", "weight", "with_blocks")


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The devices of a rank, added up over its windows."""
    spans: list[int] = []
    parts: list[pl.DataFrame] = []
    for window in by_window(tables, inputs):
        start, end = _span(window, inputs)
        spans.append(end - start)
        labeled = with_category(window["device_events"], inputs.options.communication)
        for (device,), events in labeled.group_by("device", maintain_order=True):
            sums = _measure(events.filter(pl.col("kind") == "kernel"), start, end)
            parts.append(pl.DataFrame({"device": [device], **sums}, schema=_SCHEMA))
    span = pl.lit(sum(spans), pl.Int64)
    if not parts:
        parts = [pl.DataFrame([dict.fromkeys(_SCHEMA)], schema=_SCHEMA)]
    # A device may have events in one window only; its span is the rank's in any case.
    added = (
        pl.concat(parts)
        .group_by("device", maintain_order=True)
        .agg(pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum()).alias(name) for name in _SUMS)
    )
    has_span = pl.col("span_ns") > 0
    return (
        added.with_columns(pl.lit(inputs.rank, pl.Int64).alias("rank"), span.alias("span_ns"))
        .with_columns(
            pl.when(has_span).then(pl.col("kernel_ns") / pl.col("span_ns")).alias("utilization"),
            pl.when(has_span).then(pl.col("compute_ns") / pl.col("span_ns")).alias("compute_utilization"),
            pl.when(has_span & (pl.col("with_blocks") > 0))
            .then(pl.col("efficient_ns") / pl.col("span_ns"))
            .alias("sm_efficiency"),
            pl.when(pl.col("weight") > 0).then(pl.col("weighted") / pl.col("weight")).alias("occupancy"),
        )
        .sort("device")
        .select(column.name for column in COLUMNS)
    )  # fmt: skip


_SCHEMA: dict[str, pl.DataType] = {
    "device": pl.Int64(),
    "kernel_ns": pl.Int64(),
    "compute_ns": pl.Int64(),
    "efficient_ns": pl.Float64(),
    "weighted": pl.Float64(),
    "weight": pl.Int64(),
    "with_blocks": pl.Int64(),
}


def _span(window: Tables, inputs: Inputs) -> tuple[int, int]:
    """Start and end of the selected steps' windows, else of the recorded span."""
    steps, windows = step_windows(window["annotations"], window["device_events"])
    if steps.height:
        selected = np.ones(steps.height, dtype=np.bool_)
        if inputs.options.steps is not None:
            selected = steps.select(inputs.options.keeps(pl.col("step"))).to_series().to_numpy()
        return (int(windows.start[selected][0]), int(windows.end[selected][-1])) if selected.any() else (0, 0)
    begin, end = recorded_span(window)
    return (int(begin[0]), int(end[0])) if begin.size and inputs.options.steps is None else (0, 0)


def _measure(kernels: pl.DataFrame, start: int, end: int) -> dict[str, list[int | float]]:
    """Sums over the kernels of one device within a span."""
    inside = kernels.with_columns(pl.col("start_ns", "end_ns").clip(start, end))
    duration = (inside["end_ns"] - inside["start_ns"]).to_numpy()
    occupancy = inside["occupancy"].cast(pl.Float64)
    known = (occupancy.is_not_null() & occupancy.is_finite().fill_null(False)).to_numpy()
    blocks = inside["blocks_per_sm"].cast(pl.Float64)
    sized = inside.filter(blocks.is_finite().fill_null(False))
    return {
        "kernel_ns": [covered_time(inside).length],
        "compute_ns": [covered_time(inside.filter(pl.col("category") != COMMUNICATION)).length],
        "efficient_ns": [
            _efficient(
                sized["start_ns"].to_numpy(),
                sized["end_ns"].to_numpy(),
                sized["blocks_per_sm"].cast(pl.Float64).to_numpy(),
            )
        ],
        "weighted": [float((occupancy.fill_null(0.0).to_numpy()[known] * duration[known]).sum())],
        "weight": [int(duration[known].sum())],
        "with_blocks": [sized.height],
    }


def _efficient(start: Int64, end: Int64, blocks: np.ndarray) -> float:
    """Σ min(blocks per SM of the kernels that run, 1) · dt, ns."""
    if not start.size:
        return 0.0
    instants, index = np.unique(np.concatenate([start, end]), return_inverse=True)
    change = np.zeros(instants.size)
    np.add.at(change, index, np.concatenate([blocks, -blocks]))
    # Rounding leaves about 1e-16 where nothing runs, which does not matter.
    running = np.clip(np.cumsum(change)[:-1], 0.0, 1.0)
    return float((running * np.diff(instants)).sum())


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    known = frame.filter(pl.col("utilization").is_not_null()).sort("utilization", maintain_order=True)
    if not known.height:
        return None
    lowest = known.row(0, named=True)
    mean = total_of(known, "kernel_ns") / total_of(known, "span_ns") if total_of(known, "span_ns") else 0.0
    if not mean:
        return Headline.of("No kernel runs in the measured span.")
    if known.height == 1:
        return Headline.of("Device utilization: {mean}.", mean=(mean, "ratio"))
    return Headline.of(
        "Mean device utilization: {mean}; lowest on rank {rank}: {least}.",
        mean=(mean, "ratio"),
        rank=(lowest["rank"], ""),
        least=(lowest["utilization"], "ratio"),
    )


analysis = Analysis(
    name="utilization",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    headline=headline,
    reads={
        "device_events": (
            "start_ns", "end_ns", "name", "kind", "is_collective", "device", "stream", "launch_ns", "blocks_per_sm",
            "occupancy",
        ),
        "host_ops": ("start_ns", "end_ns"),
        "runtime_calls": ("start_ns", "end_ns"),
        "annotations": ("start_ns", "end_ns", "on_device", "step"),
    },
)  # fmt: skip
