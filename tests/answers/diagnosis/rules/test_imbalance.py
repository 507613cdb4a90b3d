"""Some ranks have more to compute than others."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.answers.diagnosis.rules.steps import diagnosed, work
from tests.kineto import Event, annotation, dumps, op, step, trace, write

import rankscope


def test_fires_where_one_has_more(tmp_path: Path) -> None:
    finding = diagnosed(tmp_path, lambda rank, at: work(at + 10, 500 + 200 * (rank == 2)), ranks=4)["imbalance"]
    assert finding.severity == "warning"
    assert finding.ranks == (2,)
    # 700 µs where the mean is 550.
    assert finding.saving_ns == 150_000


def test_does_not_fire_where_all_have_as_much(tmp_path: Path) -> None:
    assert "imbalance" not in diagnosed(tmp_path, lambda rank, at: work(at + 10, 500 + rank), ranks=4)


def test_does_not_fire_where_they_take_turns(tmp_path: Path) -> None:
    found = diagnosed(
        tmp_path, lambda rank, at: work(at + 10, 500 + 200 * (round(at / 1000) % 4 == rank)), ranks=4, steps=8
    )
    assert "imbalance" not in found


def test_on_the_cpu_operators_that_take_longer_are_no_imbalance(tmp_path: Path) -> None:
    """The same operators: a shared core, or a slower one."""
    assert "imbalance" not in diagnosed(tmp_path, lambda rank, at: [op("aten::mm", at + 10, 500 + 200 * rank)], ranks=2)


@pytest.mark.parametrize("cut", [2, 3])
def test_ranks_whose_file_is_cut_are_not_compared(tmp_path: Path, cut: int) -> None:
    """Rank 2 computes most; rank 3's file has lost its last steps. Neither is compared if its file is cut."""
    for rank in range(4):
        events = [e for n in range(5) for e in (step(n, 1000 * n, 1000), *work(1000 * n + 10, 500 + 200 * (rank == 2)))]
        text = dumps(trace(events, rank=rank, world_size=4))
        write(tmp_path / f"rank{rank}.json", text[: int(0.9 * len(text))] if rank == cut else text)
    run = rankscope.open(tmp_path, executor="serial")
    found = {finding.id: finding for finding in run.diagnose()}
    assert "trace-truncated" in found
    if cut == 2:
        assert "imbalance" not in found
    else:
        # 700 µs where the mean of the three others is 567.
        assert found["imbalance"].saving_ns == 133_333
    assert f"on rank {cut}" not in str(run.analyze("step_time")["step_time"].headline)


def test_nothing_is_compared_where_every_file_is_cut(tmp_path: Path) -> None:
    for rank in range(4):
        events = [e for n in range(5) for e in (step(n, 1000 * n, 1000), *work(1000 * n + 10, 500 + 200 * (rank == 2)))]
        text = dumps(trace(events, rank=rank, world_size=4))
        write(tmp_path / f"rank{rank}.json", text[: int(0.95 * len(text))])
    run = rankscope.open(tmp_path, executor="serial")
    assert "imbalance" not in {finding.id for finding in run.diagnose()}
    assert run.overview()["slowest_rank"][0] is None


@pytest.mark.parametrize(
    ("own", "fires"), [((600, 640, 690, 890, 610, 880), False), ((690, 700, 690, 710, 700, 690), True)]
)
def test_on_the_cpu_a_late_rank_is_named_once(tmp_path: Path, own: tuple[int, ...], fires: bool) -> None:
    """Rank 1 computes longest, but once; the steps vary much, or hardly."""
    peer = (580, 310, 400, 560, 340, 940) if not fires else (500, 490, 500, 510, 500, 490)

    def make(rank: int, at: float) -> list[Event]:
        number = round(at / 1000)
        work, later = (peer, own)[rank][number], max(peer[number], own[number])
        return [op("aten::mm", at + 10, work), annotation("gloo:all_reduce", at + 15 + work, later + 40 - work, tid=9)]

    found = diagnosed(tmp_path, make, ranks=2, steps=6)
    assert ("straggler" in found) is fires
    assert "imbalance" not in found
