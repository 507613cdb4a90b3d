"""Leave ranks with incomplete files, and ranks without steps, out of comparisons.

In: the metadata of trace files, and results. Out: these ranks, or rows without them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import polars as pl

from rankscope.primitives.clocks import base_times
from rankscope.store.trace_info import TraceInfo


def incomplete_ranks(traces: Iterable[TraceInfo]) -> frozenset[int]:
    """The ranks with an incomplete file."""
    return frozenset(info.rank for info in traces if info.rank is not None and info.is_incomplete)


def recorded_of(traces: Iterable[TraceInfo], ranks: Collection[int] | None = None) -> frozenset[str]:
    """What all files of some ranks hold of stacks, shapes and memory; nothing without files.

    Args:
        ranks: None for all.
    """
    of_files = [frozenset(info.recorded) for info in traces if ranks is None or info.rank in ranks]
    return frozenset.intersection(*of_files) if of_files else frozenset()


def files_without_steps(step_time: pl.DataFrame) -> pl.DataFrame:
    """The files without steps, by ``rank`` and ``window``, if others have some: they are not one step each.

    Args:
        step_time: the result of `step_time` of all ranks.
    """
    without = step_time.filter(pl.col("step").is_null()).select("rank", "window")
    return without if without.height < step_time.height else without.clear()


def ranks_without_steps(step_time: pl.DataFrame, traces: Iterable[TraceInfo]) -> frozenset[int]:
    """The ranks whose files have no steps, if others have some: a file without any is not one step.

    Args:
        step_time: the result of `step_time` of all ranks.
        traces: the run's files.
    """
    with_steps = set(step_time.filter(pl.col("step").is_not_null())["rank"].unique())
    if not with_steps:
        return frozenset()
    return frozenset(info.rank for info in traces if info.rank is not None) - with_steps


def incomplete_files(traces: Sequence[TraceInfo]) -> pl.DataFrame:
    """The incomplete files: rank, window. Any event of their steps can be missing, which looks like less or other
    work."""
    broken = pl.Series([info.is_incomplete for info in traces if info.rank is not None], dtype=pl.Boolean)
    return base_times(traces).select("rank", "window").filter(broken)


def of_judged_ranks(frame: pl.DataFrame, traces: Iterable[TraceInfo]) -> pl.DataFrame:
    """The rows of ranks with complete files; all rows if the frame has no ``rank`` column.

    Args:
        frame: a result, perhaps with a ``rank`` column.
        traces: the run's files.
    """
    incomplete = incomplete_ranks(traces)
    if not incomplete or "rank" not in frame.columns:
        return frame
    return frame.filter(~pl.col("rank").is_in(list(incomplete)))
