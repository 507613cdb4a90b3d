"""Kernels of each rank: calls, durations, and launch configuration.

One row per rank and kernel name (copies and fills too); `--by shape` also groups by launch configuration (grid, block,
registers, shared memory), `--by operator` by the operator that launched it. Durations are from start to end, so
concurrent kernels each count in full. `blocks_per_sm` and `occupancy` are means weighted by duration over the launches
that record them; null where the vendor records none (AMD, some engines). `std_ns` is the sample standard deviation,
null for a single call. `launched_by` is the operator with most of the row's time: by External id, else the innermost
one open on the launching thread; null if there was none, or the launch is not in the trace.

    unfilled  = Σ time in which it runs alone on its device · (1 − blocks per SM), over launches with less than one,
                in complete steps if the trace has steps
    share     = total / Σ total of all kernels, copies and fills of the rank
    occupancy = Σ occupancy · duration / Σ duration, over launches that record it; blocks_per_sm likewise

How to read it: many calls with a small mean are launches that could be fused. Below one block per multiprocessor the
grid is too small for the device; a low occupancy with many registers or much shared memory is a limit of the kernel.
`--steps` keeps kernels whose launch starts in the selected steps; `--match` those whose name matches.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.activity import with_category
from rankscope.primitives.call_stack import launching_operators
from rankscope.primitives.hashed_names import names_without_hashes, with_shared_names
from rankscope.primitives.unfilled import unfilled_time
from rankscope.results import (
    Analysis,
    Column,
    Headline,
    Inputs,
    Parameter,
    Tables,
    by_window,
    chosen_launches,
    in_steps,
    over_ranks,
    step_keys,
    top_group,
    total_of,
)
from rankscope.rundir.plurals import plural

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("name", pl.String, "", "the kernel, as recorded"),
    Column("category", pl.String, "", "compute, communication or memory"),
    Column("calls", pl.Int64, "count", "number of executions"),
    Column("steps", pl.Int64, "count", "steps that launched it; 0 if the trace has no steps"),
    Column("total_ns", pl.Int64, "ns", "sum of durations"),
    Column("share", pl.Float64, "ratio", "share of the rank's time in all kernels, copies and fills"),
    Column("mean_ns", pl.Float64, "ns", "mean duration"),
    Column("min_ns", pl.Int64, "ns", "shortest duration"),
    Column("median_ns", pl.Float64, "ns", "median duration"),
    Column("max_ns", pl.Int64, "ns", "longest duration"),
    Column("std_ns", pl.Float64, "ns", "standard deviation of the durations (n − 1); null for a single call"),
    Column("blocks_per_sm", pl.Float64, "", "blocks per SM, weighted by duration"),
    Column(
        "unfilled_ns",
        pl.Int64,
        "ns",
        "time on SMs without a block while it ran alone, in complete steps; null where blocks are not recorded",
    ),
    Column("occupancy", pl.Float64, "%", "estimated achieved occupancy, weighted by duration"),
    Column("longest_ns", pl.Int64, "ns", "duration of the longest call that a step launched; of any, if none did"),
    Column("longest_start_ns", pl.Int64, "ns", "when that call starts", instant=True),
    Column("window", pl.Int64, "", "index of the rank's trace file with that call, from 0"),
    Column("launched_by", pl.String, "", "the operator with most of its time; with `--by operator` the operator"),
    Column("grid", pl.String, "", "launch grid, as compact JSON; null unless `--by shape`"),
    Column("block", pl.String, "", "launch block; null unless `--by shape`"),
    Column("registers", pl.Int64, "", "registers per thread; null unless `--by shape`"),
    Column("shared_memory", pl.Int64, "bytes", "shared memory per block; null unless `--by shape`"),
)
_FIRST = 1 << 60
"""More than any duration: calls in steps come before others."""
_SHAPE = ("grid", "block", "registers", "shared_memory")
_KEYS: dict[object, tuple[str, ...]] = {"name": (), "shape": _SHAPE, "operator": ("launched_by",)}


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The kernels of a rank."""
    by = inputs.parameters.get("by", "name")
    device = pl.concat(
        _with_launcher(window, number, inputs) for number, window in enumerate(by_window(tables, inputs))
    )
    keys = ("name", "category", *_KEYS[by])
    duration = pl.col("duration")
    longest = (duration + pl.col("step_key").is_not_null().cast(pl.Int64) * _FIRST).arg_max()
    by_operator = device.group_by(*keys, "launched_by", maintain_order=True) if by != "operator" else None
    frame = device.group_by(keys, maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("calls"),
        pl.col("step_key").drop_nulls().n_unique().cast(pl.Int64).alias("steps"),
        duration.sum().alias("total_ns"),
        duration.mean().alias("mean_ns"),
        duration.min().alias("min_ns"),
        duration.median().alias("median_ns"),
        duration.max().alias("max_ns"),
        duration.std().alias("std_ns"),
        _weighted("blocks_per_sm"),
        pl.when(pl.col("unfilled").is_not_null().any())
        .then(pl.col("unfilled").sum().round())
        .cast(pl.Int64)
        .alias("unfilled_ns"),
        _weighted("occupancy"),
        duration.get(longest).alias("longest_ns"),
        pl.col("start_ns").get(longest).alias("longest_start_ns"),
        pl.col("window").get(longest).cast(pl.Int64),
    )
    if by_operator is not None:
        launchers = (
            by_operator.agg(duration.sum())
            .filter(pl.col("launched_by").is_not_null())
            .sort("duration", "launched_by", descending=[True, False])
            .unique(keys, keep="first", maintain_order=True)
            .drop("duration")
        )
        frame = frame.join(launchers, on=keys, how="left", nulls_equal=True, maintain_order="left")
    frame = frame.with_columns(
        pl.lit(inputs.rank, pl.Int64).alias("rank"),
        pl.when(pl.col("total_ns").sum() > 0).then(pl.col("total_ns") / pl.col("total_ns").sum()).alias("share"),
        *(pl.lit(None, device.schema[name]).alias(name) for name in _SHAPE if by != "shape"),
    )
    if inputs.parameters.get("match") is not None:
        frame = frame.filter(pl.col("name").str.contains(f"(?i){inputs.parameters['match']}"))
    order = ("total_ns", "name", "category", "launched_by", *_SHAPE)
    return frame.sort(order, descending=[True, *([False] * 7)]).select(column.name for column in COLUMNS)


def _with_launcher(window: Tables, number: int, inputs: Inputs) -> pl.DataFrame:
    """The device events of the selected steps with step, category, duration, and the operator that launched them."""
    device = chosen_launches(_with_unfilled(window), window["annotations"], inputs)
    operators = window["host_ops"]
    owner = pl.Series(launching_operators(device, window["runtime_calls"], operators))
    return with_shared_names(with_category(device, inputs.options.communication)).with_columns(
        step_keys(device["launch_ns"], window["annotations"], number).alias("step_key"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("duration"),
        names_without_hashes(operators["name"].gather(owner.set(owner < 0, None))).alias("launched_by"),
    )


def _with_unfilled(window: Tables) -> pl.DataFrame:
    """Device events with the time on SMs without a block, in complete steps."""
    device = window["device_events"]
    counted = in_steps(device["launch_ns"], window["annotations"])
    return device.with_columns((unfilled_time(device) * counted).alias("unfilled"))


def _weighted(name: str) -> pl.Expr:
    value, weight = pl.col(name).cast(pl.Float64), pl.col("duration").filter(pl.col(name).is_not_null())
    mean = (value.drop_nulls() * weight).sum() / weight.sum()
    return pl.when(weight.sum() > 0).then(mean).otherwise(None).alias(name)


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    total = total_of(frame, "total_ns")
    top = top_group(frame, "name", "total_ns", "calls")
    if top is None:
        return None
    calls = f"{{calls}} {plural('call', top['calls'])}{over_ranks(frame)}"
    return Headline.of(
        f"Top kernel: {{name}}, {{share}} of the time in kernels, copies and fills ({{total}} in {calls}).",
        name=(top["name"], ""),
        share=(top["total_ns"] / total, "ratio"),
        total=(top["total_ns"], "ns"),
        calls=(top["calls"], "count"),
    )


analysis = Analysis(
    name="kernels",
    doc=__doc__,
    whole_recording=True,
    columns=COLUMNS,
    per_rank=per_rank,
    reads={
        "device_events": (
            "start_ns",
            "end_ns",
            "name",
            "kind",
            "is_collective",
            "device",
            "op_row",
            "launch_row",
            "launch_ns",
            "blocks_per_sm",
            "occupancy",
            "grid",
            "block",
            "registers",
            "shared_memory",
        ),
        "host_ops": ("start_ns", "end_ns", "name", "pid", "tid", "parent_row"),
        "runtime_calls": ("pid", "tid"),
        "annotations": ("start_ns", "end_ns", "on_device", "step"),
    },
    parameters=(
        Parameter("match", "only kernels whose name matches, ignoring case", kind="regex"),
        Parameter("by", "what to group rows by", default="name", choices=("name", "shape", "operator")),
    ),
    headline=headline,
    shown_empty=True,
)
