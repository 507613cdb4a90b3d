"""What ranks are called in Perfetto, and their clocks.

In: a run. Out: names, the instants at which files begin, and a clock on which none of them is negative.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import polars as pl

from rankscope.engine.pipeline import Run
from rankscope.engine.pipeline.clock import RankClock, RunClock, clock_of
from rankscope.store.cache import CachedTrace


def rank_name(rank: int, mesh: Mapping[str, int]) -> str:
    """`rank 3 (dp0 tp3)`: the rank, and its position in the mesh where that is known."""
    place = " ".join(f"{dimension}{index}" for dimension, index in mesh.items())
    return f"rank {rank} ({place})" if place else f"rank {rank}"


def first_instant(clock: RankClock, window: int, trace: CachedTrace) -> int:
    """When the first event of a file, of any kind, starts on the run's clock, ns; negative before the run's start."""
    marks = trace.scan("other_events").select(pl.col("start_ns").min()).collect().item()
    first = min((time for time in (trace.info.start_ns, marks) if time is not None), default=0)
    return int(clock.run_time(window, np.array([first], dtype=np.int64))[0])


def clock_from_zero(run: Run) -> RunClock:
    """The run's clock, later by what any event is before its zero: Perfetto drops negative times."""
    clock = clock_of(run)
    firsts = [
        first_instant(clock.ranks[rank], window, trace)
        for rank, traces in run.loaded.ranks.items()
        for window, trace in enumerate(traces)
        if not trace.info.is_snapshot
    ]
    late = max(0, -min(firsts, default=0))
    ranks = {
        rank: replace(own, bases=tuple(base + late for base in own.bases), at=own.at + late)
        for rank, own in clock.ranks.items()
    }
    return replace(clock, ranks=ranks)
