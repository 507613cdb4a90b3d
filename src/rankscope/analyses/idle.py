"""Idle time of each stream and device, by cause.

One row per rank, device, stream and cause. A gap of a stream is the time before an event on it after everything earlier
on it has ended; overlapping events leave no gap. Its cause is that of the event that ends it:

    host_wait     its launch began after the stream had become empty: the host was late
    kernel_wait   it was launched in time, and the gap is below 30 µs: the normal distance between kernels
    other         it was launched in time and waited longer: for another stream, an event, memory
    unknown       its launch is not in the trace

Rows without a stream describe the whole device: the time between its first start and its last end in which none of its
streams runs anything, by what the host did meanwhile, over all threads, in this precedence, each instant once:
data_loading (a DataLoader's `__next__`, or a user range named for data loading), synchronisation (a runtime call that
waits for the device), runtime (any other runtime call), operator (`detail` names it, the outermost; if several threads
have one, the first that started), python (with stacks recorded), nothing (the host recorded nothing: it slept, was
descheduled, or ran code that is not recorded). The gaps of a stream sum to its idle time, these rows to the device's.

How to read it: streams other than the main one are idle most of the time, which is normal; the device's rows matter.
Much host_wait with operators or Python: the host is the bottleneck (`launches` shows by how much). Much data_loading:
see `data_loading`. Synchronisation: `.item()`, `.cpu()`, `torch.cuda.synchronize()` in the loop. `--of streams` or
`--of devices` gives only these rows; for streams no host tables are read. `--steps` keeps the gaps inside the selected
steps' windows. The causes of a stream's gaps are defined as in HTA.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

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
    Parameter,
    Parameters,
    Tables,
    by_window,
    greatest,
    schema_of,
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
)
# HTA's default: shorter gaps are the normal distance between kernels.
KERNEL_WAIT_NS = 30_000
_KEYS = ("device", "stream", "cause", "detail")
_SCHEMA = schema_of([column for column in COLUMNS if column.name not in ("rank", "share", "mean_ns")])
_NO_ROWS = np.empty(0, dtype=np.int64)
_CAUSES = ["host_wait", "kernel_wait", "other", "unknown"]


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The gaps of a rank's streams and devices, by cause."""
    of = inputs.parameters.get("of", "all")
    parts = []
    for window in by_window(tables, inputs):
        device, chosen = window["device_events"], _chosen(window, inputs)
        if not device.height:
            continue
        if of != "devices":
            parts.append(_of_streams(device, chosen))
        if of == "streams":
            continue
        # One set per category for all devices: they share the host.
        host = _host(window)
        numbers = device["device"].unique()
        for number in numbers:
            mine = device if len(numbers) == 1 else device.filter(pl.col("device").eq_missing(number))
            parts += _of_device(number, covered_time(mine), host, window["host_ops"]["name"], chosen)
    found = pl.concat(parts) if parts else pl.DataFrame(schema=_SCHEMA)
    if len(inputs.traces) > 1:
        found = found.group_by(_KEYS).agg(pl.col("gaps", "idle_ns").sum(), pl.col("max_ns").max())
        found = found.sort("cause", "detail", nulls_last=True)
    whole, idle = stream_numbers(found), found["idle_ns"].to_numpy()
    if len(parts) > 1:
        # By device and stream, the largest first; ties stay in the order of cause and detail.
        order = np.lexsort((-idle, whole))
        found, whole, idle = found[order], whole[order], idle[order]
    total = np.zeros(int(whole.max(initial=0)) + 1, dtype=np.int64)
    np.add.at(total, whole, idle)
    return pl.DataFrame(
        [
            constant("rank", inputs.rank, pl.Int64, found.height),
            *(found[name] for name in (*_KEYS, "gaps", "idle_ns")),
            pl.Series("share", idle / total[whole]),
            pl.Series("mean_ns", idle / found["gaps"].to_numpy()),
            found["max_ns"],
        ]
    )


def reads_more(chosen: Parameters) -> dict[str, tuple[str, ...]]:
    """The host's tables, if device gaps are requested."""
    if chosen["of"] == "streams":
        return {}
    return {
        "host_ops": ("start_ns", "end_ns", "name", "depth"),
        "runtime_calls": ("start_ns", "end_ns", "name"),
        "python_frames": ("start_ns", "end_ns", "depth"),
    }


def _chosen(window: Tables, inputs: Inputs) -> IntervalSet | None:
    """The windows of the selected steps; None for all of the time."""
    if inputs.options.steps is None:
        return None
    steps, found = step_windows(window["annotations"], window["device_events"])
    keep = steps.select(inputs.options.keeps(pl.col("step"))).to_series().to_numpy()
    return IntervalSet.of(found.start[keep], found.end[keep])


def _of_streams(device: pl.DataFrame, chosen: IntervalSet | None) -> pl.DataFrame:
    """The gaps of each stream by cause."""
    streams = Streams.of(device)
    start = device["start_ns"].to_numpy()[streams.order]
    # Which events have a gap before them: the first one of a stream does not.
    late = np.append(False, start[1:] > streams.reached[:-1])
    late[streams.first] = False
    behind = np.flatnonzero(late)
    begins, ends = streams.reached[behind - 1], start[behind]
    rows = streams.order[behind]
    launch, known = values_and_validity(device["launch_ns"])
    at = launch[rows]
    in_time = np.where(ends - begins < KERNEL_WAIT_NS, _CAUSES.index("kernel_wait"), _CAUSES.index("other"))
    cause = np.where(at > begins, _CAUSES.index("host_wait"), in_time)
    cause[~known[rows]] = _CAUSES.index("unknown")
    gap = ends - begins if chosen is None else chosen.within(begins, ends)
    stream = streams.number[behind]
    group, gaps, total, longest = _by_group(stream * len(_CAUSES) + cause, gap)
    # Within a stream the largest first.
    order = np.lexsort((-total, group // len(_CAUSES)))
    stream, cause = np.divmod(group[order], len(_CAUSES))
    numbers, names = stream.tolist(), [_CAUSES[each] for each in cause.tolist()]
    devices, own = (streams.heads(device, name) for name in ("device", "stream"))
    return _rows(
        pl.Series([devices[number] for number in numbers], dtype=pl.Int64),
        pl.Series([own[number] for number in numbers], dtype=pl.Int64),
        pl.Series(names, dtype=pl.String),
        gaps=gaps[order],
        idle_ns=total[order],
        max_ns=longest[order],
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


def _by_group(group: Int64, gap: Int64) -> tuple[Int64, Int64, Int64, Int64]:
    """Groups with gaps: the group, its number of gaps, their sum and the longest."""
    some = gap > 0
    if not some.all():
        group, gap = group[some], gap[some]
    # Small integers are sorted faster.
    small = group.astype(np.uint16) if group.max(initial=0) < 1 << 16 else group
    order = np.argsort(small, kind="stable")
    group, gap = group[order], gap[order]
    if not group.size:
        return group, group, gap, gap
    first = np.append(0, np.flatnonzero(group[1:] != group[:-1]) + 1)
    return (
        group[first],
        np.diff(first, append=group.size),
        np.add.reduceat(gap, first),
        np.maximum.reduceat(gap, first),
    )


def _host(window: Tables) -> list[tuple[str, IntervalSet, Int64]]:
    """What the host did when, in order of precedence; for operators also the row of each interval."""
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
    # Only the part after the end of all earlier ones.
    begin[1:] = np.maximum(begin[1:], np.maximum.accumulate(end)[:-1])
    some = end > begin
    return IntervalSet(begin[some], end[some]), top[some]


def _of_device(
    device: int | None,
    busy: IntervalSet,
    host: Sequence[tuple[str, IntervalSet, Int64]],
    operators: pl.Series,
    chosen: IntervalSet | None,
) -> list[pl.DataFrame]:
    """The gaps of a device, split by what the host did.

    Args:
        operators: the names of host_ops.
    """
    if not len(busy):
        return []
    left = busy.complement(int(busy.starts[0]), int(busy.ends[-1]))
    left = left if chosen is None else left & chosen
    named: list[pl.DataFrame] = []
    pieces: dict[str, Int64] = {}
    for cause, times, rows in host:
        inside, left, whose = left.split(times)
        if not len(inside):
            continue
        if cause == "operator":
            named.append(_named(device, operators, rows[whose], inside.ends - inside.starts))
        else:
            pieces[cause] = inside.ends - inside.starts
    if len(left):
        pieces["nothing"] = left.ends - left.starts
    causes = sorted(pieces)
    after = bisect_left(causes, "operator")
    before, behind = ({cause: pieces[cause] for cause in some} for some in (causes[:after], causes[after:]))
    return [_causes(device, before), *named, _causes(device, behind)]


def _causes(device: int | None, pieces: Mapping[str, Int64]) -> pl.DataFrame:
    """Rows of causes other than operators, from the durations of their pieces."""
    return _rows(
        device,
        None,
        pl.Series(list(pieces), dtype=pl.String),
        gaps=[gap.size for gap in pieces.values()],
        idle_ns=[int(gap.sum()) for gap in pieces.values()],
        max_ns=[int(gap.max()) for gap in pieces.values()],
    )


def _named(device: int | None, operators: pl.Series, row: Int64, gap: Int64) -> pl.DataFrame:
    """Time in operators by their names; the pieces of one call count as one gap."""
    first = np.flatnonzero(np.diff(row, prepend=-1))
    spent = pl.DataFrame([operators[row[first]].alias("detail"), pl.Series("gap", np.add.reduceat(gap, first))])
    length = pl.col("gap")
    found = spent.group_by("detail").agg(
        pl.len().cast(pl.Int64).alias("gaps"), length.sum().alias("idle_ns"), length.max().alias("max_ns")
    )
    found = found.sort("detail", nulls_last=True)
    figures = {name: found[name].to_numpy() for name in ("gaps", "idle_ns", "max_ns")}
    return _rows(device, None, "operator", found["detail"], **figures)


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    whole = frame.filter(pl.col("stream").is_null())
    total = total_of(whole, "idle_ns")
    most = greatest(whole.group_by("cause", maintain_order=True).agg(pl.col("idle_ns").sum()), "idle_ns")
    if most is None:
        return None
    of = "devices" if whole.select("rank", "device").n_unique() > 1 else "device"
    return Headline.of(
        f"Idle time of the {of}: {{total}}, of which {{share}} while {{doing}}.",
        total=(total, "ns"),
        share=(most["idle_ns"] / total, "ratio"),
        doing=(HOST_ACTIVITY.get(most["cause"], most["cause"]), ""),
    )


analysis = Analysis(
    name="idle",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    headline=headline,
    reads={
        "device_events": ("start_ns", "end_ns", "device", "stream", "launch_ns"),
        "annotations": ("start_ns", "end_ns", "name", "on_device", "step"),
    },
    reads_more=reads_more,
    parameters=(Parameter("of", "which gaps to list", default="all", choices=("all", "streams", "devices")),),
)
