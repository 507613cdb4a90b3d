"""Ranks synchronize repeatedly in small collectives."""

from __future__ import annotations

from pathlib import Path

from tests import kineto
from tests.answers.diagnosis.rules.steps import diagnosed, work


def make(rank: int, at: float, waits: tuple[float, float], elements: int = 1) -> list[kineto.Event]:
    """Two reductions of a number; each rank waits so long in them."""
    events = work(at + 10, 300)
    for number, wait in enumerate(waits):
        identity = round(at * 16) + 5 + number
        begin = at + 500 + 200 * number - wait
        events += [
            kineto.launch(begin - 5, 3, correlation=identity),
            kineto.collective(begin, wait + 10, correlation=identity, ranks=(0, 1), elements=elements),
        ]
    return events


def test_fires_where_ranks_take_turns(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda rank, at: make(rank, at, (100, 100) if rank else (120, 90)), ranks=2)
    finding = found["small_collectives"]
    assert finding.severity == "warning"
    # Rank 0: 130 + 100, of which the shorter stays; rank 1: 110 + 110.
    assert finding.saving_ns == 110_000


def test_does_not_fire_where_one_rank_is_always_late(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda rank, at: make(rank, at, (0, 0) if rank else (120, 120)), ranks=2)
    assert "small_collectives" not in found or found["small_collectives"].saving_ns == 10_000


def test_does_not_fire_about_large_ones(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda rank, at: make(rank, at, (100, 100), 1 << 20), ranks=2)
    assert "small_collectives" not in found
