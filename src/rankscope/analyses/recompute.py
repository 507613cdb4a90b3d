"""Recomputation by activation checkpointing: forward operators that the backward runs again, and their cost.

One row per rank and operator name. An operator is recomputed if it carries a forward's sequence number and is inside
an operator of the backward (one with a forward thread, such as `AddmmBackward0`): that is where a checkpoint's saved
tensors are needed and its forward runs again. Only the outermost of such operators count; nested ones are part of their
time. FSDP's and DDP's hooks are excluded, and so is a function that its own backward calls (`_AlltoAll` in
`_AlltoAllBackward`).

    host   = Σ durations of these operators
    device = |union of the kernels, copies and fills launched inside them|

The shares are of the host's time in the backward (as in `phases`) and of the device time of what was launched there.
Without checkpointing there is no row. `create_graph=True` numbers the operators of the backward too: a gradient of a
gradient then looks like a recomputation.

How to read it: the shares are the cost of the memory that checkpointing saves. Checkpointing every other block halves
it; checkpointing only what is cheap to recompute (selective checkpointing) saves most of it. With memory to spare
(`memory`), checkpoint less.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.call_stack import enclosing, launch_instants, parent_rows, range_at, with_ancestors
from rankscope.primitives.intervals import Int64, union_length_by
from rankscope.primitives.phases import BACKWARD, phase_at, phase_sets
from rankscope.primitives.steps import Bool, host_steps
from rankscope.results import Analysis, Column, Headline, Inputs, Tables, by_window, over_ranks, top_group, total_of

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("name", pl.String, "", "the operator"),
    Column("calls", pl.Int64, "count", "number of recomputations in the backward"),
    Column("forward_calls", pl.Int64, "count", "number of calls with a sequence number outside the backward"),
    Column("host_ns", pl.Int64, "ns", "host time of the recomputations"),
    Column("host_share", pl.Float64, "ratio", "share of the host's time in the backward"),
    Column("device_ns", pl.Int64, "ns", "device time of what they launched; null without a device"),
    Column(
        "device_share",
        pl.Float64,
        "ratio",
        "share of the device time of everything launched in the backward; null without a device",
    ),
    Column("kernels", pl.Int64, "count", "kernels, copies and fills that they launched; null without a device"),
)
_HOOKS = r"^FSDP::|^FullyShardedDataParallel\._"


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """A rank's recomputed operators in all its files."""
    frame = pl.concat(_window_operators(window, inputs) for window in by_window(tables, inputs))
    values = ("calls", "forward_calls", "host_ns", "device_ns", "kernels", "backward_ns", "backward_device_ns")
    merged = frame.group_by("name").agg(
        pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum()).alias(name) for name in values
    )
    shares = (("host_share", "host_ns", "backward_ns"), ("device_share", "device_ns", "backward_device_ns"))
    return (
        merged.with_columns(
            pl.lit(inputs.rank, pl.Int64).alias("rank"),
            *(
                pl.when(pl.col(whole) > 0).then(pl.col(part) / pl.col(whole)).alias(name)
                for name, part, whole in shares
            ),
        )
        .sort("host_ns", "name", descending=[True, False])
        .select(column.name for column in COLUMNS)
    )


def _window_operators(window: Tables, inputs: Inputs) -> pl.DataFrame:
    operators, device = window["host_ops"], window["device_events"]
    recomputed, forward = _recomputed(operators, window["annotations"])
    repeated = operators.select("start_ns", "end_ns", "name", "pid", "tid").filter(pl.Series(recomputed))
    launched = device.filter(pl.col("launch_row").is_not_null())
    others = operators.select("start_ns", "name").filter(pl.Series(forward))
    if inputs.options.steps is not None:
        steps = host_steps(window["annotations"]).filter(inputs.options.keeps(pl.col("step")))
        repeated, others = (
            frame.filter(pl.Series(range_at(steps, frame["start_ns"].to_numpy()) >= 0)) for frame in (repeated, others)
        )
        launched = launched.filter(pl.Series(range_at(steps, launched["launch_ns"].to_numpy()) >= 0))
    sets = phase_sets(operators, window["annotations"], window["python_frames"])
    threads = launch_instants(launched, window["runtime_calls"])
    owner = enclosing(repeated, threads)
    launched_inside = launched.filter(pl.Series(owner >= 0)).with_columns(
        repeated["name"].gather(owner[owner >= 0]).alias("name")
    )
    launched_in_backward = launched.filter(
        phase_at(sets, launched["launch_ns"].to_numpy()).eq(BACKWARD).fill_null(False)
    )
    backward = sets[BACKWARD]
    if inputs.options.steps is not None:
        backward_ns = int(backward.within(steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()).sum())
    else:
        backward_ns = backward.length
    backward_device_ns = union_length_by(launched_in_backward.with_columns(pl.lit(0).alias("all")), ["all"], "ns")[
        "ns"
    ].sum()
    known = pl.lit(bool(device.height))
    return (
        repeated.group_by("name")
        .agg(pl.len().cast(pl.Int64).alias("calls"), (pl.col("end_ns") - pl.col("start_ns")).sum().alias("host_ns"))
        .join(others.group_by("name").agg(pl.len().cast(pl.Int64).alias("forward_calls")), on="name", how="left")
        .join(union_length_by(launched_inside, ["name"], "device_ns"), on="name", how="left")
        .join(launched_inside.group_by("name").agg(pl.len().cast(pl.Int64).alias("kernels")), on="name", how="left")
        .with_columns(
            pl.col("forward_calls").fill_null(0),
            pl.when(known).then(pl.col("device_ns").fill_null(0)).alias("device_ns"),
            pl.when(known).then(pl.col("kernels").fill_null(0)).alias("kernels"),
            pl.lit(backward_ns, pl.Int64).alias("backward_ns"),
            pl.when(known).then(pl.lit(int(backward_device_ns), pl.Int64)).alias("backward_device_ns"),
        )
    )


def _recomputed(operators: pl.DataFrame, annotations: pl.DataFrame) -> tuple[Bool, Bool]:
    """Whether each operator is an outermost recomputed one, and whether it is an original forward."""
    numbered = (operators["sequence"].is_not_null() & (operators["forward_thread"].fill_null(0) == 0)).to_numpy()
    # `evaluate_function` also encloses the hooks; the node itself only its own work.
    engine = operators["name"].str.starts_with("autograd::engine::").fill_null(False)
    node = ((operators["forward_thread"].fill_null(0) > 0) & ~engine).to_numpy()
    candidates = np.flatnonzero(numbered)
    hooks = annotations.filter(~pl.col("on_device") & pl.col("name").str.contains(_HOOKS).fill_null(False))
    instants = operators.select(pl.col("start_ns").alias("time_ns"), "pid", "tid")[candidates]
    position, rows = with_ancestors(parent_rows(operators), candidates)
    inner_node, name = node[rows], operators["name"]
    node_name, own_name = name.gather(rows[inner_node]), name.gather(candidates[position[inner_node]])
    # A function that is its own gradient (an all-to-all) calls itself in its backward: not a recomputation.
    is_own_gradient = (node_name == own_name + "Backward").fill_null(False).to_numpy()

    def operators_at(positions: Int64 | Bool) -> Bool:
        """Which operators these candidates are."""
        chosen = np.zeros(operators.height, dtype=np.bool_)
        chosen[candidates[positions]] = True
        return chosen

    in_node = operators_at(position[inner_node])
    excluded = operators_at(enclosing(hooks, instants) >= 0) | operators_at(position[inner_node][is_own_gradient])
    recomputed = in_node & ~excluded
    outer = rows != candidates[position]
    inner = operators_at(position[outer & recomputed[rows]])
    return recomputed & ~inner, numbered & ~in_node & ~excluded


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    most = top_group(frame, "name", "host_ns")
    if most is None:
        return None
    host = f"{{host}} of host time{over_ranks(frame)}"
    return Headline.of(
        f"Recomputation in the backward: {host}, most of it in {{name}}.",
        host=(total_of(frame, "host_ns"), "ns"),
        name=(most["name"], ""),
    )


analysis = Analysis(
    name="recompute",
    doc=__doc__, whole_recording=True,
    columns=COLUMNS,
    per_rank=per_rank,
    headline=headline,
    reads={
        "host_ops": (
            "start_ns", "end_ns", "name", "pid", "tid", "depth", "parent_row", "sequence", "forward_thread",
            "module_hierarchy",
        ),
        "device_events": ("start_ns", "end_ns", "launch_row", "launch_ns"),
        "runtime_calls": ("pid", "tid"),
        "annotations": ("start_ns", "end_ns", "name", "pid", "tid", "on_device", "step"),
        "python_frames": ("start_ns", "end_ns", "name"),
    },
)  # fmt: skip
