"""A rank's activity over time: a set of time for each category.

In: a rank's tables. Out: one interval set per category.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.call_stack import is_inside
from rankscope.primitives.intervals import EMPTY, IntervalSet
from rankscope.primitives.kernels import COMMUNICATION, COMPUTE, MEMORY, communication_names

GLOO = "gloo:"
ASYNCHRONOUS = r"^(?:gloo|nccl|mpi|ucc|xccl):"
"""Ranges of c10d's `Work`, which marks them as asynchronous for every backend: they may end on another thread."""
WAITS = ("_c10d_functional::wait_tensor", "c10d_functional::wait_tensor")
"""Operators that wait until a functional collective has ended; the second is that of torch 2.1 and 2.2."""
DATA_LOADING = re.compile(
    r"enumerate\(Data(Loader|Pipe)\)"
    r"|data_?load|load(ing)?_?(data|batch)|(next|get|fetch|prefetch)_?(data|batch)|batch_?load"
    r"|data_?(fetch|wait|iter|prefetch|pipeline)|input_?pipeline",
    re.IGNORECASE,
)
HOST_ACTIVITY = {
    "data_loading": "the host loads data",
    "synchronisation": "the host waits for the device",
    "runtime": "the host is in a runtime call",
    "operator": "the host is in an operator",
    "python": "the host is in Python",
    "nothing": "nothing is recorded on the host",
}
"""Host activities while the device is idle, in order of precedence, with a phrase for each."""

BUSY = ("compute_ns", "exposed_communication_ns", "exposed_memcpy_ns", "exposed_memset_ns")
IDLE = ("runtime_ns", "data_loading_ns", "host_op_ns", "other_ns")
"""Columns of the analysis `step_time`: what the device does; and while it does nothing, the host. Together, a step."""


@dataclass(frozen=True)
class Activity:
    """Sets of time of one rank's device, or of its host if the trace has no device events.

    Attributes:
        compute: kernels other than communication; without a device, top-level operators.
        communication: communication kernels; without a device, `gloo:*` ranges.
        memcpy: copies.
        memset: fills.
    """

    compute: IntervalSet
    communication: IntervalSet
    memcpy: IntervalSet
    memset: IntervalSet

    @property
    def memory(self) -> IntervalSet:
        """Copies and fills."""
        return self.memcpy | self.memset

    @property
    def busy(self) -> IntervalSet:
        """All activity."""
        return self.compute | self.communication | self.memory


def with_category(device: pl.DataFrame, extra: str | None = None) -> pl.DataFrame:
    """Device events with a ``category``: compute, communication or memory.

    Args:
        device: columns name, kind, is_collective; returned as it is if it has the category already.
        extra: a regular expression of further names that are communication.
    """
    if "category" in device.columns:
        return device
    names = communication_names(device["name"].unique().drop_nulls().to_list(), extra=extra)
    communication = pl.col("is_collective").fill_null(False) | pl.col("name").is_in(list(names))
    return device.with_columns(
        pl.when(pl.col("kind") != "kernel")
        .then(pl.lit(MEMORY))
        .when(communication)
        .then(pl.lit(COMMUNICATION))
        .otherwise(pl.lit(COMPUTE))
        .alias("category")
    )


def covered_time(frame: pl.DataFrame) -> IntervalSet:
    """The union of a frame's rows, by start_ns and end_ns."""
    return IntervalSet.of(frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy())


def gloo_ranges(operators: pl.DataFrame, annotations: pl.DataFrame) -> pl.DataFrame:
    """Gloo's host ranges: annotations, in older traces operators. Columns start_ns, end_ns, name, pid, tid."""
    columns = ["start_ns", "end_ns", "name", "pid", "tid"]
    is_gloo = pl.col("name").str.starts_with(GLOO)
    parts = [
        frame.filter(is_gloo & chosen).select(columns)
        for frame, chosen in ((annotations, ~pl.col("on_device")), (operators, pl.lit(True)))
        # Most jobs have none.
        if frame["name"].str.starts_with(GLOO).any()
    ]
    return pl.concat(parts) if parts else pl.DataFrame([annotations.get_column(name).clear() for name in columns])


def computing_operators(operators: pl.DataFrame, gloo: pl.DataFrame, *, without_waits: bool = False) -> pl.DataFrame:
    """Top-level operators that compute: without Gloo's ranges, and without operators inside these.

    Gloo runs collectives on its own threads, where all operators are inside Gloo's ranges, but send and recv on the
    caller's thread.

    Args:
        operators: host_ops.
        gloo: `gloo_ranges`.
        without_waits: leave out waits for functional collectives, which are operators too. An operator that waits in
            the middle becomes several rows.
    """
    top = operators.filter((pl.col("depth") == 0) & ~pl.col("name").str.starts_with(GLOO))
    waits = operators.filter(pl.col("name").is_in(WAITS)) if without_waits else operators.clear()
    if waits.height:
        top = _outside(top.filter(~pl.col("name").is_in(WAITS)), waits)
    if gloo.is_empty():
        return top
    return top.filter(pl.Series(~is_inside(gloo, top["pid"], top["tid"], top["start_ns"].to_numpy())))


def _outside(operators: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """The parts of top-level operators outside the waits on their threads, in the order of the operators."""
    thread = ["pid", "tid"]
    # Waits may be nested.
    earlier = pl.col("end_ns").cum_max().shift(1).over(thread)
    waits = waits.sort("start_ns").filter((pl.col("start_ns") >= earlier).fill_null(True))
    row = operators.with_row_index("row").sort("start_ns")
    inside = (
        waits.select(*thread, "start_ns", pl.col("end_ns").alias("wait_end"))
        .join_asof(row.select(*thread, "start_ns", "end_ns", "row"), on="start_ns", by=thread, check_sortedness=False)
        .filter(pl.col("wait_end") <= pl.col("end_ns"))
    )
    starts = pl.concat([row.select("row", "start_ns"), inside.select("row", pl.col("wait_end").alias("start_ns"))])
    ends = pl.concat([row.select("row", "end_ns"), inside.select("row", pl.col("start_ns").alias("end_ns"))])
    parts = starts.sort("row", "start_ns").hstack(ends.sort("row", "end_ns").select("end_ns"))
    parts = parts.filter(pl.col("end_ns") > pl.col("start_ns"))
    return operators[parts["row"]].with_columns(parts["start_ns"], parts["end_ns"])


def activity(
    device: pl.DataFrame, operators: pl.DataFrame, annotations: pl.DataFrame, extra: str | None = None
) -> Activity:
    """A rank's activity over time.

    Args:
        device: device_events: start_ns, end_ns, name, kind, is_collective.
        operators: host_ops: start_ns, end_ns, name, pid, tid, depth. Used only if there are no device events.
        annotations: start_ns, end_ns, name, pid, tid, on_device. Used only if there are no device events.
        extra: a regular expression of further names that are communication.
    """
    if device.height:
        category, kind = with_category(device, extra)["category"], device["kind"]
        start, end = device["start_ns"].to_numpy(), device["end_ns"].to_numpy()
        # Faster than a filter of the frame for each, which plans a query.
        masks = (category == COMPUTE, category == COMMUNICATION, kind == "memcpy", kind == "memset")
        chosen = (mask.fill_null(False).to_numpy() if mask.null_count() else mask.to_numpy() for mask in masks)
        return Activity(*(IntervalSet.of(start[rows], end[rows]) for rows in chosen))
    gloo = gloo_ranges(operators, annotations)
    compute = computing_operators(operators, gloo)
    return Activity(covered_time(compute), covered_time(gloo), EMPTY, EMPTY)


def is_data_loading(annotations: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Which of the host's ranges load data: a DataLoader's ``__next__``, and user ranges named for data loading.

    Only those on threads with steps count, if there are any: no step waits for a loader on another thread.

    Args:
        annotations: name, on_device, step, pid, tid.
    """
    name = annotations["name"]
    names = [text for text in name.unique().drop_nulls() if DATA_LOADING.search(text)]
    if not names:
        return np.zeros(annotations.height, dtype=np.bool_)
    on_host = ~annotations["on_device"].to_numpy()
    named = name.is_in(names)
    loads: npt.NDArray[np.bool_] = on_host & (named.fill_null(False) if name.null_count() else named).to_numpy()
    steps = annotations["step"].is_not_null().to_numpy() & on_host
    if steps.any():
        thread = annotations.select(pl.struct("pid", "tid").alias("thread"))["thread"]
        loads &= thread.is_in(thread.filter(pl.Series(steps)).unique().implode()).to_numpy()
    return loads


def data_loading_ranges(annotations: pl.DataFrame) -> pl.DataFrame:
    """The host's ranges that load data."""
    return annotations.filter(is_data_loading(annotations))


def data_loading_time(annotations: pl.DataFrame) -> IntervalSet:
    """When the host was in a DataLoader's ``__next__``, or in a user range named for data loading."""
    loads = is_data_loading(annotations)
    return IntervalSet.of(annotations["start_ns"].to_numpy()[loads], annotations["end_ns"].to_numpy()[loads])
