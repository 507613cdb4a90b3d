"""What each piece of a rank's work had to wait for: its predecessor, the last thing to finish that it depends on.

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
from rankscope.primitives.call_stack import NO_THREAD, innermost, nested_with
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
"""An event of another stream explains a start only if it ended later than launch and own stream by more than this."""
THREADS_APART_NS = 100_000
"""Another thread explains a thread's gap only if it was busy later than that thread by more than this."""


@dataclass(frozen=True)
class Nodes:
    """The nodes of one file: device events in their order, then launches, then stretches of host threads, then ends.

    Attributes:
        start: when a node begins to run, ns; for a call that waits for the device, when the device was done.
        end: ns.
        category: index into `CATEGORIES` of its own time.
        gap: index into `CATEGORIES` of the time between its predecessor's end and its start.
        before: its predecessor, −1 for none.
        table: where a name for it is: 0 `device_events`, 1 `host_ops`, 2 `runtime_calls`, 3 `annotations`.
        row: its row there.
        device: how many of them are device events: the first ones.
        finals: how many of them, the last ones, are the instants that were asked for.
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
    """Stretches of host threads, thread by thread in the order of time, and a thread's place among them."""

    start: Int64
    end: Int64
    thread: Int64
    category: npt.NDArray[np.int8]
    waits: npt.NDArray[np.bool_]
    table: npt.NDArray[np.int8]
    row: Int64

    def before(self, thread: Int64, at: Int64) -> Int64:
        """For each instant of a thread the stretch that the work there waited for, −1 for none.

        It is the last stretch of the thread itself, or of the thread that was busy last if this one had nothing to do.
        """
        if not self.start.size:
            return np.full(at.size, -1, dtype=np.int64)
        never = np.iinfo(np.int64).min // 2
        own = np.full(at.size, -1, dtype=np.int64)
        for number in np.unique(thread[thread >= 0]):
            first, last = np.searchsorted(self.thread, [number, number + 1])
            asked = np.flatnonzero(thread == number)
            found = first + np.searchsorted(self.end[first:last], at[asked], side="right") - 1
            own[asked] = np.where(found >= first, found, -1)
        order = np.argsort(self.end, kind="stable")
        position = np.searchsorted(self.end[order], at, side="right") - 1
        latest = np.where(position >= 0, order[np.maximum(position, 0)], -1)
        own_end = np.where(own >= 0, self.end[own], never)
        latest_end = np.where(latest >= 0, self.end[latest], never)
        chosen: Int64 = np.where(latest_end > own_end + THREADS_APART_NS, latest, own)
        return chosen


def dependencies(tables: Mapping[str, pl.DataFrame], finals: pl.DataFrame, communication: str | None = None) -> Nodes:
    """The nodes of a file and their predecessors.

    A device event waited for the last to finish of: the event before it on its stream, its launch (if the stream was
    done by then), and what ended last on the other streams (if that is more than `STREAMS_APART_NS` later than both).
    A launch, and each stretch of a host thread, waited for what its thread did before, or for the thread that was busy
    last. A call that waits for the device waited for the last device event that ended during it.

    Args:
        tables: device_events, host_ops, runtime_calls, annotations.
        finals: instants on host threads to add as nodes without duration: at_ns, pid, tid. Where a device event ends
            then, it is the predecessor.
        communication: a regular expression of further kernel names that are communication.
    """
    device = tables["device_events"]
    start, end = device["start_ns"].to_numpy(), device["end_ns"].to_numpy()
    count = device.height
    host, numbers = _host(tables)
    launch, launched = values_and_validity(device["launch_ns"])
    # Where host's and device's clocks differ, launches can seem to come after their events.
    launch = np.minimum(launch, start)
    own, other = _earlier(start, end, stream_numbers(device)), _earlier(start, end, None)
    never = np.iinfo(np.int64).min // 2
    own_end, other_end = (np.where(row >= 0, end[row], never) if count else end for row in (own, other))
    at_launch = np.where(launched, launch, never)
    explained = np.maximum(own_end, at_launch)
    elsewhere = other_end > explained + STREAMS_APART_NS
    by_launch = np.flatnonzero(~elsewhere & launched & (launch > own_end))
    before = np.where(elsewhere, other, own)
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

    every_before = np.concatenate([before, of_launch, of_host, of_final])
    preceded = every_before >= 0
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
        before=every_before,
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
    """For each event the one that ended last by its start, of its own stream or of all; −1 for none."""
    found = np.full(start.size, -1, dtype=np.int64)
    groups = [np.arange(start.size)] if stream is None else [np.flatnonzero(stream == one) for one in np.unique(stream)]
    for rows in groups:
        order = rows[np.argsort(end[rows], kind="stable")]
        place = np.empty(rows.size, dtype=np.int64)
        place[np.searchsorted(rows, order)] = np.arange(rows.size)
        # One without duration has ended by its own start: it comes after those before it.
        last = np.minimum(np.searchsorted(end[order], start[rows], side="right"), place) - 1
        found[rows] = np.where(last >= 0, order[np.maximum(last, 0)], -1)
    return found


def _last_ended(end: Int64, start: Int64, until: Int64) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """For each call the device event that ended last in it, and whether one did."""
    if not end.size:
        return np.full(start.size, -1, dtype=np.int64), np.zeros(start.size, dtype=np.bool_)
    order = np.argsort(end, kind="stable")
    last = np.searchsorted(end[order], until, side="right") - 1
    row = order[np.maximum(last, 0)]
    return row, (last >= 0) & (end[row] > start)


def _host(tables: Mapping[str, pl.DataFrame]) -> tuple[_Host, pl.DataFrame]:
    """The innermost operator or call of each host thread over time, and the threads' numbers."""
    operators, calls, annotations = tables["host_ops"], tables["runtime_calls"], tables["annotations"]
    place = ["start_ns", "end_ns", "name", "pid", "tid"]
    gloo = gloo_ranges(operators, annotations)
    loads = pl.Series(is_data_loading(annotations))
    loading = annotations.with_row_index("source").filter(loads)
    launches = calls[tables["device_events"]["launch_row"].drop_nulls().unique().sort()]
    # Threads that only watch (NCCL's watchdog asks for events all the time) do nothing that a step waits for.
    working = pl.concat([operators.select("pid", "tid"), gloo.select("pid", "tid"), launches.select("pid", "tid")])
    numbers = working.unique().sort("pid", "tid").with_row_index("number")
    kept = calls.with_row_index("source").join(working.unique(), on=["pid", "tid"], how="semi", nulls_equal=True)
    communicates = annotations.with_row_index("source").filter(
        ~pl.col("on_device") & pl.col("name").str.starts_with("gloo:") & ~loads
    )
    every, _ = nested_with(
        operators.with_row_index("source").select(*place, "source", pl.lit(1, pl.Int8).alias("table")),
        [
            kept.select(*place, "source", pl.lit(2, pl.Int8).alias("table")),
            loading.select(*place, "source", pl.lit(3, pl.Int8).alias("table")),
            communicates.select(*place, "source", pl.lit(3, pl.Int8).alias("table")),
        ],
    )
    instants, until = _cuts(every, gloo)
    row = innermost(every, instants)
    is_busy = row >= 0
    row, at = row[is_busy], instants["at_ns"].to_numpy()[is_busy]
    thread = _thread_numbers(instants, numbers)[is_busy]
    found = every[row] if row.size else every.clear()
    is_loading = _inside(loading, found["pid"], found["tid"], at)
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


def _cuts(every: pl.DataFrame, gloo: pl.DataFrame) -> tuple[pl.DataFrame, Int64]:
    """The instants at which what is innermost on a thread may change, and until when each holds.

    A Gloo range is issued by a thread that is running: all threads are cut where one starts, other ranges are not.
    """
    threads = every.select("pid", "tid").unique()
    ends = [every.select("pid", "tid", pl.col(name).alias("at_ns")) for name in ("start_ns", "end_ns")]
    issued = threads.join(gloo.select(pl.col("start_ns").alias("at_ns")).unique(), how="cross")
    issued = issued.filter(pl.Series(~_inside(gloo, issued["pid"], issued["tid"], issued["at_ns"].to_numpy())))
    cuts = pl.concat([*ends, issued]).unique().sort("pid", "tid", "at_ns")
    following = cuts.select(pl.col("at_ns").shift(-1).over("pid", "tid"))
    # The last cut of a thread is an end: nothing is open there.
    known = following["at_ns"].is_not_null()
    return cuts.filter(known), following["at_ns"].filter(known).to_numpy().astype(np.int64)


def _thread_numbers(rows: pl.DataFrame, numbers: pl.DataFrame) -> Int64:
    """The number of each row's thread, −1 for one that does no work."""
    joined = rows.select("pid", "tid").join(
        numbers, on=["pid", "tid"], how="left", nulls_equal=True, maintain_order="left"
    )
    return values_and_validity(joined["number"].cast(pl.Int64), -1)[0]


def _inside(ranges: pl.DataFrame, pid: pl.Series, tid: pl.Series, at: Int64) -> npt.NDArray[np.bool_]:
    """Whether each instant of a thread is in one of some ranges of that thread."""
    inside = np.zeros(at.size, dtype=np.bool_)
    if not ranges.height or not at.size:
        return inside
    process, thread = (values_and_validity(column, NO_THREAD)[0] for column in (pid, tid))
    for one, number in ranges.select("pid", "tid").unique().iter_rows():
        here = np.flatnonzero(
            (process == (NO_THREAD if one is None else one)) & (thread == (NO_THREAD if number is None else number))
        )
        own = ranges.filter(pl.col("pid").eq_missing(one) & pl.col("tid").eq_missing(number)).sort("start_ns")
        reached = np.maximum.accumulate(own["end_ns"].to_numpy())
        last = np.searchsorted(own["start_ns"].to_numpy(), at[here], side="right") - 1
        inside[here] = (last >= 0) & (reached[np.maximum(last, 0)] > at[here])
    return inside
