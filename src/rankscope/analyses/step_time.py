"""Step time on each rank, split by what the device and the host did.

One row per rank and step. A step is a host `ProfilerStep#N` range; it owns the device events whose launch starts
inside it. Its window runs from completion to completion: it begins at the latest of its own start, the end of the
previous window and, for the first step, the end of the last device event launched before it (or without a launch and
before the first launched event of its stream); it ends at the later of its own end and the end of its last device
event. Under a deep launch queue a window is therefore the device's time for the step, not the host's.

The columns are mutually exclusive and sum to the window exactly. Each instant counts for the first of these that
applies: compute, communication, copy, fill on the device; the host in a device runtime call; in data loading (a
DataLoader's `__next__`, or a user range named for data loading); in an operator; none of these. Host categories are
unions over all host threads:

    window = compute + exposed communication + exposed copies + exposed fills
             + runtime + data loading + operators + other

Without device events, compute is top-level operators and communication is Gloo's ranges. Where 5 % of the launches have
no device event, or 5 % of the timed events have no duration or an unknown category, what looks idle may be work: the
parts of a window are null, not known (`account`).
A trace without steps gives one row with step null: from the first to the last device event, as the host may have
waited or loaded long before; without a device, the complete trace.

How to read it: everything except compute is overhead. Exposed communication: `collectives`, `ddp_buckets`, `fsdp`.
Copies: `copies`. The host's columns are time in which the device was idle: see `idle`.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.activity import Activity, activity, covered_time, data_loading_time
from rankscope.primitives.intervals import EMPTY, Int64, IntervalSet
from rankscope.primitives.steps import recorded_span, step_windows
from rankscope.results import RANK_AND_WINDOW, Analysis, Column, Headline, Inputs, Tables, greatest, steps_by_window

CATEGORIES = (
    Column("compute_ns", pl.Int64, "ns", "the device computed"),
    Column("exposed_communication_ns", pl.Int64, "ns", "the device communicated and did not compute"),
    Column("exposed_memcpy_ns", pl.Int64, "ns", "the device copied memory and ran no kernel"),
    Column("exposed_memset_ns", pl.Int64, "ns", "the device filled memory and did nothing else"),
    Column("runtime_ns", pl.Int64, "ns", "the device was idle while the host was in a runtime or driver call"),
    Column("data_loading_ns", pl.Int64, "ns", "the device was idle while the host loaded data"),
    Column("host_op_ns", pl.Int64, "ns", "the device was idle while the host was in an operator"),
    Column("other_ns", pl.Int64, "ns", "the device was idle and none of these applies to the host"),
)
COLUMNS = (
    *RANK_AND_WINDOW,
    Column("step", pl.Int64, "", "N of `ProfilerStep#N`; null for a trace without steps"),
    Column("start_ns", pl.Int64, "ns", "start of the window", instant=True),
    Column("window_ns", pl.Int64, "ns", "duration of the window: the sum of the categories"),
    Column(
        "gap_before_ns",
        pl.Int64,
        "ns",
        "from the end of the previous window to the start of this one; null for the first",
    ),
    *CATEGORIES,
)


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The steps of a rank, window by window."""
    frame = steps_by_window(COLUMNS, _steps_of)(tables, inputs)
    unknown = [window for window, info in enumerate(inputs.traces) if info.account.hides_work]
    if not unknown:
        return frame
    known = ~pl.col("window").is_in(unknown)
    return frame.with_columns(pl.when(known).then(column.name).alias(column.name) for column in CATEGORIES)


def _steps_of(window: Tables, inputs: Inputs) -> pl.DataFrame:
    device, annotations = window["device_events"], window["annotations"]
    sets = activity(device, window["host_ops"], annotations, inputs.options.communication)
    steps, windows = step_windows(annotations, device)
    if steps.height:
        begin, end = windows.start, windows.end
    else:
        begin, end = recorded_span(window)
    gap: list[int | None] = [None, *(begin[1:] - end[:-1]).tolist()]
    return pl.DataFrame(
        {
            "step": steps["step"] if steps.height else pl.Series([None] * begin.size, dtype=pl.Int64),
            "start_ns": begin,
            "window_ns": end - begin,
            "gap_before_ns": pl.Series(gap[: begin.size], dtype=pl.Int64),
            **_breakdown(sets, window, begin, end),
        }
    )


def _breakdown(sets: Activity, window: Tables, begin: Int64, end: Int64) -> dict[str, Int64]:
    """Time in each category but in none of those before it, per window."""
    layers: tuple[IntervalSet, ...] = (
        sets.compute,
        sets.communication,
        sets.memcpy,
        sets.memset,
        covered_time(window["runtime_calls"]),
        data_loading_time(window["annotations"]),
        covered_time(window["host_ops"]),
    )
    covered, before = EMPTY, np.zeros(begin.size, dtype=np.int64)
    parts: dict[str, Int64] = {}
    for column, layer in zip(CATEGORIES, layers, strict=False):
        covered = covered | layer
        total = covered.within(begin, end)
        parts[column.name] = total - before
        before = total
    parts["other_ns"] = (end - begin) - before
    return parts


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    longest, median = greatest(frame, "window_ns"), frame["window_ns"].median()
    if longest is None or not isinstance(median, float):
        return None
    values = {"rank": (longest["rank"], ""), "window": (longest["window_ns"], "ns")}
    if frame.height == 1:
        name = "Recorded span" if longest["step"] is None else "Step time (one step)"
        return Headline.of(f"{name}: {{window}}.", window=values["window"])
    values["median"] = (round(median), "ns")
    if longest["step"] is None:
        return Headline.of("Longest recorded span: {window} on rank {rank}; median {median}.", **values)
    scope = "ranks and steps" if frame["rank"].n_unique() > 1 else "steps"
    text = f"Longest step: {{window}} (step {{step}} on rank {{rank}}); median over all {scope}: {{median}}."
    return Headline.of(text, step=(longest["step"], ""), **values)


analysis = Analysis(
    name="step_time",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    reads={
        "device_events": ("start_ns", "end_ns", "name", "kind", "is_collective", "device", "stream", "launch_ns"),
        "host_ops": ("start_ns", "end_ns", "name", "pid", "tid", "depth"),
        "runtime_calls": ("start_ns", "end_ns"),
        "annotations": ("start_ns", "end_ns", "name", "pid", "tid", "on_device", "step"),
    },
    headline=headline,
    shown_empty=True,
)
