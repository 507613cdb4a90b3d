"""Collectives by group, kind, type and size.

One row per group, collective, element type and size: how often each ran, on how many ranks, how long it took on a rank
from start to end, and how much of that was waiting for later ranks. Bandwidths are over the median transfer, as
nccl-tests define them (`collectives`); `best_bus_bandwidth` is the greatest median bus bandwidth that any group of the
run reached with this collective, type and size, and `of_best` how near this one comes. They rest only on collectives
of which all ranks are known; `measured` says how many those are.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from rankscope.results import Analysis, Column, Finding, Inputs, Tables

_SAME = ("collective", "dtype", "bytes")
_KEY = ("group", "group_size", *_SAME)
COLUMNS = (
    Column("group", "", "the process group"),
    Column("group_size", "ranks", "ranks in the group"),
    Column("collective", "", "which collective"),
    Column("dtype", "", "type of the elements"),
    Column("bytes", "bytes", "full size of the operation; null where the trace does not say"),
    Column("ranks", "count", "ranks that ran it"),
    Column("count", "count", "how often it ran, over all ranks"),
    Column("total_ns", "ns", "time in it, summed over all ranks"),
    Column("mean_ns", "ns", "mean duration"),
    Column("min_ns", "ns", "least duration"),
    Column("median_ns", "ns", "median duration"),
    Column("max_ns", "ns", "greatest duration"),
    Column("measured", "count", "collectives of which all ranks are known"),
    Column("wait_ns", "ns", "time spent waiting for later ranks, summed over all ranks; null where none is known"),
    Column("transfer_ns", "ns", "median transfer"),
    Column("algorithm_bandwidth", "GB/s", "bytes over the median transfer"),
    Column("bus_bandwidth", "GB/s", "the same for what the busiest link carries"),
    Column("best_bus_bandwidth", "GB/s", "the best that a group of the run reached with this collective and size"),
    Column("of_best", "ratio", "bus bandwidth over the best"),
    Column("estimate", "", "whether wait and transfer are only a hint"),
)


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """Nothing: it reads the collectives' result alone."""
    return pl.DataFrame()


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """Group the collectives of all ranks."""
    duration, wait = pl.col("duration_ns"), pl.col("wait_ns")
    known = wait.is_not_null()
    frame = (
        inputs.results["collectives"]
        .group_by(_KEY)
        .agg(
            pl.col("rank").n_unique().cast(pl.Int64).alias("ranks"),
            pl.len().cast(pl.Int64).alias("count"),
            duration.sum().alias("total_ns"),
            duration.mean().alias("mean_ns"),
            duration.min().alias("min_ns"),
            duration.median().alias("median_ns"),
            duration.max().alias("max_ns"),
            pl.col("match").filter(known).n_unique().cast(pl.Int64).alias("measured"),
            pl.when(known.any()).then(wait.sum()).alias("wait_ns"),
            # Every rank of a collective carries the same transfer and bandwidths.
            *(
                pl.col(name).filter(known).median().alias(name)
                for name in ("transfer_ns", "algorithm_bandwidth", "bus_bandwidth")
            ),
            pl.col("estimate").any().alias("estimate"),
        )
        .with_columns(pl.col("bus_bandwidth").max().over(_SAME).alias("best_bus_bandwidth"))
        .with_columns(
            (pl.col("bus_bandwidth") / pl.col("best_bus_bandwidth")).alias("of_best"),
            pl.when(pl.col("measured") > 0).then("estimate").alias("estimate"),
        )
        .sort("total_ns", *_KEY, descending=[True] + [False] * len(_KEY))
    )
    return frame.select(column.name for column in COLUMNS), []


analysis = Analysis(
    name="collective_summary",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    across_ranks=across_ranks,
    requires=("collectives",),
)
