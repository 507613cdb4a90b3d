"""A job whose log has all ranks and whose traces have one: the log decides, and nothing says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.answers.watch.jobs import MS, SimulatedJob
from tests.kineto import small_step, trace, write

import rankscope
from rankscope.engine.pipeline import Run


def one_recorded(folder: Path, job: SimulatedJob) -> Run:
    folder.mkdir()
    write(folder / "rank0_iter10_10.trace.json", trace(small_step(number=10), rank=0, world_size=job.ranks))
    job.write(folder)
    return rankscope.open(folder, executor="serial")


def slow_backward(rank: int, _step: int, place: str) -> int:
    return 40 * MS if rank == 1 and place == "backward" else 0


def test_the_log_names_a_rank_without_a_trace(tmp_path: Path) -> None:
    diagnosis = one_recorded(tmp_path / "run", SimulatedJob(ranks=2, slow=slow_backward)).diagnosis()
    found = diagnosis.findings[0]
    assert found.title.startswith("Rank 1 delays the other ranks: it takes longer in backward")
    assert found.ranks == diagnosis.stragglers.ranks == (1,)
    # What only traces tell is left out, not given as nothing.
    assert not any("lateness" in each.name or "waited" in each.name for each in found.evidence)
    assert [each.what for each in diagnosis.not_judged if "Waiting" in each.what] == ["Waiting in communication"]
    assert not any("delays the others" in each.what for each in diagnosis.not_judged)


@pytest.mark.parametrize(
    ("slow", "state", "says"),
    [
        (lambda *_: 0, "none", "No rank delays the others by more than"),
        (lambda rank, step, _: 3000 * MS * ((step * 7919 + rank * 104729) % 5 == 0), "too-few-steps", "Not known"),
    ],
    ids=["equal", "noisy"],
)
def test_the_log_rules_out_a_delay_or_cannot(
    tmp_path: Path, slow: Callable[[int, int, str], int], state: str, says: str
) -> None:
    diagnosis = one_recorded(tmp_path / "run", SimulatedJob(ranks=2, slow=slow)).diagnosis()
    assert diagnosis.stragglers.state == state
    assert diagnosis.stragglers.sentence.text.startswith(says)
