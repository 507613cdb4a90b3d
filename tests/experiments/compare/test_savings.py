"""What of a difference is what: simulated jobs with a planted fault and without, and what cannot be told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests import kineto
from tests.analyses.test_whatif import events

import rankscope
from rankscope.experiments.compare import Diff
from rankscope.experiments.simulate import Fault, Job, simulate, simulate_timing
from rankscope.show.report.diff_table import verdict_of

JOB = Job(8, 8, seed=5)


def changes(diff: Diff) -> dict[str, float]:
    return dict(diff.section("savings").select("name", "change").iter_rows())


def opened(folder: Path, job: Job) -> rankscope.Run:
    simulate(folder, job, costs=False)
    return rankscope.open(folder, executor="serial")


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (Fault("slow_device", (2,), magnitude=0.15), "compute of rank 2 like its peers"),
        (Fault("data_loading", (1,), magnitude=0.2), "data loading of rank 1 like its peers"),
    ],
    ids=lambda value: value.kind if isinstance(value, Fault) else "",
)
def test_a_planted_fault_is_the_difference(tmp_path: Path, fault: Fault, named: str) -> None:
    faulty = replace(JOB, faults=(fault,))
    before, after = (float(np.mean(simulate_timing(job, costs=False).step_ns[1:])) for job in (JOB, faulty))
    a, b = opened(tmp_path / "a", JOB), opened(tmp_path / "b", faulty)
    diff = rankscope.diff(a, b)
    found = changes(diff)
    assert next(iter(found)) == named  # the largest is first
    assert found[named] == pytest.approx(after - before, rel=0.05)
    # From one step to the other.
    replayed = [run.replayed() for run in (a, b)]
    assert all(run is not None for run in replayed)
    assert sum(found.values()) == pytest.approx(replayed[1].step_ns - replayed[0].step_ns, abs=10)  # type: ignore[union-attr]
    rows = diff.section("savings")
    assert rows["a"].sum() == pytest.approx(replayed[0].step_ns, abs=10)  # type: ignore[union-attr]
    assert named in verdict_of(diff).partition("By the replay:")[2]
    # The other way round it is saved.
    back = changes(rankscope.diff(b, a))
    assert back == {name: pytest.approx(-change, abs=1) for name, change in found.items()}


def test_without_a_difference_there_is_none(tmp_path: Path) -> None:
    run = opened(tmp_path / "a", JOB)
    assert set(changes(rankscope.diff(run, run)).values()) == {0.0}


def test_the_reason_why_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = kineto.write_ranks(tmp_path / "ranks", {0: events(0, 6), 1: events(100, 6)})
    run = rankscope.open(folder, executor="serial")
    within = rankscope.diff(run, ranks=[0, 1])
    assert (changes(within), within.not_judged) == ({}, "both are ranks of one run")
    monkeypatch.setattr("rankscope.whatif.step_times.LARGEST_ERROR", -1.0)
    diff = rankscope.diff(run, run)
    assert (changes(diff), diff.to_json()["savings_not_judged"]) == ({}, "the replay of A explains 100% of its step")
    assert "By cause it is not judged: the replay of A explains 100% of its step." in verdict_of(diff)
