"""A device's memory is nearly full."""

from __future__ import annotations

from pathlib import Path

from tests import kineto

import rankscope
from rankscope.results import Finding

GIB = 1 << 30
SIZE = 16 * GIB


def findings(folder: Path, *events: kineto.Event, steps: int = 4) -> dict[str, Finding]:
    """What is found in a run of steps of 1 ms with memory events, on a device of 16 GiB."""
    made = [*(kineto.step(n, 1000 * n, 1000) for n in range(steps)), kineto.kernel("gemm", 10, 900), *events]
    device = {"id": 0, "name": "Some GPU", "totalGlobalMem": SIZE}
    run = rankscope.open(kineto.write_ranks(folder, {0: made}, deviceProperties=[device]), executor="serial")
    return {finding.id: finding for finding in run.diagnosis().stated}


def peak(share: float, reserved: float = 1.0) -> kineto.Event:
    return kineto.memory(500, GIB, allocated=round(share * SIZE), reserved=round(reserved * SIZE))


def test_fires_where_it_is_nearly_full(tmp_path: Path) -> None:
    finding = findings(tmp_path, peak(0.97))["memory_limit"]
    assert finding.severity == "warning"
    assert finding.saving_ns is None
    assert finding.steps == (0,)
    assert "97 %" in finding.title


def test_fires_as_info_before(tmp_path: Path) -> None:
    assert findings(tmp_path, peak(0.88))["memory_limit"].severity == "info"


def test_does_not_fire_where_there_is_room(tmp_path: Path) -> None:
    assert "memory_limit" not in findings(tmp_path, peak(0.6))
