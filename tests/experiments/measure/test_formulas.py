"""Speed-up, efficiency and overheads as the tutorials print them, and the law that is fitted to them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.experiments.measure.formulas import (
    STRONG,
    WEAK,
    ScalabilityLaw,
    derived_overhead,
    efficiency,
    fit_scalability_law,
    measured_overhead,
    speed_up,
)


def test_the_tutorials_table():
    steps = {1: 100.0, 2: 55.0, 4: 30.0}
    found = {
        n: (
            round(speed_up(100.0, t, n, STRONG), 1),
            round(100 * efficiency(100.0, t, n, STRONG)),
            round(100 * derived_overhead(100.0, t, n, STRONG)),
        )
        for n, t in steps.items()
    }
    assert found == {1: (1.0, 100, 0), 2: (1.8, 91, 9), 4: (3.3, 83, 17)}


def test_weak_scaling_does_more_work():
    # 40 ms alone, 50 ms on each of 4 ranks: 4 batches in 50 ms instead of 160.
    assert speed_up(40.0, 50.0, 4, WEAK) == pytest.approx(3.2)
    assert efficiency(40.0, 50.0, 4, WEAK) == pytest.approx(0.8)
    assert derived_overhead(40.0, 50.0, 4, WEAK) == pytest.approx(0.2)


def test_measured_overhead():
    assert measured_overhead(50.0, 40.0) == pytest.approx(0.2)


@given(st.floats(0, 0.5), st.floats(0, 0.05))
def test_the_law_is_found_again(sigma, kappa):
    ranks = [2, 4, 8, 16]
    # Gunther's formula, written out once more.
    speed_ups = [n / (1 + sigma * (n - 1) + kappa * n * (n - 1)) for n in ranks]
    law = fit_scalability_law(ranks, speed_ups)
    assert law.contention == pytest.approx(sigma, abs=1e-6)
    assert law.coherence == pytest.approx(kappa, abs=1e-6)


def test_one_size_gives_amdahls_law():
    # Amdahl: a serial part of 10 % gives 1 / (0.1 + 0.9 / 4) on 4.
    law = fit_scalability_law([4], [1 / (0.1 + 0.9 / 4)])
    assert law.coherence == 0
    assert law.contention == pytest.approx(0.1)
    assert law.speed_up(1024) == pytest.approx(1 / (0.1 + 0.9 / 1024))


def test_better_than_perfect_is_perfect():
    assert fit_scalability_law([2, 4], [2.2, 4.5]) == ScalabilityLaw(0.0, 0.0)


@pytest.mark.parametrize("speed_ups", [[1.9, 3.0], [1.5, 3.9], [1.2, 1.1]])
def test_no_parameter_falls_below_zero_and_none_does_better(speed_ups):
    law = fit_scalability_law([2, 4], speed_ups)
    assert law.contention >= 0
    assert law.coherence >= 0

    def error(sigma, kappa):
        return sum(
            (sigma * (n - 1) + kappa * n * (n - 1) - (n / s - 1)) ** 2 for n, s in zip([2, 4], speed_ups, strict=True)
        )

    least = min(error(a / 200, b / 200) for a in range(300) for b in range(300))
    assert error(law.contention, law.coherence) <= least + 1e-12


def test_nothing_to_fit():
    with pytest.raises(ValueError, match="no size above 1"):
        fit_scalability_law([1], [1.0])
