"""Memory over time by category, downsampled for drawing: what makes up each rise of the curve.

The time between a trace's first and last memory event is cut into 240 equal intervals per device, as in
`memory_outline`; one row for every interval with an event in it: the bytes that were live in each category
(`memory_categories`) at the interval's instant with the most memory, so that no peak is lost:

    total = Σ categories

How to read it: activations rise through the forward and fall through the backward, while gradients rise; optimizer
state appears in the first step and stays. A category that climbs from step to step is what grows.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.allocations import in_pieces
from rankscope.primitives.memory_categories import CATEGORIES, CATEGORY_TABLES, categorized_samples, live_bytes
from rankscope.results import RANK_AND_WINDOW, Analysis, Column, Inputs, Tables, rows_by_window

COLUMNS = (
    *RANK_AND_WINDOW,
    Column("device", pl.String, "", "`cpu`, or kind and index: `cuda:0`, `hip:0`, `xpu:0`"),
    Column("at_ns", pl.Int64, "ns", "start of the interval, from the trace's first memory event"),
    Column("time_ns", pl.Int64, "ns", "the instant with the most memory in it", instant=True),
    Column("step", pl.Int64, "", "the step of that instant; null outside steps"),
    Column("total", pl.Int64, "bytes", "memory that was live then: the sum of the next columns"),
    *(Column(name, pl.Int64, "bytes", doc) for name, doc in CATEGORIES.items()),
)


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """A rank's pieces."""
    return rows_by_window(tables, inputs, COLUMNS, _of_window)


def _of_window(window: Tables, inputs: Inputs) -> pl.DataFrame:
    if not window["memory_events"].height:
        return pl.DataFrame(schema={"device": pl.String})
    found = categorized_samples(window)
    live = live_bytes(found).with_columns(
        found["time_ns"], found["step"], pl.sum_horizontal(*CATEGORIES).alias("total")
    )
    return (
        in_pieces(inputs.options.chosen(live))
        .group_by("memory", "piece")
        .agg(pl.all().get(pl.col("total").arg_max()))
        .sort("memory", "piece")
        .rename({"memory": "device"})
    )


analysis = Analysis(name="memory_composition", doc=__doc__, columns=COLUMNS, per_rank=per_rank, reads=CATEGORY_TABLES)
