"""The run's clock, with numbers worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from rankscope.engine.pipeline.clock import RunClock, run_clock
from rankscope.store.trace_info import TraceInfo


def info(start: int, end: int, base: int = 0) -> TraceInfo:
    return TraceInfo("trace.json", start_ns=start, end_ns=end, base_time_ns=base)


def row(rank: int, offset: int = 0, **more: Any) -> dict[str, Any]:
    usual = {"drift_ppm": None, "at_ns": 0, "residual_ns": 5, "anchors": 9, "component": 0, "method": "collectives"}
    return {"rank": rank, "offset_ns": offset, **usual, **more}


def clock(infos: dict[int, list[TraceInfo]], *rows: dict[str, Any]) -> RunClock:
    schema = {"drift_ppm": pl.Float64, "residual_ns": pl.Int64}
    return run_clock(infos, pl.DataFrame(list(rows), schema_overrides=schema))


def moved(found: RunClock, rank: int, *times: int, window: int = 0) -> list[int]:
    return found.ranks[rank].run_time(window, np.array(times)).tolist()


def test_offsets_move_ranks_onto_one_clock() -> None:
    found = clock({0: [info(1000, 2000)], 1: [info(1500, 2600)]}, row(0), row(1, -600, residual_ns=8))
    assert (found.origin_ns, found.span_ns) == (900, 1100)
    assert moved(found, 0, 1000, 2000) == [100, 1100]
    assert moved(found, 1, 1500, 2600) == [0, 1100]
    assert found.aligned
    assert found.residual_ns == 8
    assert found.ranks[1].offset_ns == -600


def test_a_drift_is_nothing_where_the_offset_holds() -> None:
    """+1000 ppm from its own time 10,000 on: 1 ns in a thousand."""
    found = clock({0: [info(0, 50_000)]}, row(0, 100, drift_ppm=1000.0, at_ns=10_000))
    # Before: 0 → 0 + 100 − 10 = 90, the origin. 10,000 → 10,100. 50,000 → 50,100 + 40.
    assert found.origin_ns == 90
    assert moved(found, 0, 0, 10_000, 50_000) == [0, 10_010, 50_050]
    assert found.span_ns == 50_050


def test_a_rank_s_files_have_bases_of_their_own() -> None:
    found = clock({0: [info(10, 20, base=1000), info(5, 30, base=1100)]}, row(0))
    assert found.origin_ns == 1010
    assert moved(found, 0, 10) == [0]
    assert moved(found, 0, 5, 30, window=1) == [95, 120]


def test_ranks_that_nothing_links_keep_their_wall_clock() -> None:
    alone = row(1, anchors=0, residual_ns=None, component=1, method="wall clock")
    found = clock({0: [info(0, 1000)], 1: [info(400, 900)]}, row(0), alone)
    assert not found.aligned
    assert moved(found, 1, 400) == [400]
    assert found.ranks[1].residual_ns is None


def test_what_lies_far_apart_is_shown_from_one_start() -> None:
    alone = row(1, anchors=0, residual_ns=None, component=1, method="wall clock")
    hours = 3600 * 10**9
    found = clock({0: [info(0, 1000)], 1: [info(hours, hours + 500)]}, row(0), alone)
    assert not found.aligned
    assert moved(found, 1, hours, hours + 500) == [0, 500]
    assert found.span_ns == 1000


def test_linked_ranks_stay_together_when_they_are_moved() -> None:
    far = 10**12
    rows = [row(0, component=0), row(1, component=0), row(2, component=2), row(3, component=2)]
    infos = {0: [info(0, 1000)], 1: [info(100, 900)], 2: [info(far, far + 1000)], 3: [info(far + 200, far + 300)]}
    found = clock(infos, *rows)
    assert not found.aligned
    assert [moved(found, rank, infos[rank][0].start_ns or 0) for rank in range(4)] == [[0], [100], [0], [200]]


def test_a_rank_alone_is_aligned_and_files_without_events_count_for_nothing() -> None:
    found = run_clock({0: [TraceInfo("empty.json"), info(50, 80)]}, pl.DataFrame())
    assert found.aligned
    assert (found.origin_ns, found.span_ns, found.residual_ns) == (50, 30, None)
    nothing = run_clock({0: [TraceInfo("empty.json")]}, pl.DataFrame())
    assert (nothing.origin_ns, nothing.span_ns) == (0, 0)
