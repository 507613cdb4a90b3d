"""Memory over time on each rank and device: every allocation and release.

One row per event that `profile_memory` recorded, in order of time, without sampling or averaging; `--by interval` and
`--by category` (what the memory is for) are downsampled for drawing. `allocated` and `reserved` are the allocator's
totals after the event; on the host, what was allocated since the recording began and is not released (see `memory`).
`change` is the sum of all `bytes` of the device so far, from 0 at the trace's first event, so it exists even in older
traces without totals:

    change(i) = Σ bytes(j), j ≤ i, on the same device

Between two rows nothing changes: draw steps, not slopes. `--steps` keeps the events of the selected steps.

How to read it: a training step is a rise through the forward and a fall through the backward. Step ends that keep
rising are growth (`memory --by step`); a single spike is one operator's workspace, named by `operator`. Where
`reserved` stays far above `allocated`, the allocator holds unused memory.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.allocations import MEMORY_COLUMNS, counted_from, in_pieces, memory_samples
from rankscope.primitives.memory_categories import CATEGORIES, CATEGORY_TABLES, categorized_samples, live_bytes
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
    steps_by_window,
)

_DEVICE = Column("device", pl.String, "", "`cpu`, or kind and index: `cuda:0`, `hip:0`, `xpu:0`")
COLUMNS = (
    *RANK_AND_WINDOW,
    _DEVICE,
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
_START = Column("at_ns", pl.Int64, "ns", "start of the interval, from the trace's first memory event")
INTERVAL_COLUMNS = (
    *RANK_AND_WINDOW,
    _DEVICE,
    _START,
    Column("allocated", pl.Int64, "bytes", "maximum allocated in it; null if the trace has no totals"),
    Column(
        "reserved",
        pl.Int64,
        "bytes",
        "maximum reserved by the allocator in it; null if the trace has no totals, and for the host",
    ),
    Column("change", pl.Int64, "bytes", "maximum of allocated less released since the trace's first event"),
)
CATEGORY_COLUMNS = (
    *RANK_AND_WINDOW,
    _DEVICE,
    _START,
    Column("time_ns", pl.Int64, "ns", "the instant with the most memory in it", instant=True),
    Column("step", pl.Int64, "", "the step of that instant; null outside steps"),
    Column("total", pl.Int64, "bytes", "memory that was live then: the sum of the next columns"),
    *(Column(name, pl.Int64, "bytes", doc) for name, doc in CATEGORIES.items()),
)
_READS = {
    "memory_events": MEMORY_COLUMNS,
    "host_ops": ("start_ns", "end_ns", "name", "pid", "tid"),
    "annotations": ("start_ns", "end_ns", "on_device", "step"),
}


def _events(window: Tables, inputs: Inputs) -> pl.DataFrame:
    found = memory_samples(window["memory_events"], window["host_ops"], window["annotations"])
    row = found["operator_row"]
    return found.with_columns(
        window["host_ops"]["name"].gather(row.set(row < 0, None)).alias("operator"), pl.col("memory").alias("device")
    )


def _by_interval(window: Tables, inputs: Inputs) -> pl.DataFrame:
    found = memory_samples(window["memory_events"], window["host_ops"].clear(), window["annotations"])
    return _intervals(found, inputs, pl.col("at_ns").first(), pl.col("allocated", "reserved", "change").max())


def _by_category(window: Tables, inputs: Inputs) -> pl.DataFrame:
    if not window["memory_events"].height:
        return pl.DataFrame(schema={"device": pl.String})
    found = categorized_samples(window)
    live = live_bytes(found).with_columns(
        found["time_ns"], found["step"], pl.sum_horizontal(*CATEGORIES).alias("total")
    )
    return _intervals(live, inputs, pl.all().get(pl.col("total").arg_max()))


def _intervals(samples: pl.DataFrame, inputs: Inputs, *figures: pl.Expr) -> pl.DataFrame:
    pieces = in_pieces(inputs.options.chosen(samples)).group_by("memory", "piece").agg(*figures)
    return pieces.sort("memory", "piece").rename({"memory": "device"})


def _interval_headline(frame: pl.DataFrame) -> Headline | None:
    known = greatest(frame, "allocated")
    most = known or greatest(frame, "change")
    if most is None:
        return None
    peak = most["allocated"] if known else most["change"]
    text = f"Peak memory: {{peak}}{counted_from(most['device'], known is not None)} on rank {{rank}}, {{device}}."
    return Headline.of(text, peak=(peak, "bytes"), rank=(most["rank"], ""), device=(most["device"], ""))


_INTERVAL = Analysis(
    name="memory_curve_by_interval",
    doc="""Memory over time on each rank and device, downsampled for drawing.

The time between a trace's first and last memory event is cut into 240 equal intervals per device; one row for every
interval with an event in it. `allocated`, `reserved` and `change` are maxima in the interval, so no peak is lost.

    interval = ⌊240 · (time − first) / (last − first + 1)⌋     at_ns = its start, from the trace's first event

How to read it: rise and fall of each step, a level that climbs from step to step, a spike above the rest. Ranks of one
job should look similar; one that is higher holds more of the model, or larger batches.
""",
    columns=INTERVAL_COLUMNS,
    per_rank=rows_by_window(INTERVAL_COLUMNS, _by_interval),
    headline=_interval_headline,
    reads={**_READS, "host_ops": ("start_ns", "end_ns", "pid", "tid")},
)
_CATEGORY = Analysis(
    name="memory_curve_by_category",
    doc="""Memory over time by category, downsampled for drawing: what makes up each rise of the curve.

One row for every interval as in `--by interval`: the bytes that were live in each category (`memory --by category`) at
the interval's instant with the most memory:

    total = Σ categories

How to read it: activations rise through the forward and fall through the backward, while gradients rise; optimizer
state appears in the first step and stays. A category that climbs from step to step is what grows.
""",
    columns=CATEGORY_COLUMNS,
    per_rank=rows_by_window(CATEGORY_COLUMNS, _by_category),
    reads=CATEGORY_TABLES,
)
analysis = Analysis(
    name="memory_curve",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=steps_by_window(COLUMNS, _events),
    reads=_READS,
    in_report=False,
    parameters=(Parameter("by", "what a row is", default="event", choices=("event", "interval", "category")),),
    views=(_INTERVAL, _CATEGORY),
)
