"""Runtime calls in which the host waits for its device.

In: runtime calls. Out: those that wait, without the profiler's own, and the idle time of the device after them.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from rankscope.primitives.intervals import Int64, IntervalSet

# Not `cudaStreamWaitEvent`, which makes a stream wait and not the host.
HOST_WAITS = re.compile(
    r"synchroni[sz]e|(event|queue|fence|commandqueue|streams?|ctx)_?host_?sync"
    r"|^(cuda|hip)Memcpy$|^hipMemcpyWithStream$|^ur(EventWait|QueueFinish)|^pi(EventsWait|QueueFinish)|^cl(WaitForEvents|Finish)",
    re.IGNORECASE,
)
"""CUDA, HIP and Level Zero calls have synchronize in their names, SYCL's and OpenCL's do not. Copies that are not Async
wait, and torch uses `hipMemcpyWithStream` for copies that wait."""
_DEVICE_WIDE = r"(?i)(device|ctx)_?synchroni[sz]e"


def is_host_wait(names: pl.Series) -> pl.Series:
    """Whether each call, by name, returns only when the device has finished."""
    waiting = [name for name in names.unique().drop_nulls() if HOST_WAITS.search(name)]
    found = names.is_in(waiting)
    return found.fill_null(False) if names.null_count() else found


def host_waits(calls: pl.DataFrame) -> pl.DataFrame:
    """The calls that return only when the device has finished.

    Args:
        calls: runtime_calls: name, and any others.
    """
    return calls.filter(is_host_wait(calls["name"]))


def without_profilers_wait(waits: pl.DataFrame, operators: pl.DataFrame, device: pl.DataFrame) -> pl.DataFrame:
    """The waiting calls without the profiler's own.

    To stop, `torch.profiler` waits for the device (`torch.cuda.synchronize()` in its `__exit__`) while it still
    records: this is the last device-wide wait of a file, outside of operators, if no operator and no launch follows it.

    Args:
        waits: start_ns, end_ns, name, pid, tid, and any others.
        operators: host_ops: start_ns, end_ns, pid, tid.
        device: device_events: start_ns, launch_ns.
    """
    device_wide = waits.filter(pl.col("name").str.contains(_DEVICE_WIDE))
    if device_wide.is_empty():
        return waits
    last = device_wide.sort("start_ns").row(-1, named=True)
    at = last["start_ns"]
    encloses = pl.col("pid").eq_missing(last["pid"]) & pl.col("tid").eq_missing(last["tid"]) & (pl.col("end_ns") > at)
    # Work launched before the wait may seem to start after it if the clocks of host and device differ.
    launched = (pl.col("launch_ns") > at) | (pl.col("launch_ns").is_null() & (pl.col("start_ns") > last["end_ns"]))
    if operators.select(((pl.col("start_ns") > at) | encloses).any()).item() or device.select(launched.any()).item():
        return waits
    return waits.filter((pl.col("start_ns") != at) | ~pl.col("name").str.contains(_DEVICE_WIDE))


def idle_after(calls: pl.DataFrame, busy: IntervalSet) -> Int64:
    """The idle time of the device around each call's end: from when it became idle, during the call, to its next event.

    If several calls end in one gap, each counts the part since the previous one. After the device's last event nothing
    is delayed.

    Args:
        calls: start_ns, end_ns.
        busy: when the device was busy.

    Returns:
        ns, for each call.
    """
    start, end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    if not len(busy) or not start.size:
        return np.zeros(start.size, dtype=np.int64)
    order = np.argsort(end, kind="stable")
    begin, finish = start[order], end[order]
    following = np.searchsorted(busy.starts, finish, side="left")
    idle_since = np.where(following > 0, busy.ends[np.maximum(following - 1, 0)], finish)
    resumes = np.where(following < len(busy), busy.starts[np.minimum(following, len(busy) - 1)], finish)
    # The gap contains the call's end only if the device was idle by then.
    first = np.maximum(idle_since, begin)
    same = np.concatenate([[False], following[1:] == following[:-1]])
    counted = np.concatenate([[0], finish[:-1]])
    first = np.where(same, np.maximum(first, counted), first)
    was_idle = idle_since <= finish
    idle = np.empty(start.size, dtype=np.int64)
    # The last call that ends in a gap gets the rest of it; the others get the part up to their own end.
    last = np.concatenate([following[1:] != following[:-1], [True]])
    until = np.where(last, resumes, finish)
    idle[order] = np.where(was_idle & (following < len(busy)), np.clip(until - first, 0, finish - begin), 0)
    return idle
