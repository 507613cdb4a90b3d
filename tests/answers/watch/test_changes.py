"""When a series changed, and that noise has not."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.answers.watch.changes import find_change
from rankscope.primitives.statistics import Significance


@pytest.mark.parametrize("at", [10, 100, 290])
@pytest.mark.parametrize("by", [0.1, -0.2, 1.0])
def test_a_change_is_found_where_it_is(at, by):
    rng = np.random.default_rng(at)
    values = rng.normal(100, 2, 300)
    values[at:] *= 1 + by
    found = find_change(values)
    assert found.verdict.significance is Significance.SIGNIFICANT
    assert abs(found.index - at) <= 2
    assert found.before == pytest.approx(100, rel=0.03)
    assert found.after == pytest.approx(100 * (1 + by), rel=0.03)


def test_noise_is_no_change():
    rng = np.random.default_rng(7)
    for _ in range(200):
        found = find_change(rng.lognormal(0, 0.2, 200))
        assert found.verdict.significance is Significance.NOT_SIGNIFICANT


def test_a_few_long_steps_are_no_change():
    values = np.full(200, 100.0) + np.random.default_rng(1).normal(0, 1, 200)
    values[150:153] = 5000
    assert not find_change(values).verdict.significant


def test_too_few_values():
    assert find_change([1.0] * 9) is None
