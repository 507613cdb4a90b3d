"""Launch latency and queue depth: how far the host runs ahead of the device.

One row per rank; `--by stream`, `--by call` (the runtime call) or `--by kernel` groups differently.

    latency       = a device event's start − its launch's start
    unqueued      = events that were launched when all earlier events of their stream had ended
    queue depth   = +1 for each device event at its launch, −1 at its start, without events whose launch is missing
    launch bound  = time between the device's first start and last end in which nothing runs on it and at most one
                    event is queued: it waits for the host to launch

Every launch counts, whichever call it is (cudaLaunchKernel, cuLaunchKernelEx, HIP's, XPU's, copies); the kernels of a
graph share the graph's single launch. A latency is long if the queue is long: the cost of launching itself is the
latency of the unqueued events. Negative latencies are kept and counted: the host's and the device's clocks disagree by
at least that much.

How to read it: a large mean depth means that the host is ahead and launching costs nothing. A depth near 0 or 1 with a
large launch-bound share means that the device waits for the host: use fewer and larger kernels (fused operators,
`torch.compile`, CUDA graphs) and fewer synchronizing calls. `--steps` keeps what the selected steps launched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.columns import constant, values_and_validity
from rankscope.primitives.intervals import Int64
from rankscope.primitives.launch_queue import LaunchQueue
from rankscope.primitives.streams import Streams
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
    schema_of,
)

Bool = npt.NDArray[np.bool_]

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("device", pl.Int64, "", "the device; null unless `--by stream`"),
    Column("stream", pl.Int64, "", "the stream; null unless `--by stream`"),
    Column("name", pl.String, "", "the runtime call, or the kernel; null unless `--by call` or `--by kernel`"),
    Column("events", pl.Int64, "count", "kernels, copies and fills on the device"),
    Column("launchless", pl.Int64, "count", "events whose launch is not in the trace: excluded from all figures below"),
    Column("launches", pl.Int64, "count", "calls that launched the other events"),
    Column("call_ns", pl.Int64, "ns", "host time in these calls, summed"),
    Column("mean_latency_ns", pl.Float64, "ns", "mean latency"),
    Column("min_latency_ns", pl.Int64, "ns", "shortest latency; if negative, the clocks of host and device disagree"),
    Column("median_latency_ns", pl.Float64, "ns", "median latency"),
    Column("p95_latency_ns", pl.Float64, "ns", "95th percentile of latencies"),
    Column("max_latency_ns", pl.Int64, "ns", "longest latency"),
    Column("negative", pl.Int64, "count", "number of negative latencies"),
    Column("unqueued", pl.Int64, "count", "events launched to an empty stream"),
    Column("unqueued_latency_ns", pl.Float64, "ns", "their median latency: the cost of launching itself"),
    Column("mean_queue", pl.Float64, "", "mean queue depth over time; null by call and by kernel"),
    Column("max_queue", pl.Int64, "", "maximum queue depth; null by call and by kernel"),
    Column("launch_bound_ns", pl.Int64, "ns", "device idle with at most one event queued; null by call and by kernel"),
    Column(
        "launch_bound_share",
        pl.Float64,
        "ratio",
        "share of the span from the first start to the last end; null by call and by kernel",
    ),
    Column("launch_bound_longest_ns", pl.Int64, "ns", "the longest launch-bound interval; null by call and by kernel"),
)
_KEYS = {"rank": (), "stream": ("device", "stream"), "call": ("call",), "kernel": ("name",)}


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The launches of a rank over all its windows; the queue per window."""
    by = str(inputs.parameters.get("by", "rank"))
    keys = _KEYS[by]
    windows = [_window_launches(window, number, by, inputs) for number, window in enumerate(by_window(tables, inputs))]
    events = pl.concat(window.events for window in windows)
    # A rank that launched nothing still has a row.
    groups = _grouped(events, keys)
    columns = {column.name: column for column in groups.get_columns()}
    if by == "rank":
        columns |= _queue_columns([_queue_figures([window.queue() for window in windows])])
    elif by == "stream":
        columns |= _queue_columns(_by_stream(groups, windows))
    elif by == "call":
        columns["name"] = columns.pop("call")
    columns["rank"] = constant("rank", inputs.rank, pl.Int64, groups.height)
    frame = pl.DataFrame(
        [
            columns[name].alias(name) if name in columns else constant(name, None, dtype, groups.height)
            for name, dtype in schema_of(COLUMNS).items()
        ]
    )
    if frame.height < 2:
        return frame
    order = ["device", "stream"] if by == "stream" else ["name"]
    return frame.sort("events", *order, descending=[True, *(False for _ in order)])


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """Concatenate the ranks, and report disagreeing clocks of host and device."""
    frame = concat_ranks(parts, COLUMNS)
    if frame.is_empty() or not (frame["negative"] > 0).any():
        return frame, []
    skewed = frame.filter(pl.col("negative") > 0)
    lowest = int(skewed["min_latency_ns"].to_numpy().min())
    by_rank = skewed.group_by("rank").agg(pl.col("negative").sum())["negative"]
    return frame, [
        Finding(
            id="host-device-clock-skew",
            severity="info",
            title="Some device events start before their launch: the clocks of host and device disagree",
            ranks=tuple(skewed["rank"].unique().sort()),
            evidence=(
                Evidence("disagreement of at least", -lowest, "ns"),
                Evidence("such events on the rank with the fewest", int(by_rank.to_numpy().min()), "count"),
            ),
            advice="Latencies, idle causes and queue depths of these ranks are off by as much. Newer drivers and "
            "profilers convert the device's timestamps better.",
        )
    ]


def _grouped(events: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """The statistics of each group."""
    figures = [*_FIGURES, _LAUNCHES if "call_id" in events.columns else _FIRST_EVENTS]
    if keys and events.is_empty():
        return events.select(*keys, *figures).clear()
    # Skip constant keys, as the device mostly is: grouping by them costs time.
    varying = [key for key in keys if events[key].n_unique() > 1]
    figures = [*(pl.col(key).first() for key in keys if key not in varying), *figures]
    return events.group_by(varying, maintain_order=True).agg(figures) if varying else events.select(figures)


_LATENCY = pl.col("latency")
# If a call's events may be in several groups it counts in each, else only in the group of its first event.
_LAUNCHES = pl.col("call_id").drop_nulls().n_unique().cast(pl.Int64).alias("launches")
_FIRST_EVENTS = pl.col("first").sum().cast(pl.Int64).alias("launches")
_FIGURES = (
    pl.len().cast(pl.Int64).alias("events"),
    _LATENCY.null_count().cast(pl.Int64).alias("launchless"),
    pl.col("call_ns").sum(),
    _LATENCY.mean().alias("mean_latency_ns"),
    _LATENCY.min().alias("min_latency_ns"),
    _LATENCY.median().alias("median_latency_ns"),
    _LATENCY.quantile(0.95, "linear").alias("p95_latency_ns"),
    _LATENCY.max().alias("max_latency_ns"),
    (_LATENCY < 0).sum().cast(pl.Int64).alias("negative"),
    pl.col("unqueued").sum().cast(pl.Int64).alias("unqueued"),
    _LATENCY.filter(pl.col("unqueued")).median().alias("unqueued_latency_ns"),
)


@dataclass(frozen=True)
class _WindowLaunches:
    """The device events of a window.

    Attributes:
        events: one row per event: the keys, latency, first (whether it is the first of its call), call_ns (only for the
            first), unqueued; call_id if a call's events may be in different groups.
        device: the rows of device_events.
        streams: these by stream.
        launch: start of each launch, ns.
        launched: whether the launch is in the trace.
    """

    events: pl.DataFrame
    device: pl.DataFrame
    streams: Streams
    launch: Int64
    launched: Bool

    def queue(self, rows: Int64 | slice = slice(None)) -> LaunchQueue:
        """The queue of the given events; of all by default."""
        start, end = (self.device[name].to_numpy()[rows] for name in ("start_ns", "end_ns"))
        return LaunchQueue.of(start, end, self.launch[rows], self.launched[rows])


def _window_launches(window: Tables, number: int, by: str, inputs: Inputs) -> _WindowLaunches:
    """The device events of a window with the latency, call and queueing of their launches."""
    calls = window["runtime_calls"]
    device = chosen_launches(window["device_events"], window["annotations"], inputs)
    streams = Streams.of(device)
    row, _ = values_and_validity(device["launch_row"], -1)
    launch, launched = values_and_validity(device["launch_ns"])
    # Row −1 (no launch) refers to the appended 0.
    call_duration = np.append(calls["end_ns"].to_numpy() - calls["start_ns"].to_numpy(), 0)
    # The first event of each call: written in reverse order, so that the first is written last.
    index = np.arange(row.size)
    first = np.empty(call_duration.size, dtype=np.int64)
    first[row[::-1]] = index[::-1]
    # An event is unqueued if everything before it on its stream had ended at its launch.
    to_empty_stream = np.append(True, streams.reached[:-1] <= launch[streams.order][1:])[: row.size]
    to_empty_stream[streams.first] = True
    unqueued = np.empty(row.size, dtype=np.bool_)
    unqueued[streams.order] = to_empty_stream
    keys = [device[name] for name in _KEYS[by] if name != "call"]
    if by == "call":
        keys.append(calls["name"].gather(device["launch_row"]).alias("call"))
    if by in ("stream", "kernel"):
        # Rows of different windows are different calls.
        keys.append((device["launch_row"].cast(pl.Int64) * len(inputs.traces) + number).alias("call_id"))
    firsts = (first[row] == index) & launched
    figures = [
        (device["start_ns"] - device["launch_ns"]).alias("latency"),
        pl.Series("first", firsts),
        pl.Series("call_ns", np.where(firsts, call_duration[row], 0)),
        pl.Series("unqueued", unqueued & launched),
    ]
    return _WindowLaunches(pl.DataFrame([*keys, *figures]), device, streams, launch, launched)


_Queued = tuple[float | None, int | None, int | None, float | None, int | None]
_QUEUE = {
    "mean_queue": pl.Float64,
    "max_queue": pl.Int64,
    "launch_bound_ns": pl.Int64,
    "launch_bound_share": pl.Float64,
    "launch_bound_longest_ns": pl.Int64,
}


def _by_stream(groups: pl.DataFrame, windows: Sequence[_WindowLaunches]) -> list[_Queued]:
    """The queue statistics of each stream, in the order of `groups`."""
    queues: dict[tuple[int | None, ...], list[LaunchQueue]] = {}
    for window in windows:
        first_events = window.streams.order[window.streams.first]
        names = zip(*(window.device[name][first_events] for name in ("device", "stream")), strict=True)
        for stream, rows in zip(names, window.streams.rows(), strict=True):
            queues.setdefault(stream, []).append(window.queue(rows))
    return [_queue_figures(queues[stream]) for stream in zip(groups["device"], groups["stream"], strict=True)]


def _queue_columns(rows: Sequence[_Queued]) -> dict[str, pl.Series]:
    # Build by column: by row takes three times as long.
    columns = zip(*rows, strict=True) if rows else [()] * len(_QUEUE)
    typed = zip(_QUEUE.items(), columns, strict=True)
    return {name: pl.Series(name, values, dtype=dtype) for (name, dtype), values in typed}


def _queue_figures(queues: Sequence[LaunchQueue]) -> _Queued:
    """Mean and maximum depth, launch-bound time, its share and its longest interval, over all windows."""
    queued = duration = deepest = bound = longest = span = 0
    queues = [queue for queue in queues if queue.launch.size]
    for queue in queues:
        queued, duration = queued + queue.queued, duration + queue.lasted
        deepest = max(deepest, queue.deepest)
        if queue.span is None:
            continue
        waiting = queue.starved()
        span += queue.span[1] - queue.span[0]
        bound += waiting.length
        longest = max(longest, int(np.max(waiting.ends - waiting.starts, initial=0)))
    if not queues:
        return None, None, None, None, None
    return queued / duration if duration else None, deepest, bound, bound / span if span else None, longest


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    worst, latency = greatest(frame, "launch_bound_share"), frame["median_latency_ns"].median()
    if not isinstance(latency, float):
        return None
    values: dict[str, tuple[int | float | str, str]] = {}
    # If the clocks disagree, kernels start before their launch.
    text = "Kernels start immediately after their launch"
    if round(latency) > 0:
        text, values["latency"] = "Median launch latency: {latency}", (round(latency), "ns")
    if worst is None:
        return Headline.of(f"{text}.", **values)
    text += "; rank {rank}’s device is launch bound for {share} of its span."
    return Headline.of(text, rank=(worst["rank"], ""), share=(worst["launch_bound_share"], "ratio"), **values)


analysis = Analysis(
    name="launches",
    doc=__doc__,
    whole_recording=True,
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
        Parameter("by", "what to group rows by", default="rank", choices=("rank", "stream", "call", "kernel")),
    ),
    has_findings=True,
)
