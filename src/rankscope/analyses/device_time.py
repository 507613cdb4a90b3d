"""Where each rank's device spent its time: compute, communication, copies, idle.

One row per rank, over its complete traces. |A| is the length of the union of intervals A over all streams, so
concurrent kernels count once.

    overlap                = |communication ∩ compute|
    exposed communication  = |communication| − overlap
    exposed memory         = |copies and fills − communication − compute|
    busy                   = |all device events| = compute + exposed communication + exposed memory
    span                   = last end − first start
    idle                   = span − busy

A trace without device events (a CPU job with Gloo) is read on the host: communication is the union of `gloo:*` ranges,
compute the union of top-level operators that do not start inside such a range of their own thread. If a rank has
several traces, each is measured separately and the figures are added. `--steps` keeps the events that the selected
steps launched (on the host: what is inside their ranges).

How to read it: an overlap near 1 means that communication runs behind compute; exposed communication is what it costs
(`collectives` says which, and `stragglers` how much of it is waiting for other ranks). Where idle is large, see `idle`.
A rank with much less exposed communication than the others is the one that they wait for.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from rankscope.primitives.activity import Activity, activity, covered_time, gloo_ranges
from rankscope.primitives.intervals import EMPTY
from rankscope.primitives.steps import events_launched_in, host_steps
from rankscope.results import (
    Analysis,
    Column,
    Evidence,
    Finding,
    Headline,
    Inputs,
    Tables,
    by_window,
    concat_ranks,
    schema_of,
    total_of,
)
from rankscope.rundir.plurals import listed

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("span_ns", pl.Int64, "ns", "from the first start to the last end of its device events"),
    Column("busy_ns", pl.Int64, "ns", "the device was busy"),
    Column("compute_ns", pl.Int64, "ns", "kernels other than communication ran"),
    Column("communication_ns", pl.Int64, "ns", "communication kernels ran"),
    Column("memory_ns", pl.Int64, "ns", "copies or fills ran"),
    Column("overlap_ns", pl.Int64, "ns", "communication and compute ran at the same time"),
    Column("exposed_communication_ns", pl.Int64, "ns", "communication ran without compute"),
    Column("exposed_memory_ns", pl.Int64, "ns", "copies or fills ran and nothing else"),
    Column("idle_ns", pl.Int64, "ns", "the device was idle"),
    Column(
        "overlap_ratio",
        pl.Float64,
        "ratio",
        "share of communication that overlaps with compute; null without communication",
    ),
)

# Needed by the reduce in addition to the columns.
_DEVICE_EVENTS, _GLOO = "device_events", "gloo_ns"


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """Add up the windows of a rank."""
    device = tables["device_events"].height
    if any(info.account.hides_work for info in inputs.traces):
        schema = schema_of(COLUMNS) | {_DEVICE_EVENTS: pl.Int64(), _GLOO: pl.Int64()}
        return pl.DataFrame([{"rank": inputs.rank, _DEVICE_EVENTS: device, _GLOO: 0}], schema=schema)
    totals: dict[str, int] = {column.name: 0 for column in COLUMNS[1:-1]}
    for window in by_window(tables, inputs):
        for name, value in _times_of(_activity_of(window, inputs)).items():
            totals[name] += value
    communication = totals["communication_ns"]
    row = {
        "rank": inputs.rank,
        **totals,
        "overlap_ratio": totals["overlap_ns"] / communication if communication else None,
        _DEVICE_EVENTS: device,
        _GLOO: covered_time(gloo_ranges(tables["host_ops"], tables["annotations"])).length if device else 0,
    }
    return pl.DataFrame([row], schema_overrides={"overlap_ratio": pl.Float64})


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """One row per rank; findings on what these figures leave out."""
    by_rank = pl.concat(part.select("rank", _DEVICE_EVENTS, _GLOO) for part in parts)
    recorded = [info.rank for info in inputs.traces if not info.is_empty]
    findings = [*_host_only(by_rank.filter(pl.col("rank").is_in(recorded))), *_gloo_on_host(by_rank)]
    return concat_ranks(parts, COLUMNS), findings


def _host_only(by_rank: pl.DataFrame) -> list[Finding]:
    without = by_rank.filter(pl.col(_DEVICE_EVENTS) == 0)
    if without.height in (0, by_rank.height):
        return []
    return [
        Finding(
            id="ranks-without-device-events",
            severity="warning",
            title="Some ranks have no device events while others do: their figures describe the host",
            ranks=tuple(without["rank"]),
            evidence=(
                Evidence("ranks with device events", by_rank.height - without.height, "count"),
                Evidence("ranks without", without.height, "count"),
            ),
            advice="Record device activity on every rank, and for long enough that work reaches the device.",
        )
    ]


def _gloo_on_host(by_rank: pl.DataFrame) -> list[Finding]:
    with_gloo = by_rank.filter(pl.col(_GLOO) > 0)
    if with_gloo.is_empty():
        return []
    longest = with_gloo.row(with_gloo[_GLOO].arg_max() or 0, named=True)
    return [
        Finding(
            id="gloo-beside-device",
            severity="info",
            title="Gloo communicates on the host while the device works; these figures do not include it",
            ranks=tuple(with_gloo["rank"]),
            evidence=(Evidence(f"time in Gloo on rank {longest['rank']}", longest[_GLOO], "ns"),),
        )
    ]


def _activity_of(window: Tables, inputs: Inputs) -> Activity:
    device, annotations = window["device_events"], window["annotations"]
    host_ops = window["host_ops"]
    if inputs.options.steps is None:
        return activity(device, host_ops, annotations, inputs.options.communication)
    steps, keep = host_steps(annotations), inputs.options.keeps(pl.col("step"))
    if device.is_empty():
        all_steps, ranges = activity(device, host_ops, annotations), covered_time(steps.filter(keep))
        return Activity(all_steps.compute & ranges, all_steps.communication & ranges, EMPTY, EMPTY)
    # Even if the steps have no device event it is a device trace: host operators are not the device's work.
    in_steps_events = events_launched_in(device, steps, keep)
    return activity(in_steps_events, host_ops.clear(), annotations.clear(), inputs.options.communication)


def _times_of(sets: Activity) -> dict[str, int]:
    busy, overlap = sets.busy, (sets.communication & sets.compute).length
    computing = sets.compute | sets.communication
    span = int(busy.ends[-1] - busy.starts[0]) if len(busy) else 0
    return {
        "span_ns": span,
        "busy_ns": busy.length,
        "compute_ns": sets.compute.length,
        "communication_ns": sets.communication.length,
        "memory_ns": sets.memory.length,
        "overlap_ns": overlap,
        "exposed_communication_ns": sets.communication.length - overlap,
        "exposed_memory_ns": busy.length - computing.length,
        "idle_ns": span - busy.length,
    }


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    span = total_of(frame, "span_ns")
    if not span:
        return None
    amounts = {name: total_of(frame, f"{name}_ns") for name in ("compute", "exposed_communication", "idle")}
    texts = {
        "compute": "{compute} compute",
        "exposed_communication": "{exposed_communication} exposed communication",
        "idle": "{idle} idle",
    }
    parts = [texts[name] for name, amount in amounts.items() if amount]
    if not parts:
        return None
    shares = {name: (amount / span, "ratio") for name, amount in amounts.items() if amount}
    return Headline.of(f"Device time: {listed(parts)}.", **shares)


analysis = Analysis(
    name="device_time",
    doc=__doc__,
    whole_recording=True,
    columns=COLUMNS,
    per_rank=per_rank,
    across_ranks=across_ranks,
    reads={
        "device_events": ("start_ns", "end_ns", "name", "kind", "is_collective", "launch_ns"),
        "host_ops": ("start_ns", "end_ns", "name", "pid", "tid", "depth"),
        "annotations": ("start_ns", "end_ns", "name", "pid", "tid", "on_device", "step"),
    },
    headline=headline,
    has_findings=True,
    shown_empty=True,
)
