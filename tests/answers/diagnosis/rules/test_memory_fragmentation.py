"""The allocator holds memory that nobody can use."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from tests.answers.diagnosis.rules.test_memory_limit import findings, peak

from rankscope.answers.diagnosis.rules.memory_fragmentation import find
from rankscope.results import Inputs, Options


def test_fires_where_much_of_a_full_device_is_not_in_use(tmp_path: Path) -> None:
    finding = findings(tmp_path, peak(0.6, 0.95))["memory_fragmentation"]
    assert finding.severity == "info"
    assert "37 %" in finding.title


def snapshot(
    largest: int, failed: int = 0, *, unit: int = 1_000_000, cache: int = 0, peak: int | None = None
) -> Inputs:
    row = {
        "rank": 0, "reserved": 1000 * unit, "free": 400 * unit, "largest_free": largest * unit,
        "idle_segments": cache * unit, "scattered": (400 - cache) * unit, "out_of_memory": failed,
        "peak_allocated": None if peak is None else peak * unit,
    }  # fmt: skip
    return Inputs(Options(), (), {"memory_snapshot": pl.DataFrame([row])})


def test_fires_for_a_snapshot() -> None:
    assert find(snapshot(50))[0].severity == "info"
    assert find(snapshot(50, failed=1))[0].severity == "warning"
    evidence = {each.name: each.value for each in find(snapshot(50))[0].evidence}
    assert evidence["largest free block"] == 50_000_000
    # A snapshot is there.
    assert "snapshot" not in find(snapshot(50))[0].advice


def test_does_not_fire_where_what_is_free_is_one_block() -> None:
    assert not find(snapshot(390))


def test_does_not_fire_about_whole_segments() -> None:
    """Cache: the allocator gives it back."""
    assert find(snapshot(50, cache=200))
    assert not find(snapshot(50, cache=300))


def test_does_not_fire_where_it_was_in_use_at_the_peak() -> None:
    assert find(snapshot(50, peak=700))
    assert not find(snapshot(50, peak=980))


def test_does_not_fire_where_a_snapshot_clears_what_the_trace_suspects(tmp_path: Path) -> None:
    memory = pl.DataFrame([{"rank": 0, "total_memory": 1000, "unused_reserved": 0.4, "peak_reserved": 950}])
    assert find(Inputs(Options(), (), {"memory": memory}))
    assert not find(
        Inputs(Options(), (), {"memory": memory, "memory_snapshot": snapshot(390).results["memory_snapshot"]})
    )


def test_does_not_fire_for_a_few_segments() -> None:
    assert not find(snapshot(50, unit=100_000))


def test_does_not_fire_where_the_device_has_room(tmp_path: Path) -> None:
    assert "memory_fragmentation" not in findings(tmp_path, peak(0.2, 0.4))
