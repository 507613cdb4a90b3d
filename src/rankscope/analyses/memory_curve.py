"""Memory over time on each rank and device: every allocation and release.

One row per event that `profile_memory` recorded, in the order of time, none left out, none averaged. `allocated` and
`reserved` are what its allocator said after it. `change` is the sum of all `bytes` of the device up to here, and
counts from 0 at the file's first event, so it is there where older files write no totals:

    change(i) = Σ bytes(j), j ≤ i, on the same device

Between two rows nothing changes: draw steps, not slopes. Times are on the trace's own clock.

How to read it: a training step is a rise through the forward and a fall through the backward. Ends of steps that lie
ever higher are growth (`memory_steps`); a lone spike is one operator's workspace, and `operator` names it. Where
`reserved` stays far above `allocated`, the allocator holds what nobody uses.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.allocations import MEMORY_COLUMNS, memory_samples
from rankscope.results import Analysis, Column, Inputs, Tables, steps_by_window

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("window", pl.Int64, "", "which of the rank's files, from 0"),
    Column("device", pl.String, "", "`cpu`, or kind and number: `cuda:0`, `hip:0`, `xpu:0`"),
    Column("time_ns", pl.Int64, "ns", "when, on the trace's own clock", instant=True),
    Column("step", pl.Int64, "", "the step that it is in; null outside of all steps"),
    Column("bytes", pl.Int64, "bytes", "allocated if positive, released if negative"),
    Column("allocated", pl.Int64, "bytes", "allocated on the device after this; null where the file writes no totals"),
    Column("reserved", pl.Int64, "bytes", "held by the allocator after this; null likewise, and for the host"),
    Column("change", pl.Int64, "bytes", "allocated less released since the file's first event"),
    Column("operator", pl.String, "", "the innermost operator then; null outside of all operators"),
)


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """A rank's samples."""
    return steps_by_window(tables, inputs, COLUMNS, _of_window)


def _of_window(window: Tables, inputs: Inputs) -> pl.DataFrame:
    found = memory_samples(window["memory_events"], window["host_ops"], window["annotations"])
    row = found["operator_row"]
    return found.with_columns(
        window["host_ops"]["name"].gather(row.set(row < 0, None)).alias("operator"), pl.col("memory").alias("device")
    )


analysis = Analysis(
    name="memory_curve",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    reads={
        "memory_events": MEMORY_COLUMNS,
        "host_ops": ("start_ns", "end_ns", "name", "pid", "tid"),
        "annotations": ("start_ns", "end_ns", "on_device", "step"),
    },
    in_report=False,
)
