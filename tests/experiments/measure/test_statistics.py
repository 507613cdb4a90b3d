"""Medians and their intervals, against plain Python and against chance itself."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from rankscope.experiments.measure.results import Time
from rankscope.experiments.measure.statistics import (
    CONFIDENCE,
    LEAST_BLOCKS,
    Series,
    affine,
    between_jobs,
    beyond_chance,
    difference_from,
    difference_of,
    ratio_of,
    replicates,
    simple_time,
    time_of,
    widening,
)


def series_of(rng, jobs=1, rounds=12, ranks=2, steps=5, at=1e7, noise=0.02):
    return Series(
        tuple(at * (1 + noise * rng.standard_normal((rounds, ranks, steps))) for _ in range(jobs)),
    )


def test_the_time_is_the_slowest_ranks_median():
    rng = np.random.default_rng(1)
    found = series_of(rng, jobs=2, ranks=3)
    plain = []
    for rank in range(3):
        plain.append(statistics.median([float(t) for job in found.jobs for block in job for t in block[rank]]))
    assert list(found.by_rank()) == pytest.approx(plain)
    assert found.median() == pytest.approx(max(plain))
    time = time_of(found, replicates({"a": found}, 0)["a"])
    slowest = plain.index(max(plain))
    quartiles = statistics.quantiles(
        [float(t) for job in found.jobs for block in job for t in block[slowest]], n=4, method="inclusive"
    )
    assert (time.p25_ns, time.p75_ns) == (round(quartiles[0]), round(quartiles[2]))
    assert (time.samples, time.blocks) == (2 * 12 * 5, 24)
    assert time.low_ns <= time.median_ns <= time.high_ns


@pytest.mark.parametrize("rounds", [5, 20])
def test_the_interval_holds_the_truth_as_often_as_it_says(rounds):
    truth, inside, again, narrow = 1e7, 0, 0, 0
    for seed in range(100):
        rng = np.random.default_rng(seed)

        # Blocks differ more than steps within them: what takes steps for independent would be too sure.
        def one(rng=rng):
            blocks = 1 + 0.01 * rng.standard_normal((rounds, 1, 1))
            return Series((truth * blocks * (1 + 0.003 * rng.standard_normal((rounds, 1, 5))),))

        first, second = one(), one()
        drawn = replicates({"a": first}, seed, count=200)["a"]
        time = time_of(first, drawn)
        inside += time.low_ns <= truth <= time.high_ns
        again += time.low_ns <= second.median() <= time.high_ns
        bare = np.quantile(drawn, [0.005, 0.995])
        narrow += bare[0] <= truth <= bare[1]
    # 99 of 100, and a repeat, which is as noisy as the first, 93 of 100; by percentiles alone, 92 in five blocks.
    assert inside >= 95
    assert again >= 86
    assert inside > narrow or rounds > 5


def test_rounds_that_are_alike_widen_the_interval():
    truth, inside, bare = 1e7, 0, 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        made = [rng.standard_normal()]
        for _ in range(19):
            made.append(0.5 * made[-1] + math.sqrt(0.75) * rng.standard_normal())
        found = Series((truth * (1 + 0.01 * np.reshape(made, (20, 1, 1))) * np.ones((20, 1, 5)),))
        drawn = replicates({"a": found}, seed, count=200)["a"]
        time = time_of(found, drawn)
        inside += time.low_ns <= truth <= time.high_ns
        low, high = np.quantile(drawn, [0.005, 0.995])
        bare += low <= truth <= high
    assert inside >= 88
    assert bare < inside


def test_how_much_percentiles_are_widened():
    # Student's quantile at 99 % from a printed table, over the normal one, and the root of n / (n - 1).
    table = {5: 4.604, 8: 3.499, 10: 3.250, 20: 2.861}
    rng = np.random.default_rng(0)
    for n, student in table.items():
        # Rounds in turn above and below: nothing is alike.
        level = 1e7 * (1 + 0.01 * (-1) ** np.arange(n).reshape(n, 1, 1))
        found = Series((level * np.ones((n, 2, 3)),))
        assert widening(found) == pytest.approx(student / 2.5758 * math.sqrt(n / (n - 1)), rel=0.01)
    drift = 1 + 0.2 * np.linspace(0, 1, 20).reshape(20, 1, 1)
    on = Series((5e7 * drift * (1 + 0.001 * rng.standard_normal((20, 1, 5))),))
    off = Series((4e7 * drift * (1 + 0.001 * rng.standard_normal((20, 1, 5))),))
    # A drift makes rounds alike, and is no matter of the difference.
    assert widening(on) == pytest.approx(3 * 2.861 / 2.5758 * math.sqrt(20 / 19), rel=0.01)
    assert widening(on, off) < 1.7
    # Three jobs say less than their blocks: their own root.
    jobs = Series(tuple(on.jobs[0][:8] for _ in range(3)))
    assert widening(jobs) == pytest.approx(math.sqrt(3 / 2) * 2.807 / 2.5758, rel=0.01)


def test_times_of_nothing_and_less(recwarn):
    # What is left of a step when its parts are taken away may be nothing, or less by the clock's grain.
    rng = np.random.default_rng(0)
    rest = Series((rng.integers(-50, 50, (20, 2, 5)).astype(float),))
    none = Series((np.zeros((20, 2, 5)),))
    for one in (rest, none):
        time = time_of(one, replicates({"a": one}, 0)["a"])
        assert time.low_ns <= time.median_ns <= time.high_ns
        assert 1 < widening(one) < 5
    assert 1 < widening(rest, none) < 5
    # A time that is there is not widened below nothing.
    noisy = Series((1e7 * rng.exponential(size=(5, 1, 1)) * np.ones((5, 1, 5)),))
    assert time_of(noisy, replicates({"a": noisy}, 0)["a"]).low_ns >= 0
    assert not recwarn.list


def test_a_ratio_is_widened_on_its_logarithm():
    # A speed-up of 0.63 whose replicates are between half and twice as much, widened to twice as far on that scale.
    drawn = 0.63 * np.exp2(np.linspace(-1, 1, 2001))
    share = ratio_of(0.63, drawn, 2.0)
    assert share.value == 0.63
    assert (share.low, share.high) == (pytest.approx(0.63 / 4, rel=0.02), pytest.approx(0.63 * 4, rel=0.02))
    # On its own scale it would reach below 0.
    assert 0.63 + 2 * (0.63 / 2 - 0.63) == 0
    # An efficiency on 4 ranks, and the overhead that is 1 less it: the ends change places.
    efficiency = affine(share, 1 / 4, 0)
    assert efficiency.high == pytest.approx(share.high / 4)
    overhead = affine(efficiency, -1, 1)
    assert (overhead.low, overhead.high) == (pytest.approx(1 - efficiency.high), pytest.approx(1 - efficiency.low))
    assert overhead.high < 1
    few = affine(ratio_of(2.0, np.empty(0)), -1, 1)
    assert (few.value, few.low, few.high) == (-1.0, None, None)
    # A time of 0 has no logarithm, and no ratio is below 0.
    assert ratio_of(0.0, np.linspace(0, 1, 101), 2.0).low == 0.0
    assert ratio_of(1.0, np.linspace(0, 2, 101), 2.0).low == 0.0


def test_an_interval_holds_its_own_value():
    share = ratio_of(1.0, np.linspace(1.1, 1.3, 101))
    assert share.low == 1.0
    assert share.high == pytest.approx(1.299, abs=0.001)


def test_the_interval_of_a_speed_up_holds_the_truth_as_often_as_it_says():
    """T1 / T4 of jobs whose blocks vary by a third: 2 in truth."""
    inside = low = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        t1, t4 = (
            Series((at * np.exp(0.3 * rng.standard_normal((6, 1, 1))) * np.ones((6, 1, 5)),)) for at in (4e7, 2e7)
        )
        drawn = [replicates({"a": each}, seed, salt, count=200)["a"] for salt, each in enumerate((t1, t4))]
        share = ratio_of(t1.median() / t4.median(), drawn[0] / drawn[1], max(widening(t1), widening(t4)))
        inside += share.low <= 2 <= share.high
        low += share.low <= 0
    assert inside >= 96
    assert low == 0


def test_the_difference_of_two_intervals_by_hand():
    # 50 (47 to 54) less 40 (39 to 44): 10 − √(3² + 4²) = 5 and 10 + √(4² + 1²) = 14.123.
    one, other = Time(50_000_000, 47_000_000, 54_000_000), Time(40_000_000, 39_000_000, 44_000_000)
    difference = difference_from(one, other)
    assert (difference.median_ns, difference.low_ns, difference.high_ns) == (10_000_000, 5_000_000, 14_123_106)
    assert difference_from(one, Time(40_000_000)) == Time(10_000_000)


def test_what_both_suffer_cancels():
    rng = np.random.default_rng(3)
    slow = 1 + 0.3 * rng.random((20, 1, 1))  # a neighbor on the machine, round by round
    on = Series((5e7 * slow * (1 + 0.001 * rng.standard_normal((20, 2, 5))),))
    off = Series((4e7 * slow * (1 + 0.001 * rng.standard_normal((20, 2, 5))),))
    drawn = replicates({"on": on, "off": off}, 0)
    share = affine(ratio_of(off.median() / on.median(), drawn["off"] / drawn["on"]), -1, 1)
    assert share.value == pytest.approx(0.2, abs=0.01)
    assert share.high - share.low < 0.02
    alone = time_of(on, drawn["on"])
    assert (alone.high_ns - alone.low_ns) / alone.median_ns > 0.05
    assert difference_of(on, off, drawn["on"], drawn["off"]).median_ns == round(on.median() - off.median())


def test_of_few_blocks_nothing_is_said():
    found = series_of(np.random.default_rng(0), rounds=LEAST_BLOCKS - 1)
    time = time_of(found, replicates({"a": found}, 0)["a"])
    assert (time.low_ns, time.high_ns) == (None, None)
    assert beyond_chance(ratio_of(0.1, np.empty(0))) is None


def test_the_same_seed_gives_the_same_interval():
    found = series_of(np.random.default_rng(0), jobs=3)
    assert np.array_equal(replicates({"a": found}, 7)["a"], replicates({"a": found}, 7)["a"])
    assert not np.array_equal(replicates({"a": found}, 7)["a"], replicates({"a": found}, 8)["a"])


def test_jobs_that_differ_widen_the_interval():
    rng = np.random.default_rng(0)
    one = 1e7 * (1 + 0.001 * rng.standard_normal((8, 1, 5)))
    alike, apart = Series((one, one, one)), Series((one, one * 1.05, one * 0.95))
    widths = []
    for each in (alike, apart):
        low, high = np.quantile(replicates({"a": each}, 0)["a"], [0.005, 0.995])
        widths.append(high - low)
    assert widths[1] > 10 * widths[0]


def test_jobs_that_differ_have_as_many_degrees_of_freedom_as_there_are_jobs():
    # Student's quantiles at 99 % from a printed table; the expansion is 4 % short at 2 degrees of freedom.
    for jobs, student, exact in ((3, 9.925, 0.05), (5, 4.604, 0.01), (8, 3.499, 0.01)):
        rounds = 1e7 * (1 + 0.0001 * (-1) ** np.arange(6).reshape(6, 1, 1)) * np.ones((6, 2, 3))
        apart = Series(tuple(rounds * (1 + 0.05 * k) for k in range(jobs)))
        assert between_jobs(apart) == pytest.approx(1, abs=0.001)
        assert widening(apart) == pytest.approx(student / 2.5758 * math.sqrt(jobs / (jobs - 1)), rel=exact)
        # That both conditions go up from job to job is no matter of their difference.
        assert widening(apart, Series(tuple(0.8 * job for job in apart.jobs))) < widening(apart) / (
            1.3 if jobs < 8 else 1.1
        )
    # Jobs that differ by what their rounds explain have nearly those of the rounds.
    rng = np.random.default_rng(4)
    alike = Series(tuple(1e7 * (1 + 0.01 * rng.standard_normal((40, 1, 1))) * np.ones((40, 1, 3)) for _ in range(5)))
    assert between_jobs(alike) < 0.8
    assert widening(alike) < 1.2 * math.sqrt(5 / 4) * 2.6 / 2.5758
    assert between_jobs(Series((1e7 * np.ones((8, 1, 5)),))) == 0
    assert between_jobs(Series((1e7 * np.ones((8, 1, 5)),) * 3)) == 0


def test_of_jobs_that_differ_a_repeat_falls_within():
    again, count = 0, 80
    for seed in range(count):
        rng = np.random.default_rng(seed)

        def one(rng=rng):
            jobs = 1 + 0.02 * rng.standard_normal(5)
            return Series(tuple(1e7 * job * (1 + 0.01 * rng.standard_normal((5, 1, 5))) for job in jobs))

        first, second = one(), one()
        time = time_of(first, replicates({"a": first}, seed, count=150)["a"])
        again += time.low_ns <= second.median() <= time.high_ns
    # 91 of 100; by the degrees of freedom of blocks 80.
    assert again >= 0.85 * count


@pytest.mark.parametrize("n", [3, 7, 8, 9, 20, 101, 150])
def test_order_statistics_against_the_binomial(n):
    time = simple_time(list(range(n)))
    # P(the median lies below the k-th or above the k-th from the end) = 2 P(Binomial(n, 1/2) < k)
    k = 0
    while 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n <= 1 - CONFIDENCE:
        k += 1
    if k == 0:
        assert (time.low_ns, time.high_ns) == (None, None)
    else:
        assert (time.low_ns, time.high_ns) == (k - 1, n - k)


def test_of_nothing_there_is_no_time():
    assert simple_time([]) is None
