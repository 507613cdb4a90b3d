"""The device is idle while the host records no operator."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import kineto
from tests.answers.diagnosis.rules.steps import diagnosed, work


def operator(at: float, dur: float) -> list[kineto.Event]:
    """An operator that launches a kernel as long as itself."""
    return [kineto.op("aten::mm", at, dur), *work(at + 10, dur)]


def quiet(at: float) -> list[kineto.Event]:
    """Work, 300 µs without an event on the host, and work again until the step ends."""
    return [*operator(at + 10, 240), *operator(at + 560, 430)]


def steady(at: float) -> list[kineto.Event]:
    """Work throughout the step."""
    return [*operator(at + 10, 490), *operator(at + 505, 485)]


def test_fires_while_the_host_records_nothing(tmp_path: Path) -> None:
    finding = diagnosed(tmp_path, lambda _, at: quiet(at))["silent_host"]
    assert finding.severity == "warning"
    # From the end of the first kernel (10 µs after its operator) to the next operator.
    assert finding.saving_ns == 300_000
    assert finding.title == "The device waits for a host that records no operator for 30 % of a step"


@pytest.mark.parametrize("name", ["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "gc: generation 2"])
def test_time_with_a_rule_of_its_own_does_not_count(tmp_path: Path, name: str) -> None:
    found = diagnosed(tmp_path, lambda _, at: [*quiet(at), kineto.annotation(name, at + 250, 310)])
    assert "silent_host" not in found
    assert {"data_loading", "gc_pauses"} & set(found)


def test_does_not_fire_where_the_device_is_busy(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda _, at: [*quiet(at), *work(at + 15, 900, stream=9)])
    assert "silent_host" not in found


def test_does_not_fire_where_operators_are_not_recorded(tmp_path: Path) -> None:
    """Only the device's activity: between two launches the host may have run any number of operators."""
    found = diagnosed(tmp_path, lambda _, at: [*work(at + 20, 240), *work(at + 570, 240)])
    assert "silent_host" not in found


def test_some_steps_are_a_part_of_the_mean_step(tmp_path: Path) -> None:
    """Every fourth step logs for 300 µs."""

    def make(_: int, at: float) -> list[kineto.Event]:
        return quiet(at) if at % 4000 == 3000 else steady(at)

    finding = diagnosed(tmp_path, make, steps=12)["silent_host"]
    assert finding.title == "The device waits for a host that records no operator in 3 of 12 steps"
    assert finding.steps == (3, 7, 11)


def test_a_single_step_need_not_come_again(tmp_path: Path) -> None:
    def make(_: int, at: float) -> list[kineto.Event]:
        return quiet(at) if at == 3000 else steady(at)

    assert "silent_host" not in diagnosed(tmp_path, make, steps=12)


def test_where_stacks_are_recorded_the_function_is_named(tmp_path: Path) -> None:
    """Of 500 µs without an operator, 400 are in a function of the job, which the loop calls."""

    def make(_: int, at: float) -> list[kineto.Event]:
        frames = [
            kineto.frame("train.py(12): main", at + 1, 990, python_id=1),
            kineto.frame("train.py(58): tokenize", at + 255, 290, python_id=2, parent=1),
            kineto.frame("torch/utils/data/dataset.py(3): helper", at + 260, 280, python_id=3, parent=2),
        ]
        return [*quiet(at), *frames]

    finding = diagnosed(tmp_path, make)["silent_host"]
    assert "mostly in tokenize (train.py:58), for" in finding.title
    assert finding.advice.startswith("Look at tokenize (train.py:58)")
    assert "with_stack" not in finding.advice
