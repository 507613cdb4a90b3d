"""Matrix work by data type, and whether it runs on tensor cores.

One row per rank and data type: the operators that tensor cores can run (matrix products, convolutions, attention; the
innermost of nested ones), by the type of their first floating-point input.

    device       = Σ durations of the compute kernels that they launched
    tensor cores = Σ durations of these kernels that ran on tensor cores, by their names
    unknown      = Σ durations of those whose names do not show it (Triton's, names that are cut, other libraries')
    off          = Σ durations of products and convolutions on ordinary cores, by their names, in calls that launched
                   no other: neither a tensor core kernel nor an unknown one
    saving       = time · (1 − slower peak / faster peak)

`saving_ns` and `narrow_saving_ns` are upper bounds over the complete steps (the trace, where none is marked): the
work off tensor cores sped up by the ratio of the device's peaks (32-bit numbers as TF32, if supported), and all of it
computed in bfloat16 (float16 if the device has no bfloat16). Kernels rarely reach their peak; many are memory bound.
They are null if the device's peaks are not known, or without a device. Types need `record_shapes`. Without a device
`host_ns` shows how much work there is, and no bound is given.

How to read it: float32 with most of its work off tensor cores means that TF32 is not enabled
(`torch.set_float32_matmul_precision("high")`); much float32 in general means that autocast to bfloat16 could save up to
`narrow_saving_ns`.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.device_peaks import peak_flops
from rankscope.primitives.matrix_operators import matrix_operators
from rankscope.results import (
    Analysis,
    Column,
    Inputs,
    Tables,
    by_window,
    chosen_launches,
    chosen_starts,
    in_steps,
)

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("number", pl.String, "", "float64, float32, float16, bfloat16 or float8; null if types were not recorded"),
    Column("calls", pl.Int64, "count", "operators that tensor cores can run"),
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
    "calls", "host_ns", "kernels", "device_ns", "tensor_ns", "unknown_ns", "off_ns", "steps_tensor_ns", "steps_off_ns",
)  # fmt: skip
_WIDE = ("float64", "float32")


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """A rank's types."""
    parts = [_of_window(window, inputs) for window in by_window(tables, inputs)]
    frame = pl.concat(parts).group_by("number").agg(pl.col(_SUMS).sum()).sort("number", nulls_last=True)
    name = _device_name(tables["device_events"], inputs)
    factors = {number: _factors(name, number) for number in frame["number"].to_list()}
    plain, narrow = (
        pl.Series([factors[number][place] for number in frame["number"]], dtype=pl.Float64) for place in (0, 1)
    )
    rest, fast = pl.col("steps_off_ns"), pl.col("steps_tensor_ns")
    frame = frame.with_columns(
        (rest * plain).round().cast(pl.Int64).alias("saving_ns"),
        # What runs on tensor cores gains by the narrower type alone, the rest by both.
        pl.when(pl.col("number").is_in(_WIDE))
        .then(pl.when(fast > 0).then(fast * _tensor_to_narrow(name)).otherwise(0.0) + rest * narrow)
        .round()
        .cast(pl.Int64)
        .alias("narrow_saving_ns"),
        pl.lit(inputs.rank, pl.Int64).alias("rank"),
    )
    if tables["device_events"].is_empty():
        lost = ("device_ns", "tensor_ns", "unknown_ns", "off_ns", "saving_ns", "narrow_saving_ns")
        frame = frame.with_columns(pl.lit(None, pl.Int64).alias(each) for each in lost)
    return frame.select(column.name for column in COLUMNS)


def _of_window(window: Tables, inputs: Inputs) -> pl.DataFrame:
    annotations = window["annotations"]
    kept = chosen_starts(window["host_ops"], annotations, inputs).to_numpy()
    device = chosen_launches(window["device_events"], annotations, inputs)
    calls, kernels = matrix_operators(window, kept, device, inputs.options.communication)
    counted = calls.group_by("number").agg(
        pl.len().cast(pl.Int64).alias("calls"), pl.col("duration").sum().alias("host_ns")
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


def _device_name(device: pl.DataFrame, inputs: Inputs) -> str | None:
    used = set(device["device"].drop_nulls().unique().to_list())
    known = [each for info in inputs.traces for each in info.devices]
    names = {each.get("name") for each in known if each.get("id") in used} or {each.get("name") for each in known}
    found = names.pop() if len(names) == 1 else None
    return str(found) if found else None


def _factors(device: str | None, number: str | None) -> tuple[float | None, float | None]:
    """The largest share of the time outside tensor cores that can be saved: on them, and on them in 16 bits."""
    # Off tensor cores 16-bit types are not faster than 32-bit ones.
    plain = peak_flops(device, "float64" if number == "float64" else "float32") if number else None
    cored = peak_flops(device, number, tensor_cores=True)
    narrow = _narrow(device)
    return (
        None if not plain or not cored else max(0.0, 1 - plain / cored),
        None if not plain or not narrow else max(0.0, 1 - plain / narrow),
    )


def _tensor_to_narrow(device: str | None) -> pl.Expr:
    cored, narrow = peak_flops(device, "float32", tensor_cores=True), _narrow(device)
    return pl.lit(None if not cored or not narrow else max(0.0, 1 - cored / narrow), pl.Float64)


def _narrow(device: str | None) -> float | None:
    return peak_flops(device, "bfloat16") or peak_flops(device, "float16")


analysis = Analysis(
    name="matrix_work",
    doc=__doc__,
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
