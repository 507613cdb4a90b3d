"""Who stands out: against plain Python, and planted lateness among heavy-tailed chance."""

from __future__ import annotations

import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.primitives import peer_baseline
from rankscope.primitives.outliers import find_outliers
from rankscope.primitives.peer_baseline import Float, excess_over_peers, medians, with_lost_filled
from rankscope.primitives.recurring_delay import Pairs, slow_steps_outlier, slowest_hosts, usually_slower

STEP = 10_000_000.0


def chance(seed: int, ranks: int, steps: int) -> np.ndarray:  # type: ignore[type-arg]
    """Own times of equal ranks, ns: 1 % of spread, and now and then a hiccup of up to a tenth of the step."""
    draw = np.random.default_rng(seed)
    value = 8_000_000 + draw.normal(0, 80_000, (ranks, steps))
    hiccup = draw.random((ranks, steps)) < 0.02
    return (value + hiccup * draw.uniform(0, 1_000_000, (ranks, steps))).astype(np.int64)


def find(own: np.ndarray, role: list[int] | None = None):  # type: ignore[type-arg,no-untyped-def]
    known = np.ones(own.shape, dtype=np.bool_)
    roles = np.array(role if role is not None else [0] * own.shape[0], dtype=np.int64)
    return find_outliers({"own": own}, known, known, roles, STEP)


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(1, 4), st.integers(0, 10_000))
def test_excess_is_that_over_the_median_of_the_others(ranks: int, steps: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    value = draw.integers(0, 1000, (ranks, steps))
    known, role = draw.random((ranks, steps)) < 0.8, draw.integers(0, 2, ranks)
    without = draw.random(ranks) < 0.3
    found = excess_over_peers(value, known, role, without)
    for r in range(ranks):
        for s in range(steps):
            others = [
                int(value[o, s])
                for o in range(ranks)
                if o != r and role[o] == role[r] and known[o, s] and not without[o]
            ]
            if not others or not known[r, s]:
                assert np.isnan(found[r, s])
            else:
                # The median of two is between them, to the nanosecond below.
                assert abs(found[r, s] - (int(value[r, s]) - statistics.median(others))) <= 0.5


def test_what_is_lost_is_as_with_the_peers_or_as_usual() -> None:
    """As plain Python has it: the median of the program's other ranks in the step, else of the rank's other steps."""
    draw = np.random.default_rng(3)
    value, role = draw.integers(0, 1_000, (6, 3)), np.arange(6) % 2
    known, lost = np.ones((6, 3), dtype=np.bool_), np.zeros((6, 3), dtype=np.bool_)
    known[4, 0] = False
    for rank, step in ((0, 0), (1, 1), (3, 1), (5, 1), (2, 2)):
        lost[rank, step] = True
    found = with_lost_filled(value, known & ~lost, lost, role)
    for rank, step in np.ndindex(6, 3):
        if not lost[rank, step]:
            assert found[rank, step] == value[rank, step]
            continue
        told = known & ~lost
        alike = [int(value[o, step]) for o in range(6) if role[o] == role[rank] and told[o, step]]
        own = [int(value[rank, each]) for each in range(3) if told[rank, each]]
        assert found[rank, step] == round(statistics.median(alike or own))
    everywhere = np.ones((6, 3), dtype=np.bool_)
    np.testing.assert_array_equal(with_lost_filled(value, ~everywhere, everywhere, role), value)


def test_what_is_lost_on_many_ranks_takes_no_median_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,024 ranks whose ranges were not recorded: by program and step at once, else it is quadratic in the ranks."""
    asked = 0

    def counted(values: Float) -> Float:
        nonlocal asked
        asked += 1
        return medians(values)

    monkeypatch.setattr(peer_baseline, "medians", counted)
    lost = np.zeros((1_024, 4), dtype=np.bool_)
    lost[1:] = True
    value = np.where(lost, 0, 7)
    assert (with_lost_filled(value, ~lost, lost, np.zeros(1_024, dtype=np.int64)) == 7).all()
    assert 0 < asked <= 2


def test_medians_of_what_is_known() -> None:
    draw = np.random.default_rng(1)
    for shape in ((1, 1), (2, 5), (7, 4), (8, 3)):
        values = draw.normal(size=shape)
        values[1:][draw.random((shape[0] - 1, shape[1])) < 0.4] = np.nan
        np.testing.assert_array_equal(medians(values), np.nanmedian(values, axis=0))


def test_chance_alone_accuses_nobody() -> None:
    accused = [seed for seed in range(60) if find(chance(seed, 16, 5))]
    assert len(accused) <= 1


@pytest.mark.parametrize("late", [700_000, 1_500_000])
def test_what_lasts_is_found(late: int) -> None:
    for seed in range(20):
        own = chance(seed, 8, 4)
        own[5] += late
        found = find(own)
        assert found
        assert found[0].row == 5
        assert found[0].lasting
        assert found[0].late.all()


def test_what_passes_is_found_in_its_steps() -> None:
    own = chance(3, 16, 6)
    own[2, [1, 4]] += 4_000_000
    (found,) = find(own)
    assert (found.row, found.lasting, np.flatnonzero(found.late).tolist()) == (2, False, [1, 4])


def test_one_long_step_is_a_hiccup() -> None:
    own = chance(3, 16, 6)
    own[2, 1] += 3_000_000
    assert find(own) == []


def test_several_at_once_the_weightiest_first() -> None:
    own = chance(4, 16, 4)
    own[3] += 2_000_000
    own[9] += 900_000
    own[11] += 500_000
    assert [each.row for each in find(own)] == [3, 9, 11]


def test_only_the_own_role_is_a_standard() -> None:
    # Ranks 4 to 7 do twice the work, all of them.
    own = chance(5, 8, 4)
    own[4:] += 8_000_000
    assert find(own, [0] * 4 + [1] * 4) == []
    own[6] += 1_000_000
    assert [each.row for each in find(own, [0] * 4 + [1] * 4)] == [6]


def test_a_part_that_another_makes_up_for_held_nobody_up() -> None:
    own = chance(6, 8, 4)
    loading = np.zeros_like(own)
    loading[2] = 2_000_000
    known = np.ones(own.shape, dtype=np.bool_)
    role = np.zeros(8, dtype=np.int64)
    assert find_outliers({"own": own, "data_loading": loading}, known, known, role, STEP) == []
    own[2] += 2_000_000
    (found,) = find_outliers({"own": own, "data_loading": loading}, known, known, role, STEP)
    assert found.row == 2


def test_two_ranks_need_more() -> None:
    # Nobody to learn chance from: a tenth of a step each way in turn is none, half a step each time is.
    steps = np.array([[1, -1, 1, -1], [0, 0, 0, 0]]) * 1_000_000 + 8_000_000
    assert find(steps.astype(np.int64)) == []
    own = np.full((2, 4), 8_000_000, dtype=np.int64)
    own[1] += 5_000_000
    assert [each.row for each in find(own)] == [1]


def hiccups(seed: int, late: dict[int, int], places: int = 3) -> tuple[np.ndarray, Pairs]:  # type: ignore[type-arg]
    """Own times of 8 ranks over 4 steps of 200 places of 40 µs with heavy tails, and what recurs of them.

    Rank 5 is late by so much in some steps, at so many places.
    """
    draw = np.random.default_rng(seed)
    place = 40_000 * draw.lognormal(0, 0.3, (8, 4, 200))
    place = np.where(draw.random(place.shape) < 0.01, place * draw.uniform(3, 15, place.shape), place)
    for step, ns in late.items():
        place[5, step, 50 : 50 + places] += ns / places
    two = np.array([(a, b) for a in range(4) for b in range(a + 1, 4)])
    shared = np.stack([np.minimum(place[:, a], place[:, b]).sum(axis=1) for a, b in two], axis=1).astype(np.int64)
    usual = np.median(place, axis=1)
    most = np.stack([(np.minimum(place[:, a], place[:, b]) - usual).max(axis=1) for a, b in two], axis=1)
    hiccup = np.stack([(np.maximum(place[:, a], place[:, b]) - usual).max(axis=1) for a, b in two], axis=1)
    known = np.ones(shared.shape, dtype=np.bool_)
    return place.sum(axis=2).astype(np.int64), Pairs(
        shared,
        most.astype(int),
        hiccup.astype(int),
        np.zeros_like(shared),
        np.full(8, np.nan),
        np.full((8, 4), np.nan),
        known,
        two,
    )


def found_in(own: np.ndarray, pairs: Pairs | None):  # type: ignore[type-arg,no-untyped-def]
    known = np.ones(own.shape, dtype=np.bool_)
    return find_outliers({"own": own}, known, known, np.zeros(8, dtype=np.int64), 8.5e6, pairs=pairs)


def test_what_recurs_is_found_among_hiccups_as_large() -> None:
    seeds = range(20)
    lasting = [found_in(*hiccups(seed, dict.fromkeys(range(4), 900_000))) for seed in seeds]
    assert sum([each.row for each in found] == [5] and found[0].lasting for found in lasting) >= 19
    passing = [found_in(*hiccups(seed, {1: 1_600_000, 3: 1_600_000})) for seed in seeds]
    right = [[(each.row, np.flatnonzero(each.late).tolist()) for each in found] == [(5, [1, 3])] for found in passing]
    assert sum(right) >= 18
    # At one place alone two hiccups may be, at which no more than that is added.
    assert not any(found_in(*hiccups(seed, {1: 300_000, 3: 300_000}, places=1)) for seed in seeds)
    assert sum(bool(found_in(*hiccups(seed, {1: 4_000_000, 3: 4_000_000}, places=1))) for seed in seeds) >= 19
    # Without it most are not.
    blind = [found_in(hiccups(seed, dict.fromkeys(range(4), 900_000))[0], None) for seed in seeds]
    assert sum(bool(found) for found in blind) < 10
    assert not any(found_in(*hiccups(seed, {})) for seed in range(100, 160))


def hosts(excess: int, waited: int, usual: int | None = None, paced: Float | None = None) -> Pairs:
    """Of 8 hosts over 4 steps what recurs, 2 ms and a fortieth of it; rank 5's is more, and so is its usual step."""
    two = np.array([(a, b) for a in range(4) for b in range(a + 1, 4)])
    recurring = 2_000_000 + np.random.default_rng(3).normal(0, 50_000, (8, len(two))).astype(np.int64)
    recurring[5] += excess
    none = np.zeros_like(recurring)
    steps = np.full(8, np.nan)
    if usual is not None:
        steps = 2_000_000 + np.random.default_rng(4).normal(0, 40_000, 8)
        steps[5] = 2_000_000 + usual
    each = np.full((8, 4), np.nan) if paced is None else paced
    return Pairs(recurring, none, none, none + waited, steps, each, np.ones(none.shape, dtype=np.bool_), two)


def test_a_device_that_is_behind_by_chance_needs_a_host_that_is_slow() -> None:
    value = chance(0, 8, 4)
    value[5] += 2_000_000
    known = np.ones(value.shape, dtype=np.bool_)

    def rows(host_pairs: Pairs) -> list[int]:
        # All of it is time in which the device was idle.
        parts = {"own": value, "host": value - 6_000_000}
        return [
            each.row
            for each in find_outliers(parts, known, known, np.zeros(8, dtype=np.int64), STEP, host_pairs=host_pairs)
        ]

    # The hosts run ahead: the one that fell behind stays so, but is no slower than the others.
    assert rows(hosts(0, waited=0)) == []
    assert rows(hosts(800_000, waited=0)) == [5]
    # They wait for their devices in every step, and begin each anew.
    assert rows(hosts(0, waited=500_000)) == [5]
    # What recurs does not tell, but its usual step is longer by more than chance: of one that is behind that will do.
    assert rows(hosts(0, waited=0, usual=20_000)) == []
    assert rows(hosts(0, waited=0, usual=200_000)) == [5]


def test_a_slow_host_that_falls_behind_once() -> None:
    """Hosts run ahead; the slow one loses a step's worth of time in one step of five, which others might by chance."""
    value = chance(0, 8, 5)
    value[5, 2] += 8_000_000
    known, role = np.ones(value.shape, dtype=np.bool_), np.zeros(8, dtype=np.int64)
    parts = {"own": value, "host": value - 6_000_000}

    def rows(usual: int, own: np.ndarray = value) -> list[int]:  # type: ignore[type-arg]
        host_pairs = hosts(0, waited=0, usual=usual)
        return [
            each.row for each in find_outliers({**parts, "own": own}, known, known, role, STEP, host_pairs=host_pairs)
        ]

    assert rows(0) == []
    assert rows(1_000_000) == [5]
    # That costs nothing where its device never waits for it.
    assert rows(1_000_000, chance(0, 8, 5)) == []


def test_a_host_that_is_slow_in_some_steps() -> None:
    """By 30 % in two of six, where hosts' steps differ by 4 %; its device, behind it by then, waits a step longer."""

    def found(seed: int, slower: float, lost_ns: int, *, told: bool = True) -> list[int]:
        own, known = chance(seed, 8, 6), np.ones((8, 6), dtype=np.bool_)
        paced = 3_000_000 * (1 + 0.04 * np.random.default_rng(seed).normal(size=(8, 6)))
        paced[5, [1, 2]] *= 1 + slower
        own[5, [2, 3]] += lost_ns
        parts, role = {"own": own, "host": own - 6_000_000}, np.zeros(8, dtype=np.int64)
        late = find_outliers(
            parts, known, known, role, STEP, host_pairs=hosts(0, waited=0, paced=paced if told else None)
        )
        assert not any(each.lasting for each in late)
        return [each.row for each in late]

    assert all(found(seed, 0.3, 1_500_000) == [5] for seed in range(20))
    # Hosts run ahead here: being behind alone accuses nobody.
    assert not any(found(seed, 0.3, 1_500_000, told=False) for seed in range(20))
    # At no cost, or by chance: nobody.
    assert not any(found(seed, 0.3, 0) for seed in range(20))
    assert not any(found(seed, 0.0, 0) for seed in range(60))


def test_of_a_long_recording_any_choice_of_steps_has_a_probability() -> None:
    """Half of 3,000 steps: there are 10⁹⁰⁰ such choices."""
    own = np.full(3_000, 2_000_000.0)
    paced = 3_000_000 * (1 + 0.04 * np.random.default_rng(1).normal(size=(8, own.size)))
    paced[5, ::2] *= 1.5
    pairs, out = replace(hosts(0, waited=0), paced=paced), np.arange(8) == 5
    found = slow_steps_outlier(pairs, np.zeros(8, dtype=np.int64), out, 5, own, STEP)
    assert found is not None
    assert found.late[::2].all()


def test_a_single_step_asks_more_of_a_host() -> None:
    known, role = np.ones((8, 1), dtype=np.bool_), np.zeros(8, dtype=np.int64)

    def found(late: int, part: str) -> list[int]:
        own = chance(4, 8, 1)
        own[5] += late
        return [each.row for each in find_outliers({"own": own, part: own}, known, known, role, STEP)]

    assert found(int(0.15 * STEP), "host") == []
    assert found(int(0.4 * STEP), "host") == [5]
    assert found(int(0.15 * STEP), "compute") == [5]


def test_calls_for_memory_that_nobody_else_makes_count_for_more_than_they_take() -> None:
    own, known = chance(2, 8, 6), np.ones((8, 6), dtype=np.bool_)
    calls = np.zeros_like(own)
    calls[5, [2, 4]] = int(0.015 * STEP)
    own[5, [2, 4]] += int(0.1 * STEP)
    (found,) = find_outliers({"own": own, "allocation": calls}, known, known, np.zeros(8, dtype=np.int64), STEP)
    assert (found.row, found.part, np.flatnonzero(found.late).tolist()) == (5, "allocation", [2, 4])
    # Without any lateness they are nobody's trouble.
    assert (
        find_outliers({"own": chance(2, 8, 6), "allocation": calls}, known, known, np.zeros(8, dtype=np.int64), STEP)
        == []
    )


def test_usually_slower_is_beside_the_own_program_and_chance_is_of_all() -> None:
    # Two programs of four hosts each, one of which takes twice as long; rank 6 is a tenth slower than its like.
    usual = np.array([100.0, 101, 99, 100, 200, 202, 221, 198]) * 1e4
    role, out = np.repeat([0, 1], 4), np.arange(8) == 6
    slower, times = usually_slower(usual, role, out, 6)
    assert slower == 21e4
    # Each of the others beside the median of its own: by hand.
    apart = np.array([0, 1 / 100, -1 / 100, 0]) / np.sqrt(4 / 3)
    apart = np.append(apart, np.array([200 / 200 - 1, 202 / 199 - 1, 198 / 201 - 1]) / np.sqrt(3 / 2))
    assert times == pytest.approx(21 / 200 / (np.sqrt(np.mean(apart**2)) * np.sqrt(4 / 3)))
    # Then those whose second slowest step is most beyond the others of their program in that step.
    paced = np.tile(usual[:, None], 3)
    paced[6], paced[5, :2], paced[3, 1] = np.nan, 2 * paced[5, :2], 5 * paced[3, 1]
    pairs = replace(hosts(0, waited=0, paced=paced), usual=usual)
    assert slowest_hosts(pairs, role, np.zeros(8, dtype=np.bool_), 2) == [6, 1, 5]
    # Too few to know chance from.
    assert np.isnan(usually_slower(usual[:3], role[:3], out[4:7], 2)).all()


def test_more_work_in_one_step_is_no_hiccup() -> None:
    """Four ranks, three steps: on a device what takes twenty times what differs otherwise has a reason."""
    own = chance(1, 4, 3)
    assert find(own) == []
    own[2, 1] += 3_000_000
    known, role = np.ones(own.shape, dtype=np.bool_), np.zeros(4, dtype=np.int64)
    (late,) = find_outliers({"own": own, "compute": own}, known, known, role, STEP)
    assert (late.row, late.part, late.late.tolist(), late.lasting) == (2, "compute", [False, True, False], False)
    # Of a host that is a hiccup.
    assert find_outliers({"own": own, "host": own}, known, known, role, STEP) == []


def test_two_that_are_late_at_once_do_not_hide_each_other() -> None:
    # Of four ranks one is late in the first step most of all, the other in all of them.
    own = 8_000_000 + np.array(
        [[3_000_000, 3_100_000, 5_000_000], [0, 10_000, 0], [6_000_000, 120_000, 0], [0, 0, 9_000]]
    )
    assert 0 in [each.row for each in find(own)]
    # Nor is anybody accused where one was late once.
    own[0] = [5_000, 0, 0]
    assert find(own) == []
