"""Collectives by group, kind, type and size.

One row per group, collective, element type and size; `--by kind` has each rank's kinds, `--by rank` who arrives first
and last. A row has the number of executions and ranks, the duration on a rank from start to end, and the part of it
spent waiting for later ranks. Bandwidths are over the median transfer, as nccl-tests define them (`collectives`).
`best_bus_bandwidth` is the highest median bus bandwidth that any group of the run reached with this collective, type,
size and placement, and `of_best` is this row's share of it: transfers across hosts are not compared with transfers
within a host. Both use only collectives of which all ranks are known; `measured` counts these.

    algorithm bandwidth = bytes / transfer                     bus bandwidth = algorithm bandwidth · f(n)
    f(n) = 2 (n − 1) / n for all_reduce, (n − 1) / n for all_gather, reduce_scatter and all_to_all, else 1
    of_best = bus bandwidth / best bus bandwidth               n: the group's size

How to read it: rows that are mostly waiting are due to late ranks (`stragglers`). A low `of_best` at a large size is
due to links. Many calls of a small size pay latency each time: combine them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from rankscope.primitives.arrival_skew import arrivals_by_event
from rankscope.primitives.clocks import base_times, with_clock
from rankscope.primitives.communicators import POINT_TO_POINT, parse_group_ranks
from rankscope.primitives.stragglers.waits import SETTLED, with_aligned_arrivals
from rankscope.results import (
    Analysis,
    Column,
    Finding,
    Headline,
    Inputs,
    Parameter,
    greatest,
    incomplete_files,
    over_ranks,
    schema_of,
    top_group,
    total_of,
)
from rankscope.rundir.plurals import plural

_SAME = ("collective", "dtype", "bytes")
_KEY = ("group", "group_size", *_SAME, "placement", "hosts")
_READ = (
    "group", "group_ranks", "group_size", *_SAME, "rank", "match", "duration_ns", "wait_ns", "transfer_ns",
    "algorithm_bandwidth", "bus_bandwidth", "estimate",
)  # fmt: skip
_RANK = Column("rank", pl.Int64, "", "the rank")
_GROUP = Column("group", pl.String, "", "the process group")
_KIND = Column("collective", pl.String, "", "the kind of collective")
COLUMNS = (
    _GROUP,
    Column("group_size", pl.Int64, "ranks", "ranks in the group"),
    _KIND,
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


KIND_COLUMNS = (
    _RANK,
    _KIND,
    Column("calls", pl.Int64, "count", "number of calls"),
    Column("bytes", pl.Int64, "bytes", "sum of full sizes; null if no size is known"),
    Column("mean_bytes", pl.Int64, "bytes", "mean size of a call"),
    Column("total_ns", pl.Int64, "ns", "sum of durations: wait and transfer"),
    Column("mean_ns", pl.Int64, "ns", "mean duration"),
    Column("measured", pl.Int64, "count", "calls of which all ranks are known"),
    Column("transfer_ns", pl.Int64, "ns", "sum of their transfer times"),
    Column("mean_transfer_ns", pl.Int64, "ns", "mean transfer"),
    Column("wait_ns", pl.Int64, "ns", "sum of their time waiting for later ranks"),
    Column("estimate", pl.Boolean, "", "whether transfer and wait are only estimates"),
)
_KIND_READ = ("rank", "collective", "bytes", "duration_ns", "transfer_ns", "wait_ns", "estimate")


def _by_kind(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """Group each rank's collectives by kind."""
    size, duration, transfer = pl.col("bytes"), pl.col("duration_ns"), pl.col("transfer_ns")
    known = transfer.is_not_null()
    frame = (
        inputs.columns("collectives", *_KIND_READ)
        .group_by("rank", "collective")
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            pl.when(size.is_not_null().any()).then(size.sum()).alias("bytes"),
            size.mean().round().cast(pl.Int64).alias("mean_bytes"),
            duration.sum().alias("total_ns"),
            duration.mean().round().cast(pl.Int64).alias("mean_ns"),
            known.sum().cast(pl.Int64).alias("measured"),
            pl.when(known.any()).then(transfer.sum()).alias("transfer_ns"),
            transfer.mean().round().cast(pl.Int64).alias("mean_transfer_ns"),
            pl.when(known.any()).then(pl.col("wait_ns").sum()).alias("wait_ns"),
            pl.when(known.any()).then(pl.col("estimate").filter(known).any()).alias("estimate"),
        )
        .sort("rank", "total_ns", "collective", descending=[False, True, False])
    )
    return frame.select(column.name for column in KIND_COLUMNS), []


def _kind_headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    most = top_group(frame, "collective", "total_ns", "calls")
    if most is None:
        return None
    calls = f"{{calls}} {plural('call', most['calls'])}{over_ranks(frame)}"
    return Headline.of(
        f"Top collective: {{collective}}, {{total}} in {calls}.",
        collective=(most["collective"], ""),
        total=(most["total_ns"], "ns"),
        calls=(most["calls"], "count"),
    )


RANK_COLUMNS = (
    _GROUP,
    _RANK,
    Column("collectives", pl.Int64, "count", "collectives in which its arrival can be compared"),
    Column("first", pl.Int64, "count", "how often it arrived first by more than the residual"),
    Column("last", pl.Int64, "count", "how often it arrived last by more than the residual"),
    Column("between", pl.Int64, "count", "how often neither"),
    Column("last_share", pl.Float64, "ratio", "share of collectives in which it arrived last"),
    Column("mean_place", pl.Float64, "ratio", "mean place among the arrivals: 0 first, 1 last"),
    Column("median_lateness_ns", pl.Int64, "ns", "median lateness; negative if early"),
    Column("max_lateness_ns", pl.Int64, "ns", "largest lateness"),
)


def _by_rank(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """Order the arrivals of each collective, and count by group and rank."""
    rows = _arrivals(inputs)
    if not rows.height:
        return pl.DataFrame(schema=schema_of(RANK_COLUMNS)), []
    found = arrivals_by_event(rows["event"].to_numpy(), rows["arrival_ns"].to_numpy())
    latest = np.zeros(rows.height, dtype=np.bool_)
    latest[found.last] = True
    others = pl.len().over("match") - 1
    rows = rows.with_columns(
        pl.Series("late", found.late),
        pl.Series("latest", latest),
        ((pl.col("arrival_ns").rank("average").over("match") - 1) / others).alias("place"),
        (pl.col("arrival_ns") == pl.col("arrival_ns").min().over("match")).alias("earliest"),
    )
    first = pl.col("earliest") & (pl.col("late") < -pl.col("residual_ns"))
    last = pl.col("latest") & (pl.col("late") > pl.col("residual_ns"))
    frame = (
        rows.group_by("group", "rank")
        .agg(
            pl.len().cast(pl.Int64).alias("collectives"),
            first.sum().cast(pl.Int64).alias("first"),
            last.sum().cast(pl.Int64).alias("last"),
            pl.col("place").mean().alias("mean_place"),
            pl.col("late").median().round().cast(pl.Int64).alias("median_lateness_ns"),
            pl.col("late").max().alias("max_lateness_ns"),
        )
        .with_columns(
            (pl.col("collectives") - pl.col("first") - pl.col("last")).alias("between"),
            (pl.col("last") / pl.col("collectives")).alias("last_share"),
        )
        .sort("group", "rank")
    )
    return frame.select(column.name for column in RANK_COLUMNS), []


def _arrivals(inputs: Inputs) -> pl.DataFrame:
    """The collectives that `stragglers` compares, with their arrivals on the common clock."""
    clock = inputs.results["clock"].select("rank", "offset_ns", "drift_ppm", "at_ns", "residual_ns")
    rows = inputs.columns("collectives", "rank", "window", "group", "match", "collective", "step", "start_ns", "end_ns")
    known = pl.col("match").is_not_null() & pl.col("start_ns").is_not_null()
    rows = rows.filter(known & ~pl.col("collective").is_in(POINT_TO_POINT)).with_columns(SETTLED.alias("settled"))
    rows = rows.join(incomplete_files(inputs.traces), on=["rank", "window"], how="anti", maintain_order="left")
    return with_aligned_arrivals(with_clock(rows, clock, base_times(inputs.traces)))


def _rank_headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    ranks = frame.group_by("rank", maintain_order=True).agg(pl.col("last", "collectives").sum())
    worst = greatest(ranks.with_columns((pl.col("last") / pl.col("collectives")).alias("share")), "share")
    if worst is None:
        return Headline.of("No rank arrives measurably late.") if frame.height else None
    collectives = f"its {{collectives}} {plural('collective', worst['collectives'])}"
    return Headline.of(
        f"Rank {{rank}} arrives last most often: in {{share}} of {collectives}.",
        rank=(worst["rank"], ""),
        share=(worst["share"], "ratio"),
        collectives=(worst["collectives"], "count"),
    )


_BY_KIND = Analysis(
    name="collective_summary_by_kind",
    doc="""Communication operations of each rank by kind: calls, sizes, time, transfer and wait.

One row per rank and kind of collective, the largest total first. Sizes are the full sizes of the operations, as in
`collectives`; calls without a size count only in `calls`. `transfer_ns` and `wait_ns` are sums over the calls of which
all ranks are known (`measured`), null if there is none; `mean_transfer_ns` is over these calls only.

    transfer = Σ shortest duration over the ranks of the call      wait = Σ (duration − transfer of the call)

This is the operations table of the TensorBoard plugin's Distributed view, with its data-transfer time.

How to read it: if transfer is most of the measured time, the cost is due to sizes and links; if wait is, to late ranks.
""",
    whole_recording=True,
    columns=KIND_COLUMNS,
    across_ranks=_by_kind,
    headline=_kind_headline,
    requires=("collectives",),
)
_BY_RANK = Analysis(
    name="collective_summary_by_rank",
    doc="""Order of arrival: which ranks arrive first and last at their collectives.

One row per process group and rank, over the collectives that `stragglers` compares: of the recorded steps (all, if no
step is marked), matched on at least two ranks, without point-to-point operations, the first of a group in a file, and
incomplete files. Arrivals are the collectives' starts on aligned clocks (`clock`). A rank is `first` if it arrived
before the median of the others by more than the clocks' residual and no rank arrived before it, `last` if it arrived
after the median by more than the residual and no rank arrived after it. Arrivals within the residual are neither, so
the two need not sum to the number of collectives.

    place     = 0 for the first arrival at a collective, 1 for the last, evenly spaced in between
    lateness  = arrival minus the median of the *other* ranks' arrivals, negative for early ranks

How to read it: a rank that is last in most collectives of every group is slow itself (`stragglers` shows why); one that
is last in only one group is delayed by that group, or far from it in the network.
""",
    columns=RANK_COLUMNS,
    across_ranks=_by_rank,
    headline=_rank_headline,
    requires=("collectives", "clock"),
)
analysis = Analysis(
    name="collective_summary",
    doc=__doc__,
    whole_recording=True,
    columns=COLUMNS,
    across_ranks=across_ranks,
    requires=("collectives",),
    headline=headline,
    shown_empty=True,
    parameters=(Parameter("by", "what a row is", default="size", choices=("size", "kind", "rank")),),
    views=(_BY_KIND, _BY_RANK),
)
