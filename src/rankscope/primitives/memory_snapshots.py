"""The history of a memory snapshot: the lifetime of each block, and the peak of live memory.

In: the tables of a snapshot. Out: a frame with a row per block, and the peak.
"""

from __future__ import annotations

import polars as pl

ALLOCATED = "alloc"
# A block is released when its free completes; older files only have the request, or `free`.
_FREED = ("free_completed", "free")
USED = ("active_allocated", "active_awaiting_free", "active_pending_free")


def block_lifetimes(events: pl.DataFrame) -> pl.DataFrame:
    """Blocks with the numbers of the events that allocated and freed them, by address.

    Args:
        events: snapshot_events: device, number, action, address, bytes, stack.

    Returns:
        device, address, bytes, stack, born (null: before the history), died (null: not in the history).
    """
    completed = events["action"].is_in(_FREED).any()
    freed = [*_FREED] if completed else ["free_requested"]
    moves = events.filter(pl.col("action").is_in([ALLOCATED, *freed])).sort("device", "address", "number")
    block = ["device", "address"]
    born = pl.col("action") == ALLOCATED
    next_frees = (~born).shift(-1).over(block).fill_null(False)
    orphan = ~born & ~born.shift(1).over(block).fill_null(False)
    marked = moves.with_columns(
        born.alias("born_here"),
        next_frees.alias("next_frees"),
        orphan.alias("orphan"),
        pl.col("number").shift(-1).over(block).alias("next_number"),
    )
    return marked.filter(pl.col("born_here") | pl.col("orphan")).select(
        *block,
        "bytes",
        "stack",
        pl.when("born_here").then("number").alias("born"),
        pl.when("orphan").then("number").when("next_frees").then("next_number").alias("died"),
    )


def memory_peaks(blocks: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """The peak of live memory on each device: device, peak_number (−1: before the history), peak_bytes.

    A block that was live before the history began, and is not in it, is live throughout.

    Args:
        blocks: the result of `block_lifetimes`.
        known: device, address, bytes of the blocks in use when the snapshot is taken.
    """
    # In use now, and neither allocated nor freed in the history.
    still = known.join(blocks.filter(pl.col("died").is_null()), on=["device", "address"], how="anti")
    base = (
        pl.concat([still.select("device", "bytes"), blocks.filter(pl.col("born").is_null()).select("device", "bytes")])
        .group_by("device")
        .agg(pl.col("bytes").sum().alias("base"))
    )
    ups = blocks.filter(pl.col("born").is_not_null()).select("device", pl.col("born").alias("number"), "bytes")
    downs = blocks.filter(pl.col("died").is_not_null()).select(
        "device", pl.col("died").alias("number"), -pl.col("bytes").alias("bytes")
    )
    start = base.select("device", pl.lit(-1, pl.Int64).alias("number"), pl.col("base").alias("bytes"))
    moves = pl.concat([start, ups, downs], how="vertical_relaxed").sort("device", "number")
    level = moves.with_columns(pl.col("bytes").cum_sum().over("device").alias("level"))
    return (
        level.group_by("device", maintain_order=True)
        .agg(
            pl.col("level").max().alias("peak_bytes"),
            pl.col("number").get(pl.col("level").arg_max()).alias("peak_number"),
        )
        .sort("device")
    )
