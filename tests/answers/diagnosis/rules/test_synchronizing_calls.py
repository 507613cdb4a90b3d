"""The host waits for the device in the middle of a step."""

from __future__ import annotations

from pathlib import Path

from tests import kineto
from tests.answers.diagnosis.rules.steps import diagnosed, work


def make(at: float, gap: float) -> list[kineto.Event]:
    """Two kernels, `gap` µs between them; the host reads the loss after the first."""
    return [
        *work(at + 10, 300),
        kineto.op("aten::item", at + 20, 295),
        kineto.launch(at + 25, 287, name="cudaStreamSynchronize"),
        *work(at + 310 + gap, 300),
    ]


def test_fires_where_the_device_runs_dry(tmp_path: Path) -> None:
    finding = diagnosed(tmp_path, lambda _, at: make(at, 200))["synchronizing_calls"]
    assert finding.severity == "warning"
    assert finding.saving_ns == 200_000
    assert "cudaStreamSynchronize from aten::item" in finding.evidence[1].name


def test_does_not_fire_where_the_device_has_more_to_do(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda _, at: [*make(at, 200), *work(at + 10, 800, stream=9)])
    assert "synchronizing_calls" not in found
