"""Work of each step: every kernel and operator by name, shapes and step.

One row per rank, step, kind, name, shapes and launching operator (by External id, else the innermost one open on the
launching thread); `--by module` has each nn.Module's operators. A kernel's time is the sum of its durations, an
operator's its self time on the host. A kernel belongs to the step in whose range its launch starts, an operator to the
one in which it starts; outside steps, step is null. These are the samples that `rankscope diff` compares, step by step
and rank by rank, so that a change can be compared with the spread.

    kernel:    total = Σ (end − start)
    operator:  total = Σ (end − start − durations of the operators directly inside)

How to read it: a name over the steps of a rank shows its spread. One that differs between ranks in `calls` or `shapes`
is unevenly distributed work; one that differs only in time is a slower device or host.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.activity import with_category
from rankscope.primitives.allocation_sites import allocation_sites
from rankscope.primitives.call_stack import launching_operators
from rankscope.primitives.modules import TOP
from rankscope.primitives.phases import MODULE_FRAME
from rankscope.primitives.steps import host_steps, step_at
from rankscope.results import RANK_AND_WINDOW, Analysis, Column, Inputs, Parameter, Tables, schema_of, steps_by_window

_STEP = Column("step", pl.Int64, "", "the step; null outside steps")
COLUMNS = (
    *RANK_AND_WINDOW,
    _STEP,
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
MODULE_COLUMNS = (
    *RANK_AND_WINDOW,
    _STEP,
    Column("module", pl.String, "", "the module and those enclosing it, outermost first; null outside modules"),
    Column("operator", pl.String, "", "the operator, as recorded"),
    Column("calls", pl.Int64, "count", "number of executions that start in the step"),
    Column("host_self_ns", pl.Int64, "ns", "host time without the operators inside it"),
    Column("device_ns", pl.Int64, "ns", "sum of durations of what it launched; null without a device"),
)
_READS = {
    "device_events": ("start_ns", "end_ns", "launch_row", "launch_ns", "op_row"),
    "host_ops": ("start_ns", "end_ns", "name", "pid", "tid", "parent_row", "self_ns"),
    "runtime_calls": ("pid", "tid"),
    "annotations": ("start_ns", "end_ns", "on_device", "step"),
}


def _work(window: Tables, inputs: Inputs) -> pl.DataFrame:
    device, operators, row = _in_steps(window)
    kernels = with_category(device, inputs.options.communication).select(
        "step", pl.lit("kernel").alias("kind"), "category", "name",
        operators["input_dims"].gather(row).alias("shapes"), operators["name"].gather(row).alias("operator"),
        pl.lit(1).alias("calls"), (pl.col("end_ns") - pl.col("start_ns")).alias("total_ns"),
    )  # fmt: skip
    on_host = operators.select(
        "step", pl.lit("operator").alias("kind"), pl.lit(None, pl.String).alias("category"), "name",
        pl.col("input_dims").alias("shapes"), pl.lit(None, pl.String).alias("operator"),
        pl.lit(1).alias("calls"), pl.col("self_ns").alias("total_ns"),
    )  # fmt: skip
    return _summed(pl.concat([kernels, on_host], how="vertical_relaxed"), "calls", "total_ns")


def _by_module(window: Tables, inputs: Inputs) -> pl.DataFrame:
    frames = window["python_frames"]
    nested = window["host_ops"]["module_hierarchy"].fill_null("") != ""
    if not nested.any() and not frames["name"].str.starts_with(MODULE_FRAME).any():
        return pl.DataFrame(schema=schema_of(MODULE_COLUMNS[2:]))
    device, operators, row = _in_steps(window)
    number = pl.int_range(pl.len(), dtype=pl.Int64)
    sites = allocation_sites(
        operators.select(pl.col("start_ns").alias("time_ns"), "pid", "tid", number.alias("operator_row")),
        operators,
        frames,
    )
    # Operators name modules as `top(Net)::forward.fc(Linear)::forward`.
    path = sites["module"].str.replace_all(r"::\w+", "").str.replace_all(r"\)\.", f"){TOP}")
    host = operators.select(
        "step", path.alias("module"), pl.col("name").alias("operator"),
        pl.lit(1).alias("calls"), pl.col("self_ns").alias("host_self_ns"), pl.lit(0).alias("device_ns"),
    )  # fmt: skip
    on_device = device.select(
        "step", host["module"].gather(row), host["operator"].gather(row),
        pl.lit(0).alias("calls"), pl.lit(0).alias("host_self_ns"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("device_ns"),
    ).filter(row.is_not_null())  # fmt: skip
    both = _summed(pl.concat([host, on_device], how="vertical_relaxed"), "calls", "host_self_ns", "device_ns")
    return both if device.height else both.with_columns(pl.lit(None, pl.Int64).alias("device_ns"))


def _in_steps(window: Tables) -> tuple[pl.DataFrame, pl.DataFrame, pl.Series]:
    """Device events and operators with their steps, and the row of the operator that launched each device event."""
    device, operators, steps = window["device_events"], window["host_ops"], host_steps(window["annotations"])
    owner = pl.Series(launching_operators(device, window["runtime_calls"], operators))
    return (
        device.with_columns(step_at(steps, device["launch_ns"])),
        operators.with_columns(step_at(steps, operators["start_ns"])),
        owner.set(owner < 0, None),
    )


def _summed(rows: pl.DataFrame, *figures: str) -> pl.DataFrame:
    """Sums of the figures by the other columns."""
    keys = [name for name in rows.columns if name not in figures]
    return rows.group_by(keys).agg(pl.col(figures).sum().cast(pl.Int64)).sort(keys, nulls_last=True)


_BY_MODULE = Analysis(
    name="work_by_module",
    doc="""Work of each nn.Module per step: the operators of its forward and backward, on host and device.

One row per rank, step, module and operator (`with_stack` or `with_modules`). An operator belongs to the innermost
module that was running; one of a backward to the module of the forward operator whose gradient it computes, by their
sequence number. Without a module are the loss, the optimizer, and what autograd runs without a sequence number.

    host_self = Σ (end − start − durations of the operators directly inside)
    device    = Σ durations of the kernels, copies and fills that the operators launched

How to read it: the sum over a module's operators is its cost in that step, without that of the modules inside it.
""",
    columns=MODULE_COLUMNS,
    per_rank=steps_by_window(MODULE_COLUMNS, _by_module),
    reads={
        **_READS,
        "host_ops": (*_READS["host_ops"], "sequence", "forward_thread", "module_hierarchy"),
        "python_frames": ("start_ns", "end_ns", "name", "pid", "tid", "python_module_id"),
    },
    in_report=False,
)
analysis = Analysis(
    name="work",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=steps_by_window(COLUMNS, _work),
    reads={
        **_READS,
        "device_events": (*_READS["device_events"], "name", "kind", "is_collective"),
        "host_ops": (*_READS["host_ops"], "input_dims"),
    },
    in_report=False,
    parameters=(Parameter("by", "what a row is", default="name", choices=("name", "module")),),
    views=(_BY_MODULE,),
)
