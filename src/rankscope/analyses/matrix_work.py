"""Matrix work by data type, and whether it runs on tensor cores.

One row per rank and data type: the operators that tensor cores can run (matrix products, convolutions, attention; the
innermost of nested ones), by the type of their first floating-point input.

    device       = Σ durations of the compute kernels that they launched
    tensor cores = Σ durations of these kernels that ran on tensor cores, by their names
    unknown      = Σ durations of those whose names do not show it (Triton's, truncated names, other libraries')
    off          = Σ durations of products and convolutions on ordinary cores, by their names, in calls that launched
                   neither a tensor core kernel nor an unknown one
    saving       = time · (1 − slower peak / faster peak)

`saving_ns` and `narrow_saving_ns` are upper bounds over the complete steps (the whole trace if it has no steps): for
the work off tensor cores sped up by the ratio of the device's peaks (32-bit numbers as TF32, if supported), and for all
work computed in bfloat16 (float16 if the device has no bfloat16). Kernels rarely reach their peak; many are memory
bound. They are null if the device's peaks are not known, or without a device; then `host_ns` shows how much work there
is. Types need `record_shapes`.

How to read it: float32 with most of its work off tensor cores means that TF32 is not enabled
(`torch.set_float32_matmul_precision("high")`); much float32 in general means that autocast to bfloat16 could save up to
`narrow_saving_ns`.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from rankscope.primitives.device_peaks import device_model, peak_flops
from rankscope.primitives.matrix_operators import matrix_operators
from rankscope.primitives.steps import host_steps, step_at
from rankscope.results import Analysis, Column, Inputs, Tables, by_window, chosen_launches, chosen_starts, in_steps

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("number", pl.String, "", "float64, float32, float16, bfloat16 or float8; null if types were not recorded"),
    Column("calls", pl.Int64, "count", "operators that tensor cores can run"),
    Column("steps", pl.Int64, "count", "steps with such operators; 0 if the trace has no steps"),
    Column("host_ns", pl.Int64, "ns", "host time in them"),
    Column("kernels", pl.Int64, "count", "compute kernels that they launched"),
    Column("device_ns", pl.Int64, "ns", "sum of these kernels' durations; null without a device"),
    Column("tensor_ns", pl.Int64, "ns", "part of it on tensor cores; null without a device"),
    Column("unknown_ns", pl.Int64, "ns", "part of it in kernels whose names do not show it; null without a device"),
    Column("off_ns", pl.Int64, "ns", "products on ordinary cores in calls without any other; null without a device"),
    Column("saving_ns", pl.Int64, "ns", "potential saving from tensor cores; null if no peak is known"),
    Column(
        "narrow_saving_ns",
        pl.Int64,
        "ns",
        "potential saving from 16-bit types; null if no peak is known, or if they are used already",
    ),
)
_SUMS = (
    "calls", "steps", "host_ns", "kernels", "device_ns", "tensor_ns", "unknown_ns", "off_ns", "steps_tensor_ns",
    "steps_off_ns",
)  # fmt: skip
_WIDE = ("float64", "float32")


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """A rank's types."""
    parts = [
        _window_types(window, replace(inputs, traces=inputs.traces[number : number + 1]))
        for number, window in enumerate(by_window(tables, inputs))
    ]
    frame = pl.concat(parts).group_by("number").agg(pl.col(_SUMS).sum()).sort("number", nulls_last=True)
    used = tables["device_events"]["device"].drop_nulls().unique()
    name = device_model((device for info in inputs.traces for device in info.devices), used)
    factors = {number: _saving_factors(name, number) for number in frame["number"].to_list()}
    plain, narrow = (
        pl.Series([factors[number][column] for number in frame["number"]], dtype=pl.Float64) for column in (0, 1)
    )
    off, on = pl.col("steps_off_ns"), pl.col("steps_tensor_ns")
    frame = frame.with_columns(
        (off * plain).round().cast(pl.Int64).alias("saving_ns"),
        # Work on tensor cores gains only from the narrower type, the rest from both.
        pl.when(pl.col("number").is_in(_WIDE))
        .then(pl.when(on > 0).then(on * _narrow_factor(name)).otherwise(0.0) + off * narrow)
        .round()
        .cast(pl.Int64)
        .alias("narrow_saving_ns"),
        pl.lit(inputs.rank, pl.Int64).alias("rank"),
    )
    if tables["device_events"].is_empty():
        unknown = ("device_ns", "tensor_ns", "unknown_ns", "off_ns", "saving_ns", "narrow_saving_ns")
        frame = frame.with_columns(pl.lit(None, pl.Int64).alias(name) for name in unknown)
    return frame.select(column.name for column in COLUMNS)


def _window_types(window: Tables, inputs: Inputs) -> pl.DataFrame:
    annotations, device, extra = window["annotations"], window["device_events"], inputs.options.communication
    if inputs.options.steps is None:
        calls, kernels = inputs.once("matrix operators", lambda: matrix_operators(window, None, device, extra))
    else:
        kept = chosen_starts(window["host_ops"], annotations, inputs).to_numpy()
        device = chosen_launches(device, annotations, inputs)
        calls, kernels = matrix_operators(window, kept, device, extra)
    calls = calls.with_columns(step_at(host_steps(annotations), calls["start_ns"]))
    counted = calls.group_by("number").agg(
        pl.len().cast(pl.Int64).alias("calls"),
        pl.col("step").drop_nulls().n_unique().cast(pl.Int64).alias("steps"),
        pl.col("duration").sum().alias("host_ns"),
    )
    launched = (
        kernels.with_columns(in_steps(kernels["launch_ns"], annotations).alias("in_steps"))
        .group_by("number")
        .agg(
            pl.len().cast(pl.Int64).alias("kernels"),
            pl.col("duration").sum().alias("device_ns"),
            pl.col("duration").filter(pl.col("tensor").fill_null(False)).sum().alias("tensor_ns"),
            pl.col("duration").filter(pl.col("tensor").is_null()).sum().alias("unknown_ns"),
            pl.col("duration").filter("off").sum().alias("off_ns"),
            pl.col("duration").filter(pl.col("tensor") & pl.col("in_steps")).sum().alias("steps_tensor_ns"),
            pl.col("duration").filter(pl.col("off") & pl.col("in_steps")).sum().alias("steps_off_ns"),
        )
    )
    return counted.join(launched, on="number", how="full", coalesce=True, nulls_equal=True).select(
        "number", pl.col(_SUMS).fill_null(0)
    )


def _saving_factors(device: str | None, number: str | None) -> tuple[float | None, float | None]:
    """The largest share of the time off tensor cores that tensor cores can save, and that they can save in 16 bits."""
    # Off tensor cores, 16-bit types are not faster than 32-bit ones.
    ordinary = peak_flops(device, "float64" if number == "float64" else "float32") if number else None
    tensor = peak_flops(device, number, tensor_cores=True)
    narrow = _narrow_peak(device)
    return (
        None if not ordinary or not tensor else max(0.0, 1 - ordinary / tensor),
        None if not ordinary or not narrow else max(0.0, 1 - ordinary / narrow),
    )


def _narrow_factor(device: str | None) -> pl.Expr:
    tensor, narrow = peak_flops(device, "float32", tensor_cores=True), _narrow_peak(device)
    return pl.lit(None if not tensor or not narrow else max(0.0, 1 - tensor / narrow), pl.Float64)


def _narrow_peak(device: str | None) -> float | None:
    return peak_flops(device, "bfloat16") or peak_flops(device, "float16")


analysis = Analysis(
    name="matrix_work",
    doc=__doc__, whole_recording=True,
    columns=COLUMNS,
    per_rank=per_rank,
    reads={
        "host_ops": ("start_ns", "end_ns", "name", "pid", "tid", "parent_row", "input_types"),
        "device_events": (
            "start_ns", "end_ns", "name", "kind", "is_collective", "device", "op_row", "launch_row", "launch_ns",
        ),
        "runtime_calls": ("pid", "tid"),
        "annotations": ("start_ns", "end_ns", "on_device", "step"),
    },
    in_report=False,
)  # fmt: skip
