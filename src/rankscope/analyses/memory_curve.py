"""Memory over time on each rank and device: every allocation and release.

One row per event that `profile_memory` recorded, in order of time, without sampling or averaging. `allocated` and
`reserved` are the allocator's totals after the event; on the host, what was allocated since the recording began and is
not released (see `memory`). `change` is the sum of all `bytes` of the device so far, from 0 at the trace's first event,
so it exists even in older traces without totals:

    change(i) = Σ bytes(j), j ≤ i, on the same device

Between two rows nothing changes: draw steps, not slopes.

How to read it: a training step is a rise through the forward and a fall through the backward. Step ends that keep
rising are growth (`memory_steps`); a single spike is one operator's workspace, named by `operator`. Where `reserved`
stays far above `allocated`, the allocator holds unused memory.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.allocations import MEMORY_COLUMNS, memory_samples
from rankscope.results import RANK_AND_WINDOW, Analysis, Column, Inputs, Tables, steps_by_window

COLUMNS = (
    *RANK_AND_WINDOW,
    Column("device", pl.String, "", "`cpu`, or kind and index: `cuda:0`, `hip:0`, `xpu:0`"),
    Column("time_ns", pl.Int64, "ns", "time of the event", instant=True),
    Column("step", pl.Int64, "", "the step it is in; null outside steps"),
    Column("bytes", pl.Int64, "bytes", "positive for an allocation, negative for a release"),
    Column("allocated", pl.Int64, "bytes", "allocated on the device after the event; null if the trace has no totals"),
    Column(
        "reserved",
        pl.Int64,
        "bytes",
        "reserved by the allocator after the event; null if the trace has no totals, and for the host",
    ),
    Column("change", pl.Int64, "bytes", "allocated less released since the trace's first event"),
    Column("operator", pl.String, "", "innermost operator at the time; null outside operators"),
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
