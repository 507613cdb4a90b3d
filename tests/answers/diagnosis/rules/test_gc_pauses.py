"""Python collects garbage in the middle of steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import kineto
from tests.answers.diagnosis.rules.steps import diagnosed, work


def test_fires_where_collections_take_time(tmp_path: Path) -> None:
    finding = diagnosed(
        tmp_path,
        lambda rank, at: [*work(at + 10, 500), kineto.annotation("gc: generation 2", at + 520, 100 + 50 * rank)],
        ranks=2,
    )["gc_pauses"]
    assert finding.severity == "warning"
    assert finding.saving_ns == 150_000
    assert [each.value for each in finding.evidence] == [150_000, 150_000, 4, 150_000, 1_000_000]


@pytest.mark.parametrize("names", [["Python GC"], ["Python GC", "gc: generation 2"]])
def test_fires_for_collections_that_torch_records(tmp_path: Path, names: list[str]) -> None:
    """Once: where rankscope's ranges are recorded too, these alone count."""

    def make(_: int, at: float) -> list[kineto.Event]:
        makers = {"Python GC": kineto.frame, "gc: generation 2": kineto.annotation}
        return [*work(at + 10, 500), *(makers[name](name, at + 520, 100) for name in names)]

    finding = diagnosed(tmp_path, make)["gc_pauses"]
    assert finding.saving_ns == 100_000
    assert [each.value for each in finding.evidence] == [100_000, 100_000, 4, 100_000, 1_000_000]


def test_counts_only_those_in_steps(tmp_path: Path) -> None:
    def make(_: int, at: float) -> list[kineto.Event]:
        after_the_last_step = [kineto.annotation("gc: generation 2", 10_000, 5_000)] if at == 0 else []
        return [*work(at + 10, 500), kineto.annotation("gc: generation 2", at + 520, 100), *after_the_last_step]

    assert diagnosed(tmp_path, make)["gc_pauses"].saving_ns == 100_000


def test_does_not_fire_where_they_are_short(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda _, at: [*work(at + 10, 500), kineto.annotation("gc: generation 1", at + 520, 5)])
    assert "gc_pauses" not in found


def test_does_not_fire_where_the_device_works_on(tmp_path: Path) -> None:
    """The host launched 900 µs of work before it collects for 300."""
    found = diagnosed(
        tmp_path, lambda _, at: [*work(at + 10, 900), kineto.annotation("gc: generation 2", at + 20, 300)]
    )
    assert "gc_pauses" not in found
