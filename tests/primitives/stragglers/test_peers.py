"""A rank compared with its peers: against plain Python."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.primitives.stragglers import peers
from rankscope.primitives.stragglers.peers import Float, excess_over_peers, medians, usual, with_lost_filled


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(1, 4), st.integers(0, 10_000))
def test_excess_is_that_over_the_median_of_the_others(ranks: int, steps: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    value = draw.integers(0, 1000, (ranks, steps)).astype(np.float64)
    value[draw.random((ranks, steps)) > 0.8] = np.nan
    role, out = draw.integers(0, 2, ranks), draw.random(ranks) < 0.3
    found = excess_over_peers(value, role, out)
    for r in range(ranks):
        for s in range(steps):
            others = [
                value[o, s]
                for o in range(ranks)
                if o != r and role[o] == role[r] and np.isfinite(value[o, s]) and not out[o]
            ]
            if not others or np.isnan(value[r, s]):
                assert np.isnan(found[r, s])
            else:
                # The median of two is between them, to the nanosecond below.
                assert abs(found[r, s] - (value[r, s] - statistics.median(others))) <= 0.5


def test_what_is_lost_is_as_with_the_peers_or_as_usual() -> None:
    """As plain Python has it: the median of the program's other ranks in the step, else of the rank's other steps."""
    draw = np.random.default_rng(3)
    value, role = draw.integers(0, 1_000, (6, 3)).astype(np.float64), np.arange(6) % 2
    value[4, 0] = np.nan
    lost = np.zeros((6, 3), dtype=np.bool_)
    for rank, step in ((0, 0), (1, 1), (3, 1), (5, 1), (2, 2)):
        lost[rank, step] = True
    known: Float = np.where(lost, np.nan, value)
    found = with_lost_filled(known, lost, role)
    for rank, step in np.ndindex(6, 3):
        if not lost[rank, step]:
            np.testing.assert_equal(found[rank, step], value[rank, step])
            continue
        alike = [known[o, step] for o in range(6) if role[o] == role[rank] and np.isfinite(known[o, step])]
        own = [known[rank, each] for each in range(3) if np.isfinite(known[rank, each])]
        assert found[rank, step] == statistics.median(alike or own)
    nothing: Float = np.full((6, 3), np.nan)
    assert (with_lost_filled(nothing, np.ones((6, 3), dtype=np.bool_), role) == 0).all()


def test_what_is_lost_on_many_ranks_takes_no_median_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,024 ranks whose ranges were not recorded: by program and step at once, else it is quadratic in the ranks."""
    asked = 0

    def counted(values: Float) -> Float:
        nonlocal asked
        asked += 1
        return medians(values)

    monkeypatch.setattr(peers, "medians", counted)
    lost = np.zeros((1_024, 4), dtype=np.bool_)
    lost[1:] = True
    assert (with_lost_filled(np.where(lost, np.nan, 7.0), lost, np.zeros(1_024, dtype=np.int64)) == 7).all()
    assert 0 < asked <= 2


def test_medians_of_what_is_known() -> None:
    draw = np.random.default_rng(1)
    for shape in ((1, 1), (2, 5), (7, 4), (8, 3)):
        values = draw.normal(size=shape)
        values[1:][draw.random((shape[0] - 1, shape[1])) < 0.4] = np.nan
        np.testing.assert_array_equal(medians(values), np.nanmedian(values, axis=0))


def test_the_usual_step_is_the_lower_median() -> None:
    nan = np.nan
    found = usual(np.array([[4.0, 1, 3, 2], [5, nan, 7, 6], [nan, nan, nan, nan]]))
    np.testing.assert_array_equal(found, [[2], [6], [nan]])
