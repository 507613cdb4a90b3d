"""All ranks take longer from one step on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests import kineto
from tests.answers.diagnosis.rules.steps import work
from tests.claims.check import false_claims

import rankscope
from rankscope.results import Finding

Step = Callable[[int, int, float], list[kineto.Event]]


def found(folder: Path, durations: list[float], make: Step, ranks: int = 2) -> Finding | None:
    """The finding about steps of these durations, µs, if there is one.

    Args:
        make: the events of a step, from the rank, its number and the microsecond at which it begins.
    """
    by_rank = {}
    for rank in range(ranks):
        at, events = 0.0, []
        for number, duration in enumerate(durations):
            events += [kineto.step(number, at, duration), *make(rank, number, at)]
            at += duration
        by_rank[rank] = events
    run = rankscope.open(kineto.write_ranks(folder, by_rank), executor="serial")
    findings = {finding.id: finding for finding in run.diagnosis().stated}
    assert not false_claims(run)
    return findings.get("longer_steps")


SLOWER = [1000.0, 1010, 1005, 1000, 1010, 1000, 1300, 1310, 1300, 1305, 1300, 1310]


def computing(durations: list[float]) -> Step:
    """One kernel that takes the step but for 100 µs."""
    return lambda _rank, number, at: work(at + 50, durations[number] - 100)


def test_fires_where_kernels_take_longer_on_all_ranks(tmp_path: Path) -> None:
    finding = found(tmp_path, SLOWER, computing(SLOWER))
    assert finding is not None
    assert finding.title == "From step 6 on, steps take 30 % longer on all ranks: more compute"
    assert (finding.ranks, finding.steps) == ((0, 1), (6, 7, 8, 9, 10, 11))
    assert [each.value for each in finding.evidence] == [1_004_167, 1_304_167, 902_500, 1_202_500]
    assert "clocks" in finding.advice


def test_fires_where_the_device_waits_longer(tmp_path: Path) -> None:
    finding = found(tmp_path, SLOWER, lambda _rank, _number, at: work(at + 50, 800), ranks=1)
    assert finding is not None
    assert finding.title == "From step 6 on, steps take 30 % longer: more idle time"


def test_does_not_fire_for_one_slow_rank(tmp_path: Path) -> None:
    def make(rank: int, number: int, at: float) -> list[kineto.Event]:
        return work(at + 50, 900 if rank else SLOWER[number] - 100)

    assert found(tmp_path, SLOWER, make) is None


@pytest.mark.parametrize(
    "durations",
    [
        SLOWER[2:9],  # too few steps on one side
        [*SLOWER[:6], *(1.05 * each for each in SLOWER[:6])],  # not by much
        [*SLOWER[:11], 1000.0],  # one of the later steps is as the earlier ones
        SLOWER[::-1],  # shorter: the first steps warm up
        [1000.0, 1300] * 6,
        [1000.0 + 60 * number for number in range(12)],  # bit by bit
    ],
)
def test_does_not_fire(tmp_path: Path, durations: list[float]) -> None:
    assert found(tmp_path, durations, computing(durations)) is None
