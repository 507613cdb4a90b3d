"""The local time of a rank in a step: all time except waiting for, or exchanging data with, other ranks.

Ranks that are tied by collectives take equally long for a step, whichever is slow; they differ in how they spend the
time. A rank that waits has its device in a communication kernel and nothing else to do. So

    local time = elapsed − exposed communication

and the rank that makes the others wait is the one whose local time exceeds that of ranks with the same program. A rank
that is late because it waited in another group has no excess: its wait is exposed communication.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from rankscope.primitives.communicators import POINT_TO_POINT
from rankscope.primitives.time_breakdown import PARTS

WAITING = "communication"
LOCAL_PARTS = tuple(part for part in PARTS if part != WAITING)


def local_times(rows: pl.DataFrame) -> pl.DataFrame:
    """What each rank did in each step.

    A step runs from the last collective that all of its group's ranks have recorded in the step before to the last
    such one in it; the first step of a file begins with its first collective.

    Args:
        rows: of collectives of the ranks: rank, window, step, whole (whether all ranks of the group have it), end_ns,
            count (how many of the rank's collectives had ended by then), and for each of `PARTS` how long it had taken
            by then, ns.

    Returns:
        rank, step, elapsed_ns, count (of the collectives that ended in it), collectives (of the step itself, that all
        have), own_ns, first (whether the step is cut at its beginning), and each of `PARTS`.
    """
    whole = rows.filter(pl.col("whole") & pl.col("step").is_not_null())
    by = ["rank", "window", "step"]
    values = ["end_ns", "count", *PARTS]
    ordered = whole.sort("end_ns")
    last = ordered.group_by(by).agg(pl.col(values).last(), pl.len().alias("collectives")).sort(by)
    first = ordered.group_by(by).agg(pl.col(values).first())
    before = pl.col("step").shift(1).over("rank", "window") == pl.col("step") - 1
    joined = last.join(first, on=by, suffix="_first").sort(by).with_columns(before.fill_null(False).alias("follows"))

    def since(name: str) -> pl.Expr:
        earlier = pl.col(name).shift(1).over("rank", "window")
        return pl.col(name) - pl.when("follows").then(earlier).otherwise(f"{name}_first")

    found = joined.with_columns(
        since("end_ns").alias("elapsed_ns"),
        since("count").alias("between"),
        *(since(part).alias(f"{part}_ns") for part in PARTS),
        (~pl.col("follows")).alias("first"),
    ).filter(pl.col("between") > 0)
    return found.select(
        "rank",
        "step",
        "elapsed_ns",
        pl.col("between").alias("count"),
        "collectives",
        pl.sum_horizontal(f"{part}_ns" for part in LOCAL_PARTS).alias("own_ns"),
        "first",
        *(pl.col(f"{part}_ns").alias(part) for part in PARTS),
    )


def programs_by_rank(collectives: pl.DataFrame, stage: Mapping[int, int]) -> dict[int, int]:
    """Which ranks run the same program, by rank: those of one pipeline stage.

    Where the mesh does not say the stage, ranks are alike that take part in the same kinds of collectives, with send
    and recv distinguished by direction.

    Args:
        collectives: rank, collective, peers.
        stage: of each rank, as far as the mesh tells.
    """
    ranks = collectives["rank"].unique().sort().to_list()
    if stage and all(rank in stage for rank in ranks):
        return {rank: stage[rank] for rank in ranks}
    ends = pl.col("peers").str.extract_all(r"\d+").cast(pl.List(pl.Int64))
    towards = (ends.list.sum() - 2 * pl.col("rank")).sign()
    kinds = (
        collectives.filter(pl.col("collective").is_in(POINT_TO_POINT))
        .select("rank", pl.format("{} {}", "collective", towards.fill_null(0)).alias("kind"))
        .unique()
        .sort("rank", "kind")
        .group_by("rank", maintain_order=True)
        .agg(pl.col("kind").str.join(","))
    )
    texts = dict(kinds.iter_rows())
    codes = {text: code for code, text in enumerate(sorted(set(texts.values())))}
    return {rank: codes[texts[rank]] if rank in texts else -1 for rank in ranks}
