"""Waterfalls: what gains most comes first, and gains never add up to more than the step."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from tests.whatif.pencil import Job
from tests.whatif.test_replay import jobs

from rankscope.whatif.gains import candidates, in_order, waterfall
from rankscope.whatif.run import ReplayedRun
from rankscope.whatif.scenarios import AsPeers, Overlapped, Without

MS = 1_000_000


def each_rank(run: ReplayedRun) -> list[AsPeers]:
    return [AsPeers((rank,)) for rank in run.graph.lines.rank.tolist()]


def slow_devices(*ms: int) -> Job:
    return Job([[0] * 4] * len(ms), [[each * MS] * 4 for each in ms], [2 * MS] * 4, 1)


def test_the_slower_rank_is_first_and_the_next_gains_after_it() -> None:
    run = slow_devices(3, 3, 3, 7, 5).run()
    gains = waterfall(run, candidates(run, each_rank(run)))
    assert [gain.scenario for gain in gains[:2]] == [AsPeers((3,)), AsPeers((4,))]
    first, second = gains[:2]
    # With rank 3 like its peers (3.5 ms), rank 4 is the slowest.
    assert (first.gain_ns, first.component) == (pytest.approx(2 * MS, abs=1e4), "compute")
    assert second.gain_alone_ns == pytest.approx(0, abs=1e4)
    assert second.gain_ns == pytest.approx(2 * MS, abs=1e4)


def test_ranks_that_gain_only_together_are_one_scenario() -> None:
    run = slow_devices(3, 3, 3, 3, 7, 7).run()
    gains = waterfall(run, candidates(run, [AsPeers((4,)), AsPeers((5,))]))
    assert gains[0].scenario == AsPeers((4, 5))
    assert gains[0].gain_ns == pytest.approx(4 * MS, abs=1e4)
    assert all(gain.place == 0 for gain in gains if gain.scenario in (AsPeers((4,)), AsPeers((5,))))


def test_equal_ranks_have_no_straggler() -> None:
    run = slow_devices(3, 3, 3, 3).run()
    gains = waterfall(run, candidates(run, each_rank(run)))
    assert not [gain for gain in gains if isinstance(gain.scenario, AsPeers)]
    assert {gain.scenario for gain in gains if gain.place == 0} >= {Without("data_loading"), Without("copies")}


@settings(max_examples=40)
@given(jobs())
def test_gains_never_add_up_to_more_than_the_step(job: Job) -> None:
    run = job.run()
    (base,) = run.mean_steps([[]])
    for gains in (waterfall(run, candidates(run, each_rank(run))), in_order(run, candidates(run, each_rank(run))[:1])):
        placed = [gain for gain in gains if gain.place]
        total = sum(gain.gain_ns or 0 for gain in placed)
        assert total <= base + 1
        if placed:
            assert placed[-1].step_ns == pytest.approx(base - total, abs=1)
        assert [gain.place for gain in placed] == list(range(1, len(placed) + 1))


@settings(max_examples=40)
@given(jobs())
def test_the_waterfall_is_that_of_its_scenarios_in_this_order(job: Job) -> None:
    run = job.run()
    placed = [gain for gain in waterfall(run, candidates(run, each_rank(run))) if gain.place]
    again = in_order(run, [gain.scenario for gain in placed]) if placed else []
    assert [gain.step_ns for gain in again] == pytest.approx([gain.step_ns for gain in placed], abs=1)


def test_alone_and_after_others() -> None:
    run = slow_devices(3, 9, 3).run()
    first, second = in_order(run, [AsPeers((1,)), Overlapped()])
    assert first.gain_ns == first.gain_alone_ns == pytest.approx(6 * MS, abs=1e4)
    assert second.place == 2
