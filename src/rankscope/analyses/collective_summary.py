"""Collectives by group, kind, type and size.

One row per group, collective, element type and size: how often each ran, on how many ranks, and how long it took on a
rank from start to end, which includes waiting for the slowest rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from rankscope.results import Analysis, Column, Finding, Inputs, Tables

_KEY = ("group", "group_size", "collective", "dtype", "bytes")
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
)


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """Nothing: it reads the collectives' result alone."""
    return pl.DataFrame()


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """Group the collectives of all ranks."""
    duration = pl.col("duration_ns")
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
