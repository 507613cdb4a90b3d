"""Communication overlap, transfer and waiting per rank and step.

One row per rank and step, over the windows of `step_time` (without steps, the span of the device). Two breakdowns, each
of which adds up exactly:

    window        = computation + overlap + exposed communication + neither
    overlap + exposed communication = transfer + synchronizing + unmatched

`computation` is compute without communication, `overlap` both at the same time. Of all communication, `transfer` is the
union of the collectives' last `transfer_ns` (`collectives`: the shortest duration over a group's ranks),
`synchronizing` the rest of the matched collectives: the rank waits for later ranks; `unmatched` is communication of
which not all ranks are known, so it cannot be split. Where collectives overlap, an instant in which any of them
transfers counts as transfer. The other `exposed_…` columns split exposed communication in the same way.

These are the two overviews of the TensorBoard plugin's Distributed view, which counted NCCL kernels as computation and
matched collectives by their order over all groups. How to read it: much `synchronizing` on all ranks but one points
at that rank (`stragglers`); much exposed `transfer` is bandwidth, or buckets that start too late.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.activity import activity
from rankscope.primitives.intervals import IntervalSet
from rankscope.primitives.steps import averaged_steps
from rankscope.results import (
    RANK_AND_WINDOW,
    Analysis,
    Column,
    Headline,
    Inputs,
    Tables,
    by_window,
    concat_ranks,
    total_of,
)
from rankscope.rundir.plurals import listed

COLUMNS = (
    *RANK_AND_WINDOW,
    Column("step", pl.Int64, "", "N of `ProfilerStep#N`; null for a trace without steps"),
    Column("window_ns", pl.Int64, "ns", "duration of the step's window"),
    Column("computation_ns", pl.Int64, "ns", "compute without communication"),
    Column("overlap_ns", pl.Int64, "ns", "compute and communication at the same time"),
    Column("exposed_communication_ns", pl.Int64, "ns", "communication without compute"),
    Column("neither_ns", pl.Int64, "ns", "neither compute nor communication"),
    Column("transfer_ns", pl.Int64, "ns", "communication that transfers data"),
    Column("synchronizing_ns", pl.Int64, "ns", "communication that waits for later ranks"),
    Column("unmatched_ns", pl.Int64, "ns", "communication of which not all ranks are known"),
    Column("exposed_transfer_ns", pl.Int64, "ns", "transfer without compute"),
    Column("exposed_synchronizing_ns", pl.Int64, "ns", "waiting for later ranks without compute"),
    Column("exposed_unmatched_ns", pl.Int64, "ns", "communication without compute of which not all ranks are known"),
)


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The steps of a rank, window by window."""
    calls = inputs.results["collectives"]
    starts = inputs.results["step_time"]
    parts = [
        _window_steps(
            window,
            calls.filter(pl.col("window") == file_number),
            starts.filter(pl.col("window") == file_number),
            inputs,
        )
        for file_number, window in enumerate(by_window(tables, inputs))
    ]
    return concat_ranks(parts, COLUMNS)


def _window_steps(window: Tables, calls: pl.DataFrame, steps: pl.DataFrame, inputs: Inputs) -> pl.DataFrame:
    sets = activity(window["device_events"], window["host_ops"], window["annotations"], inputs.options.communication)
    begin = steps["start_ns"].to_numpy()
    end = begin + steps["window_ns"].to_numpy()
    known = calls.filter(pl.col("transfer_ns").is_not_null())
    ends, transfer = known["end_ns"].to_numpy(), known["transfer_ns"].to_numpy()
    both = sets.compute & sets.communication
    # The last part of a collective is transfer: before that it waits for the last rank to arrive.
    moving = IntervalSet.of(ends - transfer, ends) & sets.communication
    matched = IntervalSet.of(known["start_ns"].to_numpy(), ends) & sets.communication
    compute, communication = sets.compute.within(begin, end), sets.communication.within(begin, end)
    overlap, moved, matched_ns = (times.within(begin, end) for times in (both, moving, matched))
    exposed_moved, exposed_matched = ((times - sets.compute).within(begin, end) for times in (moving, matched))
    return steps.select(
        "rank",
        "window",
        "step",
        "window_ns",
        pl.Series("computation_ns", compute - overlap),
        pl.Series("overlap_ns", overlap),
        pl.Series("exposed_communication_ns", communication - overlap),
        pl.Series("neither_ns", (end - begin) - (compute + communication - overlap)),
        pl.Series("transfer_ns", moved),
        pl.Series("synchronizing_ns", matched_ns - moved),
        pl.Series("unmatched_ns", communication - matched_ns),
        pl.Series("exposed_transfer_ns", exposed_moved),
        pl.Series("exposed_synchronizing_ns", exposed_matched - exposed_moved),
        pl.Series("exposed_unmatched_ns", communication - overlap - exposed_matched),
    )


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    frame = averaged_steps(frame)
    window = total_of(frame, "window_ns")
    communication = total_of(frame, "exposed_communication_ns") + total_of(frame, "overlap_ns")
    if not window:
        return None
    if not communication:
        return Headline.of("These steps contain no communication.")
    hidden, waits, unknown = (total_of(frame, f"{name}_ns") for name in ("overlap", "synchronizing", "unmatched"))
    values = {"share": (communication / window, "ratio")}
    parts = ["{overlap} overlaps with compute" if hidden else "none overlaps with compute"]
    if hidden:
        values["overlap"] = (hidden / communication, "ratio")
    if waits:
        parts.append("{waiting} is waiting for later ranks")
        values["waiting"] = (waits / communication, "ratio")
    text = f"Communication: {{share}} of step time, of which {listed(parts)}"
    if unknown == communication:
        text += "; wait and transfer cannot be separated"
    elif unknown:
        text += "; for {unknown} of it, wait and transfer cannot be separated"
        values["unknown"] = (unknown / communication, "ratio")
    return Headline.of(f"{text}.", **values)


analysis = Analysis(
    name="distributed",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    headline=headline,
    requires=("collectives", "step_time"),
    reads={
        "device_events": ("start_ns", "end_ns", "name", "kind", "is_collective"),
        "host_ops": ("start_ns", "end_ns", "name", "pid", "tid", "depth"),
        "annotations": ("start_ns", "end_ns", "name", "pid", "tid", "on_device"),
    },
)
