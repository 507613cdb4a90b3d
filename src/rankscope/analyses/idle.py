"""Idle time of each stream and device, by cause.

One row per rank, device, stream and cause; `--by device` has the causes side by side, `--by step` the gaps of each step
that are due to late launches, allocations and code that is not recorded. A gap of a stream is the time before an event
on it after everything earlier on it has ended; overlapping events leave no gap. Its cause is that of the event that
ends it:

    host_wait     its launch began after the stream had become empty: the host was late
    kernel_wait   it was launched in time, and the gap is below 30 µs: the normal distance between kernels
    other         it was launched in time and waited longer: for another stream, an event, memory
    unknown       its launch is not in the trace

Rows without a stream describe the whole device: the time between its first start and its last end in which no stream
runs anything. Their cause is what the host did meanwhile, over all threads. Each instant counts once, for the first of:

    data_loading     a DataLoader's `__next__`, or a user range named for data loading
    synchronisation  a runtime call that waits for the device
    runtime          any other runtime call
    operator         `detail` names the outermost; if several threads have one, the first that started
    python           a Python function, if stacks were recorded
    nothing          the host recorded nothing: it slept, was descheduled, or ran code that is not recorded

The gaps of a stream sum to its idle time, the rows without a stream to the device's.

How to read it: streams other than the main one are idle most of the time, which is normal; the device's rows matter.
Much host_wait with operators or Python: the host is the bottleneck (`launches` shows by how much). Much data_loading:
see `data_loading`. Synchronization: `.item()`, `.cpu()`, `torch.cuda.synchronize()` in the loop. `--of streams` or
`--of devices` lists only these gaps; for streams no host tables are read. `--steps` keeps the gaps inside the selected
steps' windows. The causes of a stream's gaps are defined as in HTA.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from rankscope.primitives.activity import HOST_ACTIVITY, covered_time, data_loading_time
from rankscope.primitives.allocations import DEVICE_FREE, DEVICE_MALLOC, PINNED_MEMORY
from rankscope.primitives.columns import constant, values_and_validity
from rankscope.primitives.intervals import Int64, IntervalSet, interval_at
from rankscope.primitives.late_launches import SILENCE_NS, LateLaunches, before_short
from rankscope.primitives.steps import step_windows, with_step_row
from rankscope.primitives.stragglers.host_scopes import is_own_function
from rankscope.primitives.streams import Streams, stream_numbers
from rankscope.primitives.synchronization import is_host_wait
from rankscope.results import (
    RANK_AND_WINDOW,
    Analysis,
    Column,
    Finding,
    Headline,
    Inputs,
    Options,
    Parameter,
    Parameters,
    Tables,
    by_window,
    greatest,
    schema_of,
    steps_by_window,
    top_group,
    total_of,
)

_RANK, _DEVICE = Column("rank", pl.Int64, "", "the rank"), Column("device", pl.Int64, "", "device index")
COLUMNS = (
    _RANK,
    _DEVICE,
    Column("stream", pl.Int64, "", "the stream; null for the whole device"),
    Column(
        "cause", pl.String, "", "host_wait, kernel_wait, other, unknown; for a whole device what the host did meanwhile"
    ),
    Column("detail", pl.String, "", "the operator, if the cause is one"),
    Column("gaps", pl.Int64, "count", "number of gaps; for a whole device, of pieces of gaps"),
    Column("idle_ns", pl.Int64, "ns", "time in them"),
    Column("share", pl.Float64, "ratio", "share of the idle time of the stream, or of the device"),
    Column("mean_ns", pl.Float64, "ns", "mean duration"),
    Column("max_ns", pl.Int64, "ns", "longest duration"),
    Column(
        "longest_start_ns",
        pl.Int64,
        "ns",
        "start of the longest, or of the operator's call",
        instant=True,
    ),
    Column("window", pl.Int64, "", "index of the rank's trace file that has the longest, from 0"),
)


class GapKey(NamedTuple):
    """Which row of the result: its device, stream (None for the whole device), cause and detail."""

    device: int | None
    stream: int | None
    cause: str
    detail: str | None = None


# HTA's default: shorter gaps are the normal distance between kernels.
KERNEL_WAIT_NS = 30_000
_KEYS = ("device", "stream", "cause", "detail")
_SCHEMA = schema_of([column for column in COLUMNS if column.name not in ("rank", "share", "mean_ns", "window")])
_NO_ROWS = np.empty(0, dtype=np.int64)
_CAUSES = ["host_wait", "kernel_wait", "other", "unknown"]


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The gaps of a rank's streams and devices, by cause."""
    level = inputs.parameters.get("of", "all")
    parts = []
    for number, window in enumerate(by_window(tables, inputs)):
        device, selected = window["device_events"], _selected_time(window, inputs.options)
        if not device.height:
            continue
        found = []
        if level != "devices":
            found.append(_stream_gaps(device, selected))
        # The host's activity is the same for all devices.
        host = _host_activity(window) if level != "streams" else []
        device_indices = device["device"].unique()
        for device_index in device_indices if level != "streams" else ():
            device_events = (
                device if len(device_indices) == 1 else device.filter(pl.col("device").eq_missing(device_index))
            )
            found += _device_gaps(device_index, covered_time(device_events), host, window["host_ops"], selected)
        parts += [part.with_columns(pl.lit(number, pl.Int64).alias("window")) for part in found]
    frame = pl.concat(parts) if parts else pl.DataFrame(schema={**_SCHEMA, "window": pl.Int64})
    if len(inputs.traces) > 1:
        longest = pl.col("max_ns", "longest_start_ns", "window").get(pl.col("max_ns").arg_max())
        frame = frame.group_by(_KEYS).agg(pl.col("gaps", "idle_ns").sum(), longest)
        frame = frame.sort("cause", "detail", nulls_last=True)
    stream_index, idle = stream_numbers(frame), frame["idle_ns"].to_numpy()
    if len(parts) > 1 or len(inputs.traces) > 1:
        # By device and stream, largest first; ties stay in the order of cause and detail.
        order = np.lexsort((-idle, stream_index))
        frame, stream_index, idle = frame[order], stream_index[order], idle[order]
    total = np.zeros(int(stream_index.max(initial=0)) + 1, dtype=np.int64)
    np.add.at(total, stream_index, idle)
    return pl.DataFrame(
        [
            constant("rank", inputs.rank, pl.Int64, frame.height),
            *(frame[name] for name in (*_KEYS, "gaps", "idle_ns")),
            pl.Series("share", idle / total[stream_index]),
            pl.Series("mean_ns", idle / frame["gaps"].to_numpy()),
            *(frame[name] for name in ("max_ns", "longest_start_ns", "window")),
        ]
    )


def extra_columns(chosen: Parameters) -> dict[str, tuple[str, ...]]:
    """The host's tables, if device gaps are requested."""
    if chosen["of"] == "streams":
        return {}
    return {
        "host_ops": ("start_ns", "end_ns", "name", "depth"),
        "runtime_calls": ("start_ns", "end_ns", "name"),
        "python_frames": ("start_ns", "end_ns", "depth"),
    }


def _selected_time(window: Tables, options: Options) -> IntervalSet | None:
    """The windows of the selected steps; None for all of the time."""
    if options.steps is None:
        return None
    steps, found = step_windows(window["annotations"], window["device_events"])
    keep = steps.select(options.keeps(pl.col("step"))).to_series().to_numpy()
    return IntervalSet.of(found.start[keep], found.end[keep])


def gaps_of(window: Tables, options: Options, key: GapKey) -> pl.DataFrame:
    """The gaps of one row of the result in one trace file, with start_ns, end_ns and idle_ns, the longest first.

    If the cause is an operator, start and end are those of its calls, each of which counts once.
    """
    events = window["device_events"].filter(pl.col("device").eq_missing(key.device))
    selected = _selected_time(window, options)
    if key.stream is not None:
        _, _, cause, start, end = _gaps_in_streams(events.filter(pl.col("stream") == key.stream))
        own = cause == _CAUSES.index(key.cause) if key.cause in _CAUSES else np.zeros(start.size, dtype=np.bool_)
        start, end = start[own], end[own]
        idle = end - start if selected is None else selected.within(start, end)
    else:
        pieces = _device_pieces(covered_time(events), _host_activity(window), selected)
        inside, row = pieces.get(key.cause, (IntervalSet(_NO_ROWS, _NO_ROWS), _NO_ROWS))
        start, end, idle = inside.starts, inside.ends, inside.ends - inside.starts
        if key.cause == "operator" and row.size:
            first = np.flatnonzero(np.diff(row, prepend=-1))
            calls = window["host_ops"][row[first]].with_columns(idle_ns=np.add.reduceat(idle, first))
            calls = calls.filter(pl.col("name").eq_missing(key.detail))
            start, end, idle = (calls[name].to_numpy() for name in ("start_ns", "end_ns", "idle_ns"))
    found = pl.DataFrame({"start_ns": start, "end_ns": end, "idle_ns": idle}).filter(pl.col("idle_ns") > 0)
    return found.sort("idle_ns", "start_ns", descending=[True, False])


def _gaps_in_streams(device: pl.DataFrame) -> tuple[Streams, Int64, Int64, Int64, Int64]:
    """The gaps before events: each one's stream, the number of its cause, when it begins and ends."""
    streams = Streams.of(device)
    start = device["start_ns"].to_numpy()[streams.order]
    # Events with a gap before them; the first of a stream has none.
    has_gap = np.append(False, start[1:] > streams.reached[:-1])
    has_gap[streams.first] = False
    after_gap = np.flatnonzero(has_gap)
    begins, ends = streams.reached[after_gap - 1], start[after_gap]
    rows = streams.order[after_gap]
    launch, known = values_and_validity(device["launch_ns"])
    launch_at = launch[rows]
    in_time = np.where(ends - begins < KERNEL_WAIT_NS, _CAUSES.index("kernel_wait"), _CAUSES.index("other"))
    cause = np.where(launch_at > begins, _CAUSES.index("host_wait"), in_time)
    cause[~known[rows]] = _CAUSES.index("unknown")
    return streams, streams.number[after_gap], cause, begins, ends


def _stream_gaps(device: pl.DataFrame, selected: IntervalSet | None) -> pl.DataFrame:
    """The gaps of each stream by cause."""
    streams, stream, cause, begins, ends = _gaps_in_streams(device)
    gap = ends - begins if selected is None else selected.within(begins, ends)
    group, gaps, total, longest, longest_start = _by_group(stream * len(_CAUSES) + cause, gap, begins)
    # Within a stream the largest first.
    order = np.lexsort((-total, group // len(_CAUSES)))
    stream, cause = np.divmod(group[order], len(_CAUSES))
    numbers, names = stream.tolist(), [_CAUSES[index] for index in cause.tolist()]
    devices, stream_ids = (streams.heads(device, name) for name in ("device", "stream"))
    return _rows(
        pl.Series([devices[number] for number in numbers], dtype=pl.Int64),
        pl.Series([stream_ids[number] for number in numbers], dtype=pl.Int64),
        pl.Series(names, dtype=pl.String),
        gaps=gaps[order],
        idle_ns=total[order],
        max_ns=longest[order],
        longest_start_ns=longest_start[order],
    )


def _rows(
    device: pl.Series | int | None,
    stream: pl.Series | None,
    cause: pl.Series | str,
    detail: pl.Series | None = None,
    **figures: Int64 | list[int],
) -> pl.DataFrame:
    """Rows of the result; a single value applies to all of them."""
    count = len(figures["gaps"])
    keys = dict(zip(_KEYS, (device, stream, cause, detail), strict=True))
    return pl.DataFrame(
        [
            key.alias(name) if isinstance(key, pl.Series) else constant(name, key, _SCHEMA[name], count)
            for name, key in keys.items()
        ]
        + [pl.Series(name, values, dtype=pl.Int64) for name, values in figures.items()]
    )


def _by_group(group: Int64, gap: Int64, begins: Int64) -> tuple[Int64, Int64, Int64, Int64, Int64]:
    """Groups with gaps: the group, its number of gaps, their sum, the longest, and when the first of these starts."""
    positive = gap > 0
    if not positive.all():
        group, gap, begins = group[positive], gap[positive], begins[positive]
    # Small integers sort faster.
    small = group.astype(np.uint16) if group.max(initial=0) < 1 << 16 else group
    order = np.argsort(small, kind="stable")
    group, gap, begins = group[order], gap[order], begins[order]
    if not group.size:
        return group, group, gap, gap, begins
    first = np.append(0, np.flatnonzero(group[1:] != group[:-1]) + 1)
    gaps = np.diff(first, append=group.size)
    longest = np.maximum.reduceat(gap, first)
    is_longest = np.flatnonzero(gap == np.repeat(longest, gaps))
    earliest = is_longest[np.searchsorted(is_longest, first)]
    return group[first], gaps, np.add.reduceat(gap, first), longest, begins[earliest]


def _host_activity(window: Tables) -> list[tuple[str, IntervalSet, Int64]]:
    """The host's activity by cause, in order of precedence; for operators also the row of each interval."""
    calls, frames = window["runtime_calls"], window["python_frames"]
    waiting = is_host_wait(calls["name"]).to_numpy()
    starts, ends = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    return [
        ("data_loading", data_loading_time(window["annotations"]), _NO_ROWS),
        ("synchronisation", IntervalSet.of(starts[waiting], ends[waiting]), _NO_ROWS),
        ("runtime", IntervalSet.of(starts[~waiting], ends[~waiting]), _NO_ROWS),
        ("operator", *_operators(window["host_ops"])),
        ("python", _outermost(frames), _NO_ROWS),
    ]


def _outermost(ranges: pl.DataFrame) -> IntervalSet:
    """When any range is open: nested ranges add nothing."""
    top = ranges["depth"].to_numpy() == 0
    return IntervalSet.of(ranges["start_ns"].to_numpy()[top], ranges["end_ns"].to_numpy()[top])


def _operators(operators: pl.DataFrame) -> tuple[IntervalSet, Int64]:
    """Disjoint intervals in which each outermost operator is the earliest of the open ones, and its row."""
    top = np.flatnonzero(operators["depth"].to_numpy() == 0)
    top = top[np.argsort(operators["start_ns"].to_numpy()[top], kind="stable")]
    begin, end = operators["start_ns"].to_numpy()[top], operators["end_ns"].to_numpy()[top]
    # Keep only the part after the end of all earlier operators.
    begin[1:] = np.maximum(begin[1:], np.maximum.accumulate(end)[:-1])
    not_empty = end > begin
    return IntervalSet(begin[not_empty], end[not_empty]), top[not_empty]


def _device_gaps(
    device: int | None,
    busy: IntervalSet,
    host: Sequence[tuple[str, IntervalSet, Int64]],
    operators: pl.DataFrame,
    selected: IntervalSet | None,
) -> list[pl.DataFrame]:
    """The gaps of a device, split by what the host did.

    Args:
        operators: host_ops.
    """
    found = _device_pieces(busy, host, selected)
    operator = found.pop("operator", None)
    operator_rows = [] if operator is None else [_operator_rows(device, operators, operator[1], operator[0])]
    pieces = {cause: inside for cause, (inside, _) in found.items()}
    causes = sorted(pieces)
    after = bisect_left(causes, "operator")
    before, behind = ({cause: pieces[cause] for cause in some} for some in (causes[:after], causes[after:]))
    return [_cause_rows(device, before), *operator_rows, _cause_rows(device, behind)]


def _device_pieces(
    busy: IntervalSet, host: Sequence[tuple[str, IntervalSet, Int64]], selected: IntervalSet | None
) -> dict[str, tuple[IntervalSet, Int64]]:
    """The idle time of a device by what the host did; for operators also the row of each piece."""
    if not len(busy):
        return {}
    remaining = busy.complement(int(busy.starts[0]), int(busy.ends[-1]))
    remaining = remaining if selected is None else remaining & selected
    pieces: dict[str, tuple[IntervalSet, Int64]] = {}
    for cause, times, rows in host:
        inside, remaining, interval = remaining.split(times)
        if len(inside):
            pieces[cause] = inside, rows[interval] if rows.size else rows
    if len(remaining):
        pieces["nothing"] = remaining, _NO_ROWS
    return pieces


def _cause_rows(device: int | None, pieces: Mapping[str, IntervalSet]) -> pl.DataFrame:
    """Rows of causes other than operators, from their pieces."""
    gaps = [piece.ends - piece.starts for piece in pieces.values()]
    longest = [int(gap.argmax()) for gap in gaps]
    return _rows(
        device,
        None,
        pl.Series(list(pieces), dtype=pl.String),
        gaps=[gap.size for gap in gaps],
        idle_ns=[int(gap.sum()) for gap in gaps],
        max_ns=[int(gap[row]) for gap, row in zip(gaps, longest, strict=True)],
        longest_start_ns=[int(piece.starts[row]) for piece, row in zip(pieces.values(), longest, strict=True)],
    )


def _operator_rows(device: int | None, operators: pl.DataFrame, row: Int64, pieces: IntervalSet) -> pl.DataFrame:
    """Time in operators by their names; the pieces of one call count as one gap."""
    first = np.flatnonzero(np.diff(row, prepend=-1))
    gap = pl.Series("gap", np.add.reduceat(pieces.ends - pieces.starts, first))
    calls = operators[row[first]].select(pl.col("name").alias("detail"), "start_ns")
    spent = calls.with_columns(gap)
    length = pl.col("gap")
    by_name = spent.group_by("detail", maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("gaps"),
        length.sum().alias("idle_ns"),
        length.max().alias("max_ns"),
        pl.col("start_ns").get(length.arg_max()).alias("longest_start_ns"),
    )
    by_name = by_name.sort("detail", nulls_last=True)
    figures = {name: by_name[name].to_numpy() for name in ("gaps", "idle_ns", "max_ns", "longest_start_ns")}
    return _rows(device, None, "operator", by_name["detail"], **figures)


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    devices = frame.filter(pl.col("stream").is_null())
    total = total_of(devices, "idle_ns")
    largest = top_group(devices, "cause", "idle_ns")
    if largest is None:
        return None
    noun = "devices" if devices.select("rank", "device").n_unique() > 1 else "device"
    return Headline.of(
        f"Idle time of the {noun}: {{total}}, of which {{share}} while {{doing}}.",
        total=(total, "ns"),
        share=(largest["idle_ns"] / total, "ratio"),
        doing=(HOST_ACTIVITY.get(largest["cause"], largest["cause"]), ""),
    )


_READS = {
    "device_events": ("start_ns", "end_ns", "device", "stream", "launch_ns"),
    "annotations": ("start_ns", "end_ns", "name", "pid", "tid", "on_device", "step"),
}
DEVICE_COLUMNS = (
    _RANK,
    _DEVICE,
    Column("data_loading_ns", pl.Int64, "ns", "the host was loading data"),
    Column("synchronisation_ns", pl.Int64, "ns", "the host was in a call that waits for the device"),
    Column("runtime_ns", pl.Int64, "ns", "the host was in another runtime call"),
    Column("operator_ns", pl.Int64, "ns", "the host was in an operator"),
    Column("python_ns", pl.Int64, "ns", "the host was in Python, if stacks were recorded"),
    Column("nothing_ns", pl.Int64, "ns", "nothing was recorded on the host"),
    Column("idle_ns", pl.Int64, "ns", "total idle time"),
)


def _by_device(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """Turn the causes of each device into columns."""
    frame = (
        inputs.results["idle"]
        .filter(pl.col("stream").is_null())
        .group_by("rank", "device")
        .agg(
            *(pl.col("idle_ns").filter(pl.col("cause") == cause).sum().alias(f"{cause}_ns") for cause in HOST_ACTIVITY),
            pl.col("idle_ns").sum(),
        )
        .sort("rank", "device")
    )
    return frame.select(pl.col(column.name).cast(pl.Int64) for column in DEVICE_COLUMNS), []


def _device_headline(frame: pl.DataFrame) -> Headline | None:
    worst = greatest(frame, "idle_ns")
    if worst is None:
        return None
    cause = max(HOST_ACTIVITY, key=lambda cause: int(worst[f"{cause}_ns"]))
    most = "is idle most" if frame.height > 1 else "is idle"
    return Headline.of(
        f"The device of rank {{rank}} {most}: {{idle}}, of which {{share}} while {{doing}}.",
        rank=(worst["rank"], ""),
        idle=(worst["idle_ns"], "ns"),
        share=(worst[f"{cause}_ns"] / worst["idle_ns"], "ratio"),
        doing=(HOST_ACTIVITY[cause], ""),
    )


_MOST = 0.5
"""Of the longest, which may be the loop's own: a function that is nested deeper and has so much explains it."""
STEP_COLUMNS = (
    *RANK_AND_WINDOW,
    Column("step", pl.Int64, "", "the step; null for a trace without steps"),
    Column("pieces", pl.Int64, "count", "compute kernels; without a device, top-level operators"),
    Column(
        "short", pl.Int64, "count", "of these, shorter than 10 µs; for operators, of a name with a median below 20 µs"
    ),
    Column("short_ns", pl.Int64, "ns", "sum of the short ones' durations"),
    Column("late_ns", pl.Int64, "ns", "gaps due to a late launch of the next piece"),
    Column("late_short_ns", pl.Int64, "ns", "of these, before short pieces and at most 100 µs long"),
    Column("allocator_ns", pl.Int64, "ns", "gaps due to driver calls that allocate or free memory"),
    Column("long_calls_ns", pl.Int64, "ns", "gaps due to long runtime calls and first calls"),
    Column("before_first_ns", pl.Int64, "ns", "in a file's first row, such calls before its first device event"),
    Column("long_call", pl.String, "", "the runtime call of more than 100 µs with most of both; null without any"),
    Column("silent_ns", pl.Int64, "ns", "gaps due to an unrecorded interval on the host; 0 without operators"),
    Column(
        "silent_frame",
        pl.String,
        "",
        "the innermost of the job's own Python functions with half of `silent_ns` or more; null without stacks",
    ),
    Column("allocations", pl.Int64, "count", "driver calls that allocate device memory in the window"),
    Column("frees", pl.Int64, "count", "driver calls that free device memory in the window"),
    Column("pinned", pl.Int64, "count", "driver calls that allocate, free or register pinned host memory"),
    Column("on_device", pl.Boolean, "", "whether pieces are kernels"),
)


def _window_gaps(window: Tables, inputs: Inputs) -> pl.DataFrame:
    work = inputs.once("late launches", lambda: LateLaunches.of(window, inputs.options.communication))
    steps, windows = step_windows(window["annotations"], window["device_events"])
    number, starts, ends = steps["step"], windows.start, windows.end
    if not steps.height:
        # A file without any piece has no row.
        recorded = covered_time(work.pieces)
        starts, ends = recorded.starts[:1], recorded.ends[-1:]
        number = pl.Series("step", [None] * starts.size, dtype=pl.Int64)
    # Before a piece outside the steps the host may have been outside them, too.
    gaps = work.gaps.filter(interval_at(starts, ends, work.gaps["end_ns"].to_numpy()) >= 0)
    waiting = covered_time(gaps)
    late = waiting - work.left_out
    pieces = with_step_row(work.pieces, starts, ends).filter("counts")
    rows = pl.DataFrame(
        {"step_row": np.arange(starts.size), "step": number}, schema={"step_row": pl.Int64, "step": pl.Int64}
    )
    by_step = pieces.group_by("step_row").agg(
        pl.len().cast(pl.Int64).alias("pieces"),
        pl.col("short").sum().cast(pl.Int64).alias("short"),
        pl.col("duration").filter("short").sum().alias("short_ns"),
    )
    # A free before the first launch makes the context (`cudaFree(0)`).
    first = pl.lit(work.pieces["launch_ns"].min(), pl.Int64)
    of_context = (pl.col("name").str.contains(DEVICE_FREE) & (pl.col("start_ns") < first)).fill_null(False)
    calls = (
        with_step_row(work.allocator.filter(~of_context), starts, ends)
        .group_by("step_row")
        .agg(
            pl.col("name").str.contains(pattern).sum().cast(pl.Int64).alias(name)
            for name, pattern in (("allocations", DEVICE_MALLOC), ("frees", DEVICE_FREE), ("pinned", PINNED_MEMORY))
        )
    )
    gap = (waiting | work.before_first).within(work.calls["start_ns"].to_numpy(), work.calls["end_ns"].to_numpy())
    # A call before the first window belongs to it.
    begin = pl.col("start_ns").clip(lower_bound=int(starts[0]) if starts.size else None)
    by_call = with_step_row(work.calls.select(begin, "name", pl.Series("gap", gap)), starts, ends)
    by_call = by_call.group_by("step_row", "name").agg(pl.col("gap").sum()).filter(pl.col("gap") > 0)
    by_call = (
        by_call.sort("gap", "name", descending=[True, False])
        .group_by("step_row")
        .agg(pl.col("name").first().alias("long_call"))
    )
    frames = _silent_frames(window["python_frames"], waiting & work.silent, starts, ends)
    return (
        rows.join(by_step, on="step_row", how="left", maintain_order="left")
        .join(calls, on="step_row", how="left", maintain_order="left")
        .join(by_call, on="step_row", how="left", maintain_order="left")
        .join(frames, on="step_row", how="left", maintain_order="left")
        .with_columns(
            pl.col("pieces", "short", "short_ns", "allocations", "frees", "pinned").fill_null(0),
            pl.Series("late_ns", late.within(starts, ends)),
            pl.Series("late_short_ns", (late & before_short(gaps, work.left_out)).within(starts, ends)),
            pl.Series("allocator_ns", (waiting & work.memory).within(starts, ends)),
            pl.Series("long_calls_ns", (waiting & work.long_calls).within(starts, ends)),
            pl.Series("before_first_ns", [work.before_first.length] + [0] * (starts.size - 1))[: starts.size],
            pl.Series("silent_ns", (waiting & work.silent).within(starts, ends)),
            pl.lit(work.on_device).alias("on_device"),
        )
    )


def _silent_frames(frames: pl.DataFrame, silent: IntervalSet, starts: Int64, ends: Int64) -> pl.DataFrame:
    """The function that each step's silence is in: step_row, silent_frame."""
    long = frames.filter(pl.col("end_ns") - pl.col("start_ns") > SILENCE_NS)
    names = long["name"].unique().drop_nulls()
    long = long.filter(pl.col("name").is_in([name for name in names if is_own_function(name)]))
    found: list[tuple[int, str]] = []
    for row, (begin, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        inside = long.filter((pl.col("start_ns") < end) & (pl.col("end_ns") > begin))
        if inside.is_empty():
            continue
        own = silent & IntervalSet.of(np.array([begin]), np.array([end]))
        cost = own.within(inside["start_ns"].to_numpy(), inside["end_ns"].to_numpy())
        by_name = (
            inside.select("name", "depth", pl.Series("cost", cost))
            .group_by("name")
            .agg(pl.col("cost").sum(), pl.col("depth").max())
        )
        most = by_name.filter((pl.col("cost") > 0) & (pl.col("cost") >= _MOST * pl.col("cost").max()))
        if most.height:
            found.append((row, most.sort("depth", "cost", "name", descending=True)["name"][0]))
    return pl.DataFrame(found, schema={"step_row": pl.Int64, "silent_frame": pl.String}, orient="row")


_BY_DEVICE = Analysis(
    name="idle_by_device",
    doc="""What the host did while each device was idle, one row per device.

The rows of whole devices, with each cause as a column and operators of all names together. The causes are mutually
exclusive and sum to `idle_ns` exactly:

    idle = data loading + synchronization + runtime + operators + Python + nothing

How to read it: the largest column says where to look next: `data_loading`, `synchronization`, `launches` for the
runtime, `operators` for operators; Python and nothing are user code between them.
""",
    whole_recording=True,
    columns=DEVICE_COLUMNS,
    across_ranks=_by_device,
    headline=_device_headline,
    requires=("idle",),
)
_BY_STEP = Analysis(
    name="idle_by_step",
    doc="""Idle gaps between kernels that are due to late launches, per step.

One row per rank and step. A piece of work is a device event; if the trace has no device, a top-level operator that
computes. A gap is time in the step's window in which nothing ran, up to the next piece. On a device it counts only if
the host was late: the next piece's launch began after the device had become idle. These parts of a gap do not count:

    data loading           reported by `data_loading`
    waiting calls          a host that waits for its device launches nothing (reported by `synchronization`)
    memory                 driver calls that allocate or free memory (`allocator_ns`, the rule `memory_retries`)
    long runtime calls     longer than 100 µs: the driver loads code or creates a context (`long_calls_ns`)
    unrecorded intervals   longer than 100 µs, in which the host recorded neither an operator nor a runtime call:
                           asleep, descheduled, or user code that no faster launch would shorten (`silent_ns`)
    first calls            longer than 10 ms, in which neither an operator nor a runtime call began or ended: inside
                           one operator a library is loaded, or code compiled (`long_calls_ns`); not if more than a
                           quarter of the steps have one
    communication          without a device: Gloo's ranges

    late        = |gaps in the step's window − the parts above|
    allocator   = |gaps in the step's window in which the host allocates or frees memory|
    before_first = |long runtime calls, first calls and allocations before the file's first device event|; in its first
                  row, as no gap is before that event
    silent      = |gaps in the step's window ∩ unrecorded intervals, without data loading, garbage collection,
                  compiling and Gloo's ranges|
    late_short  = Σ gaps before a compute kernel shorter than 10 µs, or an operator whose name has a median duration
                  below 20 µs, if the gap is at most 100 µs: launching takes less, so a longer gap has another cause

How to read it: `late` is an upper bound of the potential saving per step if nothing ever waited for a launch. If most
of it is before short pieces, use fewer and larger ones (fused operators, `torch.compile`, CUDA graphs).
""",
    columns=STEP_COLUMNS,
    per_rank=steps_by_window(STEP_COLUMNS, _window_gaps),
    reads={
        "device_events": (*_READS["device_events"], "name", "kind", "is_collective"),
        "annotations": _READS["annotations"],
        "host_ops": ("start_ns", "end_ns", "name", "pid", "tid", "depth"),
        "runtime_calls": ("start_ns", "end_ns", "name"),
        "python_frames": ("start_ns", "end_ns", "name", "depth"),
    },
    in_report=False,
)
analysis = Analysis(
    name="idle",
    doc=__doc__,
    whole_recording=True,
    columns=COLUMNS,
    per_rank=per_rank,
    headline=headline,
    reads=_READS,
    reads_more=extra_columns,
    parameters=(
        Parameter("of", "which gaps to list, by cause", default="all", choices=("all", "streams", "devices")),
        Parameter("by", "what a row is", default="cause", choices=("cause", "device", "step")),
    ),
    views=(_BY_DEVICE, _BY_STEP),
)
