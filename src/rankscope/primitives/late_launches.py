"""Find the gaps of one trace file before work that was launched too late.

In: a file's tables. Out: its pieces of work, the gaps before late ones, and the time that does not count
(`rankscope.analyses.idle` has the definitions).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from rankscope.primitives.activity import (
    computing_operators,
    covered_time,
    data_loading_time,
    gloo_ranges,
    with_category,
)
from rankscope.primitives.allocations import ALLOCATOR_CALLS
from rankscope.primitives.annotation_origin import COMPILER_RANGES, garbage_collections
from rankscope.primitives.columns import constant
from rankscope.primitives.intervals import EMPTY, IntervalSet
from rankscope.primitives.kernels import COMPUTE
from rankscope.primitives.steps import host_steps, step_rows
from rankscope.primitives.synchronization import host_waits

SHORT_NS = 10_000
"""A launch takes the host some microseconds: with shorter pieces it can hardly keep a device busy."""
SHORT_OPERATOR_NS = 20_000
"""The same for operators on the CPU: recording one takes about as long as calling it, and is part of its duration."""
SILENCE_NS = 100_000
"""A host that is busy launching records events more often than this."""
STANDSTILL_NS = 10_000_000
"""No operator needs this long to reach its launches. The first convolution of a process loads cuDNN for a second."""
OFTEN = 0.25
"""Of the steps: what more of them have is no first call."""


@dataclass(frozen=True)
class LateLaunches:
    """The work in a file, and the gaps before work that was launched too late.

    Attributes:
        on_device: whether pieces are device events; else they are top-level operators that compute.
        pieces: start_ns, end_ns, name, launch_ns, duration, counts (whether it computes), short; ordered by start.
        gaps: start_ns, end_ns (where the piece starts), and the piece's short, name and piece_end_ns.
        left_out: time that does not count as waiting for a launch, including the allocator's.
        allocator: the runtime calls that allocate or free memory.
        memory: the time in them.
        calls: the runtime calls of more than 100 µs that do not wait for the device.
        long_calls: of the time left out, that in those of them that do not allocate, and in first calls.
        before_first: time in such calls, first calls and allocations before the first device event, which is in no gap.
        silent: time in which the host recorded neither an operator nor a runtime call for longer than 100 µs, and
            nothing else explains it; empty if the file has no operators.
    """

    on_device: bool
    pieces: pl.DataFrame
    gaps: pl.DataFrame
    left_out: IntervalSet
    allocator: pl.DataFrame
    memory: IntervalSet
    calls: pl.DataFrame
    long_calls: IntervalSet
    before_first: IntervalSet
    silent: IntervalSet

    @classmethod
    def of(cls, window: Mapping[str, pl.DataFrame], communication: str | None) -> LateLaunches:
        """Find them in a file.

        Args:
            window: device_events, host_ops, runtime_calls and annotations.
            communication: a regular expression of further kernel names that are communication.
        """
        device, annotations = window["device_events"], window["annotations"]
        on_device = bool(device.height)
        gloo = gloo_ranges(window["host_ops"], annotations)
        if on_device:
            pieces = with_category(device, communication).select(
                "start_ns", "end_ns", "name", "launch_ns", (pl.col("category") == COMPUTE).alias("counts")
            )
        else:
            pieces = computing_operators(window["host_ops"], gloo, without_waits=True).select(
                "start_ns", "end_ns", "name", pl.col("start_ns").alias("launch_ns"), pl.lit(True).alias("counts")
            )
        duration = pl.col("end_ns") - pl.col("start_ns")
        # Use the median: a short operator is long if the host is descheduled in it.
        short = duration < SHORT_NS if on_device else duration.median().over("name") < SHORT_OPERATOR_NS
        pieces = pieces.sort("start_ns").with_columns(
            (pl.col("counts") & short).alias("short"), duration.alias("duration")
        )
        allocator = window["runtime_calls"].filter(pl.col("name").str.contains(ALLOCATOR_CALLS))
        memory = covered_time(allocator)
        silence = _silence(window)
        calls = window["runtime_calls"]
        waits = host_waits(calls)
        calls = calls.filter(pl.col("end_ns") - pl.col("start_ns") > SILENCE_NS)
        long = covered_time(calls) | _first_calls(window)
        known = data_loading_time(annotations) | covered_time(waits)
        if not on_device:
            known = known | covered_time(gloo)
        left_out = known | long | silence | memory
        silent = (silence if window["host_ops"].height else EMPTY) - _named_time(annotations, gloo)
        # Before the first device event there is nothing to wait for: `cudaFree` makes the context then.
        is_wait = pl.col("name").is_in(waits["name"].unique().to_list())
        first = pieces["start_ns"].min() if on_device else None
        calls = calls.filter(~is_wait | (pl.col("end_ns") <= pl.lit(first, pl.Int64)).fill_null(False))
        long_calls = long - known - silence - memory
        before = EMPTY
        if on_device and len(memory | long_calls):
            start = int((memory | long_calls).starts[0])
            before = (memory | long_calls) & IntervalSet.of(np.array([start]), pieces["start_ns"][:1].to_numpy())
        return cls(on_device, pieces, _gaps(pieces), left_out, allocator, memory, calls, long_calls, before, silent)


def _first_calls(window: Mapping[str, pl.DataFrame]) -> IntervalSet:
    """Intervals of more than 10 ms within which no operator and no call begins or ends, unless steps have them often.

    What a process does once, such as loading a library, is in one step or two. An operator that takes as long in each
    step is a part of the job.
    """
    tables = (window["host_ops"], window["runtime_calls"])
    events = [frame[end].to_numpy() for frame in tables for end in ("start_ns", "end_ns")]
    instants = np.sort(np.concatenate(events), kind="stable")
    still = np.flatnonzero(np.diff(instants) > STANDSTILL_NS)
    begin, end = instants[still], instants[still + 1]
    steps = host_steps(window["annotations"])
    owner = step_rows(steps, pl.Series(begin))
    often = np.unique(owner[owner >= 0]).size > max(OFTEN * steps.height, 1)
    return EMPTY if often else IntervalSet(begin, end)


def _silence(window: Mapping[str, pl.DataFrame]) -> IntervalSet:
    """Longer intervals in which the host recorded neither an operator nor a runtime call."""
    recorded = covered_time(window["host_ops"]) | covered_time(window["runtime_calls"])
    if not len(recorded):
        return EMPTY
    unrecorded = recorded.complement(int(recorded.starts[0]), int(recorded.ends[-1]))
    long = unrecorded.ends - unrecorded.starts > SILENCE_NS
    return IntervalSet(unrecorded.starts[long], unrecorded.ends[long])


def _named_time(annotations: pl.DataFrame, gloo: pl.DataFrame) -> IntervalSet:
    """Time in ranges that explain why the host launches nothing: loading, garbage collection, compiling, Gloo."""
    host = annotations.filter(~pl.col("on_device"))
    collections = garbage_collections(host.with_columns(constant("rank", 0, pl.Int32, host.height)))
    compiling = host.filter(pl.col("name").str.contains(COMPILER_RANGES).fill_null(False))
    return data_loading_time(annotations) | covered_time(collections) | covered_time(compiling) | covered_time(gloo)


def _gaps(pieces: pl.DataFrame) -> pl.DataFrame:
    """Gaps before pieces whose launch came late."""
    reached = pl.col("end_ns").cum_max().shift(1)
    return (
        pieces.with_columns(reached.alias("reached"))
        .filter((pl.col("start_ns") > pl.col("reached")) & (pl.col("launch_ns") > pl.col("reached")))
        .select(
            pl.col("reached").alias("start_ns"),
            pl.col("start_ns").alias("end_ns"),
            "short",
            "name",
            pl.col("end_ns").alias("piece_end_ns"),
        )
    )


def before_short(gaps: pl.DataFrame, left_out: IntervalSet) -> IntervalSet:
    """The gaps before short pieces, if at most 100 µs of them count."""
    start, end = gaps["start_ns"].to_numpy(), gaps["end_ns"].to_numpy()
    brief = gaps["short"].to_numpy() & (end - start - left_out.within(start, end) <= SILENCE_NS)
    return IntervalSet.of(start[brief], end[brief])
