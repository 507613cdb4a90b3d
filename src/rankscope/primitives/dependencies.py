"""Dependencies within a rank: each node's predecessor, which is the last of its dependencies to finish.

A node is a device event, a launch that its event waited for, or a stretch of a host thread in which one operator or
call is innermost. Its predecessor ends at or before its start; following predecessors backwards gives a critical path.

In: a file's tables. Out: nodes with their predecessors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.activity import gloo_ranges, is_data_loading, with_category
from rankscope.primitives.call_stack import innermost, is_inside, nested_with
from rankscope.primitives.columns import values_and_validity
from rankscope.primitives.intervals import Int64
from rankscope.primitives.kernels import COMMUNICATION
from rankscope.primitives.streams import stream_numbers
from rankscope.primitives.synchronization import is_host_wait

CATEGORIES = (
    "compute", "communication", "wait", "copies", "kernel_gap", "launch", "runtime", "data_loading", "host_op", "other",
)  # fmt: skip
CODE = {name: code for code, name in enumerate(CATEGORIES)}
STREAMS_APART_NS = 5_000
"""An event of another stream counts as predecessor only if it ended later than both the launch and the event before it
on its stream by more than this."""
THREADS_APART_NS = 100_000
"""Another thread counts as predecessor only if it was busy later than the thread itself by more than this."""


@dataclass(frozen=True)
class Nodes:
    """The nodes of one file: device events in their order, then launches, then stretches of host threads, then ends.

    Attributes:
        start: when a node starts, ns; for a call that waits for the device, when the device was done.
        end: ns.
        category: index into `CATEGORIES` of its own time.
        gap: index into `CATEGORIES` of the time between its predecessor's end and its start.
        before: its predecessor, −1 for none.
        table: the table with its name: 0 `device_events`, 1 `host_ops`, 2 `runtime_calls`, 3 `annotations`.
        row: its row there.
        device: the number of device events, which come first.
        finals: the number of requested instants, which come last.
    """

    start: Int64
    end: Int64
    category: npt.NDArray[np.int8]
    gap: npt.NDArray[np.int8]
    before: Int64
    table: npt.NDArray[np.int8]
    row: Int64
    device: int
    finals: int


@dataclass(frozen=True)
class _Host:
    """Stretches of host threads, by thread and time."""

    start: Int64
    end: Int64
    thread: Int64
    category: npt.NDArray[np.int8]
    waits: npt.NDArray[np.bool_]
    table: npt.NDArray[np.int8]
    row: Int64

    def before(self, thread: Int64, at: Int64) -> Int64:
        """For each instant of a thread the stretch that precedes it, −1 for none.

        It is the thread's last stretch, or that of the thread that was busy last if this one was idle.
        """
        if not self.start.size:
            return np.full(at.size, -1, dtype=np.int64)
        never = np.iinfo(np.int64).min // 2
        row_on_thread = np.full(at.size, -1, dtype=np.int64)
        for number in np.unique(thread[thread >= 0]):
            first, last = np.searchsorted(self.thread, [number, number + 1])
            indices = np.flatnonzero(thread == number)
            found = first + np.searchsorted(self.end[first:last], at[indices], side="right") - 1
            row_on_thread[indices] = np.where(found >= first, found, -1)
        order = np.argsort(self.end, kind="stable")
        position = np.searchsorted(self.end[order], at, side="right") - 1
        latest = np.where(position >= 0, order[np.maximum(position, 0)], -1)
        own_end = np.where(row_on_thread >= 0, self.end[row_on_thread], never)
        latest_end = np.where(latest >= 0, self.end[latest], never)
        chosen: Int64 = np.where(latest_end > own_end + THREADS_APART_NS, latest, row_on_thread)
        return chosen


def dependencies(tables: Mapping[str, pl.DataFrame], finals: pl.DataFrame, communication: str | None = None) -> Nodes:
    """The nodes of a file and their predecessors.

    The predecessor of a device event is the last to finish of: the event before it on its stream, its launch (if
    the stream was idle by then), and the last event to end on the other streams (if more than `STREAMS_APART_NS`
    later than both). An event that was launched later is none of them: a stream waits only for what is enqueued
    already. The predecessor of a launch or of a stretch of a host thread is what its thread did before, or the
    thread that was busy last. That of a call that waits for the device is the last device event that ended during
    it.

    Args:
        tables: device_events, host_ops, runtime_calls, annotations.
        finals: instants on host threads to add as nodes without duration: at_ns, pid, tid. If a device event ends at
            one, it is the predecessor.
        communication: a regular expression of further kernel names that are communication.
    """
    device = tables["device_events"]
    start, end = device["start_ns"].to_numpy(), device["end_ns"].to_numpy()
    count = device.height
    host, numbers = _host(tables)
    launch, launched = values_and_validity(device["launch_ns"])
    # If the clocks of host and device differ, launches can seem to come after their events.
    launch = np.minimum(launch, start)
    streams = stream_numbers(device)
    on_stream, on_any_stream = _earlier(start, end, streams), _earlier(start, end, None)
    never = np.iinfo(np.int64).min // 2
    own_end, other_end = (np.where(row >= 0, end[row], never) if count else end for row in (on_stream, on_any_stream))
    at_launch = np.where(launched, launch, never)
    explained = np.maximum(own_end, at_launch)
    elsewhere = other_end > explained + STREAMS_APART_NS
    later = np.flatnonzero(elsewhere & launched & (at_launch[on_any_stream] > at_launch))
    on_any_stream[later] = _earlier_elsewhere(later, start, end, streams, at_launch)
    elsewhere[later] = np.where(on_any_stream[later] >= 0, end[on_any_stream[later]], never) > (
        explained[later] + STREAMS_APART_NS
    )
    by_launch = np.flatnonzero(~elsewhere & launched & (launch > own_end))
    before = np.where(elsewhere, on_any_stream, on_stream)
    before[by_launch] = count + np.arange(by_launch.size)

    base = count + by_launch.size
    call, has_call = values_and_validity(device["launch_row"])
    calling = np.full(count, -1, dtype=np.int64)
    calling[has_call] = _thread_numbers(tables["runtime_calls"], numbers)[call[has_call]]
    of_launch = host.before(calling[by_launch], launch[by_launch])
    of_host, host_start = host.before(host.thread, host.start), host.start.copy()
    waits = np.flatnonzero(host.waits)
    done, freed = _last_ended(end, host.start[waits], host.end[waits])
    final = finals["at_ns"].to_numpy()
    of_final = host.before(_thread_numbers(finals, numbers), final)
    for rows in (of_launch, of_host, of_final):
        rows[rows >= 0] += base
    of_host[waits[freed]], host_start[waits[freed]] = done[freed], end[done[freed]]
    last, at_end = _last_ended(end, final - 1, final)
    of_final[at_end] = last[at_end]

    all_before = np.concatenate([before, of_launch, of_host, of_final])
    preceded = all_before >= 0
    return Nodes(
        start=np.concatenate([start, launch[by_launch], host_start, final]),
        end=np.concatenate([end, start[by_launch], host.end, final]),
        category=np.concatenate(
            [
                _device_categories(device, communication),
                np.full(by_launch.size, CODE["launch"], dtype=np.int8),
                host.category,
                np.full(final.size, CODE["other"], dtype=np.int8),
            ]
        ),
        gap=np.where(preceded & (np.arange(preceded.size) < count), CODE["kernel_gap"], CODE["other"]).astype(np.int8),
        before=all_before,
        table=np.concatenate(
            [np.full(count, 0), np.full(by_launch.size, 2), host.table, np.full(final.size, 0)]
        ).astype(np.int8),
        row=np.concatenate([np.arange(count), call[by_launch], host.row, np.full(final.size, -1)]),
        device=count,
        finals=final.size,
    )  # fmt: skip


def _device_categories(device: pl.DataFrame, communication: str | None) -> npt.NDArray[np.int8]:
    kinds = with_category(device, communication)["category"]
    code = {COMMUNICATION: CODE["communication"], "compute": CODE["compute"]}
    codes: npt.NDArray[np.int8] = kinds.replace_strict(code, default=CODE["copies"], return_dtype=pl.Int8).to_numpy()
    return codes


def _earlier(start: Int64, end: Int64, stream: npt.NDArray[np.integer] | None) -> Int64:
    """For each event the last event to end by its start, on its own stream or on all streams; −1 for none."""
    found = np.full(start.size, -1, dtype=np.int64)
    groups = (
        [np.arange(start.size)]
        if stream is None
        else [np.flatnonzero(stream == number) for number in np.unique(stream)]
    )
    for rows in groups:
        order = rows[np.argsort(end[rows], kind="stable")]
        position = np.empty(rows.size, dtype=np.int64)
        position[np.searchsorted(rows, order)] = np.arange(rows.size)
        # An event without duration has ended by its own start: do not let it precede itself.
        last = np.minimum(np.searchsorted(end[order], start[rows], side="right"), position) - 1
        found[rows] = np.where(last >= 0, order[np.maximum(last, 0)], -1)
    return found


def _earlier_elsewhere(rows: Int64, start: Int64, end: Int64, stream: npt.NDArray[np.integer], launch: Int64) -> Int64:
    """For some events the last event on another stream to end by its start of those launched no later; −1 for none."""
    found = np.full(rows.size, -1, dtype=np.int64)
    found_end = np.full(rows.size, np.iinfo(np.int64).min, dtype=np.int64)
    for number in np.unique(stream) if rows.size else ():
        # A stream runs its events in the order of their launches.
        order = np.flatnonzero(stream == number)
        order = order[np.argsort(end[order], kind="stable")]
        ended = np.searchsorted(end[order], start[rows], side="right")
        enqueued = np.searchsorted(np.maximum.accumulate(launch[order]), launch[rows], side="right")
        last = np.where(stream[rows] == number, 0, np.minimum(ended, enqueued)) - 1
        row = order[np.maximum(last, 0)]
        is_later = (last >= 0) & (end[row] > found_end)
        found[is_later], found_end[is_later] = row[is_later], end[row[is_later]]
    return found


def _last_ended(end: Int64, start: Int64, until: Int64) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """For each call the last device event to end during it, and whether there is one."""
    if not end.size:
        return np.full(start.size, -1, dtype=np.int64), np.zeros(start.size, dtype=np.bool_)
    order = np.argsort(end, kind="stable")
    last = np.searchsorted(end[order], until, side="right") - 1
    row = order[np.maximum(last, 0)]
    return row, (last >= 0) & (end[row] > start)


def _host(tables: Mapping[str, pl.DataFrame]) -> tuple[_Host, pl.DataFrame]:
    """The innermost operator or call of each host thread over time, and the threads' numbers."""
    operators, calls, annotations = tables["host_ops"], tables["runtime_calls"], tables["annotations"]
    columns = ["start_ns", "end_ns", "name", "pid", "tid"]
    gloo = gloo_ranges(operators, annotations)
    loads = pl.Series(is_data_loading(annotations))
    loading = annotations.with_row_index("source").filter(loads)
    launches = calls[tables["device_events"]["launch_row"].drop_nulls().unique().sort()]
    # No step waits for threads that only poll, such as NCCL's watchdog.
    working = pl.concat([operators.select("pid", "tid"), gloo.select("pid", "tid"), launches.select("pid", "tid")])
    numbers = working.unique().sort("pid", "tid").with_row_index("number")
    kept = calls.with_row_index("source").join(working.unique(), on=["pid", "tid"], how="semi", nulls_equal=True)
    communicates = annotations.with_row_index("source").filter(
        ~pl.col("on_device") & pl.col("name").str.starts_with("gloo:") & ~loads
    )
    nested, _ = nested_with(
        operators.with_row_index("source").select(*columns, "source", pl.lit(1, pl.Int8).alias("table")),
        [
            kept.select(*columns, "source", pl.lit(2, pl.Int8).alias("table")),
            loading.select(*columns, "source", pl.lit(3, pl.Int8).alias("table")),
            communicates.select(*columns, "source", pl.lit(3, pl.Int8).alias("table")),
        ],
    )
    instants, until = _cuts(nested, gloo)
    row = innermost(nested, instants)
    is_busy = row >= 0
    row, at = row[is_busy], instants["at_ns"].to_numpy()[is_busy]
    thread = _thread_numbers(instants, numbers)[is_busy]
    found = nested[row] if row.size else nested.clear()
    is_loading = is_inside(loading, found["pid"], found["tid"], at)
    category = np.select(
        [
            (found["table"] == 2).to_numpy(),
            found["name"].str.starts_with("gloo:").fill_null(False).to_numpy(),
            is_loading,
        ],
        [CODE["runtime"], CODE["communication"], CODE["data_loading"]],
        CODE["host_op"],
    ).astype(np.int8)
    order = np.lexsort((at, thread))
    waits = ((found["table"] == 2) & is_host_wait(found["name"])).to_numpy()
    host = _Host(
        at[order], until[is_busy][order], thread[order], category[order], waits[order],
        found["table"].to_numpy()[order], found["source"].cast(pl.Int64).to_numpy()[order],
    )  # fmt: skip
    return host, numbers


def _cuts(nested: pl.DataFrame, gloo: pl.DataFrame) -> tuple[pl.DataFrame, Int64]:
    """The instants at which the innermost range of a thread may change, and the end of each stretch.

    A running thread issues a Gloo range, so all threads are also cut where one starts.
    """
    threads = nested.select("pid", "tid").unique()
    ends = [nested.select("pid", "tid", pl.col(name).alias("at_ns")) for name in ("start_ns", "end_ns")]
    issued = threads.join(gloo.select(pl.col("start_ns").alias("at_ns")).unique(), how="cross")
    issued = issued.filter(pl.Series(~is_inside(gloo, issued["pid"], issued["tid"], issued["at_ns"].to_numpy())))
    cuts = pl.concat([*ends, issued]).unique().sort("pid", "tid", "at_ns")
    following = cuts.select(pl.col("at_ns").shift(-1).over("pid", "tid"))
    # After the last cut of a thread nothing is open.
    known = following["at_ns"].is_not_null()
    return cuts.filter(known), following["at_ns"].filter(known).to_numpy().astype(np.int64)


def _thread_numbers(rows: pl.DataFrame, numbers: pl.DataFrame) -> Int64:
    """The number of each row's thread, −1 for a thread that does not work."""
    joined = rows.select("pid", "tid").join(
        numbers, on=["pid", "tid"], how="left", nulls_equal=True, maintain_order="left"
    )
    return values_and_validity(joined["number"].cast(pl.Int64), -1)[0]
