"""DDP's gradient buckets: size, start within the backward, and exposed time of each all-reduce.

One row per bucket, rank and step. DDP puts gradients into buckets and all-reduces a bucket as soon as its last gradient
is ready. Buckets are the all-reduces called inside an `AccumulateGrad` of the backward, in call order.

    backward     what autograd evaluates, from first start to last end: the kernels it launches, or its operators if
                 there is no device; without DDP's work after the all-reduces, which waits for them
    start_share  = (start − first compute of the backward) / (its last end − its first start)
    exposed      = |all-reduce| − |all-reduce ∩ compute of the rank|
    tail         = end of the all-reduce − end of the backward's compute, if later; else 0

Under gradient accumulation with `no_sync` only the last backward of a step has buckets, and the shares refer to it.

How to read it: only the last bucket should have a tail: it cannot start before the last gradient, and its tail is the
minimum cost of DDP. Many small buckets each pay latency; one huge bucket starts when the backward is over and is fully
exposed. `bucket_cap_mb` sets the size (25 MiB; the first is smaller, so that it starts early).
"""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.activity import activity, with_category
from rankscope.primitives.call_stack import enclosing, launch_instants, parent_rows, range_at, with_ancestors
from rankscope.primitives.collective_launches import READS, collective_launches, exposed_times
from rankscope.primitives.intervals import Int64
from rankscope.primitives.kernels import COMMUNICATION
from rankscope.primitives.phases import BACKWARD, phase_sets
from rankscope.primitives.steps import host_steps, step_at
from rankscope.results import (
    RANK_AND_WINDOW,
    Analysis,
    Column,
    Headline,
    Inputs,
    Tables,
    over_ranks,
    schema_of,
    steps_by_window,
    total_of,
)
from rankscope.rundir.plurals import plural

COLUMNS = (
    *RANK_AND_WINDOW,
    Column("step", pl.Int64, "", "the step in which it was called; null outside steps"),
    Column("bucket", pl.Int64, "", "index of the all-reduce in the step, from 0"),
    Column("buckets", pl.Int64, "count", "number of buckets in the step"),
    Column("elements", pl.Int64, "elements", "gradients in it; null if not recorded"),
    Column("bytes", pl.Int64, "bytes", "its size; null if not recorded"),
    Column("issued_ns", pl.Int64, "ns", "when the host called it", instant=True),
    Column(
        "start_ns",
        pl.Int64,
        "ns",
        "start of the all-reduce; null if not in the trace",
        instant=True,
    ),
    Column("duration_ns", pl.Int64, "ns", "duration, including waiting for other ranks; null if not in the trace"),
    Column("backward_ns", pl.Int64, "ns", "duration of the backward's compute, from its first start to its last end"),
    Column(
        "start_share",
        pl.Float64,
        "ratio",
        "position in the backward at which the all-reduce started; above 1 after its end",
    ),
    Column("exposed_ns", pl.Int64, "ns", "exposed part of the duration (no compute at the same time)"),
    Column("hidden_ns", pl.Int64, "ns", "part of the duration that overlaps with compute"),
    Column("hidden_share", pl.Float64, "ratio", "share of the duration that overlaps with compute"),
    Column("tail_ns", pl.Int64, "ns", "time from the end of the backward's compute to the end of the all-reduce"),
)
_ENGINE = r"^autograd::engine::evaluate_function|^torch::autograd::"
_ACCUMULATES = r"^autograd::engine::evaluate_function: torch::autograd::AccumulateGrad|^torch::autograd::AccumulateGrad"


def _window_buckets(window: Tables, inputs: Inputs) -> pl.DataFrame:
    operators, annotations = window["host_ops"], window["annotations"]
    accumulates = operators["name"].str.contains(_ACCUMULATES).fill_null(False).to_numpy()
    if not accumulates.any():
        return pl.DataFrame(schema=schema_of(COLUMNS))
    calls = collective_launches(window, inputs.options.communication)
    position, rows = with_ancestors(parent_rows(operators), calls["operator_row"].to_numpy())
    # FSDP communicates in hooks of the same operators, but with reduce_scatter.
    is_bucket = np.isin(np.arange(calls.height), position[accumulates[rows]])
    calls = calls.filter(pl.Series(is_bucket) & (pl.col("kind") == "all_reduce"))
    if calls.is_empty():
        return pl.DataFrame(schema=schema_of(COLUMNS))
    sets = activity(window["device_events"], operators, annotations, inputs.options.communication)
    start, end = _backwards(window, calls["issued_ns"].to_numpy(), inputs)
    known = pl.col("start_ns").is_not_null()
    duration = pl.col("end_ns") - pl.col("start_ns")
    return (
        calls.with_columns(
            step_at(host_steps(annotations), calls["issued_ns"]),
            exposed_times(calls, sets).alias("exposed_ns"),
            start.alias("first"),
            end.alias("last"),
        )
        .with_columns(
            pl.int_range(pl.len()).over("step").alias("bucket"),
            pl.len().over("step").cast(pl.Int64).alias("buckets"),
            duration.alias("duration_ns"),
            (duration - pl.col("exposed_ns")).alias("hidden_ns"),
            (pl.col("last") - pl.col("first")).alias("backward_ns"),
        )
        .with_columns(
            pl.when(known & (pl.col("backward_ns") > 0))
            .then((pl.col("start_ns") - pl.col("first")) / pl.col("backward_ns"))
            .alias("start_share"),
            pl.when(pl.col("duration_ns") > 0).then(pl.col("hidden_ns") / pl.col("duration_ns")).alias("hidden_share"),
            pl.when(known).then((pl.col("end_ns") - pl.col("last")).clip(lower_bound=0)).alias("tail_ns"),
        )
    )


def _backwards(window: Tables, at: Int64, inputs: Inputs) -> tuple[pl.Series, pl.Series]:
    """When the compute of the backward around each instant begins and ends; null outside of all backwards."""
    sets = phase_sets(window["host_ops"], window["annotations"], window["python_frames"])[BACKWARD]
    ranges = pl.DataFrame({"start_ns": sets.starts, "end_ns": sets.ends})
    work = _autograd(window["host_ops"])
    issued = work["start_ns"]
    if window["device_events"].height:
        device = with_category(window["device_events"], inputs.options.communication)
        device = device.filter((pl.col("category") != COMMUNICATION) & pl.col("launch_row").is_not_null())
        threads = launch_instants(device, window["runtime_calls"])
        work = device.filter(pl.Series(enclosing(work, threads) >= 0))
        issued = work["launch_ns"]
    bounds = _bounds(work, range_at(ranges, issued.to_numpy()))
    owner = range_at(ranges, at)
    bounds_at = pl.DataFrame({"owner": owner}).join(bounds, on="owner", how="left", maintain_order="left")
    return bounds_at["first"], bounds_at["last"]


def _bounds(work: pl.DataFrame, owner: Int64) -> pl.DataFrame:
    return (
        work.select("start_ns", "end_ns")
        .with_columns(pl.Series("owner", owner, dtype=pl.Int64))
        .filter(pl.col("owner") >= 0)
        .group_by("owner")
        .agg(pl.col("start_ns").min().alias("first"), pl.col("end_ns").max().alias("last"))
    )


def _autograd(operators: pl.DataFrame) -> pl.DataFrame:
    """Operators that autograd evaluates, without the reducer's copies, which wait for the last reduction."""
    named = pl.col("name").str.contains(_ENGINE) | (pl.col("forward_thread").fill_null(0) > 0)
    return operators.filter(named.fill_null(False))


_OPERATORS = (*READS["host_ops"], "sequence", "forward_thread", "module_hierarchy")


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    total, exposed = total_of(frame, "duration_ns"), total_of(frame, "exposed_ns")
    buckets = max(frame["buckets"].drop_nulls().to_list(), default=0)
    if not total or not buckets:
        return None
    values = {"buckets": (buckets, "count"), "total": (total, "ns")}
    text = f"DDP’s all-reduces ({{buckets}} {plural('bucket', buckets)} per step): {{total}}{over_ranks(frame)}"
    if not exposed:
        return Headline.of(f"{text}; all of it overlaps with compute.", **values)
    hidden = total_of(frame, "hidden_ns")
    if not hidden:
        return Headline.of(f"{text}; none of it overlaps with compute.", **values)
    text += "; {hidden} of it overlaps with compute, {exposed} is exposed."
    return Headline.of(text, hidden=(hidden / total, "ratio"), exposed=(exposed, "ns"), **values)


analysis = Analysis(
    name="ddp_buckets",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=steps_by_window(COLUMNS, _window_buckets),
    headline=headline,
    reads={**READS, "host_ops": _OPERATORS, "python_frames": ("start_ns", "end_ns", "name")},
)
