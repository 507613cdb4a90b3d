"""What a late rank is said to do is what it does, whatever is around it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import kineto

import rankscope

STEP = 12_000.0


def rank_events(rank: int, *, extra: float, asleep: float) -> list[kineto.Event]:
    """20 steps with 3 ms of silence at their ends; rank 1 has an operator, or sleeps, before its product."""
    events: list[kineto.Event] = []
    for number in range(20):
        at, one = STEP * number, 10 * number + 1
        late = extra + asleep if rank == 1 else 0.0
        begin = at + 30 + late
        events += [
            kineto.step(number, at, STEP),
            *([kineto.op("my::check", at + 20 + asleep, max(extra, 5))] if rank == 1 else []),
            kineto.op("aten::mm", begin, 8, external=one),
            kineto.launch(begin + 1, 4, correlation=one, external=one),
            kineto.kernel("gemm", begin + 20, 5000, correlation=one, external=one),
            kineto.op("c10d::allreduce_", begin + 30, 8, external=one + 1),
            kineto.launch(begin + 31, 4, correlation=one + 1, external=one + 1),
            kineto.collective(
                begin + 5020, at + 8900 - begin - 5020, correlation=one + 1, external=one + 1, sequence=number
            ),
            kineto.launch(begin + 70, at + 8910 - begin - 70, correlation=one + 2, name="cudaDeviceSynchronize"),
            kineto.op("aten::mm", at + 8950, 8, external=one + 3),
            kineto.launch(at + 8951, 4, correlation=one + 3, external=one + 3),
            kineto.kernel("gemm", at + 9000, 2900, correlation=one + 3, external=one + 3),
        ]
    return events


@pytest.mark.parametrize(
    ("extra", "asleep", "said"),
    [(3000, 0, "my::check"), (0, 3000, "nothing is recorded between aten::mm and my::check")],
)
def test_silence_that_all_ranks_have_is_no_cause(tmp_path: Path, extra: float, asleep: float, said: str) -> None:
    """The silence at the end of a step is before another operator on the rank that has one more."""
    folder = kineto.write_ranks(tmp_path, {rank: rank_events(rank, extra=extra, asleep=asleep) for rank in range(2)})
    (late,) = [each for each in rankscope.open(folder, executor="serial").diagnose() if each.id == "straggler"]
    assert late.ranks == (1,)
    assert said in late.title, late.title
    assert ("nothing is recorded" in late.title) is bool(asleep), late.title
