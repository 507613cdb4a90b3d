"""Who stands out: each detector by hand, and planted lateness among heavy-tailed chance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rankscope.primitives.intervals import Int64
from rankscope.primitives.stragglers.detectors import (
    Detector,
    always_late,
    detectable,
    find_late_ranks,
    late_at_times,
    stalled_once,
)
from rankscope.primitives.stragglers.measures import Measure
from rankscope.primitives.stragglers.observations import Observations
from rankscope.primitives.stragglers.peers import Float
from rankscope.primitives.stragglers.stragglers import Comparison
from rankscope.primitives.stragglers.suspects import Late, Suspect
from rankscope.primitives.stragglers.thresholds import Thresholds

STEP = 10_000_000.0
LIMITS = Thresholds()
MS = 1e6


def suspect(excess: list[float], others: list[list[float]], name: str = "local", **more: Any) -> Suspect:
    """A rank whose excesses, and those of the other ranks, are given in ms; a step takes 10 ms."""
    mine: Float = np.array(excess) * MS
    whole = np.ones(mine.size, dtype=np.bool_)
    measure = Measure(name, mine[None], **more)
    return Suspect(measure, mine, np.array(others) * MS, mine, whole, STEP, False)


QUIET = [[0.1, -0.1, 0.1, -0.1], [-0.1, 0.1, -0.1, 0.1], [0.1, 0.1, -0.1, -0.1]]


def test_always_late_is_a_mean_of_five_standard_errors() -> None:
    # Chance is 0.1 ms; of four equal steps the standard error is 0.1 / √4 = 0.05 ms, five of them 0.25 ms.
    assert always_late(suspect([0.24] * 4, QUIET), LIMITS) is None
    found = always_late(suspect([0.26] * 4, QUIET), LIMITS)
    assert found is not None
    assert found[0].all()
    assert found[1] == pytest.approx(0.26 / 0.25)


def test_one_long_step_is_not_always() -> None:
    # The mean is 1 ms; its own spread is 2 ms, so the standard error is √(2² + 0.1²) / 2 = 1 ms.
    assert always_late(suspect([4, 0, 0, 0], QUIET), LIMITS) is None


def test_of_two_ranks_students_test_decides() -> None:
    # Nobody else to know chance from. Eight steps, mean 2 ms, standard deviation 1.07 ms: t = 2 / (1.07 / √8) = 5.3.
    eight = [1.0, 3, 1, 3, 1, 3, 1, 3]
    assert always_late(suspect(eight, [[np.nan] * 8]), LIMITS) is not None
    # More than three standard errors, with 7 degrees of freedom, have a probability of 1 %: t = 3.06 and 2.94.
    for more, late in ((0.155, True), (0.11, False)):
        assert (always_late(suspect([each - 1 + more for each in eight], [[np.nan] * 8]), LIMITS) is not None) is late


@pytest.mark.parametrize("detector", [always_late, late_at_times, stalled_once])
def test_two_or_three_steps_of_two_ranks_tell_nothing(detector: Detector) -> None:
    for excess in ([3.0], [3.0, 3.0], [3.0, 3.01, 2.99], [3.0, 0.0, 3.0], [0.0, 9.0, 0.0]):
        assert detector(suspect(excess, [[np.nan] * len(excess)]), LIMITS) is None
    # Of more steps, or of three ranks, they are found.
    more = {
        always_late: ([3.0, 3.01, 2.99], [[np.nan] * 3, [0.1, -0.1, 0.1]]),
        late_at_times: ([3.0, 0, 3.1, 0.1], QUIET * 5),
        stalled_once: ([0.0, 9.0, 0.0, 0.0, 0.0], [[np.nan] * 5]),
    }
    assert detector(suspect(*more[detector]), LIMITS) is not None


def test_two_or_three_steps_of_two_devices_tell() -> None:
    # No hiccup of a host shows in how long kernels take: 3 ms more of 10, three times, with a spread of 0.1 ms.
    unknown = [[np.nan] * 3]
    assert always_late(suspect([3.0, 3.1, 2.9], unknown, "slower", device=True, once=True), LIMITS) is not None
    # A spread of 1 ms: the standard error is 0.58 ms, and Student's t of two degrees of freedom 22.
    assert always_late(suspect([3.0, 4.0, 2.0], unknown, "slower", device=True, once=True), LIMITS) is None


def test_of_two_devices_the_usual_steps_tell_what_is_chance() -> None:
    # Three steps of six: chance is that of the others, 0.1 ms, or 1 % of a step, 0.1 ms: six times that is 0.6 ms.
    unknown = [[np.nan] * 6]
    for more, late in ((3.0, True), (0.5, False)):
        steps = suspect([0.1, more, 0.0, more, -0.1, more], unknown, "slower", device=True, once=True)
        assert (late_at_times(steps, LIMITS) is not None) is late
    # The same of hosts, whose hiccups may be as long.
    assert late_at_times(suspect([0.1, 3.0, 0.0, 3.0, -0.1, 3.0], unknown), LIMITS) is None


def test_late_at_times_are_steps_of_six_times_chance() -> None:
    # Chance is 0.1 ms: a step of 0.61 ms is late, if chance would not have it twice in four steps.
    many = QUIET * 5
    found = late_at_times(suspect([3.0, 0, 3.1, 0.1], many), LIMITS)
    assert found is not None
    assert found[0].tolist() == [True, False, True, False]
    assert late_at_times(suspect([0.59, 0, 0.59, 0.1], many), LIMITS) is None
    # A host must be late twice; work has a reason, and once will do.
    assert late_at_times(suspect([3.0, 0, 0, 0], many), LIMITS) is None
    quiet = [[each / 5 for each in rank] for rank in many]
    assert late_at_times(suspect([3.0, 0, 0, 0], quiet, "work", device=True, once=True), LIMITS) is not None


def test_a_host_that_is_slow_at_times_must_cost_its_device_something() -> None:
    slow = suspect([3.0, 0, 3.1, 0.1], QUIET * 5, "host_steady", steady=True, of_host=True)
    # The local time is longer by 0.05 ms of 10: less than 1 % of a step.
    assert late_at_times(replace(slow, own=np.array([0.05, 0, 0.05, 0]) * MS), LIMITS) is None
    assert late_at_times(replace(slow, own=np.array([0.3, 0, 0.3, 0]) * MS), LIMITS) is not None


def test_a_stall_is_one_step_of_twice_any_other() -> None:
    assert stalled_once(suspect([0, 0, 8, 0, 0.1, 0], QUIET), LIMITS) is not None
    # Others were as late once, or it was itself, or it is less than a quarter of a step.
    assert stalled_once(suspect([0, 0, 8, 0], [*QUIET, [0, 4.1, 0, 0]]), LIMITS) is None
    assert stalled_once(suspect([0, 0, 8, 4.1], QUIET), LIMITS) is None
    assert stalled_once(suspect([0, 0, 2.4, 0], QUIET), LIMITS) is None


def observed(own: Any, role: list[int] | None = None, **parts: Any) -> Observations:
    """Local times; with parts, these and what is left."""
    left = np.asarray(own, dtype=np.int64) - sum(parts.values(), np.zeros_like(own))
    seen = Observations.of({"operators" if parts else "local": left, **parts}, STEP)
    return replace(seen, role=np.array(role, dtype=np.int64)) if role is not None else seen


def find(own: Any, role: list[int] | None = None) -> list[Late]:
    return find_late_ranks(observed(own, role), LIMITS)


def chance(seed: int, ranks: int, steps: int) -> Int64:
    """Local times of equal ranks, ns: 1 % of spread, and now and then a hiccup of up to a tenth of the step."""
    draw = np.random.default_rng(seed)
    value = 8_000_000 + draw.normal(0, 80_000, (ranks, steps))
    hiccup = draw.random((ranks, steps)) < 0.02
    found: Int64 = (value + hiccup * draw.uniform(0, 1_000_000, (ranks, steps))).astype(np.int64)
    return found


def test_chance_alone_accuses_nobody() -> None:
    assert sum(bool(find(chance(seed, 16, 5))) for seed in range(60)) <= 1


@pytest.mark.parametrize("late", [700_000, 1_500_000])
def test_what_lasts_is_found(late: int) -> None:
    for seed in range(20):
        own = chance(seed, 8, 4)
        own[5] += late
        found = find(own)
        assert [(each.row, each.lasting) for each in found] == [(5, True)]
        assert found[0].steps.all()


def test_what_passes_is_found_in_its_steps() -> None:
    own = chance(3, 16, 6)
    own[2, [1, 4]] += 4_000_000
    (found,) = find(own)
    assert (found.row, found.kind, np.flatnonzero(found.steps).tolist()) == (2, "late_at_times", [1, 4])


def test_one_late_step_of_six_is_a_stall() -> None:
    own = chance(3, 16, 6)
    own[2, 1] += 4_000_000
    (found,) = find(own)
    assert (found.row, found.kind, np.flatnonzero(found.steps).tolist()) == (2, "stalled_once", [1])


def test_late_in_every_step_by_three_standard_errors_of_a_noisy_rank() -> None:
    """A thread that spins in Python: two ranks, eight steps of 600 ms, of which one loses 300 to 700 ms."""
    draw = np.random.default_rng(1)
    own = draw.normal(100e6, 10e6, (2, 8))
    own[1] += draw.uniform(300e6, 700e6, 8)
    (found,) = find_late_ranks(Observations.of({"local": own}, 600e6, on_host=True), LIMITS)
    assert (found.row, found.lasting) == (1, True)
    # Lock contention: 5 to 25 of 125 ms.
    own = draw.normal(40e6, 2e6, (2, 8))
    own[1] += draw.uniform(5e6, 25e6, 8)
    (found,) = find_late_ranks(Observations.of({"local": own}, 125e6, on_host=True), LIMITS)
    assert (found.row, found.lasting) == (1, True)


def test_several_at_once_the_weightiest_first() -> None:
    own = chance(4, 16, 4)
    own[3] += 2_000_000
    own[9] += 900_000
    own[11] += 500_000
    assert [each.row for each in find(own) if each.lasting] == [3, 9, 11]


def test_two_slow_hosts_of_a_group_of_eight_do_not_hide_each_other() -> None:
    for seed in range(20):
        own = chance(seed, 8, 4)
        own[[2, 5]] += 700_000
        assert sorted(each.row for each in find(own)) == [2, 5]


def test_only_the_own_role_is_a_standard() -> None:
    # Ranks 4 to 7 do twice the work, all of them.
    own = chance(5, 8, 4)
    own[4:] += 8_000_000
    assert find(own, [0] * 4 + [1] * 4) == []
    own[6] += 1_000_000
    assert [each.row for each in find(own, [0] * 4 + [1] * 4)] == [6]


def test_a_part_that_another_makes_up_for_delays_nobody() -> None:
    own = chance(6, 8, 4)
    loading = np.zeros_like(own)
    loading[2] = 2_000_000
    assert find_late_ranks(observed(own, data_loading=loading), LIMITS) == []
    own[2] += 2_000_000
    (found,) = find_late_ranks(observed(own, data_loading=loading), LIMITS)
    assert found.row == 2


def test_a_device_slower_by_two_percent_shows_in_its_part() -> None:
    own, compute = chance(7, 8, 6), np.full((8, 6), 5_000_000, dtype=np.int64)
    compute[3] += 200_000
    own[3] += 200_000
    # Whether its device computes or copies longer.
    for part in ("compute", "copies"):
        late = find_late_ranks(observed(own, **{part: compute}), LIMITS)
        assert [(each.row, each.measure) for each in late] == [(3, "device")]
    assert find(own) == []


def test_a_stage_of_one_rank_that_waits_for_data_in_every_step() -> None:
    # Two stages of one rank each take 10 ms; the first waits for data for 0.6 ms in each of three steps, then not once.
    for last, ranks in ((600_000, [0]), (0, [])):
        loading = np.array([[600_000, 600_000, last], [0, 0, 0]])
        seen = Observations.of({"compute": np.full((2, 3), 9_000_000), "data_loading": loading}, STEP)
        found = Comparison(replace(seen, role=np.array([0, 1]))).stragglers()
        assert [(each.ranks[0], each.cause.cause, each.saving_ns) for each in found] == [
            (rank, "data_loading", 600_000) for rank in ranks
        ]


def hiccups(seed: int, late_ns: int) -> Observations:
    """8 ranks over 4 steps of 200 places of 40 µs with heavy tails; rank 5 is late by so much, at three places."""
    draw = np.random.default_rng(seed)
    place = 40_000 * draw.lognormal(0, 0.3, (8, 4, 200))
    place = np.where(draw.random(place.shape) < 0.01, place * draw.uniform(3, 15, place.shape), place)
    place[5, :, 50:53] += late_ns / 3
    steady = np.minimum(place, 2 * np.sort(place, axis=1)[:, 1:2]).sum(axis=2)
    return replace(Observations.of({"local": place.sum(axis=2)}, 8.5e6), steady=steady)


def test_what_is_steady_is_found_among_hiccups_as_large() -> None:
    seeds = range(20)
    assert sum([each.row for each in find_late_ranks(hiccups(seed, 900_000), LIMITS)] == [5] for seed in seeds) >= 19
    # Without it most are not.
    unknown: Float = np.full((8, 4), np.nan)
    blind = [find_late_ranks(replace(hiccups(seed, 900_000), steady=unknown), LIMITS) for seed in seeds]
    assert sum(bool(found) for found in blind) < 10
    assert not any(find_late_ranks(hiccups(seed, 0), LIMITS) for seed in range(100, 130))


def test_late_ranks_of_programs_of_two_do_not_hide_each_other() -> None:
    """Rank 3 always and rank 5 at times, each with one peer: each looks like the other's random variation."""
    own = chance(0, 8, 4)
    own[3] += 8_000_000
    own[5, 2:] += 8_000_000
    assert {each.row for each in find(own, [0, 1, 2, 3] * 2)} == {3, 5}


def test_of_two_ranks_a_device_that_is_behind_needs_a_host_that_is_slow() -> None:
    """Clean pairs (seeds 993037, 994014): the device is idle for 2 ms more per step, but the host is no slower."""
    own = chance(0, 2, 8)
    own[1] += 2_000_000
    for slower, named in ((0.0, []), (0.02, []), (0.4, [1])):
        host = np.full(own.shape, 2_000_000.0)
        host[1] *= 1 + slower
        seen = replace(observed(own, compute=np.full_like(own, 6_000_000)), host_steady=host)
        assert [each.row for each in find_late_ranks(seen, LIMITS)] == named
    # The work is longer: what the host does says nothing of that.
    seen = replace(observed(own, compute=own), host_steady=np.full(own.shape, 2_000_000.0))
    assert [each.row for each in find_late_ranks(seen, LIMITS)] == [1]


def test_of_two_ranks_the_local_time_must_be_longer_than_its_own_spread() -> None:
    """A clean pair (seed 994026): the host is steadily slower, the local time is not."""
    own = np.array([[8.0] * 5, [7.822, 8.426, 7.673, 8.160, 8.320]]) * MS
    host = np.array([[2.0] * 5, [2.077, 2.093, 2.068, 2.108, 2.076]]) * MS
    seen = replace(observed(own.astype(np.int64)), host_steady=host)
    assert find_late_ranks(seen, LIMITS) == []


def test_who_is_always_late_and_stalls_once_has_a_finding_for_each() -> None:
    own = chance(6, 8, 7)
    own[5] += 1_000_000
    own[5, 3] += 80_000_000
    stall, lasting = find(own)
    assert (stall.kind, np.flatnonzero(stall.steps).tolist()) == ("stalled_once", [3])
    # Without that step, the mean is that of the others: 1 ms, and not 12.
    assert (lasting.kind, lasting.steps.tolist()) == ("always_late", [True] * 3 + [False] + [True] * 3)
    assert np.nanmean(lasting.excess) / MS == pytest.approx(1.0, abs=0.3)


def test_a_single_step_tells_nothing_of_a_host() -> None:
    def found(late: float, name: str) -> list[int]:
        own = chance(4, 8, 1)
        own[5] += int(late * STEP)
        part = np.zeros_like(own)
        part[5] = int(late * STEP)
        return [each.row for each in find_late_ranks(observed(own, **{name: part}), LIMITS)]

    assert found(0.4, "nothing") == []
    assert found(0.4, "compute") == []
    own, slower = chance(4, 8, 1), np.zeros((8, 1), dtype=np.int64)
    own[5] += 1_500_000
    slower[5] = 1_500_000
    assert [each.row for each in find_late_ranks(replace(observed(own), slower=slower), LIMITS)] == [5]


def test_calls_for_memory_that_nobody_else_makes_count_for_more_than_they_take() -> None:
    own = chance(2, 8, 6)
    calls = np.zeros_like(own)
    calls[5, [2, 4]] = int(0.015 * STEP)
    # Without any lateness they are nobody's trouble.
    assert find_late_ranks(observed(own, allocation=calls), LIMITS) == []
    own[5, [2, 4]] += int(0.1 * STEP)
    (found,) = find_late_ranks(observed(own, allocation=calls), LIMITS)
    assert (found.row, found.measure, np.flatnonzero(found.steps).tolist()) == (5, "allocation", [2, 4])


def test_calls_for_memory_cost_in_the_mean_of_their_steps() -> None:
    """Seed 21004: two retries cost 4.5 and 8 % of a step: once less than 5 %, in the mean more."""
    calls = suspect([0, 0.5, 0.5, 0], [[0.0] * 4] * 6, "allocation", once=True)
    for cost, late in ((0.45, True), (0.15, False)):
        found = late_at_times(replace(calls, own=np.array([0, cost, 0.8, 0]) * MS), LIMITS)
        assert (found is not None) is late  # means of 0.63 and 0.48 ms


def test_a_host_is_judged_in_steps_too_in_which_its_rank_lost_events() -> None:
    """Seed 22016: three of four steps lost collectives, so that the local time is known in one step alone."""
    slow = suspect([3.0] * 4, QUIET, "host_steady", steady=True, of_host=True)
    lost = replace(slow, own=np.array([np.nan, np.nan, 0.3, np.nan]) * MS, whole=np.array([False, False, True, False]))
    assert always_late(lost, LIMITS) is not None
    # One step alone of the host would tell nothing, nor does a host that costs its rank nothing.
    single = replace(lost, excess=np.array([np.nan, np.nan, 3.0, np.nan]) * MS)
    assert always_late(single, LIMITS) is None
    assert always_late(replace(lost, own=np.array([np.nan, np.nan, 0.05, np.nan]) * MS), LIMITS) is None
    assert always_late(replace(lost, own=np.full(4, np.nan)), LIMITS) is None


def test_how_late_a_rank_must_be_to_be_found() -> None:
    # Half of the ranks are 0.1 ms above, half below, in turn. Without one of them the median is that of the others:
    # each is 0.2 ms above or below it. Its own spread is √(4 · 0.2² / 3) = 0.23 ms, chance 0.15 ms (three of seven
    # others are at the median of the rest), and five standard errors 5 · √(0.23² + 0.15²) / √4 = 0.69 ms.
    turn = np.array([[1, -1, 1, -1], [-1, 1, -1, 1]] * 4)
    found = detectable(Observations.of({"local": 8_000_000 + 100_000 * turn}, STEP), LIMITS) / MS
    assert found == pytest.approx([0.69] * 8, abs=0.01)
    # Three steps of two ranks: nothing would do.
    assert np.isinf(detectable(Observations.of({"local": turn[:2, :3]}, STEP), LIMITS)).all()


def test_neither_finding_of_a_rank_is_lost_where_slices_are_merged() -> None:
    own = chance(6, 8, 7)
    own[5] += 1_000_000
    own[5, 3] += 80_000_000
    compared = Comparison(observed(own))
    found = compared.by_slice(compared.stragglers(), [("tp=2", frozenset([4, 5]))])
    assert sorted((each.ranks, each.kind) for each in found) == [((5,), "always_late"), ((5,), "stalled_once")]


def test_a_rank_whose_peer_has_hiccups_is_late_by_what_it_loses_in_the_other_steps() -> None:
    """Rank 1 takes 100 instead of 80 ms in all twelve steps; rank 0 takes 300 ms in two of them."""
    steady = np.array([[80.0] * 12, [100.0] * 12]) * 1e6
    operators = steady.astype(np.int64)
    operators[0, [3, 8]] = 300_000_000
    seen = replace(Observations.of({"operators": operators}, 120e6, on_host=True), steady=steady)
    (found,) = Comparison(seen).stragglers()
    assert (found.ranks, found.lasting, found.hidden) == ((1,), True, True)
    assert (found.late_steps, found.compared) == (10, 12)
    assert found.excess_ns == found.saving_ns == pytest.approx(10 * 20e6 / 12, abs=1)
    # Over all steps, rank 1 takes 200 ms less than its peer.
    assert (found.cause.cause, found.cause.share) == ("slow_host", 1.0)
    assert found.cause.evidence.startswith("in its late steps together it takes 200 ms longer")
