"""What an operator leads to: the kernels that it launched, its backward, and the forward operator that it is of.

In: a row of a host's table. Out: rows of other tables of the same file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from rankscope.store.cache import CachedTrace

MAX_KERNELS = 20
LAUNCHING = ("host_ops", "runtime_calls", "annotations")
"""Tables whose events contain launches."""


def forward_and_backward(trace: CachedTrace, values: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """The rows of the forward operator of a backward one, and of the backward of a forward one; None for none.

    Autograd gives both one sequence number. Numbers are counted per thread: one that forward operators of several
    threads have says nothing.

    Args:
        trace: the file.
        values: the operator's row in `host_ops`.
    """
    number = values.get("sequence")
    if number is None:
        return None, None
    columns = ("start_ns", "name", "sequence", "forward_thread", "pid", "tid")
    numbered = trace.scan("host_ops").select(columns).with_row_index("row").filter(pl.col("sequence") == number)
    found = numbered.sort("start_ns", "row").collect()
    is_backward = found["forward_thread"].fill_null(0) > 0
    forward, backward = found.filter(~is_backward), found.filter(is_backward)
    if forward.select("pid", "tid").n_unique() != 1 or backward["forward_thread"].n_unique() != 1:
        return None, None
    if forward["start_ns"].item(-1) > backward["start_ns"].item(0):
        return None, None
    if (values.get("forward_thread") or 0) > 0:
        return int(forward["row"].item(-1)), None  # the last one made the node
    # Autograd's own range around a backward operator has the number, too.
    inner = backward.filter(~pl.col("name").str.starts_with("autograd::engine::").fill_null(False))
    return None, int((inner if inner.height else backward)["row"].item(0))


def launched(trace: CachedTrace, values: Mapping[str, Any]) -> tuple[int, int, list[int]] | None:
    """How many device events an event of the host launched, their time summed, ns, and the rows of the first of them.

    Args:
        trace: the file.
        values: the event's row: start_ns, end_ns, pid, tid.
    """
    same = pl.all_horizontal(pl.col(name).eq_missing(values.get(name)) for name in ("pid", "tid"))
    within = (pl.col("start_ns") >= values["start_ns"]) & (pl.col("end_ns") <= values["end_ns"])
    calls = trace.scan("runtime_calls").select("start_ns", "end_ns", "pid", "tid").with_row_index("call")
    device = trace.scan("device_events").select("start_ns", "end_ns", "launch_row").with_row_index("row")
    inside = calls.filter(same & within).select(pl.col("call").cast(pl.Int64))
    of = pl.col("launch_row").cast(pl.Int64)
    found = device.with_columns(of.alias("call")).join(inside, on="call", how="semi").sort("start_ns", "row").collect()
    if not found.height:
        return None
    total = int((found["end_ns"] - found["start_ns"]).sum())
    return found.height, total, found["row"].head(MAX_KERNELS).to_list()
