"""The allocator holds memory that nobody can use."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from tests.diagnosis.rules.test_memory_limit import findings, peak

from rankscope.diagnosis.rules.memory_fragmentation import find
from rankscope.results import Inputs, Options


def test_fires_where_much_of_a_full_device_is_not_in_use(tmp_path: Path) -> None:
    finding = findings(tmp_path, peak(0.6, 0.95))["memory_fragmentation"]
    assert finding.severity == "info"
    assert "37 %" in finding.title


def snapshot(largest: int, failed: int = 0, *, unit: int = 1_000_000) -> Inputs:
    row = {
        "rank": 0, "reserved": 1000 * unit, "free": 400 * unit, "largest_free": largest * unit,
        "fragmentation": 1 - largest / 400, "out_of_memory": failed,
    }  # fmt: skip
    return Inputs(Options(), (), {"memory_snapshot": pl.DataFrame([row])})


def test_fires_for_a_snapshot() -> None:
    assert find(snapshot(50))[0].severity == "info"
    assert find(snapshot(50, failed=1))[0].severity == "warning"
    assert find(snapshot(50))[0].evidence[1].value == 50_000_000


def test_does_not_fire_where_what_is_free_is_one_block() -> None:
    assert not find(snapshot(390))


def test_does_not_fire_for_a_few_segments() -> None:
    assert not find(snapshot(50, unit=100_000))


def test_does_not_fire_where_the_device_has_room(tmp_path: Path) -> None:
    assert "memory_fragmentation" not in findings(tmp_path, peak(0.2, 0.4))
