"""Memory over time on each rank and device, downsampled for drawing.

The time between a trace's first and last memory event is cut into 240 equal intervals per device; one row for every
interval with an event in it. `allocated` and `reserved` are the maximum totals in the interval (on the host, allocated
since the recording began: see `memory`), `change` the maximum of allocated less released since the trace's first event
(for older traces without totals), so no peak is lost. `memory_curve` has every event, `memory` only the peaks.
`--steps` uses only the selected steps' events.

    interval = ⌊240 · (time − first) / (last − first + 1)⌋     at_ns = its start, from the trace's first event

How to read it: as `memory_curve`: rise and fall of each step, a level that climbs from step to step, a spike above the
rest. Ranks of one job should look similar; one that is higher holds more of the model, or larger batches.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.allocations import MEMORY_COLUMNS, counted_from, in_pieces, memory_samples
from rankscope.results import RANK_AND_WINDOW, Analysis, Column, Headline, Inputs, Tables, greatest, rows_by_window

COLUMNS = (
    *RANK_AND_WINDOW,
    Column("device", pl.String, "", "`cpu`, or kind and index: `cuda:0`, `hip:0`, `xpu:0`"),
    Column("at_ns", pl.Int64, "ns", "start of the interval, from the trace's first memory event"),
    Column("allocated", pl.Int64, "bytes", "maximum allocated in it; null if the trace has no totals"),
    Column(
        "reserved",
        pl.Int64,
        "bytes",
        "maximum reserved by the allocator in it; null if the trace has no totals, and for the host",
    ),
    Column("change", pl.Int64, "bytes", "maximum of allocated less released since the trace's first event"),
)


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """A rank's pieces."""
    return rows_by_window(tables, inputs, COLUMNS, _of_window)


def _of_window(window: Tables, inputs: Inputs) -> pl.DataFrame:
    found = memory_samples(window["memory_events"], window["host_ops"].clear(), window["annotations"])
    return (
        in_pieces(inputs.options.chosen(found))
        .group_by("memory", "piece")
        .agg(pl.col("at_ns").first(), pl.col("allocated", "reserved", "change").max())
        .sort("memory", "piece")
        .rename({"memory": "device"})
    )


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    known = greatest(frame, "allocated")
    most = known or greatest(frame, "change")
    if most is None:
        return None
    peak = most["allocated"] if known else most["change"]
    text = f"Peak memory: {{peak}}{counted_from(most['device'], known is not None)} on rank {{rank}}, {{device}}."
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
