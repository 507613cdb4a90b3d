"""One step unlike the others: what it costs is no usual step's, and no saving of one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import kineto
from tests.diagnosis.rules.steps import STEP, diagnosed, work
from tests.diagnosis.rules.test_tensor_cores import A100, product

import rankscope

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


def test_few_blocks_in_one_step_save_no_more_than_a_usual_step_computes(tmp_path: Path) -> None:
    """200 µs of compute in each step, and a kernel of 8,000 µs with a quarter of the blocks in the last one."""

    def make(_: int, at: float) -> list[kineto.Event]:
        few = {"blocks per SM": 0.25, "est. achieved occupancy %": 10}
        return [*work(at + 10, 200), *(work(at + 300, 8000, "narrow", **few) if at == AT else [])]

    finding = diagnosed(tmp_path, make)["low_occupancy"]
    assert finding.saving_ns == 200_000  # the mean over steps is 1,500 µs


@pytest.mark.parametrize("number", ["float"])
def test_products_in_one_step_save_no_more_than_a_usual_step_computes(tmp_path: Path, number: str) -> None:
    events: list[kineto.Event] = []
    for n in range(4):
        events += [kineto.step(n, STEP * n, STEP), *work(STEP * n + 10, 200)]
    events += product(AT + 300, 8000, "ampere_sgemm_128x64_nn", number)
    run = rankscope.open(kineto.write_ranks(tmp_path, {0: events}, deviceProperties=[A100]), executor="serial")
    (finding,) = [each for each in run.diagnosis().stated if each.id == "tensor_cores"]
    assert finding.saving_ns == 200_000  # the mean over steps is 1,750 µs


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
