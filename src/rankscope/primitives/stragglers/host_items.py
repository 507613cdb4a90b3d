"""What the host of a rank did in each step, by name: operators and calls, stretches in which nothing is recorded, and
what it was in (`host_scopes`). Compared with its peers', it names what makes a rank late.

Time is counted once: an operator that runs inside another one, or beside one on another thread (the backward pass of a
device), adds nothing to it. A stretch without events is named by what is before and after it: operators, and ranges of
the loop's thread (`Optimizer.step#SGD.step`). Functions and modules contain all of these.

In: the tables of one file. Out: step, kind, label, ns, count; short items are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.activity import computing_operators, gloo_ranges
from rankscope.primitives.annotation_origin import garbage_collections
from rankscope.primitives.hashed_names import with_shared_names
from rankscope.primitives.intervals import Int64
from rankscope.primitives.steps import host_steps
from rankscope.primitives.stragglers.host_scopes import BETWEEN, NODE, functions, modules

OPERATOR, GAP, COLLECTION, OPERATORS = "operator", "gap", "collection", "operators"
FUNCTION, MODULE = "function", "module"
"""Kinds of items; `COLLECTION` is Python's garbage collection; `OPERATORS` is all operators and calls of the step
together, with `SHAPES` as label if their inputs' shapes are recorded; `MODULE` is a module or a named range, and the
`count` of it and of a function is how deep it is nested."""
SHAPES = "with shapes"
LEAST = 0.002
"""Of a step: shorter items are left out."""
MOST_ITEMS = 64
"""Of one kind in a step."""
_LOADER = r"(enumerate\([^)]*\))#[^\x1f]*"
"""The range of a loader, of which its first part is enough."""
SCHEMA = pl.Schema({"step": pl.Int64, "kind": pl.String, "label": pl.String, "ns": pl.Int64, "count": pl.Int64})


def host_items(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """The items of each step of a file; none without steps.

    Args:
        tables: host_ops, runtime_calls, annotations, python_frames of one file.
    """
    steps = host_steps(tables["annotations"])
    if steps.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    found = [
        *_operators_and_gaps(tables, steps),
        functions(tables["python_frames"], steps).with_columns(kind=pl.lit(FUNCTION)),
        modules(tables, steps).with_columns(kind=pl.lit(MODULE)),
        _collections(tables["annotations"], steps),
    ]
    items = pl.concat([each.select(SCHEMA.names()).cast(SCHEMA) for each in found])
    length = steps.select("step", (pl.col("end_ns") - pl.col("start_ns")).alias("length")).unique("step")
    return (
        items.join(length, on="step")
        .filter((pl.col("ns") >= LEAST * pl.col("length")) | (pl.col("kind") == OPERATORS))
        .sort("step", "kind", "ns", descending=[False, False, True])
        .filter(pl.int_range(pl.len()).over("step", "kind") < MOST_ITEMS)
        .drop("length")
    )


def _operators_and_gaps(tables: Mapping[str, pl.DataFrame], steps: pl.DataFrame) -> list[pl.DataFrame]:
    annotations, operators = tables["annotations"], tables["host_ops"]
    gloo = gloo_ranges(operators, annotations)
    computing = computing_operators(operators, gloo)
    calls = tables["runtime_calls"].select("start_ns", "end_ns", "name")
    thread = steps.select("pid", "tid").unique()
    ranges = annotations.filter(
        ~pl.col("on_device") & pl.col("step").is_null() & ~pl.col("name").str.starts_with("ProfilerStep")
    ).join(thread, on=["pid", "tid"], how="semi", nulls_equal=True)
    # Each edge is an event without a duration: a range's names the gaps on both sides of it, a step's only cuts them.
    edges = [
        events.select(at.alias("start_ns"), at.alias("end_ns"), name.alias("name"))
        for events, at, name in (
            (ranges, pl.col("start_ns"), pl.col("name")),
            (ranges, pl.col("end_ns"), pl.col("name")),
            (steps, pl.col("start_ns"), pl.lit(None, pl.String)),
            (steps, pl.col("end_ns"), pl.lit(None, pl.String)),
        )
    ]
    timed = pl.concat([computing.select("start_ns", "end_ns", "name"), calls])
    timed = with_shared_names(timed).with_columns(
        pl.col("name").fill_null("").str.strip_prefix(NODE), timed=pl.lit(True)
    )
    events = pl.concat([timed, *(each.with_columns(timed=pl.lit(False)) for each in edges)]).sort(
        "start_ns", pl.col("end_ns") - pl.col("start_ns"), maintain_order=True
    )
    start, end = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
    reached = np.maximum.accumulate(end)
    before = np.concatenate([start[:1], reached[:-1]])
    own_start = np.maximum(start, before)
    outermost = events.with_columns(
        pl.Series("own_start", own_start),
        pl.Series("own", np.maximum(end - own_start, 0)),
        pl.Series("gap_start", before),
        pl.Series("gap", np.maximum(start - before, 0)),
        pl.Series("shown", (end > before) | (start >= before)),
    )
    inside = outermost.filter("shown")
    inside = inside.with_columns(
        pl.col("name").forward_fill().shift(1).alias("previous"), pl.col("name").backward_fill().alias("next")
    )
    # What is before the first event, and after the last, is not recorded: it is what usually is.
    usual = (pl.col(name).drop_nulls().mode().sort().first() for name in ("previous", "next"))
    before_it, after_it = (each.over(other) for each, other in zip(usual, ("next", "previous"), strict=True))
    inside = inside.with_columns(pl.coalesce("previous", before_it), pl.coalesce("next", after_it))
    gaps = inside.filter(pl.col("gap") > 0).select(
        pl.col("gap_start").alias("start_ns"),
        (pl.col("gap_start") + pl.col("gap")).alias("end_ns"),
        (pl.col("previous").fill_null("") + BETWEEN + pl.col("next").fill_null("")).alias("label"),
    )
    gaps = gaps.with_columns(pl.col("label").str.replace_all(_LOADER, "$1"))
    ran = inside.filter(pl.col("timed") & (pl.col("own") > 0)).select(
        pl.col("own_start").alias("start_ns"), pl.col("end_ns"), pl.col("name").alias("label")
    )
    has_shapes = operators["input_dims"].str.contains(r"\d").any()
    by_name = _by_step(ran, steps)
    total = by_name.group_by("step").agg(pl.col("ns").sum(), pl.col("count").sum())
    return [
        by_name.with_columns(kind=pl.lit(OPERATOR)),
        total.with_columns(kind=pl.lit(OPERATORS), label=pl.lit(SHAPES if has_shapes else "")),
        _by_step(gaps, steps).with_columns(kind=pl.lit(GAP)),
    ]


def _collections(annotations: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Python's garbage collections."""
    ranges = garbage_collections(annotations.filter(~pl.col("on_device")).with_columns(rank=pl.lit(0)))
    named = ranges.select("start_ns", "end_ns", pl.lit("").alias("label"))
    return _by_step(named, steps).with_columns(kind=pl.lit(COLLECTION))


def _by_step(events: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The time and the number of events by step and label; of one that crosses its step's end only what is in it."""
    row, end = _owner(events["start_ns"].to_numpy(), steps)
    owned = row >= 0
    number = steps["step"].to_numpy()
    cut = np.minimum(events["end_ns"].to_numpy(), end) - events["start_ns"].to_numpy()
    placed = events.select(
        "label",
        pl.Series("step", number[np.maximum(row, 0)], pl.Int64),
        pl.Series("ns", cut, pl.Int64),
        pl.Series("owned", owned),
    ).filter("owned")
    return placed.group_by("step", "label").agg(pl.col("ns").sum(), pl.len().cast(pl.Int64).alias("count"))


def _owner(at: Int64, steps: pl.DataFrame) -> tuple[Int64, Int64]:
    """By instant the row of the step that it is in, −1 for none, and when that step ends."""
    start, end = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    row = np.searchsorted(start, at, side="right") - 1
    until: Int64 = end[np.maximum(row, 0)]
    inside: npt.NDArray[np.bool_] = (row >= 0) & (at < until)
    return np.where(inside, row, -1), until
