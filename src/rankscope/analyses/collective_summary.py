"""Collectives by group, kind, type and size.

One row per group, collective, element type and size: number of executions and ranks, duration on a rank from start to
end, and the part of it spent waiting for later ranks. Bandwidths are over the median transfer, as nccl-tests define
them (`collectives`). `best_bus_bandwidth` is the highest median bus bandwidth that any group of the run reached with
this collective, type, size and placement, and `of_best` is this row's share of it: transfers across hosts are not
compared with transfers within a host. Both use only collectives of which all ranks are known; `measured` counts these.

    algorithm bandwidth = bytes / transfer                     bus bandwidth = algorithm bandwidth · f(n)
    f(n) = 2 (n − 1) / n for all_reduce, (n − 1) / n for all_gather, reduce_scatter and all_to_all, else 1
    of_best = bus bandwidth / best bus bandwidth               n: the group's size

How to read it: rows that are mostly waiting are due to late ranks (`stragglers`). A low `of_best` at a large size is
due to links. Many calls of a small size pay latency each time: combine them.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from rankscope.primitives.communicators import parse_group_ranks
from rankscope.results import Analysis, Column, Finding, Headline, Inputs, greatest, total_of

_SAME = ("collective", "dtype", "bytes")
_KEY = ("group", "group_size", *_SAME, "placement", "hosts")
_READ = (
    "group", "group_ranks", "group_size", *_SAME, "rank", "match", "duration_ns", "wait_ns", "transfer_ns",
    "algorithm_bandwidth", "bus_bandwidth", "estimate",
)  # fmt: skip
COLUMNS = (
    Column("group", pl.String, "", "the process group"),
    Column("group_size", pl.Int64, "ranks", "ranks in the group"),
    Column("collective", pl.String, "", "the kind of collective"),
    Column("dtype", pl.String, "", "element type"),
    Column("bytes", pl.Int64, "bytes", "full size of the operation; null if not recorded"),
    Column("ranks", pl.Int64, "count", "ranks that ran it"),
    Column("count", pl.Int64, "count", "number of executions, over all ranks"),
    Column("total_ns", pl.Int64, "ns", "sum of durations over all ranks"),
    Column("mean_ns", pl.Float64, "ns", "mean duration"),
    Column("min_ns", pl.Int64, "ns", "shortest duration"),
    Column("median_ns", pl.Float64, "ns", "median duration"),
    Column("p90_ns", pl.Float64, "ns", "90th percentile of durations"),
    Column("max_ns", pl.Int64, "ns", "longest duration"),
    Column("measured", pl.Int64, "count", "collectives of which all ranks are known"),
    Column("wait_ns", pl.Int64, "ns", "time waiting for later ranks, summed over all ranks; null if not known"),
    Column("median_wait_ns", pl.Float64, "ns", "median wait of a rank"),
    Column("p90_wait_ns", pl.Float64, "ns", "90th percentile of a rank's wait"),
    Column("transfer_ns", pl.Float64, "ns", "median transfer"),
    Column("algorithm_bandwidth", pl.Float64, "GB/s", "bytes divided by the median transfer"),
    Column("bus_bandwidth", pl.Float64, "GB/s", "bandwidth of the busiest link, as nccl-tests define it"),
    Column(
        "best_bus_bandwidth",
        pl.Float64,
        "GB/s",
        "best bus bandwidth of any group of the run with this collective, type, size and placement",
    ),
    Column("of_best", pl.Float64, "ratio", "bus bandwidth divided by the best"),
    Column("placement", pl.String, "", "`within hosts` or `across hosts`, if the hosts of all its ranks are known"),
    Column("hosts", pl.Int64, "count", "number of hosts of its ranks; null if one is not known"),
    Column("estimate", pl.Boolean, "", "whether wait and transfer are only estimates"),
)


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """Group the collectives of all ranks, one kind after another: the rows of all kinds take much memory."""
    groups = _placed(inputs.distinct("collectives", "group", "group_ranks", "rank", "group_size"), inputs)
    kinds = inputs.distinct("collectives", "collective")["collective"].to_list() or [None]
    frames = [_of_kind(kind, groups, inputs) for kind in kinds]
    frame = (
        pl.concat(frames)
        .with_columns(pl.col("bus_bandwidth").max().over(*_SAME, "placement").alias("best_bus_bandwidth"))
        .with_columns(
            (pl.col("bus_bandwidth") / pl.col("best_bus_bandwidth")).alias("of_best"),
            pl.when(pl.col("measured") > 0).then("estimate").alias("estimate"),
        )
        .sort("total_ns", *_KEY, descending=[True] + [False] * len(_KEY))
    )
    return frame.select(column.name for column in COLUMNS), []


def _of_kind(kind: str | None, groups: pl.DataFrame, inputs: Inputs) -> pl.DataFrame:
    """The collectives of a kind by group, type and size.

    Args:
        kind: of collective.
        groups: the result of `_placed`.
        inputs: with the result of `collectives`.
    """
    duration, wait = pl.col("duration_ns"), pl.col("wait_ns")
    known = wait.is_not_null()
    rows = inputs.columns("collectives", *_READ, where=pl.col("collective").eq_missing(pl.lit(kind, pl.String)))
    return (
        rows.join(groups, on=["group", "group_ranks"], how="left", nulls_equal=True)
        .group_by(_KEY)
        .agg(
            pl.col("rank").n_unique().cast(pl.Int64).alias("ranks"),
            pl.len().cast(pl.Int64).alias("count"),
            duration.sum().alias("total_ns"),
            duration.mean().alias("mean_ns"),
            duration.min().alias("min_ns"),
            duration.median().alias("median_ns"),
            duration.quantile(0.9, "linear").alias("p90_ns"),
            duration.max().alias("max_ns"),
            pl.col("match").filter(known).n_unique().cast(pl.Int64).alias("measured"),
            pl.when(known.any()).then(wait.sum()).alias("wait_ns"),
            wait.median().alias("median_wait_ns"),
            wait.quantile(0.9, "linear").alias("p90_wait_ns"),
            # Every rank of a collective carries the same transfer and bandwidths.
            *(
                pl.col(name).filter(known).median().alias(name)
                for name in ("transfer_ns", "algorithm_bandwidth", "bus_bandwidth")
            ),
            pl.col("estimate").any().alias("estimate"),
        )
    )


def _placed(collectives: pl.DataFrame, inputs: Inputs) -> pl.DataFrame:
    """The number of hosts of each group: group, group_ranks, hosts, placement; null if a rank's host is unknown.

    Args:
        collectives: group, group_ranks, rank, group_size.
        inputs: with the traces.
    """
    host_of = {info.rank: info.host for info in inputs.traces if info.host and info.rank is not None}
    groups = collectives.group_by("group", "group_ranks").agg(
        pl.col("rank").unique(), pl.col("group_size").max().alias("size")
    )
    counts: list[int | None] = []
    for text, seen, size in groups.select("group_ranks", "rank", "size").iter_rows():
        listed = parse_group_ranks(text) if text is not None else None
        # Without listed ranks, several groups may share a name, unless the ranks seen match the size.
        ranks = listed if listed is not None else tuple(seen) if len(seen) == size else ()
        hosts = {host_of.get(rank) for rank in ranks}
        counts.append(len(hosts) if hosts and None not in hosts else None)
    number = pl.Series("hosts", counts, dtype=pl.Int64)
    within = pl.when(number == 1).then(pl.lit("within hosts")).when(number > 1).then(pl.lit("across hosts"))
    return groups.select("group", "group_ranks").with_columns(number, within.alias("placement"))


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    most, total = greatest(frame, "total_ns"), total_of(frame, "total_ns")
    if most is None:
        return None
    values = {
        "collective": (most["collective"], ""),
        "total": (most["total_ns"], "ns"),
        "share": (most["total_ns"] / total, "ratio"),
    }
    text = "Top collective: {collective}, {total} summed over the ranks ({share} of all collectives)"
    if most["bytes"]:
        text, values["bytes"] = text.replace("{collective}", "{collective} of {bytes}"), (most["bytes"], "bytes")
    if most["wait_ns"] is None:
        return Headline.of(f"{text}.", **values)
    if not most["wait_ns"]:
        return Headline.of(f"{text}; none of it is waiting for later ranks.", **values)
    return Headline.of(f"{text}, of which {{wait}} is waiting for later ranks.", wait=(most["wait_ns"], "ns"), **values)


analysis = Analysis(
    name="collective_summary",
    doc=__doc__,
    whole_recording=True,
    columns=COLUMNS,
    across_ranks=across_ranks,
    requires=("collectives",),
    headline=headline,
    shown_empty=True,
)
