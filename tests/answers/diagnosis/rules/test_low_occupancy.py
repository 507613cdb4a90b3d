"""Kernels with too few blocks to fill the device."""

from __future__ import annotations

from pathlib import Path

from tests import kineto
from tests.answers.diagnosis.rules.steps import diagnosed, work


def make(at: float, blocks: float, dur: float = 800) -> list[kineto.Event]:
    return work(at + 10, dur, "narrow_gemm", **{"blocks per SM": blocks, "est. achieved occupancy %": 10})


def test_fires_where_there_are_few_blocks(tmp_path: Path) -> None:
    finding = diagnosed(tmp_path, lambda _, at: make(at, 0.25))["low_occupancy"]
    assert finding.severity == "warning"
    assert finding.saving_ns == 600_000
    assert "narrow_gemm: 0.25 blocks per SM" in finding.evidence[1].name


def test_does_not_fire_where_another_kernel_has_the_other_multiprocessors(tmp_path: Path) -> None:
    """112 of 132 multiprocessors, and 20 for a kernel on another stream at the same time."""

    def beside(_: int, at: float) -> list[kineto.Event]:
        return [*make(at, 112 / 132), *work(at + 10, 800, "narrow_too", stream=8, **{"blocks per SM": 20 / 132})]

    assert "low_occupancy" not in diagnosed(tmp_path, beside)


def test_counts_the_time_in_which_nothing_else_runs(tmp_path: Path) -> None:
    """800 µs with a quarter of the multiprocessors, 300 of them beside a copy and a kernel: 500 · 0.75."""

    def beside(_: int, at: float) -> list[kineto.Event]:
        return [
            *make(at, 0.25),
            *work(at + 500, 200, "wide", stream=8, **{"blocks per SM": 4}),
            kineto.memcpy(at + 650, 150, stream=9),
        ]

    finding = diagnosed(tmp_path, beside)["low_occupancy"]
    assert finding.saving_ns == 375_000
    assert finding.evidence[0].value == 375_000


def test_does_not_fire_where_there_are_enough(tmp_path: Path) -> None:
    assert "low_occupancy" not in diagnosed(tmp_path, lambda _, at: make(at, 1.5))


def test_does_not_fire_where_the_file_does_not_say(tmp_path: Path) -> None:
    assert "low_occupancy" not in diagnosed(tmp_path, lambda _, at: work(at + 10, 800))
