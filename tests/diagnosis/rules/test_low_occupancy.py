"""Kernels with too few blocks to fill the device."""

from __future__ import annotations

from pathlib import Path

from tests import kineto
from tests.diagnosis.rules.steps import diagnosed, work


def make(at: float, blocks: float, dur: float = 800) -> list[kineto.Event]:
    return work(at + 10, dur, "narrow_gemm", **{"blocks per SM": blocks, "est. achieved occupancy %": 10})


def test_speaks_where_there_are_few_blocks(tmp_path: Path) -> None:
    finding = diagnosed(tmp_path, lambda _, at: make(at, 0.25))["low_occupancy"]
    assert finding.severity == "warning"
    assert finding.saving_ns == 600_000
    assert "narrow_gemm: 0.25 blocks per SM" in finding.evidence[1].name


def test_is_silent_where_there_are_enough(tmp_path: Path) -> None:
    assert "low_occupancy" not in diagnosed(tmp_path, lambda _, at: make(at, 1.5))


def test_is_silent_where_the_file_does_not_say(tmp_path: Path) -> None:
    assert "low_occupancy" not in diagnosed(tmp_path, lambda _, at: work(at + 10, 800))
