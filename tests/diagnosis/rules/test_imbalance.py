"""Some ranks have more to compute than others."""

from __future__ import annotations

from pathlib import Path

from tests.diagnosis.rules.steps import diagnosed, work


def test_speaks_where_one_has_more(tmp_path: Path) -> None:
    finding = diagnosed(tmp_path, lambda rank, at: work(at + 10, 500 + 200 * (rank == 2)), ranks=4)["imbalance"]
    assert finding.severity == "warning"
    assert finding.ranks == (2,)
    # 700 µs where the mean is 550.
    assert finding.saving_ns == 150_000


def test_is_silent_where_all_have_as_much(tmp_path: Path) -> None:
    assert "imbalance" not in diagnosed(tmp_path, lambda rank, at: work(at + 10, 500 + rank), ranks=4)


def test_is_silent_where_they_take_turns(tmp_path: Path) -> None:
    found = diagnosed(
        tmp_path, lambda rank, at: work(at + 10, 500 + 200 * (round(at / 1000) % 4 == rank)), ranks=4, steps=8
    )
    assert "imbalance" not in found
