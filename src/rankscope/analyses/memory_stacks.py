"""Memory snapshot by call stack: what each stack holds, now and at the peak.

One row per rank, device and stack of a memory snapshot (see `memory_snapshot`), largest at the peak first:

    bytes      = Σ sizes of blocks in use when the snapshot was taken that this stack allocated
    peak_bytes = the same at the time when most was in use, from the history

The stack is Python's if the snapshot has Python frames, innermost first, one frame per line. Blocks without a stack in
the snapshot are the row without one. Without a history the peak's columns are null.

How to read it: shrinking the first rows lowers the peak; a stack that grows from one snapshot to the next
(`rankscope diff`) keeps what it allocates.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.memory_snapshots import block_lifetimes, memory_peaks
from rankscope.results import RANK_AND_WINDOW, Analysis, Column, Inputs, Tables, rows_by_window

COLUMNS = (
    *RANK_AND_WINDOW,
    Column("device", pl.Int64, "", "device index"),
    Column("bytes", pl.Int64, "bytes", "in use when the snapshot was taken"),
    Column("blocks", pl.Int64, "count", "number of blocks in use"),
    Column("share", pl.Float64, "ratio", "share of the memory in use on the device"),
    Column("peak_bytes", pl.Int64, "bytes", "in use at the peak; null without a history"),
    Column("peak_blocks", pl.Int64, "count", "number of blocks at the peak; null without a history"),
    Column("stack", pl.String, "", "the stack that allocated it, innermost frame first; null if not recorded"),
)
_KEY = ["device", "stack"]


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """A rank's stacks, snapshot by snapshot."""
    return rows_by_window(tables, inputs, COLUMNS, _of_window)


def _of_window(window: Tables, inputs: Inputs) -> pl.DataFrame:
    used = window["snapshot_blocks"].filter(pl.col("state") == "active_allocated")
    now = used.group_by(_KEY).agg(pl.col("bytes").sum(), pl.len().cast(pl.Int64).alias("blocks"))
    born = block_lifetimes(window["snapshot_events"])
    still = used.join(born.filter(pl.col("died").is_null()), on=["device", "address"], how="anti")
    throughout = still.select(
        "device", "bytes", "stack", pl.lit(None, pl.Int64).alias("born"), pl.lit(None, pl.Int64).alias("died")
    )
    every = pl.concat([throughout, born.select(throughout.columns)])
    peak = (
        every.join(memory_peaks(born, used), on="device", how="inner")
        .filter(
            (pl.col("born").fill_null(-1) <= pl.col("peak_number"))
            & (pl.col("died").is_null() | (pl.col("died") > pl.col("peak_number")))
        )
        .group_by(_KEY)
        .agg(pl.col("bytes").sum().alias("peak_bytes"), pl.len().cast(pl.Int64).alias("peak_blocks"))
    )
    recorded = window["snapshot_events"]["device"].unique().implode()
    has_history = pl.col("device").is_in(recorded)
    return (
        now.join(peak, on=_KEY, how="full", coalesce=True, nulls_equal=True)
        .with_columns(
            pl.col("bytes", "blocks").fill_null(0),
            *(
                pl.when(has_history).then(pl.col(name).fill_null(0)).alias(name)
                for name in ("peak_bytes", "peak_blocks")
            ),
        )
        .with_columns((pl.col("bytes") / pl.col("bytes").sum().over("device")).fill_nan(None).alias("share"))
        .sort("device", "peak_bytes", "bytes", "stack", descending=[False, True, True, False], nulls_last=True)
    )


analysis = Analysis(
    name="memory_stacks",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    reads={
        "snapshot_blocks": ("device", "address", "bytes", "state", "stack"),
        "snapshot_events": ("device", "number", "action", "address", "bytes", "stack"),
    },
    in_report=False,
)
