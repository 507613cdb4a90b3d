"""Builds the timeline of a run.

In: a run. Out: its timeline; each rank's lanes are built by the run's workers, or come from the cache.
"""

from __future__ import annotations

from collections.abc import Callable

from rankscope.engine.pipeline import Run
from rankscope.engine.pipeline.clock import RunClock
from rankscope.show.timeline.pyramid import levels_for
from rankscope.show.timeline.rank_lanes import RankLanes, draw_rank, find_rank
from rankscope.show.timeline.timeline import Timeline
from rankscope.store.sidecar import Sidecar

OnRank = Callable[[Timeline, int, "BaseException | None"], None]
"""Called for each rank that had to be built: the timeline with it, the rank, and the error if it is not in it."""


def draw_run(run: Run, clock: RunClock, on_progress: OnRank = lambda timeline, rank, error: None) -> Timeline:
    """The timeline of a run, without ranks that fail.

    Args:
        run: the run.
        clock: as `clock_of` gives it.
        on_progress: called for each rank that was not in the cache.
    """
    timeline = Timeline(clock, run.loaded.ranks)
    levels, communication = levels_for(clock.span_ns), run.options.communication
    waiting = {}
    for rank, traces in run.loaded.ranks.items():
        asked = (rank, tuple(traces), clock.ranks[rank], levels, communication)
        lanes = find_rank(*asked)
        if lanes is not None:
            timeline.add(lanes)
        else:
            waiting[rank] = asked

    def arrived(rank: int, outcome: Sidecar | BaseException | None) -> None:
        error = outcome if isinstance(outcome, BaseException) else None
        if error is None:
            lanes = RankLanes(rank, outcome) if isinstance(outcome, Sidecar) else find_rank(*waiting[rank])
            if lanes is not None:
                timeline.add(lanes)
            else:
                error = OSError("its lanes disappeared from the cache")
        on_progress(timeline, rank, error)

    if waiting:
        run.map_ranks("drawing", draw_rank, waiting, arrived)
    return timeline
