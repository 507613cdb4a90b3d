"""Communication that no compute hides."""

from __future__ import annotations

from pathlib import Path

from tests import kineto
from tests.diagnosis.rules.steps import diagnosed, work


def reduce(at: float, dur: float, late: float = 0) -> list[kineto.Event]:
    identity = round(at * 16) + 7
    return [
        kineto.launch(at + late - 5, 3, correlation=identity),
        kineto.collective(at + late, dur - late, correlation=identity, ranks=(0, 1), elements=1 << 20),
    ]


def test_speaks_where_it_is_exposed(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda _, at: [*work(at + 10, 500), *reduce(at + 520, 300)], ranks=2)
    finding = found["exposed_communication"]
    assert finding.severity == "warning"
    assert finding.saving_ns == 300_000
    assert finding.evidence[-1].value == "all_reduce of 4.19 MB over 2 ranks"


def test_no_more_than_the_compute_it_could_hide_behind(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda _, at: [*work(at + 10, 100), *reduce(at + 120, 800)], ranks=2)
    assert found["exposed_communication"].saving_ns == 100_000


def test_is_silent_where_it_is_hidden(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda _, at: [*work(at + 10, 900), *reduce(at + 20, 300)], ranks=2)
    assert "exposed_communication" not in found


def test_is_silent_about_waiting(tmp_path: Path) -> None:
    """Rank 1 comes 290 µs late: rank 0 waits, and no overlap would hide that."""

    def make(rank: int, at: float) -> list[kineto.Event]:
        return [*work(at + 10, 500 + 290 * rank), *reduce(at + 520, 300, 290 * rank)]

    found = diagnosed(tmp_path, make, ranks=2)
    finding = found.get("exposed_communication")
    assert finding is None or (finding.saving_ns or 0) <= 10_000
