"""Copies from or to pageable memory."""

from __future__ import annotations

from pathlib import Path

from tests import kineto
from tests.answers.diagnosis.rules.steps import diagnosed, work


def copy(at: float, dur: float, kind: str) -> list[kineto.Event]:
    identity = round(at * 16) + 3
    return [
        kineto.launch(at - 5, dur, name="cudaMemcpyAsync", correlation=identity),
        kineto.memcpy(at, dur, name=f"Memcpy HtoD ({kind} -> Device)", correlation=identity, size=1_000_000),
    ]


def test_fires_where_they_are_exposed(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda _, at: [*copy(at + 10, 200, "Pageable"), *work(at + 220, 700)])
    finding = found["pageable_copies"]
    assert finding.saving_ns == 200_000
    assert finding.evidence[2].value == 5.0


def test_does_not_fire_for_pinned_memory(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda _, at: [*copy(at + 10, 200, "Pinned"), *work(at + 220, 700)])
    assert "pageable_copies" not in found


def test_does_not_fire_where_compute_hides_them(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda _, at: [*copy(at + 10, 200, "Pageable"), *work(at + 5, 900)])
    assert "pageable_copies" not in found
