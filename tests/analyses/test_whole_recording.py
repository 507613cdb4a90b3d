"""Analyses whose figures include what is recorded outside of steps say so, and the others do not include it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import kineto

import rankscope
from rankscope.analyses import all_analyses
from rankscope.engine.pipeline import Run
from rankscope.results.analysis import ENTIRE_RECORDING

OTHERWISE = {
    "account": "counts the events of files",
    "work": "has a row for each step",
    "idle_by_step": "of a first step: the device was idle since what ran before it",
    "evidence_events": "the same",
    "host_items": "with stretches between steps, by the step that follows",
    "segments": "what is replayed: launches and waits between steps too",
}


def once(at: float, number: int) -> list[kineto.Event]:
    """An operator and its kernel."""
    return [
        kineto.op("aten::mm", at, 200, external=number),
        kineto.launch(at + 20, 20, correlation=number, external=number),
        kineto.kernel("gemm", at + 100, 300, correlation=number, external=number),
    ]


def run_of(folder: Path, events: list[kineto.Event]) -> Run:
    for rank in range(2):
        kineto.write(folder / f"rank{rank}.json", kineto.trace(events, rank=rank, world_size=2))
    return rankscope.open(folder, executor="serial")


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Run, Run]:
    """Four steps, alone and between what a set-up and an evaluation do."""
    steps = [event for n in range(1, 5) for event in (kineto.step(n, 1000 * n, 1000), *once(1000 * n + 5, n))]
    around = [*once(100, 90), *once(5200, 91), kineto.event("evaluate", 5100, 600, cat="user_annotation")]
    around.append(kineto.memcpy(5800, 50, size=1000))
    (tmp_path / "steps").mkdir()
    (tmp_path / "more").mkdir()
    return run_of(tmp_path / "steps", steps), run_of(tmp_path / "more", steps + around)


@pytest.mark.parametrize("name", sorted(all_analyses()))
def test_figures_of_steps_are_without_the_rest(name: str, runs: tuple[Run, Run]) -> None:
    steps, more = (run.analyze(name)[name] for run in runs)
    if more.frame.is_empty() or name in OTHERWISE:
        return
    assert steps.frame.equals(more.frame) is not more.analysis.whole_recording
    assert (ENTIRE_RECORDING in more.analysis.title) is more.analysis.whole_recording
