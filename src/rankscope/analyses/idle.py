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
from rankscope.primitives.intervals import IntervalSet
from rankscope.primitives.steps import step_windows
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
_SYNCHRONISING = r"(?i)synchroni[sz]e|waitforevents|event_?wait$|queue_?(finish|wait)|hostsync"
_KEYS = ("device", "stream", "cause", "detail")
_SCHEMA: dict[str, pl.DataType] = {
    "device": pl.Int64(),
    "stream": pl.Int64(),
    "cause": pl.String(),
    "detail": pl.String(),
    "gap_ns": pl.Int64(),
}


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The gaps of a rank's streams and devices, by cause."""
    gaps = [pl.DataFrame(schema=_SCHEMA)]
    for window in by_window(tables, inputs):
        chosen = _chosen(window, inputs)
        gaps.append(_of_streams(window["device_events"], chosen))
        # One set a category for all devices: each is measured against the same host.
        host = _host(window)
        for (device,), events in window["device_events"].group_by("device", maintain_order=True):
            gaps.append(_of_device(device, time_of(events), host, window["host_ops"], chosen))
    gap = pl.col("gap_ns")
    return (
        pl.concat(gaps)
        .filter(gap > 0)
        .group_by(_KEYS, maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("gaps"),
            gap.sum().alias("idle_ns"),
            gap.mean().alias("mean_ns"),
            gap.max().alias("max_ns"),
        )
        .with_columns(
            pl.lit(inputs.rank, pl.Int64).alias("rank"),
            (pl.col("idle_ns") / pl.col("idle_ns").sum().over("device", "stream")).alias("share"),
        )
        .sort(
            "device", "stream", "idle_ns", "cause", "detail",
            descending=[False, False, True, False, False], nulls_last=[False, False, False, False, True],
        )
        .select(column.name for column in COLUMNS)
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
    start, launch = pl.col("start_ns"), pl.col("launch_ns")
    reached = pl.col("end_ns").cum_max().shift(1).over("device", "stream")
    found = device.sort("start_ns").with_columns(reached.alias("reached")).filter(start > pl.col("reached"))
    if chosen is not None:
        found = found.with_columns(pl.Series("gap_ns", chosen.within(found["reached"], found["start_ns"])))
    else:
        found = found.with_columns((start - pl.col("reached")).alias("gap_ns"))
    cause = (
        pl.when(launch.is_null())
        .then(pl.lit("unknown"))
        .when(launch > pl.col("reached"))
        .then(pl.lit("host_wait"))
        .when(start - pl.col("reached") < KERNEL_WAIT_NS)
        .then(pl.lit("kernel_wait"))
        .otherwise(pl.lit("other"))
    )
    detail = pl.lit(None, pl.String).alias("detail")
    return found.select("device", "stream", cause.alias("cause"), detail, pl.col("gap_ns").cast(pl.Int64))


def _host(window: Tables) -> list[tuple[str, IntervalSet]]:
    """What the host did when, before operators and after, in the order of precedence."""
    calls = window["runtime_calls"]
    waits = calls["name"].str.contains(_SYNCHRONISING).fill_null(False)
    frames = window["python_frames"]
    return [
        ("data_loading", data_loading(window["annotations"])),
        ("synchronisation", time_of(calls.filter(waits))),
        ("runtime", time_of(calls.filter(~waits))),
        ("operator", time_of(window["host_ops"])),
        ("python", time_of(frames.filter(pl.col("depth") == 0))),
    ]


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
    parts: list[pl.DataFrame] = []
    for cause, times in host:
        mine = left & times
        left = left - times
        parts.append(_named(mine, operators) if cause == "operator" else _pieces(cause, mine))
    parts.append(_pieces("nothing", left))
    return pl.concat(parts).select(
        pl.lit(device, pl.Int64).alias("device"), pl.lit(None, pl.Int64).alias("stream"), "cause", "detail", "gap_ns"
    )


def _pieces(cause: str, times: IntervalSet) -> pl.DataFrame:
    return pl.DataFrame({"gap_ns": times.ends - times.starts}).select(
        pl.lit(cause).alias("cause"), pl.lit(None, pl.String).alias("detail"), "gap_ns"
    )


def _named(times: IntervalSet, operators: pl.DataFrame) -> pl.DataFrame:
    """Time in operators by the outermost one; where several threads have one, by the first that started."""
    top = operators.filter(pl.col("depth") == 0).sort("start_ns")
    reached = pl.col("end_ns").cum_max().shift(1)
    # What lies beyond all that started before is disjoint, so each is one interval of its own.
    own = (
        top.with_columns(pl.max_horizontal("start_ns", reached).alias("from_ns"))
        .filter(pl.col("end_ns") > pl.col("from_ns"))
        .select("name", "from_ns", "end_ns")
    )
    spent = times.within(own["from_ns"].to_numpy(), own["end_ns"].to_numpy()) if len(times) else np.zeros(own.height)
    return own.select(
        pl.lit("operator").alias("cause"), pl.col("name").alias("detail"), pl.Series("gap_ns", spent, dtype=pl.Int64)
    )


def headline(frame: pl.DataFrame) -> Headline | None:
    """The answer in one sentence."""
    whole = frame.filter(pl.col("stream").is_null())
    total = total_of(whole, "idle_ns")
    most = greatest(whole.group_by("cause", maintain_order=True).agg(pl.col("idle_ns").sum()), "idle_ns")
    if most is None:
        return None
    return Headline.of(
        "The devices idle {total} in all; {share} of that while the host {doing}.",
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
