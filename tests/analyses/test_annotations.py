"""annotations: host and device time of ranges by hand, whose they are, and what compiled graphs swallow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests import kineto

import rankscope
from rankscope.engine.pipeline import Run

US = 1000


def written(folder: Path, events: list[kineto.Event]) -> Run:
    return rankscope.open(kineto.write(folder / "r.json", kineto.trace(events, rank=0)), executor="serial")


def launched(number: int, at: float, start: float, lasts: float, **where: Any) -> list[kineto.Event]:
    return [kineto.launch(at, 1, correlation=number, **where), kineto.kernel("k", start, lasts, correlation=number)]


def test_by_hand(tmp_path: Path) -> None:
    events = [
        kineto.step(1, 0, 200),
        kineto.annotation("forward", 10, 50),
        kineto.annotation("attention", 20, 20),
        *launched(1, 25, 30, 40),
        *launched(2, 45, 60, 20),
        kineto.annotation("backward", 100, 60),
        kineto.op("autograd::engine::evaluate_function: MmBackward0", 105, 30, tid=kineto.BACKWARD_THREAD),
        *launched(3, 110, 120, 30, tid=kineto.BACKWARD_THREAD),
        *launched(4, 170, 175, 5),
        kineto.annotation("Optimizer.step#SGD.step", 165, 20),
        kineto.annotation("forward", 30, 400, on_device=True, tid=7),
    ]
    rows = {row["name"]: row for row in written(tmp_path, events).annotations().to_dicts()}
    assert list(rows) == ["backward", "forward", "attention", "Optimizer.step#SGD.step"]
    assert {name: row["origin"] for name, row in rows.items() if row["origin"] == "torch"} == {
        "Optimizer.step#SGD.step": "torch"
    }
    forward = rows["forward"]
    assert (forward["calls"], forward["host_total_ns"], forward["host_self_ns"]) == (1, 50 * US, 30 * US)
    # [30, 70) and [60, 80)
    assert (forward["device_total_ns"], forward["device_events"]) == (50 * US, 2)
    assert (rows["attention"]["device_total_ns"], rows["attention"]["device_events"]) == (40 * US, 1)
    # Launched by autograd's thread while the main thread waited in the range.
    assert (rows["backward"]["device_total_ns"], rows["backward"]["device_events"]) == (30 * US, 1)
    assert rows["Optimizer.step#SGD.step"]["device_total_ns"] == 5 * US
    # Busy in [30, 80), [120, 150) and [175, 180).
    assert {name: row["device_idle_ns"] // US for name, row in rows.items()} == {
        "forward": 20, "attention": 10, "backward": 30, "Optimizer.step#SGD.step": 15,
    }  # fmt: skip


def test_by_step_and_nested_in_itself(tmp_path: Path) -> None:
    events = [kineto.step(1, 0, 100), kineto.step(2, 100, 100), kineto.annotation("outside", 300, 10)]
    for at in (10, 110, 150):
        events += [kineto.annotation("block", at, 30), kineto.annotation("block", at + 5, 10)]
    run = written(tmp_path, events)
    rows = run.annotations(by="step").select("step", "name", "calls", "host_total_ns", "steps").rows()
    assert rows == [(1, "block", 2, 30 * US, 1), (2, "block", 4, 60 * US, 1), (None, "outside", 1, 10 * US, 0)]
    whole = run.annotations().row(0, named=True)
    assert (whole["name"], whole["calls"], whole["steps"], whole["host_total_ns"]) == ("block", 6, 2, 90 * US)
    assert whole["device_total_ns"] is whole["device_events"] is None


@pytest.mark.parametrize("compiled", [True, False])
def test_ranges_that_a_compiled_graph_swallows(tmp_path: Path, compiled: bool) -> None:
    events = [kineto.step(1, 0, 100), kineto.annotation("attention", 10, 20), kineto.annotation("loss", 60, 10)]
    for number in (2, 3):
        events += [kineto.step(number, 100 * number, 100), kineto.annotation("loss", 100 * number + 60, 10)]
        if compiled:
            events.append(kineto.annotation("Torch-Compiled Region: 0/0", 100 * number + 10, 20))
    run = written(tmp_path, events)
    run.annotations()
    found = [finding for finding in run.findings if finding.id == "ranges-dropped-by-compile"]
    assert len(found) == int(compiled)
    if found:
        assert "attention" in found[0].title
        assert "loss" not in found[0].title
        assert found[0].evidence[1].value == 2


def test_a_range_in_every_compiled_step_is_not_lost(tmp_path: Path) -> None:
    events = [kineto.annotation("evaluate", 500, 20)]  # between the steps
    for number in (1, 2, 3):
        at = 100 * number
        events += [
            kineto.step(number, at, 90),
            kineto.annotation("loss", at + 5, 10),
            kineto.annotation("Torch-Compiled Region: 0/0", at + 30, 10),
        ]
    path = kineto.write(tmp_path / "r.json", kineto.trace(events, rank=0))
    for steps, by in ((None, "name"), (None, "step"), ((2, 2), "name")):
        run = rankscope.open(path, executor="serial", steps=steps)
        assert run.analyze("annotations", parameters={"annotations": {"by": by}})["annotations"].findings == ()


def test_real_torchrec_ranges(shared_traces: Path) -> None:
    rows = rankscope.open(shared_traces / "torchrec/rank2-sleeps-4ranks", executor="serial").annotations()
    named = {row["name"]: row for row in rows.to_dicts() if row["rank"] == 0}
    assert named["## forward ##"]["origin"] == "user"
    assert named["DistributedDataParallel.forward"]["origin"] == named["nccl:all_to_all"]["origin"] == "torch"
    # The range around the module has all of its kernels.
    assert named["## forward ##"]["device_events"] == named["DistributedDataParallel.forward"]["device_events"] > 0
