"""The allocator frees and allocates device memory in the middle of steps."""

from __future__ import annotations

from pathlib import Path

from tests import kineto
from tests.diagnosis.rules.test_memory_limit import findings, peak


def calls(steps: int) -> list[kineto.Event]:
    return [
        kineto.launch(1000 * step + at, 50, name=name, correlation=900 + 10 * step + at)
        for step in range(steps)
        for at, name in ((100, "cudaFree"), (200, "cudaMalloc"))
    ]


def test_speaks_where_it_happens_in_every_step(tmp_path: Path) -> None:
    finding = findings(tmp_path, peak(0.5), *calls(4))["memory_retries"]
    assert finding.severity == "warning"
    assert finding.evidence[0].value == 4


def test_is_silent_about_a_single_one(tmp_path: Path) -> None:
    assert "memory_retries" not in findings(tmp_path, peak(0.5), *calls(1))
