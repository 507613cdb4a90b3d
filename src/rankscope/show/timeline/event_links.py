"""What an operator leads to: the kernels that it launched, its backward, and the forward operator that it is of.

In: a row of a host's table. Out: rows of other tables of the same file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from rankscope.store.cache import CachedTrace

MAX_KERNELS = 20
AUTOGRAD = ("start_ns", "name", "sequence", "forward_thread", "pid", "tid")
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
    numbered = trace.scan("host_ops").select(AUTOGRAD).with_row_index("row").filter(pl.col("sequence") == number)
    links = autograd_links(numbered.collect()).filter(pl.col("is_backward") == _is_backward(values))
    if not links.height:
        return None, None
    forward, backward = links.select("forward", "backward").row(0)
    return forward, backward


def _is_backward(values: Mapping[str, Any]) -> bool:
    return (values.get("forward_thread") or 0) > 0


def autograd_links(operators: pl.DataFrame) -> pl.DataFrame:
    """The forward operator of each backward one and the backward of each forward one, where they are known.

    Args:
        operators: `row` and the columns in `AUTOGRAD` of a file's `host_ops`; all that have a number, or none of them.

    Returns:
        row, is_backward, forward, backward: rows of `host_ops`, of which the last two may be null.
    """
    is_backward = pl.col("forward_thread").fill_null(0) > 0
    numbered = (
        operators.filter(pl.col("sequence").is_not_null()).sort("start_ns", "row").with_columns(is_backward=is_backward)
    )
    back = pl.col("is_backward")
    # Autograd's own range around a backward operator has the number, too.
    inner = back & ~pl.col("name").str.starts_with("autograd::engine::").fill_null(False)
    start, row = pl.col("start_ns"), pl.col("row").cast(pl.Int64)
    by_number = (
        numbered.group_by("sequence")
        .agg(
            threads=pl.struct("pid", "tid").filter(~back).n_unique(),
            forward_threads=pl.col("forward_thread").filter(back).n_unique(),
            last_start=start.filter(~back).last(),
            first_start=start.filter(back).first(),
            forward=row.filter(~back).last(),  # the last one made the node
            backward=pl.coalesce(row.filter(inner).first(), row.filter(back).first()),
        )
        .filter(pl.col("threads") == 1, pl.col("forward_threads") == 1, pl.col("last_start") <= pl.col("first_start"))
    )
    linked = numbered.join(by_number, on="sequence", how="inner", maintain_order="left")
    return linked.select(
        row, "is_backward", forward=pl.when(back).then("forward"), backward=pl.when(~back).then("backward")
    )


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
