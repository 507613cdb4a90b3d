"""Wait and transfer of each collective, and the bandwidth of the transfer.

The last rank to arrive at a collective does not wait, so the shortest duration over all of its ranks is the transfer,
and the rest of a rank's duration is its wait. All ranks must be known: without the last one, some of the others' wait
would count as transfer.

In: durations of collectives by rank, sizes. Out: wait, transfer and bandwidths.
"""

from __future__ import annotations

import polars as pl

# Ranks need not start and end together here, so wait and transfer are only estimates.
ESTIMATES = (
    "all_to_all", "send_recv", "send", "recv", "broadcast", "reduce", "gather", "scatter",
    "dispatch", "combine", "notify", "coalesced", "unknown",
)  # fmt: skip

# Bytes that cross the busiest link for each byte of the size S, as nccl-tests define them; n is the group's size.
_N = pl.col("group_size")
_BUS = {
    "all_reduce": 2 * (_N - 1) / _N,
    "all_gather": (_N - 1) / _N,
    "reduce_scatter": (_N - 1) / _N,
    "all_to_all": (_N - 1) / _N,
    "broadcast": pl.lit(1.0),
    "reduce": pl.lit(1.0),
    "send": pl.lit(1.0),
    "recv": pl.lit(1.0),
}


def with_waits_and_bandwidth(rows: pl.DataFrame, ranks: int) -> pl.DataFrame:
    """Collectives of all ranks with wait, transfer and bandwidth, from their matches.

    Args:
        rows: rank, match (null for none), collective, group_size, bytes, window, on_device, start_ns,
            end_ns, duration_ns.
        ranks: number of ranks in the job: the size of a group that is not recorded.

    Returns:
        the rows with matched_ranks, transfer_ns, wait_ns, algorithm_bandwidth, bus_bandwidth, estimate.
    """
    unusable = pl.col("overlapping") | pl.col("duration_ns").is_null()
    added = ("overlapping", "seen", "parts", "unusable", "shortest_ns")
    known = rows.with_columns(overlapping()).with_columns(
        pl.col("rank").n_unique().over("match").cast(pl.Int64).alias("seen"),
        pl.len().over("match").alias("parts"),
        unusable.any().over("match").alias("unusable"),
        pl.col("duration_ns").min().over("match").alias("shortest_ns"),
    )
    return with_transfers(known, ranks).drop(added)


def with_transfers(rows: pl.DataFrame, ranks: int) -> pl.DataFrame:
    """Collectives with wait, transfer and bandwidth, from what is known about each collective.

    Args:
        rows: match (null for none), collective, group_size, bytes, duration_ns; and of the rows with the same match:
            seen (how many ranks have it), parts (how many rows), unusable (whether any is), shortest_ns.
        ranks: number of ranks in the job: the size of a group that is not recorded.

    Returns:
        the rows with matched_ranks, transfer_ns, wait_ns, algorithm_bandwidth, bus_bandwidth, estimate.
    """
    p2p = pl.col("collective").is_in(["send", "recv"])
    expected = pl.when(p2p).then(2).otherwise(pl.coalesce("group_size", pl.lit(ranks, pl.Int64)))
    matched = pl.col("match").is_not_null()
    # A rank takes part in a collective once: a match with two rows of a rank is not valid.
    seen = pl.col("seen")
    complete = matched & (seen == expected) & (pl.col("parts") == seen)
    # A call without a kernel has no duration: like a missing rank, it makes the transfer unknown.
    transfer = pl.when(complete & ~pl.col("unusable")).then("shortest_ns")
    rate = pl.col("bytes") / pl.when(pl.col("transfer_ns") > 0).then("transfer_ns")
    factor = pl.lit(None, pl.Float64)
    for kind, expression in _BUS.items():
        factor = pl.when(pl.col("collective") == kind).then(expression).otherwise(factor)
    return (
        rows.with_columns(
            pl.when(matched).then(seen).otherwise(1).alias("matched_ranks"), transfer.alias("transfer_ns")
        )
        .with_columns(
            (pl.col("duration_ns") - pl.col("transfer_ns")).alias("wait_ns"), rate.alias("algorithm_bandwidth")
        )
        .with_columns(
            (pl.col("algorithm_bandwidth") * factor).alias("bus_bandwidth"),
            pl.when(pl.col("transfer_ns").is_not_null()).then(pl.col("collective").is_in(ESTIMATES)).alias("estimate"),
        )
    )


def overlapping() -> pl.Expr:
    """Whether a range on the host overlaps another of its rank, so that its duration includes time of the other."""
    track = ("rank", "window", "on_device")
    reach = pl.col("end_ns").cum_max().shift(1).over(*track, order_by="start_ns")
    following = pl.col("start_ns").shift(-1).over(*track, order_by="start_ns")
    on_host = ~pl.col("on_device")
    both = (pl.col("start_ns") < reach) | (pl.col("end_ns") > following)
    return (on_host & both.fill_null(False)).alias("overlapping")
