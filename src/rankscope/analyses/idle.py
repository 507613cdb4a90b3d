"""Why each stream, and the device as a whole, did nothing.

One row per rank, device, stream and cause. A gap of a stream lies before an event on it, after all that was on it
before has ended; overlapping events leave none. Its cause is that of the event behind it:

    host_wait     its launch began after the stream had run empty: the host was late
    kernel_wait   it was launched in time, and the gap is below 30 µs: the device went from one to the next
    other         it was launched in time and waited longer: for another stream, an event, memory
    unknown       its launch is not in the file

Rows without a stream are of the device as a whole: the time between its first start and its last end in which none of
its streams runs anything, by what the host did in it, in this precedence, all threads together, each instant once:
data_loading (a DataLoader's `__next__`, or a range of the user's that says so), synchronisation (a runtime call that
waits for the device), runtime (any other such call), operator (`detail` names it, the outermost; where several threads
have one, the first that started), python (with stacks recorded), nothing (the host recorded nothing: it slept, was
descheduled, or ran what is not recorded). The gaps of a stream add up to its idle time, these to the device's.

How to read it: streams beside the main one are idle most of the time and may be; the device's rows are what counts.
Much host_wait with operators or Python: the host is the bottleneck (`launches` says by how much). Much data_loading:
see `data_loading`. Synchronisation: `.item()`, `.cpu()`, `torch.cuda.synchronize()` in the loop. `--steps` keeps the
gaps that lie in the chosen steps' windows. The definitions of a stream's causes are HTA's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from rankscope.primitives.activity import data_loading, time_of
from rankscope.primitives.intervals import EMPTY, Int64, IntervalSet
from rankscope.primitives.steps import step_windows
from rankscope.primitives.synchronization import waits
from rankscope.results import (
    Analysis,
    Column,
    Finding,
    Headline,
    Inputs,
    Tables,
    by_window,
    concat_ranks,
    greatest,
    total_of,
)

COLUMNS = (
    Column("rank", "", "the rank"),
    Column("device", "", "the device's index"),
    Column("stream", "", "the stream; null for the device as a whole"),
    Column("cause", "", "host_wait, kernel_wait, other, unknown; of a whole device what the host did meanwhile"),
    Column("detail", "", "the operator, where the cause is one"),
    Column("gaps", "count", "how many gaps, of a whole device pieces of gaps"),
    Column("idle_ns", "ns", "time in them"),
    Column("share", "ratio", "of the idle time of the stream, or of the device"),
    Column("mean_ns", "ns", "mean length"),
    Column("max_ns", "ns", "greatest length"),
)
# HTA's default: shorter gaps are what it takes to go from one kernel to the next.
KERNEL_WAIT_NS = 30_000
DOING = {
    "data_loading": "loads data",
    "synchronisation": "waits for the device",
    "runtime": "is in another runtime call",
    "operator": "is in an operator",
    "python": "is in Python",
    "nothing": "records nothing",
}
_KEYS = ("device", "stream", "cause", "detail")
_SCHEMA: dict[str, pl.DataType] = {
    "device": pl.Int64(),
    "stream": pl.Int64(),
    "cause": pl.String(),
    "detail": pl.String(),
    "gaps": pl.Int64(),
    "idle_ns": pl.Int64(),
    "max_ns": pl.Int64(),
}
_CAUSES = ["unknown", "host_wait", "kernel_wait", "other"]


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The gaps of a rank's streams and devices, by cause."""
    parts = [pl.DataFrame(schema=_SCHEMA)]
    for window in by_window(tables, inputs):
        device, chosen = window["device_events"], _chosen(window, inputs)
        if not device.height:
            continue
        parts.append(_of_streams(device, chosen))
        # One set a category for all devices: each is measured against the same host.
        host = _host(window)
        numbers = device["device"].unique()
        for number in numbers:
            mine = device if len(numbers) == 1 else device.filter(pl.col("device").eq_missing(number))
            parts.append(_of_device(number, time_of(mine), host, window["host_ops"], chosen))
    found = pl.concat(parts)
    if len(inputs.traces) > 1:
        found = found.group_by(_KEYS).agg(pl.col("gaps", "idle_ns").sum(), pl.col("max_ns").max())
    idle = found["idle_ns"].to_numpy()
    whole = np.unique(_streams(found), return_inverse=True)[1]
    total = np.zeros(whole.max(initial=-1) + 1, dtype=np.int64)
    np.add.at(total, whole, idle)
    return pl.DataFrame(
        {
            "rank": pl.Series([inputs.rank], dtype=pl.Int64).new_from_index(0, found.height),
            **{name: found[name] for name in (*_KEYS, "gaps", "idle_ns")},
            "share": idle / total[whole],
            "mean_ns": idle / found["gaps"].to_numpy(),
            "max_ns": found["max_ns"],
        }
    ).sort(
        "device", "stream", "idle_ns", "cause", "detail",
        descending=[False, False, True, False, False], nulls_last=[False, False, False, False, True],
    )  # fmt: skip


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """The ranks below one another."""
    return concat_ranks(parts, COLUMNS), []


def _chosen(window: Tables, inputs: Inputs) -> IntervalSet | None:
    """The chosen steps' windows; None for all of the time."""
    if inputs.options.steps is None:
        return None
    steps, found = step_windows(window["annotations"], window["device_events"])
    keep = steps.select(inputs.options.keeps(pl.col("step"))).to_series().to_numpy()
    return IntervalSet.of(found.start[keep], found.end[keep])


def _of_streams(device: pl.DataFrame, chosen: IntervalSet | None) -> pl.DataFrame:
    """The gaps of each stream by cause."""
    stream = _streams(device)
    start, end = device["start_ns"].to_numpy(), device["end_ns"].to_numpy()
    order = np.lexsort((start, stream))
    start, end = start[order], end[order]
    first = np.flatnonzero(np.diff(stream[order], prepend=-1))
    reached = np.empty_like(end)
    for begin, until in zip(first, [*first[1:], order.size], strict=True):
        np.maximum.accumulate(end[begin:until], out=reached[begin:until])
    late = np.append(False, start[1:] > reached[:-1])
    late[first] = False
    behind = np.flatnonzero(late)
    begins, ends = reached[behind - 1], start[behind]
    gap = ends - begins if chosen is None else chosen.within(begins, ends)
    launch = device["launch_ns"].gather(order[behind])
    known, at = launch.is_not_null().to_numpy(), launch.fill_null(0).to_numpy()
    cause = np.select([~known, at > begins, ends - begins < KERNEL_WAIT_NS], [0, 1, 2], 3)
    count, streams = len(_CAUSES), first.size
    group = (np.searchsorted(first, behind, side="right") - 1) * count + cause
    rows = np.repeat(order[first], count)
    return _rows(
        device["device"].gather(rows),
        device["stream"].gather(rows),
        pl.Series(_CAUSES * streams, dtype=pl.String),
        *_by_group(group, gap, streams * count),
    )


def _streams(frame: pl.DataFrame) -> Int64:
    """A number for each different device and stream of a frame."""
    device, stream = (frame[name].rank("dense").cast(pl.Int64).fill_null(0).to_numpy() for name in ("device", "stream"))
    numbers: Int64 = device * (frame.height + 1) + stream
    return numbers


def _by_group(group: Int64, gap: Int64, groups: int) -> tuple[Int64, Int64, Int64]:
    """Of each group's gaps that are any: how many, their sum and the greatest."""
    group, gap = group[gap > 0], gap[gap > 0]
    total, greatest = np.zeros(groups, dtype=np.int64), np.zeros(groups, dtype=np.int64)
    np.add.at(total, group, gap)
    np.maximum.at(greatest, group, gap)
    return np.bincount(group, minlength=groups).astype(np.int64), total, greatest


def _rows(
    device: pl.Series, stream: pl.Series | None, cause: pl.Series, gaps: Int64, total: Int64, greatest: Int64
) -> pl.DataFrame:
    """Rows of the result; groups without a gap are none."""
    any_ = np.flatnonzero(gaps > 0)
    nothing = pl.Series([None], dtype=pl.String).new_from_index(0, any_.size)
    return pl.DataFrame(
        {
            "device": device.gather(any_),
            "stream": nothing.cast(pl.Int64) if stream is None else stream.gather(any_),
            "cause": cause.gather(any_),
            "detail": nothing,
            "gaps": gaps[any_],
            "idle_ns": total[any_],
            "max_ns": greatest[any_],
        }
    )


def _host(window: Tables) -> list[tuple[str, IntervalSet]]:
    """What the host did when, in the order of precedence."""
    calls, frames = window["runtime_calls"], window["python_frames"]
    waiting = waits(calls["name"]).to_numpy()
    starts, ends = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    return [
        ("data_loading", data_loading(window["annotations"])),
        ("synchronisation", IntervalSet.of(starts[waiting], ends[waiting])),
        ("runtime", IntervalSet.of(starts[~waiting], ends[~waiting])),
        # What is inside others adds nothing.
        ("operator", _outermost(window["host_ops"])),
        ("python", _outermost(frames) if frames.height else EMPTY),
    ]


def _outermost(ranges: pl.DataFrame) -> IntervalSet:
    top = ranges["depth"].to_numpy() == 0
    return IntervalSet.of(ranges["start_ns"].to_numpy()[top], ranges["end_ns"].to_numpy()[top])


def _of_device(
    device: object,
    busy: IntervalSet,
    host: Sequence[tuple[str, IntervalSet]],
    operators: pl.DataFrame,
    chosen: IntervalSet | None,
) -> pl.DataFrame:
    """The gaps of a device, cut at what the host did."""
    if not len(busy):
        return pl.DataFrame(schema=_SCHEMA)
    left = busy.complement(int(busy.starts[0]), int(busy.ends[-1]))
    left = left if chosen is None else left & chosen
    causes: list[str] = []
    pieces: list[IntervalSet] = []
    named = pl.DataFrame(schema=_SCHEMA)
    for cause, times in host:
        if not len(times):
            continue
        if cause == "operator":
            named = _named(device, left, operators)
        else:
            causes.append(cause)
            pieces.append(left & times)
        left = left - times
    causes, pieces = [*causes, "nothing"], [*pieces, left]
    gap = np.concatenate([each.ends - each.starts for each in pieces])
    figures = _by_group(np.repeat(np.arange(len(pieces)), [len(each) for each in pieces]), gap, len(pieces))
    which = pl.Series([device], dtype=pl.Int64).new_from_index(0, len(pieces))
    return pl.concat([_rows(which, None, pl.Series(causes, dtype=pl.String), *figures), named])


def _named(device: object, gaps: IntervalSet, operators: pl.DataFrame) -> pl.DataFrame:
    """Time in operators by the outermost one; where several threads have one, by the first that started."""
    top = np.flatnonzero(operators["depth"].to_numpy() == 0)
    top = top[np.argsort(operators["start_ns"].to_numpy()[top], kind="stable")]
    start, end = operators["start_ns"].to_numpy()[top], operators["end_ns"].to_numpy()[top]
    # What lies beyond all that started before is disjoint, so each is one interval of its own.
    begin = start.copy()
    begin[1:] = np.maximum(start[1:], np.maximum.accumulate(end)[:-1])
    spent = gaps.within(begin, np.maximum(begin, end))
    rows = np.flatnonzero(spent > 0)
    gap = pl.col("gap")
    return (
        pl.DataFrame({"detail": operators["name"].gather(top[rows]), "gap": spent[rows]})
        .group_by("detail")
        .agg(pl.len().cast(pl.Int64).alias("gaps"), gap.sum().alias("idle_ns"), gap.max().alias("max_ns"))
        .select(
            pl.lit(device, pl.Int64).alias("device"),
            pl.lit(None, pl.Int64).alias("stream"),
            pl.lit("operator").alias("cause"),
            "detail", "gaps", "idle_ns", "max_ns",
        )
    )  # fmt: skip


def headline(frame: pl.DataFrame) -> Headline | None:
    """The answer in one sentence."""
    whole = frame.filter(pl.col("stream").is_null())
    total = total_of(whole, "idle_ns")
    most = greatest(whole.group_by("cause", maintain_order=True).agg(pl.col("idle_ns").sum()), "idle_ns")
    if most is None:
        return None
    idle = "devices idle" if whole.select("rank", "device").n_unique() > 1 else "device idles"
    return Headline.of(
        f"The {idle} {{total}} in all; {{share}} of that while the host {{doing}}.",
        total=(total, "ns"),
        share=(most["idle_ns"] / total, "ratio"),
        doing=(DOING.get(most["cause"], most["cause"]), ""),
    )


analysis = Analysis(
    name="idle",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    across_ranks=across_ranks,
    headline=headline,
    reads={
        "device_events": ("start_ns", "end_ns", "device", "stream", "launch_ns"),
        "host_ops": ("start_ns", "end_ns", "name", "depth"),
        "runtime_calls": ("start_ns", "end_ns", "name"),
        "python_frames": ("start_ns", "end_ns", "depth"),
        "annotations": ("start_ns", "end_ns", "name", "on_device", "step"),
    },
)
