"""The job waits for data."""

from __future__ import annotations

from pathlib import Path

from tests import kineto
from tests.answers.diagnosis.rules.steps import diagnosed, work


def test_fires_where_the_device_waits(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda rank, at: [kineto.loading(at, 200 + 100 * rank), *work(at + 400, 590)], ranks=2)
    finding = found["data_loading"]
    assert finding.severity == "warning"
    assert finding.saving_ns == 300_000  # rank 1's
    assert finding.ranks == (0, 1)
    assert "30 %" in finding.title
    assert finding.evidence[1].value == 250_000


def test_does_not_fire_where_loading_is_hidden(tmp_path: Path) -> None:
    assert "data_loading" not in diagnosed(tmp_path, lambda _, at: [*work(at + 10, 980), kineto.loading(at + 20, 500)])


def test_does_not_fire_about_a_loader_on_another_thread(tmp_path: Path) -> None:
    """It loads ahead all the time, while the device waits 400 µs per step for launches: no step waits for it."""
    found = diagnosed(tmp_path, lambda _, at: [kineto.loading(at, 999, tid=555), *work(at + 405, 590)])
    assert "data_loading" not in found
