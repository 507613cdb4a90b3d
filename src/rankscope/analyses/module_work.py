"""Work of each nn.Module per step: the operators of its forward and backward, on host and device.

One row per rank, step, module and operator (`with_stack` or `with_modules`). An operator belongs to the innermost
module that was running; one of a backward to the module of the forward operator whose gradient it computes, by their
sequence number. Without a module are the loss, the optimizer, and what autograd runs without a sequence number.

    host_self = Σ (end − start − durations of the operators directly inside)
    device    = Σ durations of the kernels, copies and fills that the operators launched

An operator belongs to the step in which it starts, a kernel to the one in which it is launched. These are the samples
by which `rankscope diff` compares modules, step by step and rank by rank.

How to read it: the sum over a module's operators is its cost in that step, without that of the modules inside it.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.allocation_sites import allocation_sites
from rankscope.primitives.call_stack import launching_operators
from rankscope.primitives.modules import TOP
from rankscope.primitives.phases import MODULE_FRAME
from rankscope.primitives.steps import host_steps, step_at
from rankscope.results import RANK_AND_WINDOW, Analysis, Column, Inputs, Tables, schema_of, steps_by_window

COLUMNS = (
    *RANK_AND_WINDOW,
    Column("step", pl.Int64, "", "the step; null outside steps"),
    Column("module", pl.String, "", "the module and those enclosing it, outermost first; null outside modules"),
    Column("operator", pl.String, "", "the operator, as recorded"),
    Column("calls", pl.Int64, "count", "number of executions that start in the step"),
    Column("host_self_ns", pl.Int64, "ns", "host time without the operators inside it"),
    Column("device_ns", pl.Int64, "ns", "sum of durations of what it launched; null without a device"),
)
_KEYS = ("step", "module", "operator")


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """A rank's modules, window by window; nothing where no module is recorded."""
    return steps_by_window(tables, inputs, COLUMNS, _of_window)


def _of_window(window: Tables, inputs: Inputs) -> pl.DataFrame:
    operators, device, frames = window["host_ops"], window["device_events"], window["python_frames"]
    nested = operators["module_hierarchy"].fill_null("") != ""
    if not nested.any() and not frames["name"].str.starts_with(MODULE_FRAME).any():
        return pl.DataFrame(schema=schema_of(COLUMNS[2:]))
    steps = host_steps(window["annotations"])
    row = pl.int_range(pl.len(), dtype=pl.Int64)
    sites = allocation_sites(
        operators.select(pl.col("start_ns").alias("time_ns"), "pid", "tid", row.alias("operator_row")),
        operators,
        frames,
    )
    # Operators name modules as `top(Net)::forward.fc(Linear)::forward`.
    path = sites["module"].str.replace_all(r"::\w+", "").str.replace_all(r"\)\.", f"){TOP}")
    named = operators.select(path.alias("module"), pl.col("name").alias("operator"), "self_ns", "start_ns")
    host = (
        named.with_columns(step_at(steps, named["start_ns"]))
        .group_by(*_KEYS)
        .agg(pl.len().cast(pl.Int64).alias("calls"), pl.col("self_ns").sum().alias("host_self_ns"))
    )
    owner = launching_operators(device, window["runtime_calls"], operators)
    launched = device.filter(pl.Series(owner >= 0))
    by = named.select("module", "operator")[owner[owner >= 0]]
    on_device = (
        by.with_columns(
            step_at(steps, launched["launch_ns"]), (launched["end_ns"] - launched["start_ns"]).alias("device_ns")
        )
        .group_by(*_KEYS)
        .agg(pl.col("device_ns").sum())
    )
    joined = host.join(on_device, on=list(_KEYS), how="full", coalesce=True, nulls_equal=True)
    return joined.with_columns(
        pl.col("calls", "host_self_ns").fill_null(0),
        pl.col("device_ns").fill_null(0) if device.height else pl.lit(None, pl.Int64).alias("device_ns"),
    ).sort(*_KEYS, nulls_last=True)


analysis = Analysis(
    name="module_work",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    reads={
        "host_ops": (
            "start_ns", "end_ns", "name", "pid", "tid", "parent_row", "self_ns", "sequence", "forward_thread",
            "module_hierarchy",
        ),
        "device_events": ("start_ns", "end_ns", "launch_row", "launch_ns", "op_row"),
        "runtime_calls": ("pid", "tid"),
        "python_frames": ("start_ns", "end_ns", "name", "pid", "tid", "python_module_id"),
        "annotations": ("start_ns", "end_ns", "on_device", "step"),
    },
    in_report=False,
)  # fmt: skip
