"""Why a collective was not found on another rank.

In: the collectives of all ranks with their matches. Out: the rows with a reason.
"""

from __future__ import annotations

import polars as pl

_CALLED = "no kernel recorded"
_CHANNEL = "the other end of the channel is not recorded"
_ALONE = "no other rank of the group was recorded"
_ONLY_HERE = "recorded on no other rank"
ENDS_DISAGREE = "recorded on other ranks too, but the ends do not agree"
_MISSING = "missing on other ranks, between matched ones"
_EDGE = "at the edges of the recording"


def with_unmatched_reasons(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with a `reason`: why each could not be matched, as far as the other ranks' counts show it.

    Args:
        rows: all ranks' collectives: rank, window, communicator (−1 for none), match (null for none), unnamed,
            collective, source, start_ns.
    """
    matched, communicator = pl.col("match").is_not_null(), pl.col("communicator") >= 0
    start, of_rank = pl.col("start_ns"), ["rank", "window", "communicator"]
    inside = (start > start.filter(matched).min().over(of_rank)) & (start < start.filter(matched).max().over(of_rank))
    placed = matched.any().over("rank", "communicator")
    rows = rows.with_columns(inside.fill_null(False).alias("inside"), placed.alias("placed"))
    # Without a group, any unmatched collective of the kind may be a partner.
    pool = pl.when("unnamed").then(-1).otherwise("communicator")
    ranks, kind = pl.col("rank").n_unique(), pl.col("collective")
    unmatched_elsewhere = (
        pl.col("rank").filter(~matched & (pl.col("inside") | ~pl.col("placed"))).n_unique().over(pool, kind) > 1
    )
    nowhere = ~matched.any().over("rank", pool)
    reason = (
        pl.when(pl.col("source") == "launch").then(pl.lit(_CALLED))
        .when(~communicator).then(pl.lit(_CHANNEL))
        .when(~pl.col("unnamed") & (ranks.over("communicator") < 2)).then(pl.lit(_ALONE))
        .when(ranks.over(pool, kind) < 2).then(pl.lit(_ONLY_HERE))
        .when(pl.col("placed") & ~pl.col("inside")).then(pl.lit(_EDGE))
        .when(unmatched_elsewhere | nowhere).then(pl.lit(ENDS_DISAGREE))
        .when(pl.col("placed")).then(pl.lit(_MISSING))
        .otherwise(pl.lit(_ONLY_HERE))
    )  # fmt: skip
    return rows.with_columns(reason.alias("reason"))
