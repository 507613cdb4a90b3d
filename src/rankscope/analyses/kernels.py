"""Each kernel of each rank: how often it ran and how long it took.

One row per rank and kernel name (copies and fills too). Durations are from start to end, so kernels that run at once
count each. `blocks_per_sm` and `occupancy` are means weighted by duration over the launches that carry them; null where
the vendor writes none. `std_ns` is the sample's standard deviation, null for a single call.
`--steps` keeps kernels whose launch starts in the chosen steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from rankscope.primitives.activity import with_category
from rankscope.primitives.steps import host_steps, launched_in
from rankscope.results import Analysis, Column, Finding, Inputs, Tables, by_window, concat_ranks

COLUMNS = (
    Column("rank", "", "the rank"),
    Column("name", "", "the kernel, as written"),
    Column("category", "", "compute, communication or memory"),
    Column("calls", "count", "how often it ran"),
    Column("total_ns", "ns", "time in it, summed"),
    Column("share", "ratio", "of the time in all kernels of the rank, summed"),
    Column("mean_ns", "ns", "mean duration"),
    Column("min_ns", "ns", "least duration"),
    Column("median_ns", "ns", "median duration"),
    Column("max_ns", "ns", "greatest duration"),
    Column("std_ns", "ns", "standard deviation of the durations (n − 1); null for a single call"),
    Column("blocks_per_sm", "", "blocks per multiprocessor, weighted by duration"),
    Column("occupancy", "%", "estimated achieved occupancy, weighted by duration"),
)


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The kernels of a rank."""
    device = tables["device_events"]
    if inputs.options.steps is not None:
        keep = inputs.options.keeps(pl.col("step"))
        device = pl.concat(
            launched_in(window["device_events"], host_steps(window["annotations"]), keep)
            for window in by_window(tables, inputs)
        )
    duration = pl.col("duration")
    return (
        with_category(device, inputs.options.communication)
        .with_columns((pl.col("end_ns") - pl.col("start_ns")).alias("duration"))
        .group_by("name", "category")
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            duration.sum().alias("total_ns"),
            duration.mean().alias("mean_ns"),
            duration.min().alias("min_ns"),
            duration.median().alias("median_ns"),
            duration.max().alias("max_ns"),
            duration.std().alias("std_ns"),
            _weighted("blocks_per_sm"),
            _weighted("occupancy"),
        )
        .with_columns(
            pl.lit(inputs.rank, pl.Int64).alias("rank"),
            pl.when(pl.col("total_ns").sum() > 0).then(pl.col("total_ns") / pl.col("total_ns").sum()).alias("share"),
        )
        .sort("total_ns", "name", "category", descending=[True, False, False])
        .select(column.name for column in COLUMNS)
    )


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """The ranks below one another."""
    return concat_ranks(parts, COLUMNS), []


def _weighted(name: str) -> pl.Expr:
    value, weight = pl.col(name).cast(pl.Float64), pl.col("duration").filter(pl.col(name).is_not_null())
    mean = (value.drop_nulls() * weight).sum() / weight.sum()
    return pl.when(weight.sum() > 0).then(mean).otherwise(None).alias(name)


analysis = Analysis(
    name="kernels",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    across_ranks=across_ranks,
    reads={
        "device_events": (
            "start_ns",
            "end_ns",
            "name",
            "kind",
            "is_collective",
            "launch_ns",
            "blocks_per_sm",
            "occupancy",
        ),
        "annotations": ("start_ns", "end_ns", "on_device", "step"),
    },
)
