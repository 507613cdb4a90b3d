"""Where each rank's device spent its time.

One row per rank, over the whole of its files: how long the device computed, communicated, copied, and did nothing.
|A| is the length of the union of intervals A over all streams, so concurrent kernels count once.

    overlap                = |communication ∩ compute|
    exposed communication  = |communication| − overlap
    exposed memory         = |copies and fills − communication − compute|
    busy                   = |all device events| = compute + exposed communication + exposed memory
    span                   = last end − first start
    idle                   = span − busy

Overlap near 1 means that communication hides behind compute; exposed communication is what it costs. A trace without
device events (a CPU job with Gloo) is read on the host: communication is the union of `gloo:*` ranges, compute that of
top-level operators beside them. With several windows of a rank, each is measured by itself and the figures are added.
`--steps` keeps the events that the chosen steps launched (on the host: what lies in their ranges).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from rankscope.primitives.activity import Activity, activity
from rankscope.primitives.intervals import IntervalSet
from rankscope.primitives.steps import owners
from rankscope.results import Analysis, Column, Finding, Inputs, Tables, by_window, concat_ranks

COLUMNS = (
    Column("rank", "", "the rank"),
    Column("span_ns", "ns", "from the first start to the last end of its device events"),
    Column("busy_ns", "ns", "the device did something"),
    Column("compute_ns", "ns", "kernels other than communication ran"),
    Column("communication_ns", "ns", "communication kernels ran"),
    Column("memory_ns", "ns", "copies or fills ran"),
    Column("overlap_ns", "ns", "communication and compute ran at once"),
    Column("exposed_communication_ns", "ns", "communication ran and nothing was computed"),
    Column("exposed_memory_ns", "ns", "copies or fills ran and nothing else"),
    Column("idle_ns", "ns", "the device did nothing"),
    Column("overlap_ratio", "ratio", "share of communication that was hidden by compute; null without communication"),
)


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """Add up the windows of a rank."""
    totals: dict[str, int] = {column.name: 0 for column in COLUMNS[1:-1]}
    for window in by_window(tables):
        for name, value in _measure(_chosen(window, inputs)).items():
            totals[name] += value
    communication = totals["communication_ns"]
    ratio = totals["overlap_ns"] / communication if communication else None
    row = {"rank": inputs.rank, **totals, "overlap_ratio": ratio}
    return pl.DataFrame([row], schema_overrides={"overlap_ratio": pl.Float64})


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """One row a rank."""
    return concat_ranks(parts, COLUMNS), []


def _chosen(window: Tables, inputs: Inputs) -> Activity:
    device, annotations = window["device_events"], window["annotations"]
    host_ops = window["host_ops"]
    if inputs.options.steps is None:
        return activity(device, host_ops, annotations, inputs.options.communication)
    steps = annotations.filter(pl.col("step").is_not_null() & ~pl.col("on_device")).sort("start_ns")
    keep = steps.select(inputs.options.keeps(pl.col("step"))).to_series().to_numpy()
    start, end = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    whole = activity(device, host_ops, annotations, inputs.options.communication)
    if whole.host_only:
        ranges = IntervalSet.of(start[keep], end[keep])
        return Activity(whole.compute & ranges, whole.communication & ranges, whole.memcpy, whole.memset, True)
    launched = device["launch_ns"].is_not_null().to_numpy()
    owner = owners(start, end, device["launch_ns"].fill_null(0).to_numpy(), launched)
    kept = np.zeros(owner.size, dtype=np.bool_)
    kept[owner >= 0] = keep[owner[owner >= 0]]
    chosen = device.filter(pl.Series(kept))
    # No event of these steps on the device is still a device trace: the host's operators are not its work.
    none = host_ops.clear()
    return activity(chosen, none, annotations.clear(), inputs.options.communication)


def _measure(sets: Activity) -> dict[str, int]:
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


analysis = Analysis(
    name="device_time",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    across_ranks=across_ranks,
    reads={
        "device_events": ("start_ns", "end_ns", "name", "kind", "is_collective", "launch_ns"),
        "host_ops": ("start_ns", "end_ns", "name", "pid", "tid", "depth"),
        "annotations": ("start_ns", "end_ns", "name", "pid", "tid", "on_device", "step"),
    },
)
