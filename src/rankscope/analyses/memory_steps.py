"""What each step did to each rank's memory: peak, what it left behind, how it grew.

One row per rank, file, device and step with at least one allocation or release (`profile_memory`). A step is a host
`ProfilerStep#N` range, and a sample belongs to the step that it falls into:

    peak    = max over the step's samples of allocated
    end     = allocated at the step's last sample
    growth  = end less the end of the step before (on the same device); null for the first

Without totals in the file (2020–21) peak and end are null; `change_peak`, `end_change` and growth still hold.

How to read it: the first steps grow for good reasons: gradients, the optimizer's state, the allocator's cache. A growth
that goes on in every later step is memory that the loop keeps: a list of losses with their graphs, a cache without a
limit.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.allocations import MEMORY_COLUMNS, memory_by_step, memory_samples
from rankscope.results import Analysis, Column, Inputs, Tables, steps_by_window

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("window", pl.Int64, "", "which of the rank's files, from 0"),
    Column("device", pl.String, "", "`cpu`, or kind and number: `cuda:0`, `hip:0`, `xpu:0`"),
    Column("step", pl.Int64, "", "N of `ProfilerStep#N`"),
    Column("allocations", pl.Int64, "count", "allocations in the step"),
    Column("allocated_bytes", pl.Int64, "bytes", "allocated in the step, summed"),
    Column("released_bytes", pl.Int64, "bytes", "released in the step, summed"),
    Column(
        "peak_allocated", pl.Int64, "bytes", "the most that was allocated at once; null where the file writes no totals"
    ),
    Column("end_allocated", pl.Int64, "bytes", "allocated after the step's last event; null likewise"),
    Column(
        "peak_reserved", pl.Int64, "bytes", "the most that the allocator held at once; null likewise, and for the host"
    ),
    Column("change_peak", pl.Int64, "bytes", "the most allocated at once, counted from the file's first event"),
    Column(
        "end_change", pl.Int64, "bytes", "allocated after the step's last event, counted from the file's first event"
    ),
    Column(
        "growth", pl.Int64, "bytes", "more allocated at the end than at the end of the step before; null for the first"
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
    reads={
        "memory_events": MEMORY_COLUMNS,
        "host_ops": ("start_ns", "end_ns", "pid", "tid"),
        "annotations": ("start_ns", "end_ns", "on_device", "step"),
    },
)
