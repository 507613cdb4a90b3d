"""Memory over time on each rank and device, in few enough pieces to draw.

The time between a file's first and last memory event is cut into equal pieces, 240 on each device; one row for every
piece with an event in it. `allocated` and `reserved` are the most that the allocator said in the piece, `change` the
most allocated less released since the file's first event (for older files, which write no totals), so no peak is lost
by the cutting. `memory_curve` has every event, `memory` the peaks alone. `--steps` takes the chosen steps' events for
the file's.

    piece = ⌊240 · (time − first) / (last − first + 1)⌋        at_ns = the piece's begin, from the file's first event

How to read it: as `memory_curve`: rise and fall of each step, a level that climbs from step to step, a spike above the
rest. Ranks of one job should look alike; one that lies higher holds more of the model, or larger batches.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.allocations import MEMORY_COLUMNS, memory_samples
from rankscope.results import Analysis, Column, Headline, Inputs, Tables, by_window, concat_ranks, greatest

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("window", pl.Int64, "", "which of the rank's files, from 0"),
    Column("device", pl.String, "", "`cpu`, or kind and number: `cuda:0`, `hip:0`, `xpu:0`"),
    Column("at_ns", pl.Int64, "ns", "when the piece begins, counted from the file's first memory event"),
    Column("allocated", pl.Int64, "bytes", "the most allocated in it; null where the file writes no totals"),
    Column("reserved", pl.Int64, "bytes", "the most held by the allocator in it; null likewise, and for the host"),
    Column("change", pl.Int64, "bytes", "the most allocated less released since the file's first event"),
)
PIECES = 240


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """A rank's pieces."""
    parts = []
    for number, window in enumerate(by_window(tables, inputs)):
        found = memory_samples(window["memory_events"], window["host_ops"].clear(), window["annotations"])
        if inputs.options.steps is not None:
            found = found.filter(inputs.options.keeps(pl.col("step")))
        parts.append(_pieces(found, number, inputs.rank))
    return concat_ranks(parts, COLUMNS)


def _pieces(found: pl.DataFrame, number: int, rank: int) -> pl.DataFrame:
    first = pl.col("time_ns").min()
    span = pl.col("time_ns").max() - first + 1
    return (
        found.with_columns((PIECES * (pl.col("time_ns") - first) // span).alias("piece"), span.alias("span"))
        .group_by("memory", "piece")
        .agg(pl.col("span").first(), pl.col("allocated", "reserved", "change").max())
        .sort("memory", "piece")
        .select(
            pl.lit(rank, pl.Int64).alias("rank"),
            pl.lit(number, pl.Int64).alias("window"),
            pl.col("memory").alias("device"),
            (pl.col("piece") * pl.col("span") // PIECES).alias("at_ns"),
            "allocated",
            "reserved",
            "change",
        )
    )


def headline(frame: pl.DataFrame) -> Headline | None:
    """The answer in one sentence."""
    known = greatest(frame, "allocated")
    most = known or greatest(frame, "change")
    if most is None:
        return None
    peak = most["allocated"] if known else most["change"]
    text = f"At most {{peak}}{'' if known else ' more than when recording began'}, on rank {{rank}}, {{device}}."
    return Headline.of(text, peak=(peak, "bytes"), rank=(most["rank"], ""), device=(most["device"], ""))


analysis = Analysis(
    name="memory_outline",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    headline=headline,
    reads={
        "memory_events": MEMORY_COLUMNS,
        "host_ops": ("start_ns", "end_ns", "pid", "tid"),
        "annotations": ("start_ns", "end_ns", "on_device", "step"),
    },
)
