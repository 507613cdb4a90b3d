"""Kernels so short that launching them takes longer than running them."""

from __future__ import annotations

from pathlib import Path

from tests import kineto
from tests.rules.steps import diagnosed, work


def many(at: float, every: float, dur: float) -> list[kineto.Event]:
    return [event for n in range(40) for event in work(at + 10 + every * n, dur, "elementwise")]


def test_speaks_where_the_device_idles_between_them(tmp_path: Path) -> None:
    finding = diagnosed(tmp_path, lambda _, at: many(at, 20, 3))["small_kernels"]
    assert finding.severity == "warning"
    assert finding.evidence[0].value == 160
    # 40 kernels of 3 µs in a step of 1000: idle for 880, all kernels are short.
    assert finding.saving_ns == 880_000


def test_is_silent_where_they_follow_one_another(tmp_path: Path) -> None:
    assert "small_kernels" not in diagnosed(tmp_path, lambda _, at: [*many(at - 8, 3, 3), *work(at + 122, 876)])


def test_is_silent_where_kernels_are_long(tmp_path: Path) -> None:
    assert "small_kernels" not in diagnosed(tmp_path, lambda _, at: many(at, 24, 20))
