"""Time of each nn.Module on host and device: the module tree and its calls.

One row per rank and module, in tree order. A module is its class and instance number, as `with_stack`
(`nn.Module: Linear_3`) records them; its path lists the modules whose calls enclose its calls:

    host_total    = Σ durations of its calls
    host_self     = host_total − the calls of modules directly inside
    device_total  = |union of the kernels, copies and fills launched inside its calls|
    device_self   = the same for those launched in no nested module

These are calls of `forward`: the backward runs in autograd, outside all modules. What activation checkpointing
recomputes is in a separate tree, because autograd's thread has no outer module. Device time is null if the trace has no
device, and 0 if nothing was launched. A graph or a compiled region hides the modules in it. Without Python frames the
modules of TorchScript's `with_modules` are used: operators record their module, host time is that of their operators,
and calls are null. `--steps` keeps calls that start in the selected steps.

How to read it: device self time names the expensive layers; host total far above device total means modules of many
small operators, which fusing (`torch.compile`) speeds up.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.call_stack import launching_operators, range_at
from rankscope.primitives.intervals import union_length_by
from rankscope.primitives.modules import TOP, launched_by_modules, module_calls, operators_by_module
from rankscope.primitives.steps import host_steps
from rankscope.results import Analysis, Column, Headline, Inputs, Tables, by_window, over_ranks, top_group, total_of

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("path", pl.String, "", "the module and those enclosing it, outermost first"),
    Column("module", pl.String, "", "the module: class and number"),
    Column("depth", pl.Int64, "", "number of enclosing modules"),
    Column("calls", pl.Int64, "count", "number of calls; null if only operators record modules"),
    Column("host_total_ns", pl.Int64, "ns", "host time in its calls"),
    Column("host_self_ns", pl.Int64, "ns", "host time in its calls, without nested modules"),
    Column(
        "device_total_ns", pl.Int64, "ns", "time in which anything launched in its calls ran; null without a device"
    ),
    Column("device_self_ns", pl.Int64, "ns", "the same, without what nested modules launched"),
    Column("kernels", pl.Int64, "count", "kernels, copies and fills launched in its calls; null without a device"),
)


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """A rank's modules in all its files."""
    frame = pl.concat(_window_modules(window, inputs) for window in by_window(tables, inputs))
    values = ("calls", "host_total_ns", "host_self_ns", "device_total_ns", "device_self_ns", "kernels")
    merged = frame.group_by("path", maintain_order=True).agg(
        # The sum of nulls only is null.
        pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum()).alias(name)
        for name in values
    )
    parts = pl.col("path").str.split(TOP)
    return (
        merged.with_columns(
            pl.lit(inputs.rank, pl.Int64).alias("rank"),
            parts.list.last().alias("module"),
            (parts.list.len().cast(pl.Int64) - 1).alias("depth"),
        )
        .sort(parts)
        .select(column.name for column in COLUMNS)
    )


def _window_modules(window: Tables, inputs: Inputs) -> pl.DataFrame:
    frames, device = window["python_frames"], window["device_events"]
    steps = host_steps(window["annotations"]).filter(inputs.options.keeps(pl.col("step")))
    calls = module_calls(frames)
    if not calls.frame.height:
        return _by_hierarchy(window, steps if inputs.options.steps is not None else None)
    launched = launched_by_modules(calls, device, window["runtime_calls"])
    called = calls.frame
    if inputs.options.steps is not None:
        called = called.filter(pl.Series(range_at(steps, called["start_ns"].to_numpy()) >= 0))
        kept = device.filter(pl.Series(range_at(steps, device["launch_ns"].fill_null(-1).to_numpy()) >= 0))
        launched = launched_by_modules(calls, kept, window["runtime_calls"])
    host = called.group_by("path", maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("calls"),
        (pl.col("end_ns") - pl.col("start_ns")).sum().alias("host_total_ns"),
        pl.col("self_ns").sum().alias("host_self_ns"),
    )
    return _with_device(host, launched, bool(device.height))


def _by_hierarchy(window: Tables, steps: pl.DataFrame | None) -> pl.DataFrame:
    """Modules as operators name them."""
    operators, device = window["host_ops"], window["device_events"]
    owner = launching_operators(device, window["runtime_calls"], operators)
    by_module = operators_by_module(operators)
    by_module = by_module.with_columns(operators["self_ns"][by_module["row"]])
    kept = np.ones(operators.height, dtype=np.bool_)
    if steps is not None:
        kept = range_at(steps, operators["start_ns"].to_numpy()) >= 0
    by_module = by_module.filter(kept[by_module["row"].to_numpy()])
    host = by_module.group_by("path", maintain_order=True).agg(
        pl.lit(None, pl.Int64).alias("calls"),
        pl.col("self_ns").sum().alias("host_total_ns"),
        pl.col("self_ns").filter("innermost").sum().alias("host_self_ns"),
    )
    kernels = device.with_columns(pl.Series("row", owner)).filter(pl.col("row") >= 0)
    launched = kernels.join(by_module, on="row", how="inner").select("start_ns", "end_ns", "path", "innermost")
    return _with_device(host, launched, bool(device.height))


def _with_device(host: pl.DataFrame, launched: pl.DataFrame, has_device: bool) -> pl.DataFrame:
    total = union_length_by(launched, ["path"], "device_total_ns")
    self_time = union_length_by(launched.filter(pl.col("innermost")), ["path"], "device_self_ns")
    count = launched.group_by("path").agg(pl.len().cast(pl.Int64).alias("kernels"))
    names = ("device_total_ns", "device_self_ns", "kernels")
    joined = host
    for part in (total, self_time, count):
        joined = joined.join(part, on="path", how="left", maintain_order="left")
    known = pl.lit(has_device)
    return joined.with_columns(pl.when(known).then(pl.col(name).fill_null(0)).alias(name) for name in names)


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    column = "device_self_ns" if total_of(frame, "device_self_ns") else "host_self_ns"
    total = total_of(frame, column)
    top = top_group(frame, "module", column)
    if top is None:
        return None
    return Headline.of(
        f"Top module by {{where}} self time: {{module}}, {{time}}{over_ranks(frame)} ({{share}} of all modules).",
        module=(top["module"], ""),
        where=("device" if column.startswith("device") else "host", ""),
        time=(top[column], "ns"),
        share=(top[column] / total, "ratio"),
    )


analysis = Analysis(
    name="modules",
    doc=__doc__,
    whole_recording=True,
    columns=COLUMNS,
    per_rank=per_rank,
    headline=headline,
    reads={
        "python_frames": ("start_ns", "end_ns", "name", "pid", "tid", "python_module_id"),
        "host_ops": ("start_ns", "end_ns", "pid", "tid", "parent_row", "self_ns", "module_hierarchy"),
        "device_events": ("start_ns", "end_ns", "launch_row", "launch_ns", "op_row"),
        "runtime_calls": ("pid", "tid"),
        "annotations": ("start_ns", "end_ns", "on_device", "step"),
    },
)
