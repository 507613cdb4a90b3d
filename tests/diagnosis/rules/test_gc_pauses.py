"""Python collects garbage in the middle of steps."""

from __future__ import annotations

from pathlib import Path

from tests import kineto
from tests.diagnosis.rules.steps import diagnosed, work


def test_fires_where_collections_take_time(tmp_path: Path) -> None:
    finding = diagnosed(
        tmp_path,
        lambda rank, at: [*work(at + 10, 500), kineto.annotation("gc: generation 2", at + 520, 100 + 50 * rank)],
        ranks=2,
    )["gc_pauses"]
    assert finding.severity == "warning"
    assert finding.saving_ns == 150_000
    assert [each.value for each in finding.evidence] == [150_000, 150_000, 4, 150_000, 1_000_000]


def test_does_not_fire_where_they_are_short(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda _, at: [*work(at + 10, 500), kineto.annotation("gc: generation 1", at + 520, 5)])
    assert "gc_pauses" not in found


def test_does_not_fire_where_the_device_works_on(tmp_path: Path) -> None:
    """The host launched 900 µs of work before it collects for 300."""
    found = diagnosed(
        tmp_path, lambda _, at: [*work(at + 10, 900), kineto.annotation("gc: generation 2", at + 20, 300)]
    )
    assert "gc_pauses" not in found
