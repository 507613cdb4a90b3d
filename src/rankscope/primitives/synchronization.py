"""Runtime calls in which the host waits for its device."""

from __future__ import annotations

import re

import polars as pl

# Not `cudaStreamWaitEvent`, which makes a stream wait and not the host.
HOST_WAITS = re.compile(
    r"synchroni[sz]e|(event|queue|fence|commandqueue|streams?|ctx)_?host_?sync"
    r"|^(cuda|hip)Memcpy$|^ur(EventWait|QueueFinish)|^pi(EventsWait|QueueFinish)|^cl(WaitForEvents|Finish)",
    re.IGNORECASE,
)
"""CUDA's, HIP's and Level Zero's own say synchronize, SYCL's and OpenCL's do not; a copy that is not Async waits."""


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
