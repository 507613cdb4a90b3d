"""Which ranks are late, from local times by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rankscope.answers.watch.judgment import judge
from rankscope.answers.watch.local_times import LocalTimes, local_times
from rankscope.answers.watch.log import WatchLogs

from .jobs import MS, SimulatedJob

STEP = 100 * MS


def busy_machine(late: float, *, known: bool, seed: int = 7, steps: int = 50) -> LocalTimes:
    """Two ranks whose threads wait for cores by turns, as long as they run on average; rank 1 runs for longer.

    Args:
        late: by how much, of a step.
        known: whether the log has for how long they waited.
    """
    draw = np.random.default_rng(seed)
    runs = draw.normal(0.5 * STEP, 0.01 * STEP, (2, steps))
    runs[1] += late * STEP
    ready = draw.exponential(0.5 * STEP, (2, steps))
    local = (runs + ready).astype(np.int64)
    both = np.broadcast_to(local.max(axis=0), local.shape)
    waits = ready.astype(np.int64) if known else None
    return LocalTimes((0, 1), np.arange(1, steps + 1), both, local, {}, "collectives", (), False, ready_ns=waits)


def named(times: LocalTimes) -> list[int]:
    return [each.ranks[0] for each in judge(times).stragglers if not each.once]


def test_waiting_for_cores_hides_no_late_rank() -> None:
    seeds = range(20)
    hidden = sum(named(busy_machine(0.15, known=False, seed=seed)) == [1] for seed in seeds)
    shown = sum(named(busy_machine(0.15, known=True, seed=seed)) == [1] for seed in seeds)
    assert hidden <= 5
    assert shown >= 18
    assert not any(named(busy_machine(0.0, known=True, seed=seed)) for seed in seeds)


@pytest.mark.parametrize(
    ("waits", "steps", "late"),
    [(0.2, 50, False), (0.4, 50, True), (0.35, 15, False), (0.6, 15, True), (0.1, 200, False), (0.2, 200, True)],
)
def test_equal_ranks_get_cores_that_differ(waits: float, steps: int, late: bool) -> None:
    """One that waits for a core a little longer, in some steps, is equal; by other programs it is longer, or lasts."""
    draw = np.random.default_rng(3)
    runs, ready = (draw.normal(each * STEP, 0.01 * STEP, (2, steps)) for each in (0.5, 0.2))
    ready[1] += waits * STEP
    local = (runs + ready).astype(np.int64)
    both = np.broadcast_to(local.max(axis=0), local.shape)
    times = LocalTimes(
        (0, 1), np.arange(1, steps + 1), both, local, {}, "collectives", (), False, ready_ns=ready.astype(np.int64)
    )
    assert named(times) == ([1] if late else [])


@pytest.mark.parametrize("readings", [True, False])
def test_what_of_the_local_time_a_thread_waited(tmp_path: Path, readings: bool) -> None:
    """Of the step before its backward pass and in it, and of the step before after that."""
    SimulatedJob(ranks=2).write(tmp_path)
    for path in (tmp_path / "watch").iterdir():
        lines = []
        for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            if "step" in line and (readings or line["step"] != 30):
                step = line["step"]
                line |= {"running_us": [1000, 2000, 500], "ready_us": [step, 100, 1000 + step]}
            lines.append(json.dumps(line))
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = local_times(WatchLogs(tmp_path).latest(), 1000)
    assert found is not None
    if not readings:
        assert found.ready_ns is None
        return
    assert found.ready_ns is not None
    assert found.ready_ns[1].tolist() == [1000 * (step + 100 + 1000 + step - 1) for step in found.steps.tolist()]
