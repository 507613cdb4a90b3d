"""Events by name over ranks and steps: count, duration, distribution.

`rankscope slices NAME DIR`: one row per rank, step, kind and name of the events called NAME (with `--regex`, or here
`--match`, of all events whose name matches a regular expression, ignoring case; without either, of all names).
Operators, kernels, copies, runtime calls, named ranges and, if a name is given, Python frames are included.

    --by step    a row for each rank and step (the default)        --by rank     over all steps
    --by name    over all ranks and steps: one distribution        --by event    every single event, with its start

A host event belongs to the step in which it starts, a device event to the step of its launch; otherwise step is null.
Quantiles are interpolated linearly between the sorted durations; quantiles over ranks are of all events together.

How to read it: compare one name, attention or a linear layer, between ranks, between steps (a slow first one, drift),
or between two runs, eager and compiled. A p95 far above the median is a tail: `--by event` shows where it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from rankscope.primitives.hashed_names import with_shared_names, without_hashes
from rankscope.primitives.steps import host_steps, step_at
from rankscope.results import Analysis, Column, Finding, Inputs, Parameter, Parameters, Tables, by_window

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank; null by name"),
    Column("step", pl.Int64, "", "N of `ProfilerStep#N`; null outside steps, by rank and by name"),
    Column("kind", pl.String, "", "operator, kernel, memcpy, memset, runtime, range or python"),
    Column("name", pl.String, "", "the event's name, `…` for a hash in it"),
    Column("start_ns", pl.Int64, "ns", "start; null unless by event", instant=True),
    Column("window", pl.Int64, "", "index of the rank's trace file, from 0; null unless by event"),
    Column("track", pl.Int64, "", "its thread, for a device event its stream; null unless by event"),
    Column("calls", pl.Int64, "count", "number of events"),
    Column("total_ns", pl.Int64, "ns", "sum of durations"),
    Column("mean_ns", pl.Float64, "ns", "mean duration"),
    Column("min_ns", pl.Int64, "ns", "shortest duration"),
    Column("p25_ns", pl.Float64, "ns", "25th percentile of durations"),
    Column("median_ns", pl.Float64, "ns", "median duration"),
    Column("p75_ns", pl.Float64, "ns", "75th percentile of durations"),
    Column("p95_ns", pl.Float64, "ns", "95th percentile of durations"),
    Column("max_ns", pl.Int64, "ns", "longest duration"),
    Column("std_ns", pl.Float64, "ns", "standard deviation of the durations (n − 1); null for a single event"),
)
_KINDS = {"host_ops": "operator", "runtime_calls": "runtime", "python_frames": "python", "annotations": "range"}
_SCHEMA: dict[str, pl.DataType] = {
    "rank": pl.Int64(),
    "step": pl.Int64(),
    "kind": pl.String(),
    "name": pl.String(),
    "start_ns": pl.Int64(),
    "window": pl.Int64(),
    "track": pl.Int64(),
    "duration_ns": pl.Int64(),
}
_EVENT = ("start_ns", "window", "track")
_KEYS = {
    "event": ("rank", "step", "kind", "name", *_EVENT),
    "step": ("rank", "step", "kind", "name"),
    "rank": ("rank", "kind", "name"),
    "name": ("kind", "name"),
}


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The distribution of a rank's events; the events themselves if all ranks have one distribution."""
    parts = [pl.DataFrame(schema=_SCHEMA)]
    for number, window in enumerate(by_window(tables, inputs)):
        parts += _events_of(window, number, inputs)
    events = pl.concat(parts)
    return events if inputs.parameters.get("by", "step") == "name" else _distribution(events, inputs)


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """Concatenate the ranks, or compute one distribution over all of them."""
    frame = pl.concat(parts)
    if inputs.parameters.get("by", "step") == "name":
        frame = _distribution(frame, inputs)
    return frame, []


def _events_of(window: Tables, number: int, inputs: Inputs) -> list[pl.DataFrame]:
    """A file's events with the requested names, table by table."""
    steps = host_steps(window["annotations"])
    parts: list[pl.DataFrame] = []
    for table, kind in _KINDS.items():
        if table in window:
            events = window[table] if table != "annotations" else window[table].filter(~pl.col("on_device"))
            events_of_name = _matching(events, inputs)
            parts.append(
                _as_rows(events_of_name, events_of_name["start_ns"], steps, pl.lit(kind), "tid", number, inputs)
            )
    events_of_name = _matching(window["device_events"], inputs)
    parts.append(_as_rows(events_of_name, events_of_name["launch_ns"], steps, pl.col("kind"), "stream", number, inputs))
    return parts


def _matching(events: pl.DataFrame, inputs: Inputs) -> pl.DataFrame:
    name, match = inputs.parameters.get("name"), inputs.parameters.get("match")
    events = with_shared_names(events)
    if name is not None:
        events = events.filter(pl.col("name") == without_hashes(str(name)))
    return events if match is None else events.filter(pl.col("name").str.contains(f"(?i){match}"))


def _as_rows(
    events: pl.DataFrame,
    instants: pl.Series,
    steps: pl.DataFrame,
    kind: pl.Expr,
    track: str,
    number: int,
    inputs: Inputs,
) -> pl.DataFrame:
    rows = events.select(
        pl.lit(inputs.rank, pl.Int64).alias("rank"),
        step_at(steps, instants),
        kind.alias("kind"),
        "name",
        "start_ns",
        pl.lit(number, pl.Int64).alias("window"),
        pl.col(track).cast(pl.Int64).alias("track"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns"),
    )
    return inputs.options.chosen(rows).cast(_SCHEMA)  # type: ignore[arg-type]  # instances of types are types to it, not to its stub


def _distribution(events: pl.DataFrame, inputs: Inputs) -> pl.DataFrame:
    """The distribution of durations by the keys of the rows."""
    by = str(inputs.parameters.get("by", "step"))
    duration = pl.col("duration_ns")
    groups = events.group_by(_KEYS[by], maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("calls"),
        duration.sum().alias("total_ns"),
        duration.mean().alias("mean_ns"),
        duration.min().alias("min_ns"),
        *(duration.quantile(q / 100, "linear").alias(f"p{q}_ns") for q in (25, 75, 95)),
        duration.median().alias("median_ns"),
        duration.max().alias("max_ns"),
        duration.std().alias("std_ns"),
    )
    missing = [column.name for column in COLUMNS if column.name not in groups.columns]
    frame = groups.with_columns(pl.lit(None, _SCHEMA[name]).alias(name) for name in missing)
    order = ("rank", "step", "total_ns", "kind", "name", *_EVENT)
    sort_columns = ("rank", *_EVENT, "name") if by == "event" else order
    descending = [name == "total_ns" for name in sort_columns]
    return frame.sort(sort_columns, descending=descending, nulls_last=True).select(column.name for column in COLUMNS)


def extra_columns(parameters: Parameters) -> dict[str, tuple[str, ...]]:
    """Python frames, the largest table of a trace, only if a name is given."""
    named = parameters.get("name") is not None or parameters.get("match") is not None
    return {"python_frames": ("start_ns", "end_ns", "name", "tid")} if named else {}


analysis = Analysis(
    name="slices",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    across_ranks=across_ranks,
    reads={
        "host_ops": ("start_ns", "end_ns", "name", "tid"),
        "runtime_calls": ("start_ns", "end_ns", "name", "tid"),
        "annotations": ("start_ns", "end_ns", "name", "tid", "on_device", "step"),
        "device_events": ("start_ns", "end_ns", "name", "kind", "stream", "launch_ns"),
    },
    parameters=(
        Parameter("name", "events of exactly this name"),
        Parameter("match", "events whose name matches, ignoring case", kind="regex"),
        Parameter("by", "what to group rows by", default="step", choices=("step", "rank", "name", "event")),
    ),
    reads_more=extra_columns,
    in_report=False,
    whole_recording=True,
)
