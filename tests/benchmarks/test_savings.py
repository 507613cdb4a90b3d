"""A saving is a promise: following the advice gains no more than it says, and about as much."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.savings import measured
from benchmarks.savings.cases import CASES, QUIET, Case

TIGHT = 1.4
"""What a saving may be of the gain."""
BY_MEMORY = 2.0
"""Where a kernel is bound by memory, half of the time that is saved by arithmetic remains."""
IN_TURNS = "the same, ranks in turns"
"""Ranks that collect one after another: what the rank with most loses is a lower bound, as the rule says."""


def named(case: Case) -> str:
    return f"{case.rule}-{case.change}".replace(" ", "_")


@pytest.mark.parametrize("case", CASES, ids=named)
def test_the_saving_is_a_bound_of_the_gain(case: Case, tmp_path: Path) -> None:
    found = measured(case, tmp_path)
    assert found.saving_ns is not None
    assert found.saving_ns <= found.step_ns
    if case.change != IN_TURNS:
        assert found.gain_ns <= 1.01 * found.saving_ns
    assert found.saving_ns <= (BY_MEMORY if "memory" in case.change else TIGHT) * found.gain_ns


@pytest.mark.parametrize("case", QUIET, ids=named)
def test_what_the_device_hides_is_not_promised(case: Case, tmp_path: Path) -> None:
    found = measured(case, tmp_path)
    # The first step has nothing before it to hide behind.
    assert (found.saving_ns or 0) <= 1.01 * max(found.gain_ns, found.from_start_ns)
