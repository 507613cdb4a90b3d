"""The nodes at which critical paths can change rank or end: matched collectives and ends of steps.

In: a file's tables, its collectives and its steps. Out: its nodes, cut at the steps, and which of them are marked; and
for marked nodes of all ranks the rank that arrived last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from rankscope.primitives.clocks import with_arrivals
from rankscope.primitives.columns import values_and_validity
from rankscope.primitives.critical_path import Clipped, clip
from rankscope.primitives.dependencies import CODE, Nodes, dependencies
from rankscope.primitives.intervals import Int64
from rankscope.primitives.steps import host_steps

READS = {
    "device_events": (
        "start_ns", "end_ns", "name", "kind", "is_collective", "device", "stream", "launch_row", "launch_ns",
    ),
    "host_ops": ("start_ns", "end_ns", "name", "pid", "tid"),
    "runtime_calls": ("start_ns", "end_ns", "name", "pid", "tid"),
    "annotations": ("start_ns", "end_ns", "name", "pid", "tid", "on_device", "step"),
}  # fmt: skip
"""The tables and columns that are needed."""


@dataclass(frozen=True)
class MarkedNodes:
    """The nodes of a file, cut at its steps, and those that are marked.

    Attributes:
        nodes: all nodes.
        clipped: the same, cut at the windows of the steps.
        marked: the marked ones, ascending; only those in a step.
        match: the collective's `match` of each marked node, −1 for the end of a step.
    """

    nodes: Nodes
    clipped: Clipped
    marked: Int64
    match: Int64


def marked_nodes(
    tables: Mapping[str, pl.DataFrame], collectives: pl.DataFrame, steps: pl.DataFrame, communication: str | None
) -> MarkedNodes:
    """The nodes of a file.

    Args:
        tables: the tables in `READS`.
        collectives: the file's collectives: start_ns, end_ns, source, stream, match.
        steps: the file's non-empty steps: step, start_ns, window_ns, by start.
        communication: a regular expression of further kernel names that are communication.
    """
    begin = steps["start_ns"].to_numpy()
    end = begin + steps["window_ns"].to_numpy()
    nodes = dependencies(tables, step_ends(tables["annotations"], steps), communication)
    clipped = clip(nodes, begin, end, np.arange(steps.height))
    marked, match = _marked(nodes, collectives, tables["device_events"])
    inside = clipped.window[marked] >= 0
    return MarkedNodes(nodes, clipped, marked[inside], match[inside])


def matched_starts(collectives: pl.DataFrame) -> pl.DataFrame:
    """The matched collectives of a file, one per start and ``place`` (the stream; −2 on the host).

    Args:
        collectives: start_ns, source, stream, match and any others.
    """
    place = pl.when(pl.col("source") == "gloo").then(-2).otherwise(pl.col("stream").fill_null(-1)).alias("place")
    return (
        collectives.filter(pl.col("match").is_not_null() & pl.col("start_ns").is_not_null())
        .with_columns(place)
        .unique(["start_ns", "place"], keep="first", maintain_order=True)
    )


def step_ends(annotations: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The ends of the steps' windows, with the steps' threads: at_ns, pid, tid.

    Args:
        annotations: step, on_device, pid, tid.
        steps: step, start_ns, window_ns.
    """
    threads = host_steps(annotations).unique("step", keep="first", maintain_order=True).select("step", "pid", "tid")
    return steps.select("step", (pl.col("start_ns") + pl.col("window_ns")).alias("at_ns")).join(
        threads, on="step", how="left", maintain_order="left"
    )


def _marked(nodes: Nodes, collectives: pl.DataFrame, device: pl.DataFrame) -> tuple[Int64, Int64]:
    """The nodes of matched collectives and ends of steps, and the collectives' matches; −1 for ends."""
    communicates = np.flatnonzero(nodes.category == CODE["communication"])
    # On the host the stream of a collective is its thread, so ranges that start together have different ones.
    stream = np.full(nodes.start.size, -1, dtype=np.int64)
    stream[: nodes.device] = values_and_validity(device["stream"], -1)[0]
    on_device = communicates < nodes.device
    candidates = pl.DataFrame(
        {
            "node": communicates,
            "start_ns": nodes.start[communicates],
            "place": np.where(on_device, stream[communicates], -2),
        }
    )
    found = (
        matched_starts(collectives)
        .join(candidates, on=["start_ns", "place"], how="inner")
        .unique("node", keep="first", maintain_order=True)
        .unique("match", keep="first", maintain_order=True)
        .sort("node")
    )
    ends = np.arange(nodes.start.size - nodes.finals, nodes.start.size)
    return (
        np.concatenate([found["node"].to_numpy(), ends]).astype(np.int64),
        np.concatenate([found["match"].to_numpy(), np.full(ends.size, -1)]).astype(np.int64),
    )


def last_arrivals(rows: pl.DataFrame, clock: pl.DataFrame, bases: pl.DataFrame) -> tuple[Int64, Int64, Int64]:
    """By row: the row of the rank that arrived last, its arrival on this rank's clock, and the row's end on the common
    clock.

    If the rank itself was last, or did not wait measurably, it is the row itself. The end is 0 without a common clock.

    Args:
        rows: marked nodes of all ranks: rank, window, step, match (null for the end of a step), start_ns, end_ns.
        clock: the result of `clock`.
        bases: the result of `base_times`.
    """
    number = np.arange(rows.height)
    clock = clock.select("rank", "offset_ns", "drift_ppm", "at_ns", "residual_ns")
    timed = with_arrivals(rows.with_row_index("node"), clock, bases).sort("node")
    node = timed["node"].to_numpy().astype(np.int64)
    end = np.zeros(rows.height, dtype=np.int64)
    common_end = timed["arrival_ns"] + timed["end_ns"] - timed["start_ns"]
    end[node] = common_end.to_numpy()
    last, arrived = number.copy(), rows["start_ns"].to_numpy().copy()
    matched = timed.filter(pl.col("match").is_not_null())
    if not matched.height:
        return last, arrived, end
    latest = matched.sort("arrival_ns", "node").group_by("match", "step").agg(
        pl.col("node").last().alias("last"), pl.col("arrival_ns").last().alias("at"),
        pl.col("residual_ns").last().alias("its_residual"),
    )  # fmt: skip
    joined = matched.join(latest, on=["match", "step"], how="left", nulls_equal=True)
    late = pl.col("at") - pl.col("arrival_ns")
    bound = pl.max_horizontal("residual_ns", "its_residual")
    waited = joined.filter((late > bound) & (late <= pl.col("end_ns") - pl.col("start_ns") + bound))
    waiting_rows = waited["node"].to_numpy().astype(np.int64)
    last[waiting_rows] = waited["last"].to_numpy().astype(np.int64)
    arrived[waiting_rows] = waited.select(pl.col("start_ns") + late).to_series().to_numpy()
    return last, arrived, end
