"""Counters: queue depth by hand, and thinning that loses no peak."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from tests.kineto import kernel, launch, memory, trace, write

from rankscope.engine.pipeline import open_run
from rankscope.engine.pipeline.clock import clock_of
from rankscope.show.timeline.column_file import read_column_file
from rankscope.show.timeline.counters import Counters, Curve, curves_of


def curves(tmp_path: Path, events: list[dict[str, object]]) -> dict[str, Curve]:
    run = open_run(write(tmp_path / "rank0.json", trace(events, rank=0)), executor="serial").load()
    return {curve.name: curve for curve in curves_of(run.loaded.ranks[0], clock_of(run).ranks[0])}


def test_the_queue_is_what_is_launched_and_has_not_started(tmp_path: Path) -> None:
    events = [
        event
        for number, (at, start) in enumerate(((0, 10), (2, 20), (4, 30), (35, 35)))
        for event in (launch(at, 1, correlation=number + 1), kernel("k", start, 5, correlation=number + 1))
    ]
    queue = curves(tmp_path, events)["queue"]
    steps = list(zip(queue.at.tolist(), queue.value.tolist(), strict=True))
    # The last starts when it is launched: it never waits.
    assert steps == [(0, 1), (2000, 2), (4000, 3), (10_000, 2), (20_000, 1), (30_000, 0), (35_000, 0)]


def test_a_start_before_its_launch_counts_at_the_launch(tmp_path: Path) -> None:
    """Clocks of host and device differ by a little: the queue is never below nothing."""
    queue = curves(tmp_path, [launch(10, 1, correlation=1), kernel("k", 8, 5, correlation=1)])["queue"]
    assert queue.value.min() >= 0
    assert queue.value[-1] == 0


def test_memory_by_device(tmp_path: Path) -> None:
    found = curves(
        tmp_path,
        [
            kernel("k", 0, 1),
            memory(1, 100, allocated=100, reserved=1000),
            memory(2, -100, allocated=0, reserved=1000),
            memory(3, 7, allocated=7, reserved=0, device=-1, device_type=0),
            memory(4, 9, allocated=9, reserved=16, device=2, device_type=15),
        ],
    )
    assert found["memory:cuda:0:allocated"].value.tolist() == [100, 0]
    assert found["memory:cuda:0:allocated"].at.tolist() == [1000, 2000]
    assert found["memory:cpu:allocated"].value.tolist() == [7]
    assert found["memory:hpu:2:allocated"].value.tolist() == [9]


@pytest.mark.parametrize("seed", range(5))
def test_fewer_points_keep_every_peak(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random_ = random.Random(seed)
    at = np.cumsum([random_.randrange(1, 50) for _ in range(3000)]).astype(np.int64)
    value = np.array([random_.randrange(1000) for _ in at], dtype=np.int64)
    monkeypatch.setattr("rankscope.show.timeline.counters.curves_of", lambda *rest: [Curve("c", "bytes", at, value)])
    counters = Counters()
    for _ in range(20):
        low, high = sorted(random_.randrange(int(at[-1])) for _ in range(2))
        head, columns = read_column_file(counters.window([], None, low, high + 1, 40))  # type: ignore[arg-type]
        inside = [int(v) for t, v in zip(at, value, strict=True) if low <= t <= high]
        before = [int(v) for t, v in zip(at, value, strict=True) if t < low][-1:]
        assert len(columns["at_ns"]) <= max(41, 40)
        if inside or before:
            assert columns["high"].max() == max(inside + before)
            assert columns["low"].min() == min(inside + before)
        assert (np.diff(columns["at_ns"]) > 0).all()
        assert head["counters"][0]["high"] == value.max()
