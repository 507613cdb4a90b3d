"""Memory by operator: what each allocates and releases, itself and in total.

One row per rank, device and operator name with memory events in it (`profile_memory`). An allocation or release belongs
to the innermost operator that is open on its thread, and to every operator around that one:

    self_increase  = Σ bytes of events whose innermost operator has this name
    total_increase = Σ bytes of events with an operator of this name around them, each event once

Both are allocations less releases: positive for an operator whose result is kept, negative for one that releases the
memory of others. The row without a name has what happens outside operators: Python that drops its last reference, the
optimizer's own state, threads without operators. `peak_bytes` is what operators of this name had allocated themselves
and was live at the device's peak; null if the trace has no addresses, because releases cannot be paired then.

How to read it: a large `peak_bytes` is what to recompute (activation checkpointing), shard or store in a narrower type;
a `total_increase` that continues from window to window is kept by some code.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.allocations import MEMORY_COLUMNS, memory_blocks, memory_samples
from rankscope.primitives.call_stack import parent_rows, with_ancestors
from rankscope.results import Analysis, Column, Headline, Inputs, Tables, by_window, over_ranks, top_group

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("device", pl.String, "", "`cpu`, or kind and index: `cuda:0`, `hip:0`, `xpu:0`"),
    Column("name", pl.String, "", "the operator; null outside operators"),
    Column("calls", pl.Int64, "count", "calls that allocated or released memory, themselves or in nested operators"),
    Column("allocations", pl.Int64, "count", "allocations by itself"),
    Column("releases", pl.Int64, "count", "releases by itself"),
    Column("self_allocated", pl.Int64, "bytes", "bytes allocated by itself"),
    Column("self_increase", pl.Int64, "bytes", "allocated less released by itself"),
    Column("total_increase", pl.Int64, "bytes", "allocated less released by itself and nested operators"),
    Column(
        "peak_bytes", pl.Int64, "bytes", "allocated by itself and live at the device's peak; null without addresses"
    ),
)
_KEY = ("memory", "name")


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """A rank's operators, its files taken together."""
    parts = [_of_window(window, inputs) for window in by_window(tables, inputs)]
    sums = pl.exclude(*_KEY, "rank", "peak_bytes").sum()
    # With several traces, the largest of their peaks is the rank's.
    frame = pl.concat(parts).group_by(_KEY).agg(sums, pl.col("peak_bytes").max())
    return (
        frame.with_columns(pl.lit(inputs.rank, pl.Int64).alias("rank"), pl.col("memory").alias("device"))
        .sort("device", "self_allocated", "total_increase", "name", descending=[False, True, True, False])
        .select(column.name for column in COLUMNS)
    )


def _of_window(window: Tables, inputs: Inputs) -> pl.DataFrame:
    operators = window["host_ops"]
    found = memory_samples(window["memory_events"], operators, window["annotations"])
    live = _live_at_peak(found)
    if inputs.options.steps is not None:
        kept = found.with_row_index("event").filter(inputs.options.keeps(pl.col("step")))
        found, live = kept.drop("event"), live[kept["event"]]
    row = found["operator_row"].to_numpy()
    names = operators["name"]
    own = found.with_columns(
        names.gather(pl.Series(row).set(pl.Series(row < 0), None)).alias("name"), live.alias("live")
    )
    selves = own.group_by(_KEY).agg(
        (pl.col("bytes") > 0).sum().cast(pl.Int64).alias("allocations"),
        (pl.col("bytes") < 0).sum().cast(pl.Int64).alias("releases"),
        pl.col("bytes").filter(pl.col("bytes") > 0).sum().alias("self_allocated"),
        pl.col("bytes").sum().alias("self_increase"),
        pl.when(pl.col("live").is_not_null().any()).then(pl.col("live").sum()).alias("peak_bytes"),
    )
    event, rows = with_ancestors(parent_rows(operators), row)
    outside = np.flatnonzero(row < 0)
    everyone = pl.DataFrame(
        {
            "event": np.concatenate([event, outside]),
            "call": np.concatenate([rows, np.full(outside.size, -1)]),
            "name": pl.concat([names.gather(rows), pl.Series([None] * outside.size, dtype=pl.String)]),
        },
        schema={"event": pl.Int64, "call": pl.Int64, "name": pl.String},
    ).with_columns(found["memory"].gather(pl.Series(np.concatenate([event, outside]))))
    calls = everyone.group_by(_KEY).agg(
        pl.col("call").filter(pl.col("call") >= 0).n_unique().cast(pl.Int64).alias("calls")
    )
    # An operator inside another of its name counts an event once.
    totals = everyone.unique(["event", "name"], maintain_order=True)
    totals = totals.with_columns(found["bytes"].gather(totals["event"]).alias("bytes"))
    increase = totals.group_by(_KEY).agg(pl.col("bytes").sum().alias("total_increase"))
    return (
        calls.join(increase, on=_KEY, how="left", nulls_equal=True)
        .join(selves, on=_KEY, how="left", nulls_equal=True)
        .with_columns(
            pl.col("allocations", "releases", "self_allocated", "self_increase").fill_null(0),
            pl.when(pl.lit(bool(live.is_not_null().any()))).then(pl.col("peak_bytes").fill_null(0)).alias("peak_bytes"),
        )
        .select(
            *_KEY, "calls", "allocations", "releases", "self_allocated", "self_increase", "total_increase", "peak_bytes"
        )
    )


def _live_at_peak(found: pl.DataFrame) -> pl.Series:
    """For each event the bytes that it allocated and that were live at its device's peak; null without addresses."""
    if not found.height or found["address"].null_count():
        return pl.Series("live", [None] * found.height, dtype=pl.Int64)
    height = pl.coalesce("allocated", "change")
    peak = found.group_by("memory").agg(pl.col("time_ns").get(height.arg_max()).alias("peak_ns"))
    paired = (
        memory_blocks(found)
        .join(peak, on="memory", how="left", maintain_order="left")
        .filter(pl.col("event").is_not_null())
    )
    live = (pl.col("allocated_ns") <= pl.col("peak_ns")) & (
        pl.col("released_ns").is_null() | (pl.col("released_ns") > pl.col("peak_ns"))
    )
    kept = paired.filter(live)
    values = np.zeros(found.height, dtype=np.int64)
    values[kept["event"].to_numpy()] = kept["bytes"].to_numpy()
    return pl.Series("live", values)


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    named = frame.filter(pl.col("name").is_not_null())
    most = top_group(named, "name", "self_increase")
    if most is None:
        return None
    text = f"Largest net allocation: {{name}}, {{increase}}{over_ranks(frame)}."
    return Headline.of(text, name=(most["name"], ""), increase=(most["self_increase"], "bytes"))


analysis = Analysis(
    name="memory_operators",
    doc=__doc__,
    whole_recording=True,
    columns=COLUMNS,
    per_rank=per_rank,
    headline=headline,
    reads={
        "memory_events": MEMORY_COLUMNS,
        "host_ops": ("start_ns", "end_ns", "name", "pid", "tid", "parent_row"),
        "annotations": ("start_ns", "end_ns", "on_device", "step"),
    },
)
