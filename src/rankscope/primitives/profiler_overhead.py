"""The profiler's own work during a recording, on the thread to which torch counts it.

Kineto writes it as events of category ``overhead`` without a thread: CUPTI requests and flushes buffers, functions of
the device are loaded. Torch puts all on the thread that ended the recording, inside what that did at the time. This is
the thread of the steps, or else, as a guess, the main thread, whose id is that of the process. What begins inside a
range there and ends outside was on another thread, and stays on its own.

In: tables of one window. Out: ranges.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.call_stack import enclosing

_RANGE = ("start_ns", "end_ns", "name", "pid", "tid")


def profiler_overhead(others: pl.DataFrame, annotations: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """The profiler's work: start_ns, end_ns, name, pid, tid.

    Args:
        others: the table ``other_events``: start_ns, end_ns, name, category, pid, tid.
        annotations: pid, tid, on_device, step.
        ranges: of the host, in which it may be: start_ns, end_ns, pid, tid.
    """
    overhead = others.filter(pl.col("category") == "overhead").select(_RANGE)
    steps = annotations.filter(pl.col("step").is_not_null() & ~pl.col("on_device"))
    main = ranges.filter(pl.col("pid") == pl.col("tid"))
    thread = (steps if steps.height else main).select("pid", "tid").head(1)
    if overhead.is_empty() or thread.is_empty():
        return overhead
    on_thread = overhead.drop("pid", "tid").join(thread, how="cross").select(_RANGE)
    ranges = ranges.join(thread, on=["pid", "tid"], how="semi")
    begins_in, ends_in = (
        enclosing(ranges, on_thread.select(pl.col(instant).alias("time_ns"), "pid", "tid"))
        for instant in ("start_ns", "end_ns")
    )
    is_inside = pl.Series(begins_in == ends_in)
    return pl.concat([on_thread.filter(is_inside), overhead.filter(~is_inside)])
