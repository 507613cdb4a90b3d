"""Work of each step: every kernel and operator by name, shapes and step.

One row per rank, step, kind, name, shapes and launching operator (by External id, else the innermost one open on the
launching thread). A kernel's time is the sum of its durations, an operator's its self time on the host: its duration
minus the operators inside it. A kernel belongs to the step in whose range its launch starts, an operator to the one in
which it starts; outside steps, step is null. These are the samples that `rankscope diff` compares, step by step and
rank by rank, so that a change can be compared with the spread.

    kernel:    total = Σ (end − start)
    operator:  total = Σ (end − start − durations of the operators directly inside)

How to read it: a name over the steps of a rank shows its spread. One that differs between ranks in `calls` or `shapes`
is unevenly distributed work; one that differs only in time is a slower device or host.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.activity import with_category
from rankscope.primitives.call_stack import launching_operators
from rankscope.primitives.steps import host_steps, step_at
from rankscope.results import RANK_AND_WINDOW, Analysis, Column, Inputs, Tables, steps_by_window

COLUMNS = (
    *RANK_AND_WINDOW,
    Column("step", pl.Int64, "", "the step; null outside steps"),
    Column("kind", pl.String, "", "`kernel` (copies and fills too) or `operator`"),
    Column("category", pl.String, "", "for a kernel: compute, communication or memory"),
    Column("name", pl.String, "", "the kernel or operator, as recorded"),
    Column(
        "shapes", pl.String, "", "shapes of the operator's inputs; for a kernel those of the operator that launched it"
    ),
    Column("operator", pl.String, "", "for a kernel: the operator that launched it"),
    Column("calls", pl.Int64, "count", "number of executions"),
    Column("total_ns", pl.Int64, "ns", "sum of a kernel's durations, or of an operator's host self time"),
)
_KEYS = ("step", "kind", "category", "name", "shapes", "operator")


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """A rank's kernels and operators, window by window."""
    return steps_by_window(tables, inputs, COLUMNS, _window_work)


def _window_work(window: Tables, inputs: Inputs) -> pl.DataFrame:
    device, operators = window["device_events"], window["host_ops"]
    steps = host_steps(window["annotations"])
    owner = pl.Series(launching_operators(device, window["runtime_calls"], operators))
    row = owner.set(owner < 0, None)
    kernels = with_category(device, inputs.options.communication).select(
        step_at(steps, device["launch_ns"]), pl.lit("kernel").alias("kind"), "category", "name",
        operators["input_dims"].gather(row).alias("shapes"), operators["name"].gather(row).alias("operator"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("total_ns"),
    )  # fmt: skip
    on_host = operators.with_columns(step_at(steps, operators["start_ns"])).select(
        "step", pl.lit("operator").alias("kind"), pl.lit(None, pl.String).alias("category"), "name",
        pl.col("input_dims").alias("shapes"), pl.lit(None, pl.String).alias("operator"),
        pl.col("self_ns").alias("total_ns"),
    )  # fmt: skip
    frame = pl.concat([kernels, on_host], how="vertical_relaxed")
    return (
        frame.group_by(*_KEYS)
        .agg(pl.len().cast(pl.Int64).alias("calls"), pl.col("total_ns").sum())
        .sort(*_KEYS, nulls_last=True)
    )


analysis = Analysis(
    name="work",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    reads={
        "device_events": ("start_ns", "end_ns", "name", "kind", "is_collective", "launch_row", "launch_ns", "op_row"),
        "host_ops": ("start_ns", "end_ns", "name", "pid", "tid", "parent_row", "input_dims", "self_ns"),
        "runtime_calls": ("pid", "tid"),
        "annotations": ("start_ns", "end_ns", "on_device", "step"),
    },
    in_report=False,
)
