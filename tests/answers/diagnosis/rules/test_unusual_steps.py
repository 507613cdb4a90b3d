"""One step unlike the others: what it costs is no usual step's, and no saving of one."""

from __future__ import annotations

from pathlib import Path

from tests import kineto
from tests.answers.diagnosis.rules.steps import STEP, diagnosed, work

AT = 3 * STEP
"""The step that is long: the last of four, which has five times the length."""


def copy(at: float, dur: float) -> list[kineto.Event]:
    return [
        kineto.launch(at - 5, dur, name="cudaMemcpyAsync", correlation=999_999),
        kineto.memcpy(at, dur, name="Memcpy DtoH (Device -> Pageable)", correlation=999_999, size=1_000_000),
    ]


def test_the_copies_of_a_checkpoint_are_none_of_a_usual_step(tmp_path: Path) -> None:
    """5,000 µs in one of four steps of 1,000 µs: they were said to take 100 % of a step."""
    found = diagnosed(tmp_path, lambda _, at: [*work(at + 10, 900), *(copy(at + 920, 5000) if at == AT else [])])
    assert "pageable_copies" not in found


def test_a_synchronization_in_one_step_is_none_of_a_usual_step(tmp_path: Path) -> None:
    """The device is idle for 100 µs in each step, and for 5,000 µs after a call in the last one."""

    def make(_: int, at: float) -> list[kineto.Event]:
        waits = [kineto.launch(at + 905, 5000, name="cudaDeviceSynchronize")] if at == AT else []
        return [*work(at + 10, 900), *waits, *(work(at + 5920, 100) if at == AT else [])]

    assert "synchronizing_calls" not in diagnosed(tmp_path, make)


def test_messages_between_stages_are_no_synchronization_of_all_ranks(tmp_path: Path) -> None:
    def make(rank: int, at: float) -> list[kineto.Event]:
        events = work(at + 10, 300)
        for number in range(4):
            identity = round(at * 16) + 5 + number
            begin = at + 320 + 150 * number
            events += [
                kineto.launch(begin - 5, 3, correlation=identity),
                kineto.collective(
                    begin, 100, correlation=identity, ranks=(0, 1), elements=8, kind="recv" if rank else "send"
                ),
            ]
        return events

    assert "small_collectives" not in diagnosed(tmp_path, make, ranks=2)
