"""One step as lanes: the example of the documentation, and that a replay of a recording has the recording's lanes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from tests.whatif.pencil import GAP, Job
from tests.whatif.test_replay import jobs

import rankscope
from rankscope.show.report.embed.whatif import run_to_ask
from rankscope.whatif.graph import Graph
from rankscope.whatif.lanes import (
    KINDS,
    LANES,
    MOST_RANKS,
    Lanes,
    ranks_that_differ,
    step_lanes,
    step_span,
    typical_step,
)
from rankscope.whatif.predictions import Predictions
from rankscope.whatif.replay import Costs, clocks
from rankscope.whatif.scenarios import AsPeers
from rankscope.whatif.step_times import Steps

MS = 1_000_000
# The three collectives of docs/what_a_fix_would_save.md.
PENCIL = Job([[MS, MS, MS], [MS, 10 * MS, MS]], [[4 * MS] * 3] * 2, [2 * MS] * 3, 3)


def run_of(job: Job) -> Predictions:
    return Predictions(job.run())


def recorded(graph: Graph) -> Lanes:
    steps = Steps.of(graph)
    span = step_span(graph, steps, typical_step(graph, steps), graph.recorded)
    return step_lanes(graph, Costs.recorded(graph), graph.recorded, span, np.unique(graph.lines.rank).tolist())


def pieces(lanes: Lanes, rank: int, lane: str, kind: str) -> list[tuple[float, float]]:
    """Starts and ends, ms."""
    mine = (lanes.rank == rank) & (lanes.lane == LANES.index(lane)) & (lanes.kind == KINDS.index(kind))
    return [
        (round(start / MS, 2), round(end / MS, 2))
        for start, end in zip(lanes.start[mine], lanes.end[mine], strict=True)
    ]


def test_the_example_of_the_documentation() -> None:
    lanes = recorded(PENCIL.graph())
    assert lanes.duration_ns == pytest.approx(23 * MS, abs=2 * GAP)
    assert pieces(lanes, 0, "device", "compute") == [(1, 5), (7, 11), (17, 21)]
    # Rank 1's host launches its second kernel at 11 ms.
    assert pieces(lanes, 1, "device", "compute") == [(1, 5), (11, 15), (17, 21)]
    assert pieces(lanes, 0, "collectives", "waiting") == [(11, 15)]
    assert pieces(lanes, 1, "collectives", "waiting") == []
    assert pieces(lanes, 1, "collectives", "transfer") == [(5, 7), (15, 17), (21, 23)]
    assert pieces(lanes, 0, "host", "host") == [(0, 3)]
    assert pieces(lanes, 1, "host", "host") == [(0, 12)]


def test_with_a_scenario_nothing_waits_any_more() -> None:
    found = run_of(PENCIL).predict([AsPeers((1,))])
    assert found.step_ns == pytest.approx(19 * MS, abs=2 * GAP)
    assert found.recorded.duration_ns == pytest.approx(23 * MS, abs=2 * GAP)
    assert found.replayed.duration_ns == pytest.approx(19 * MS, abs=2 * GAP)
    assert pieces(found.replayed, 0, "collectives", "waiting") == []
    assert pieces(found.replayed, 1, "device", "compute") == [(1, 5), (7, 11), (13, 17)]


@settings(max_examples=60)
@given(jobs())
def test_the_replay_of_a_recording_has_its_lanes(job: Job) -> None:
    found = run_of(job).predict([])
    assert found.replayed.duration_ns == pytest.approx(found.recorded.duration_ns, abs=1)
    for lane in range(len(LANES)):
        for kind in range(len(KINDS)):
            busy = [
                each.busy[(each.lane == lane) & (each.kind == kind)].sum() for each in (found.recorded, found.replayed)
            ]
            # What waits starts a gap between kernels after the collective, which a replay counts as waiting.
            gaps = GAP * len(job.transfer) * len(job.host) if KINDS[kind] == "waiting" else 0
            assert busy[0] == pytest.approx(busy[1], abs=10 + gaps)


@settings(max_examples=60)
@given(jobs())
def test_a_lane_never_has_more_than_the_step(job: Job) -> None:
    lanes = recorded(job.graph())
    assert (lanes.start >= 0).all()
    assert (lanes.end <= lanes.duration_ns + 1e-6).all()
    assert (lanes.busy <= lanes.end - lanes.start + 1e-6).all()
    for rank in np.unique(lanes.rank):
        for lane in ("host", "device"):
            mine = (lanes.rank == rank) & (lanes.lane == LANES.index(lane))
            assert lanes.busy[mine].sum() <= lanes.duration_ns + 1e-6


def test_what_is_near_is_joined_and_its_work_kept() -> None:
    segments = 5000
    job = Job([[0] * segments] * 2, [[900] * segments] * 2, [100] * segments, segments)
    lanes = recorded(job.graph())
    assert lanes.rank.size < 50
    computed = (lanes.lane == LANES.index("device")) & (lanes.kind == KINDS.index("compute"))
    assert lanes.busy[computed].sum() == pytest.approx(2 * segments * 900, rel=1e-6)


def test_many_ranks_are_few_lanes_with_the_late_one_among_them() -> None:
    job = Job([[0] * 3] * 20, [[(9 if rank == 7 else 3) * MS] * 3 for rank in range(20)], [MS] * 3, 1)
    graph = job.graph()
    steps = Steps.of(graph)
    span = step_span(graph, steps, 0, graph.recorded)
    found = ranks_that_differ(graph, span)
    assert len(found) == MOST_RANKS
    assert 7 in found  # which waits least
    assert 12 in ranks_that_differ(graph, span, [12])
    assert ranks_that_differ(SMALL.graph(), (0, MS)) == [0, 1]


SMALL = Job([[1000], [1000]], [[4000], [4000]], [2000], 1)


def test_a_real_run_is_drawn_as_it_was_recorded(shared_traces: Path) -> None:
    """The lanes of the recording come from its events, those of the replay from equations: they agree."""
    run = rankscope.open(shared_traces / "modded-nanogpt-h100-8ranks", executor="serial")
    replayed = run_to_ask(run)
    assert isinstance(replayed, Predictions)
    found = replayed.predict([])
    total = [
        np.bincount(each.rank * 100 + each.lane * 10 + each.kind, each.busy, 800)
        for each in (found.recorded, found.replayed)
    ]
    assert np.abs(total[0] - total[1]).max() < 0.02 * found.recorded.duration_ns
    assert replayed.comparable_ranks == list(range(8))
    clock = clocks(replayed.run.graph, Costs.recorded(replayed.run.graph))
    assert np.isfinite(clock.end).all()
