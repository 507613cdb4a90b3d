"""The device waits for the host to launch."""

from __future__ import annotations

from pathlib import Path

from tests import kineto
from tests.diagnosis.rules.steps import diagnosed, work


def make(at: float, gap: float) -> list[kineto.Event]:
    """Two kernels of 300 µs, `gap` µs between them, in which the host is in an operator."""
    return [
        *work(at + 10, 300),
        kineto.op("my::slow", at + 20, 285 + gap),
        *work(at + 310 + gap, 300),
    ]


def test_speaks_where_the_host_is_late(tmp_path: Path) -> None:
    finding = diagnosed(tmp_path, lambda _, at: make(at, 200))["launch_bound"]
    assert finding.severity == "warning"
    # Between steps the host records nothing for longer than a host that launches would, but for the launch of 3 µs
    # itself, in three of four steps.
    assert finding.saving_ns == 200_000 + 3 * 3_000 / 4
    assert finding.evidence[-1].value == "my::slow"


def test_is_silent_where_launches_are_early(tmp_path: Path) -> None:
    """The same gap, but the second kernel was launched long before it began: it waited for something else."""

    def early(_: int, at: float) -> list[kineto.Event]:
        return [
            *work(at + 10, 300),
            kineto.op("my::slow", at + 20, 485),
            kineto.launch(at + 30, 3, correlation=round(at) + 3),
            kineto.kernel("gemm", at + 510, 300, correlation=round(at) + 3),
        ]

    assert "launch_bound" not in diagnosed(tmp_path, early)


def test_is_silent_about_data_loading(tmp_path: Path) -> None:
    def loads(_: int, at: float) -> list[kineto.Event]:
        return [*work(at + 10, 300), kineto.loading(at + 310, 195), *work(at + 510, 300)]

    assert "launch_bound" not in diagnosed(tmp_path, loads)
