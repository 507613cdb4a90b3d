"""Tests of significance against figures from tables, worked by hand, and against a simulation of chance."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rankscope.primitives.statistics import (
    Significance,
    Verdict,
    rank_sum_score,
    significant,
    student_quantile,
    student_tail,
    verdict_of_interval,
    welch_test,
    welch_verdicts,
)


@pytest.mark.parametrize(
    ("t", "freedom", "both_tails"),
    [
        # Two-sided critical values of Student's t as every table has them.
        (12.706, 1, 0.05),
        (4.303, 2, 0.05),
        (2.776, 4, 0.05),
        (2.228, 10, 0.05),
        (3.169, 10, 0.01),
        (2.576, 1e6, 0.01),
        (63.657, 1, 0.01),
        (0.0, 7, 1.0),
    ],
)
def test_tails_are_those_of_the_tables(t: float, freedom: float, both_tails: float) -> None:
    assert math.isclose(student_tail(t, freedom), both_tails, rel_tol=2e-3)


def test_tails_with_one_degree_of_freedom_are_cauchys() -> None:
    for t in (0.1, 1.0, 7.0):
        assert math.isclose(student_tail(t, 1), 1 - 2 * math.atan(t) / math.pi, rel_tol=1e-6)


def test_welchs_own_example() -> None:
    # Worked by hand: means 3 and 6, variances 2.5 and 4, n = 5 and 3: t = 3 / √(0.5 + 4/3) = 2.2156, ν = 3.523.
    found = welch_test([1, 2, 3, 4, 5], [4, 6, 8])
    assert found is not None
    assert math.isclose(
        found, student_tail(3 / math.sqrt(0.5 + 4 / 3), (0.5 + 4 / 3) ** 2 / (0.25 / 4 + (4 / 3) ** 2 / 2))
    )
    assert 0.09 < found < 0.11


def test_one_value_has_no_spread() -> None:
    assert welch_test([1], [1, 2]) is None
    assert welch_test([], []) is None


def test_values_without_spread() -> None:
    assert welch_test([5, 5, 5], [5, 5]) == 1.0
    assert welch_test([5, 5, 5], [6, 6]) == 0.0


def test_the_chance_is_that_of_chance() -> None:
    """Of samples without a difference the stated share falls below a limit."""
    random = np.random.default_rng(0)
    found = [welch_test(random.normal(10, 1, 4), random.normal(10, 3, 6)) for _ in range(4000)]
    below = sum(value is not None and value < 0.05 for value in found) / len(found)
    assert 0.03 < below < 0.07


def test_many_judged_together() -> None:
    # Benjamini and Hochberg at 5 %, ten tests: the limits are 0.005, 0.010, 0.015, …
    chances = [0.001, 0.009, 0.014, 0.9, 0.5, 0.04, 0.3, 0.2, 0.7, 0.6]
    assert significant(chances, 0.05) == [True, True, True, *[False] * 7]
    assert significant([None, 0.0001, None], 0.05) == [None, True, None]
    assert significant([]) == []


def test_noise_is_not_called_a_change() -> None:
    random = np.random.default_rng(1)
    chances = [welch_test(random.normal(5, 1, 4), random.normal(5, 1, 4)) for _ in range(500)]
    assert sum(value is True for value in significant(chances)) <= 2


@pytest.mark.parametrize(("freedom", "quantile"), [(4, 4.604), (10, 3.169), (30, 2.750), (1e6, 2.576)])
def test_quantiles_are_those_of_the_tables(freedom: float, quantile: float) -> None:
    assert math.isclose(student_quantile(freedom, 0.99), quantile, rel_tol=5e-3)


def test_rank_sum_by_hand() -> None:
    # Without ties: 3 and 4 rank above 1 and 2 in all 4 pairs, 2 more than expected; variance 2 · 2 · 5 / 12.
    assert math.isclose(rank_sum_score([3, 4], [1, 2]), 2 / math.sqrt(5 / 3))
    # Three values tied at mean rank 3: U = 11 − 6 = 5, expected 3, variance 6 / 12 · (6 − 24 / 20) = 2.4.
    assert math.isclose(rank_sum_score([2, 2, 3], [1, 2]), 2 / math.sqrt(2.4))
    assert rank_sum_score([1, 1], [1, 1, 1]) == 0.0


def test_three_answers_with_test_and_samples() -> None:
    verdicts = welch_verdicts(
        [1e-6, 0.4, 0.2, None, 1.0, 1e-7], [(20, 20), (6, 8), (3, 2), (1, 1), (3, 3), (3, 3)], "step"
    )
    assert [str(each) for each in verdicts] == [
        "significant (Welch's t-test, 20 and 20 steps, p < 0.0001)",
        "not significant (Welch's t-test, 6 and 8 steps, p = 0.4)",
        "too few steps to tell (Welch's t-test, 3 and 2 steps, p = 0.2)",
        "too few steps to tell (1 and 1 steps)",
        # Equal without any spread, and different far beyond it: three steps are enough for both.
        "not significant (Welch's t-test, 3 and 3 steps, p = 1)",
        "significant (Welch's t-test, 3 and 3 steps, p < 0.0001)",
    ]
    assert [each.significant for each in verdicts] == [True, False, None, None, False, True]


def test_the_verdict_of_an_interval() -> None:
    def kind(low: float | None, high: float | None, null: float = 0.0) -> Significance:
        return verdict_of_interval(low, high, 24, "block", test="99 % interval", null=null).significance

    assert kind(-1.5, 29.3) is Significance.NOT_SIGNIFICANT
    assert kind(1.5, 29.3) is Significance.SIGNIFICANT
    assert kind(-3, -1) is Significance.SIGNIFICANT
    assert kind(0.7, 0.9, null=1.0) is Significance.SIGNIFICANT
    assert kind(None, None) is Significance.TOO_FEW
    assert str(verdict_of_interval(1, 2, 24, "block", test="99 % interval")) == "significant (99 % interval, 24 blocks)"
    assert str(verdict_of_interval(None, None, 1, "block", test="")) == "too few steps to tell (1 block)"
    assert str(Verdict(Significance.NOT_SIGNIFICANT)) == "not significant"
