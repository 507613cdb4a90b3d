"""Memory by step: peak, memory at the end of the step, growth.

One row per rank, trace file, device and step with at least one allocation or release (`profile_memory`). A step is a
host `ProfilerStep#N` range; a sample belongs to the step in which it occurs:

    peak    = max over the step's samples of allocated
    end     = allocated at the step's last sample
    growth  = end less the end of the previous step (on the same device); null for the first

On the host allocated memory counts from the start of the recording (see `memory`); growth counts all releases.
If the trace has no totals (2020–21), peak and end are null; `change_peak`, `end_change` and growth are still valid.

How to read it: growth in the first steps is normal: gradients, optimizer state, the allocator's cache. Growth in every
later step is memory that the loop keeps: a list of losses with their graphs, an unbounded cache.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.allocations import MEMORY_COLUMNS, memory_by_step, memory_samples
from rankscope.results import RANK_AND_WINDOW, Analysis, Column, Inputs, Tables, steps_by_window

COLUMNS = (
    *RANK_AND_WINDOW,
    Column("device", pl.String, "", "`cpu`, or kind and index: `cuda:0`, `hip:0`, `xpu:0`"),
    Column("step", pl.Int64, "", "N of `ProfilerStep#N`"),
    Column("allocations", pl.Int64, "count", "allocations in the step"),
    Column("allocated_bytes", pl.Int64, "bytes", "bytes allocated in the step"),
    Column("released_bytes", pl.Int64, "bytes", "bytes released in the step"),
    Column("peak_allocated", pl.Int64, "bytes", "peak of allocated memory; null if the trace has no totals"),
    Column(
        "end_allocated", pl.Int64, "bytes", "allocated after the step's last event; null if the trace has no totals"
    ),
    Column(
        "peak_reserved",
        pl.Int64,
        "bytes",
        "peak of memory reserved by the allocator; null if the trace has no totals, and for the host",
    ),
    Column("change_peak", pl.Int64, "bytes", "peak of allocated memory relative to the trace's first event"),
    Column(
        "end_change", pl.Int64, "bytes", "allocated after the step's last event, relative to the trace's first event"
    ),
    Column(
        "growth",
        pl.Int64,
        "bytes",
        "increase from the end of the previous step to the end of this one; null for the first",
    ),
)


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """A rank's steps."""
    return steps_by_window(tables, inputs, COLUMNS, _of_window)


def _of_window(window: Tables, inputs: Inputs) -> pl.DataFrame:
    found = memory_samples(window["memory_events"], window["host_ops"], window["annotations"])
    return memory_by_step(found).rename({"memory": "device"})


analysis = Analysis(
    name="memory_steps",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    needs_rows_of=("memory_events",),
    reads={
        "memory_events": MEMORY_COLUMNS,
        "host_ops": ("start_ns", "end_ns", "pid", "tid"),
        "annotations": ("start_ns", "end_ns", "on_device", "step"),
    },
)
