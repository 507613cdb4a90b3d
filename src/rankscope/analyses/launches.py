"""How long launches take to reach the device, and how far the host is ahead of it.

One row per rank; `--by stream`, `--by call` (the runtime's call) or `--by kernel` tells rows apart.

    latency       = a device event's start − its launch's start
    unqueued      = those before whose launch all that was launched to their stream had ended
    queue depth   = +1 for each device event at its launch, −1 at its start, events without a launch left out
    launch bound  = time between the device's first start and last end in which nothing runs on it and at most one
                    event is queued: it waits for the host to launch

Every launch counts alike, whatever call it is (cudaLaunchKernel, cuLaunchKernelEx, HIP's, XPU's, copies); the kernels
of a graph share the graph's one launch. A latency is long where the queue is: the cost of launching itself is that of
the unqueued ones. Negative latencies are kept and counted: the clocks of host and device disagree by at least as much.

How to read it: a mean depth of many says that the host is ahead and launching costs nothing. A depth near 0 or 1 and a
large launch-bound share say that the device waits for the host: fewer and larger kernels (fused operators,
`torch.compile`, CUDA graphs), fewer synchronising calls. `--steps` keeps what the chosen steps launched.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from rankscope.primitives.activity import time_of
from rankscope.primitives.queue import Queue
from rankscope.results import (
    Analysis,
    Column,
    Evidence,
    Finding,
    Headline,
    Inputs,
    Parameter,
    Tables,
    by_window,
    chosen_launches,
    concat_ranks,
    greatest,
)

COLUMNS = (
    Column("rank", "", "the rank"),
    Column("device", "", "the device; null unless `--by stream`"),
    Column("stream", "", "the stream; null unless `--by stream`"),
    Column("name", "", "the runtime's call, or the kernel; null unless `--by call` or `--by kernel`"),
    Column("events", "count", "kernels, copies and fills on the device"),
    Column("launchless", "count", "of these, how many have no launch in the file: nothing below counts them"),
    Column("launches", "count", "calls that launched the others"),
    Column("call_ns", "ns", "host time in these calls, summed"),
    Column("mean_latency_ns", "ns", "mean latency"),
    Column("min_latency_ns", "ns", "least latency; below 0 the clocks of host and device disagree"),
    Column("median_latency_ns", "ns", "median latency"),
    Column("p95_latency_ns", "ns", "95 of 100 are below this"),
    Column("max_latency_ns", "ns", "greatest latency"),
    Column("negative", "count", "how many latencies are negative"),
    Column("unqueued", "count", "events launched to a stream that had nothing left to do"),
    Column("unqueued_latency_ns", "ns", "their median latency: what launching itself costs"),
    Column("mean_queue", "", "queue depth, mean over time; null by call and by kernel"),
    Column("max_queue", "", "queue depth, greatest; null likewise"),
    Column("launch_bound_ns", "ns", "device idle with at most one event queued; null likewise"),
    Column("launch_bound_share", "ratio", "of the span from the first start to the last end; null likewise"),
    Column("launch_bound_longest_ns", "ns", "the longest such stretch; null likewise"),
)
_KEYS = {
    "rank": (),
    "stream": ("device", "stream"),
    "call": ("call",),
    "kernel": ("name",),
}
_TYPES = {"device": pl.Int64(), "stream": pl.Int64(), "name": pl.String()}


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The launches of a rank, all its windows together; the queue window by window."""
    by = str(inputs.parameters.get("by", "rank"))
    keys = _KEYS[by]
    windows = [_launched(window, inputs) for window in by_window(tables, inputs)]
    events = pl.concat(windows)
    # All of a rank together: a rank that launched nothing has a row that says so.
    found = events.group_by(keys, maintain_order=True).agg(_FIGURES) if keys else events.select(_FIGURES)
    if by in ("rank", "stream"):
        found = _with_queues(found, windows, keys)
    named = {"call": "name"} if by == "call" else {}
    frame = found.rename(named).with_columns(pl.lit(inputs.rank, pl.Int64).alias("rank"))
    missing = [c.name for c in COLUMNS if c.name not in frame.columns]
    types = _TYPES | {name: pl.Float64() for name in ("mean_queue", "launch_bound_share")}
    frame = frame.with_columns(pl.lit(None, types.get(name, pl.Int64())).alias(name) for name in missing)
    return frame.sort("events", "device", "stream", "name", descending=[True, False, False, False]).select(
        column.name for column in COLUMNS
    )


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """The ranks below one another; and where the clocks of host and device disagree."""
    frame = concat_ranks(parts, COLUMNS)
    skewed = frame.filter(pl.col("negative") > 0)
    if skewed.is_empty():
        return frame, []
    least, negative = (int(skewed[name].to_numpy().min()) for name in ("min_latency_ns", "negative"))
    return frame, [
        Finding(
            id="host-device-clock-skew",
            severity="info",
            title="Some work began on the device before its launch did: the clocks of host and device disagree",
            ranks=tuple(skewed["rank"].unique().sort()),
            evidence=(
                Evidence("by at least", -least, "ns"),
                Evidence("events on the rank with the fewest of them", negative, "count"),
            ),
            advice="Latencies, idle causes and queue depths of these ranks are off by as much. A newer driver and "
            "profiler convert the device's stamps better.",
        )
    ]


_LATENCY = pl.col("latency")
_FIGURES = (
    pl.len().cast(pl.Int64).alias("events"),
    pl.col("launch_ns").is_null().sum().cast(pl.Int64).alias("launchless"),
    pl.col("call_id").drop_nulls().n_unique().cast(pl.Int64).alias("launches"),
    pl.col("call_ns").filter(pl.col("first_of_call")).sum().alias("call_ns"),
    _LATENCY.mean().alias("mean_latency_ns"),
    _LATENCY.min().alias("min_latency_ns"),
    _LATENCY.median().alias("median_latency_ns"),
    _LATENCY.quantile(0.95, "linear").alias("p95_latency_ns"),
    _LATENCY.max().alias("max_latency_ns"),
    (_LATENCY < 0).sum().cast(pl.Int64).alias("negative"),
    pl.col("unqueued").sum().cast(pl.Int64).alias("unqueued"),
    _LATENCY.filter(pl.col("unqueued")).median().alias("unqueued_latency_ns"),
)


def _launched(window: Tables, inputs: Inputs) -> pl.DataFrame:
    """The device events of a window with their launches' latency, call and queueing."""
    calls = window["runtime_calls"]
    device = chosen_launches(window["device_events"], window["annotations"], inputs)
    row = device["launch_row"]
    before = pl.col("end_ns").cum_max().shift(1).over("device", "stream")
    return (
        device.with_columns(
            calls["name"].gather(row).alias("call"),
            (calls["end_ns"] - calls["start_ns"]).gather(row).alias("call_ns"),
            # Rows of different windows are different calls.
            (row.cast(pl.Int64) * len(inputs.traces) + device["window"].cast(pl.Int64)).alias("call_id"),
            (pl.col("start_ns") - pl.col("launch_ns")).alias("latency"),
            row.is_first_distinct().alias("first_of_call"),
        )
        .sort("start_ns")
        .with_columns(
            (pl.col("launch_ns").is_not_null() & (before.is_null() | (before <= pl.col("launch_ns")))).alias("unqueued")
        )
    )


def _with_queues(found: pl.DataFrame, windows: Sequence[pl.DataFrame], keys: Sequence[str]) -> pl.DataFrame:
    """Add what the queues of each group were like, the windows' figures together."""
    rows = []
    for group in found.select(keys).rows() if keys else [()]:
        parts = [
            window.filter(*(pl.col(key).eq_missing(value) for key, value in zip(keys, group, strict=True)))
            for window in windows
        ]
        rows.append(_queue_of(parts))
    return pl.concat([found, pl.DataFrame(rows, schema=_QUEUE, orient="row")], how="horizontal")


_QUEUE = {
    "mean_queue": pl.Float64(),
    "max_queue": pl.Int64(),
    "launch_bound_ns": pl.Int64(),
    "launch_bound_share": pl.Float64(),
    "launch_bound_longest_ns": pl.Int64(),
}


def _queue_of(parts: Sequence[pl.DataFrame]) -> tuple[float | None, int | None, int | None, float | None, int | None]:
    """Mean and greatest depth, and the launch-bound time, its share and its longest stretch."""
    weight = area = 0.0
    deepest = bound = longest = span = 0
    launched_any = False
    for part in parts:
        launched = part.filter(pl.col("launch_ns").is_not_null())
        if launched.is_empty():
            continue
        launched_any = True
        queue = Queue.of(launched["launch_ns"].to_numpy(), launched["start_ns"].to_numpy())
        mean, lasted = queue.mean, float(queue.instants[-1] - queue.instants[0])
        if mean is not None:
            area, weight = area + mean * lasted, weight + lasted
        deepest = max(deepest, queue.deepest)
        busy = time_of(part)
        if not len(busy):
            continue
        first, last = int(busy.starts[0]), int(busy.ends[-1])
        waiting = busy.complement(first, last) & queue.shallow(first, last)
        span += last - first
        bound += waiting.length
        longest = max(longest, int(np.max(waiting.ends - waiting.starts, initial=0)))
    if not launched_any:
        return None, None, None, None, None
    return area / weight if weight else None, deepest, bound, bound / span if span else None, longest


def headline(frame: pl.DataFrame) -> Headline | None:
    """The answer in one sentence."""
    worst, latency = greatest(frame, "launch_bound_share"), frame["median_latency_ns"].median()
    if not isinstance(latency, float):
        return None
    values: dict[str, tuple[int | float | str, str]] = {}
    # Where the clocks of host and device disagree, kernels begin before they are launched.
    text = "Kernels begin as soon as they are launched"
    if round(latency) > 0:
        text, values["latency"] = "A launch takes {latency} to begin on the device (median)", (round(latency), "ns")
    if worst is None:
        return Headline.of(f"{text}.", **values)
    text += "; rank {rank}’s device waits for launches {share} of its span."
    return Headline.of(text, rank=(worst["rank"], ""), share=(worst["launch_bound_share"], "ratio"), **values)


analysis = Analysis(
    name="launches",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    across_ranks=across_ranks,
    headline=headline,
    reads={
        "device_events": ("start_ns", "end_ns", "name", "device", "stream", "launch_row", "launch_ns"),
        "runtime_calls": ("start_ns", "end_ns", "name"),
        "annotations": ("start_ns", "end_ns", "on_device", "step"),
    },
    parameters=(
        Parameter("by", "what tells rows apart", default="rank", choices=("rank", "stream", "call", "kernel")),
    ),
)
