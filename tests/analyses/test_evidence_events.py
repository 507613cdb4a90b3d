"""The events at which lost time shows most, worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests import kineto

import rankscope

STEP = 1000.0


def events_of(folder: Path, events: list[kineto.Event]) -> dict[str, dict[str, Any]]:
    """The first event of each kind, in steps of one rank."""
    kineto.write(folder / "rank0.json", kineto.trace(events, rank=0, world_size=1))
    rows = rankscope.open(folder, executor="serial").analyze("evidence_events")["evidence_events"].frame
    found: dict[str, dict[str, Any]] = {}
    for row in rows.iter_rows(named=True):
        found.setdefault(row["kind"], row)
    return found


def test_the_largest_gap_before_a_late_launch(tmp_path: Path) -> None:
    """Gaps of 30 µs and 70 µs before late launches, and a longer one that the host did not cause."""
    events = [kineto.step(1, 0, STEP)]
    for number, (launch, start) in enumerate([(5, 10), (55, 60), (140, 150), (145, 390)]):
        events += [
            kineto.launch(launch, 3, correlation=number + 1),
            kineto.kernel(f"k{number}", start, 20, correlation=number + 1),
        ]
    # k0 ends at 30, k1 starts at 60; k1 ends at 80, k2 starts at 150; k3 was launched before k2 ended.
    found = events_of(tmp_path, events)["late_launch"]
    assert (found["name"], found["start_ns"], found["since_ns"]) == ("k2", 150_000, 80_000)
    assert (found["cost_ns"], found["total_ns"], found["step"]) == (70_000, 100_000, 1)


def test_a_wait_and_a_copy(tmp_path: Path) -> None:
    """The host waits for 100 µs, the device then has nothing for 40 µs; a pageable copy of 25 µs, 5 µs of it hidden."""
    events = [
        kineto.step(3, 0, STEP),
        kineto.launch(1, 2, correlation=1),
        kineto.kernel("gemm", 10, 90, correlation=1),
        kineto.launch(20, 85, name="cudaStreamSynchronize"),
        kineto.launch(135, 2, correlation=2),
        kineto.kernel("gemm", 140, 20, correlation=2),
        kineto.launch(136, 2, correlation=3),
        kineto.memcpy(155, 25, name="Memcpy HtoD (Pageable -> Device)", correlation=3, stream=8),
    ]
    found = events_of(tmp_path, events)
    assert (found["host_wait"]["cost_ns"], found["host_wait"]["start_ns"]) == (40_000, 20_000)
    assert (found["pageable_copy"]["cost_ns"], found["pageable_copy"]["end_ns"]) == (20_000, 180_000)
    assert found["compute"]["total_ns"] == 110_000
    assert {row["step"] for row in found.values()} == {3}


@pytest.mark.parametrize("kind", ["late_launch", "host_wait", "data_loading", "unfilled"])
def test_what_costs_nothing_is_not_listed(tmp_path: Path, kind: str) -> None:
    events = [
        kineto.step(1, 0, STEP),
        kineto.launch(1, 2, correlation=1),
        kineto.kernel("gemm", 10, 900, correlation=1),
    ]
    assert kind not in events_of(tmp_path, events)
