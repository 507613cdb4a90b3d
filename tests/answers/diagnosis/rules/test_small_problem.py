"""Too little to compute on each rank for what it has to communicate."""

from __future__ import annotations

from pathlib import Path

from tests import kineto
from tests.answers.diagnosis.rules.steps import diagnosed, work
from tests.answers.diagnosis.rules.test_exposed_communication import reduce


def test_fires_where_transfer_outlasts_compute(tmp_path: Path) -> None:
    finding = diagnosed(tmp_path, lambda _, at: [*work(at + 10, 100), *reduce(at + 120, 700)], ranks=2)["small_problem"]
    assert finding.severity == "warning"
    assert finding.saving_ns == 600_000


def test_does_not_fire_where_compute_could_hide_it(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda _, at: [*work(at + 10, 500), *reduce(at + 520, 300)], ranks=2)
    assert "small_problem" not in found


def test_does_not_fire_about_waiting(tmp_path: Path) -> None:
    """Rank 1 comes 500 µs late: the transfer is short."""

    def make(rank: int, at: float) -> list[kineto.Event]:
        return [*work(at + 10, 100 + 500 * rank), *reduce(at + 120, 550, 500 * rank)]

    assert "small_problem" not in diagnosed(tmp_path, make, ranks=2)
