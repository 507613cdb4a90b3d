"""Memory snapshot of each device: in use, free, and fragmented.

One row per rank and device of a memory snapshot (`torch.cuda.memory._dump_snapshot`, or XPU's; a `.pickle` file, by
itself or as `rank3….memory.pickle` next to the traces). The pickle is read without executing any code in it.

    reserved      = Σ sizes of segments
    allocated     = Σ sizes of blocks in use
    free          = reserved − allocated − pending
    fragmentation = 1 − largest free block / free
    scattered     = free − segments without a block in use
    rounding      = allocated − requested

`peak_allocated` is the most that was live at once in the history (`_record_memory_history`): what the history allocates
and frees, plus what was live throughout. The history has requested sizes, while blocks are rounded up, so it can be a
little below `allocated`. Without a history it is null. `--by stack` shows which stacks hold it.

How to read it: a request larger than the largest free block needs a new segment, however much is free in total. If much
is scattered, try expandable segments first
(`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`); free blocks of a private pool (CUDA graphs, `torch.cuda.MemPool`)
cannot be used by others. Segments without a block in use are released when the device runs out of memory.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.memory_snapshots import USED, block_lifetimes, memory_peaks
from rankscope.results import (
    RANK_AND_WINDOW,
    Analysis,
    Column,
    Headline,
    Inputs,
    Parameter,
    Tables,
    greatest,
    rows_by_window,
)

_DEVICE = Column("device", pl.Int64, "", "device index")
COLUMNS = (
    *RANK_AND_WINDOW,
    _DEVICE,
    Column("segments", pl.Int64, "count", "segments"),
    Column("reserved", pl.Int64, "bytes", "reserved by the allocator"),
    Column("allocated", pl.Int64, "bytes", "in use"),
    Column("pending", pl.Int64, "bytes", "freed, but still in use by a stream"),
    Column("free", pl.Int64, "bytes", "reserved and unused"),
    Column("free_blocks", pl.Int64, "count", "free blocks"),
    Column("largest_free", pl.Int64, "bytes", "the largest free block"),
    Column(
        "fragmentation",
        pl.Float64,
        "ratio",
        "share of free memory outside the largest free block; null if none is free",
    ),
    Column("idle_segments", pl.Int64, "bytes", "segments without a block in use: cache"),
    Column("scattered", pl.Int64, "bytes", "free blocks in segments that also have blocks in use"),
    Column("private_pools", pl.Int64, "bytes", "segments of private pools (CUDA graphs)"),
    Column("expandable", pl.Int64, "bytes", "segments that can grow"),
    Column("rounding", pl.Int64, "bytes", "allocated minus requested; null if not recorded"),
    Column("history", pl.Int64, "count", "number of events in the history"),
    Column("peak_allocated", pl.Int64, "bytes", "most memory in use at once; null without a history"),
    Column("out_of_memory", pl.Int64, "count", "failed requests in the history"),
)


def _of_window(window: Tables, inputs: Inputs) -> pl.DataFrame:
    segments = (
        window["snapshot_segments"].with_row_index("segment_row").with_columns(pl.col("segment_row").cast(pl.Int32))
    )
    blocks, events = window["snapshot_blocks"], window["snapshot_events"]
    used = pl.col("state").is_in(USED)
    size, now, free = pl.col("bytes"), pl.col("state") == "active_allocated", pl.col("state") == "inactive"
    requested = pl.col("requested").filter(now)
    busy = blocks.filter(used)["segment_row"].unique()
    by_segment = segments.group_by("device").agg(
        pl.len().cast(pl.Int64).alias("segments"),
        size.sum().alias("reserved"),
        size.filter(~pl.col("segment_row").is_in(busy.implode())).sum().alias("idle_segments"),
        size.filter(pl.col("pool").is_not_null()).sum().alias("private_pools"),
        size.filter(pl.col("expandable")).sum().alias("expandable"),
    )
    by_block = blocks.group_by("device").agg(
        size.filter(now).sum().alias("allocated"),
        size.filter(used & ~now).sum().alias("pending"),
        free.sum().cast(pl.Int64).alias("free_blocks"),
        size.filter(free).max().fill_null(0).alias("largest_free"),
        size.filter(free & pl.col("segment_row").is_in(busy.implode())).sum().alias("scattered"),
        pl.when(requested.null_count() == 0).then(size.filter(now).sum() - requested.sum()).alias("rounding"),
    )
    recorded = events.group_by("device").agg(
        pl.len().cast(pl.Int64).alias("history"),
        (pl.col("action") == "oom").sum().cast(pl.Int64).alias("out_of_memory"),
    )
    highest = memory_peaks(block_lifetimes(events), blocks.filter(now)).select(
        "device", pl.col("peak_bytes").alias("most")
    )
    counts = ("scattered", "allocated", "pending", "free_blocks", "largest_free", "history", "out_of_memory")
    return (
        by_segment.join(by_block, on="device", how="left")
        .join(recorded, on="device", how="left")
        .join(highest, on="device", how="left")
        .with_columns(pl.col(counts).fill_null(0))
        .with_columns(
            (pl.col("reserved") - pl.col("allocated") - pl.col("pending")).alias("free"),
            pl.when(pl.col("history") > 0).then("most").alias("peak_allocated"),
        )
        .with_columns(
            pl.when(pl.col("free") > 0).then(1 - pl.col("largest_free") / pl.col("free")).alias("fragmentation")
        )
        .sort("device")
    )


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    most = greatest(frame, "reserved")
    if most is None:
        return None
    values = {
        "rank": (most["rank"], ""),
        "reserved": (most["reserved"], "bytes"),
        "allocated": (most["allocated"], "bytes"),
    }
    if most["fragmentation"] is None:
        return Headline.of("Rank {rank}’s allocator reserves {reserved}, of which {allocated} is in use.", **values)
    # What is pending is neither.
    text = (
        "Rank {rank}’s allocator reserves {reserved}: {allocated} in use, {cache} free in whole segments (cache) and "
        "{scattered} free among blocks in use."
    )
    values |= {"cache": (most["idle_segments"], "bytes"), "scattered": (most["scattered"], "bytes")}
    return Headline.of(text, **values)


STACK_COLUMNS = (
    *RANK_AND_WINDOW,
    _DEVICE,
    Column("bytes", pl.Int64, "bytes", "in use when the snapshot was taken"),
    Column("blocks", pl.Int64, "count", "number of blocks in use"),
    Column("share", pl.Float64, "ratio", "share of the memory in use on the device"),
    Column("peak_bytes", pl.Int64, "bytes", "in use at the peak; null without a history"),
    Column("peak_blocks", pl.Int64, "count", "number of blocks at the peak; null without a history"),
    Column("stack", pl.String, "", "the stack that allocated it, innermost frame first; null if not recorded"),
)
_STACK = ["device", "stack"]


def _stacks(window: Tables, inputs: Inputs) -> pl.DataFrame:
    used = window["snapshot_blocks"].filter(pl.col("state") == "active_allocated")
    now = used.group_by(_STACK).agg(pl.col("bytes").sum(), pl.len().cast(pl.Int64).alias("blocks"))
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
        .group_by(_STACK)
        .agg(pl.col("bytes").sum().alias("peak_bytes"), pl.len().cast(pl.Int64).alias("peak_blocks"))
    )
    recorded = window["snapshot_events"]["device"].unique().implode()
    has_history = pl.col("device").is_in(recorded)
    return (
        now.join(peak, on=_STACK, how="full", coalesce=True, nulls_equal=True)
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


_EVENTS = ("device", "number", "action", "address", "bytes", "stack")
_BY_STACK = Analysis(
    name="memory_snapshot_by_stack",
    doc="""Memory snapshot by call stack: what each stack holds, now and at the peak.

One row per rank, device and stack, largest at the peak first:

    bytes      = Σ sizes of blocks in use when the snapshot was taken that this stack allocated
    peak_bytes = the same at the time when most was in use, from the history

The stack is Python's if the snapshot has Python frames, innermost first, one frame per line. Blocks without a stack in
the snapshot are the row without one. Without a history the peak's columns are null.

How to read it: shrinking the first rows lowers the peak; a stack that grows from one snapshot to the next
(`rankscope diff`) keeps what it allocates.
""",
    columns=STACK_COLUMNS,
    per_rank=rows_by_window(STACK_COLUMNS, _stacks),
    reads={"snapshot_blocks": ("device", "address", "bytes", "state", "stack"), "snapshot_events": _EVENTS},
    in_report=False,
)
analysis = Analysis(
    name="memory_snapshot",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=rows_by_window(COLUMNS, _of_window),
    headline=headline,
    needs_rows_of=("snapshot_segments", "snapshot_blocks", "snapshot_events"),
    reads={
        "snapshot_segments": ("device", "bytes", "pool", "expandable"),
        "snapshot_blocks": ("segment_row", "device", "address", "bytes", "requested", "state"),
        "snapshot_events": _EVENTS,
    },
    parameters=(Parameter("by", "what a row is", default="device", choices=("device", "stack")),),
    views=(_BY_STACK,),
)
