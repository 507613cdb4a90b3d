"""Simulated durations vary as the real ones do."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from rankscope.experiments.simulate import Job, simulate
from rankscope.experiments.simulate.jitter import MEASURED, ONE, QUANTILES, Chance, table

sys.path.insert(0, str(Path(__file__).parent))
import measure_jitter

sys.path.pop(0)


def test_tables_have_the_measured_quantiles() -> None:
    for name, (_, _, values) in MEASURED.items():
        factors = table(name) / ONE
        found = np.quantile(factors, QUANTILES[1:-1])
        np.testing.assert_allclose(found, values[1:-1], rtol=0.1, atol=0.01)
    assert np.median(table("host_leaf", 0.5) / ONE) == pytest.approx(1, abs=0.01)
    assert np.ptp(table("host_leaf", 0.5)) < np.ptp(table("host_leaf", 1.0))


def test_draws_are_independent_of_each_other() -> None:
    chance = Chance(1)
    place = np.arange(2000)
    one, two = (chance.hashes(chance.keys("host", 3, rank), place) for rank in (0, 1))
    assert len(np.unique(np.concatenate([one, two]))) == 4000
    bits = np.unpackbits(one.view(np.uint8)).mean()
    assert bits == pytest.approx(0.5, abs=0.01)
    other = chance.hashes(chance.keys("host", 4, 0), place)
    assert not (one == other).any()
    again = Chance(1).hashes(Chance(1).keys("host", 3, [5, 0, 9])[:, None], place[None, 7:8])
    assert again[1, 0] == one[7]


def test_what_is_measured_on_a_simulated_run_is_what_went_in(tmp_path: Path) -> None:
    simulate(tmp_path, Job(ranks=4, steps=4, layers=6, kernels_per_layer=24, seed=1))
    ranks = [measure_jitter.load(path) for path in sorted(tmp_path.glob("rank*.json.gz"))]
    found = measure_jitter.classes(ranks)
    at = [QUANTILES.index(q) for q in (0.1, 0.25, 0.75, 0.9, 0.95)]
    for name in ("kernel_long", "kernel_short", "launch_call"):
        measured = np.quantile(found[name], [QUANTILES[i] for i in at])
        np.testing.assert_allclose(measured, [MEASURED[name][2][i] for i in at], rtol=0.08)
