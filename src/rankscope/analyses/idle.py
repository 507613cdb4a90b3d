"""Idle time of each stream and device, by cause.

One row per rank, device, stream and cause. A gap of a stream is the time before an event on it after everything earlier
on it has ended; overlapping events leave no gap. Its cause is that of the event that ends it:

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
from rankscope.primitives.columns import constant, values_and_validity
from rankscope.primitives.intervals import Int64, IntervalSet
from rankscope.primitives.steps import step_windows
from rankscope.primitives.streams import Streams, stream_numbers
from rankscope.primitives.synchronization import is_host_wait
from rankscope.results import (
    Analysis,
    Column,
    Headline,
    Inputs,
    Options,
    Parameter,
    Parameters,
    Tables,
    by_window,
    schema_of,
    top_group,
    total_of,
)

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("device", pl.Int64, "", "device index"),
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


analysis = Analysis(
    name="idle",
    doc=__doc__,
    whole_recording=True,
    columns=COLUMNS,
    per_rank=per_rank,
    headline=headline,
    reads={
        "device_events": ("start_ns", "end_ns", "device", "stream", "launch_ns"),
        "annotations": ("start_ns", "end_ns", "name", "pid", "tid", "on_device", "step"),
    },
    reads_more=extra_columns,
    parameters=(Parameter("of", "which gaps to list", default="all", choices=("all", "streams", "devices")),),
)
