"""Calls that keep the device waiting: those that recur, and those of the first use."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import kineto
from tests.answers.diagnosis.rules.steps import STEP, diagnosed, work
from tests.claims.check import false_claims

import rankscope
from rankscope.show.report.formatting import sentence


def call(at: float, dur: float, name: str = "cuModuleLoadData") -> kineto.Event:
    return kineto.launch(at, dur, correlation=round(at * 16) + 7, name=name)


def test_fires_where_a_call_is_in_each_step(tmp_path: Path) -> None:
    """The device is idle from 110 to 600 µs, 5 µs of it for the launch."""

    def make(_: int, at: float) -> list[kineto.Event]:
        return [*work(at + 10, 100), call(at + 115, 475), *work(at + 600, 300)]

    finding = diagnosed(tmp_path, make)["long_calls"]
    assert finding.title.startswith("The device waits for long calls of cuModuleLoadData for 4")
    assert finding.saving_ns == 475_000
    assert finding.severity == "warning"


def test_does_not_fire_where_the_call_waits_for_the_device_as_that_is_another_findings_matter(tmp_path: Path) -> None:
    def make(_: int, at: float) -> list[kineto.Event]:
        return [*work(at + 10, 100), call(at + 115, 475, "cudaDeviceSynchronize"), *work(at + 600, 300)]

    assert "long_calls" not in diagnosed(tmp_path, make)


def test_what_happens_once_is_the_first_use(tmp_path: Path) -> None:
    def make(_: int, at: float) -> list[kineto.Event]:
        first = [call(at + 115, 475)] if at == 0 else []
        return [*work(at + 10, 100), *first, *work(at + (600 if first else 120), 300)]

    finding = diagnosed(tmp_path, make)["long_calls"]
    assert finding.title == "First calls, most of all cuModuleLoadData, keep the device of rank 0 idle in step 0"
    assert (finding.severity, finding.saving_ns, finding.steps) == ("info", None, (0,))


@pytest.mark.parametrize("steps", [True, False])
@pytest.mark.parametrize("name", ["cuModuleLoadData", "cudaFree", "cudaMalloc"])
def test_calls_before_the_first_kernel_are_the_first_use(tmp_path: Path, name: str, steps: bool) -> None:
    """The device has no event before, so that nothing is a gap."""
    marks = [kineto.step(number, 1000 * number, 1000) for number in range(4)] if steps else []
    events = [call(5, 475, name), *(each for at in range(0, 4000, 1000) for each in work(at + 500, 300))]
    run = rankscope.open(kineto.write_ranks(tmp_path, {0: [*marks, *events]}), executor="serial")
    (finding,) = [each for each in run.diagnose() if each.id == "long_calls"]
    assert finding.title == f"First calls, most of all {name}, delay the first kernel of rank 0"
    assert finding.evidence[0].value == 475_000
    assert "after the warm-up" in finding.advice
    assert not false_claims(run)


def test_waiting_before_the_first_kernel_is_no_first_use(tmp_path: Path) -> None:
    events = [call(5, 475, "cudaDeviceSynchronize"), *work(500, 300), *work(1500, 300)]
    run = rankscope.open(kineto.write_ranks(tmp_path, {0: events}), executor="serial")
    assert "long_calls" not in {each.id for each in run.diagnose()}


def test_what_happens_once_in_a_later_step_is_a_stall(tmp_path: Path) -> None:
    def make(_: int, at: float) -> list[kineto.Event]:
        late = [call(at + 115, 475)] if at == 3000 else []
        return [*work(at + 10, 100), *late, *work(at + (600 if late else 120), 300)]

    assert "long_calls" not in diagnosed(tmp_path, make, steps=6)


def test_without_steps_the_headline_does_not_deny_idle_time(tmp_path: Path) -> None:
    events = [*work(10, 100), call(115, 9_000, "cudaLaunchKernel"), *work(9200, 100)]
    run = rankscope.open(kineto.write_ranks(tmp_path, {0: events}), executor="serial")
    said = sentence(run.diagnosis().headline)
    assert said.startswith("First calls, most of all cudaLaunchKernel, keep the device of rank 0 idle (9")


@pytest.mark.parametrize("length", [9_000, 11_000])
def test_an_operator_that_takes_long_in_each_step_is_no_first_call(tmp_path: Path, length: int) -> None:
    """It launches nothing, and the device waits for its end."""
    step = length + 5 * STEP
    events = []
    for number in range(6):
        at = number * step
        events += [
            kineto.step(number, at, step),
            *work(at + 10, 300),
            kineto.op("aten::randn", at + 50, length),
            *work(at + length + 60, 300),
        ]
    run = rankscope.open(kineto.write_ranks(tmp_path, {0: events}), executor="serial")
    found = {each.id: each for each in run.diagnosis().stated}
    # From the end of the first kernel to the start of the second.
    assert found["launch_bound"].saving_ns == pytest.approx((length - 250) * 1000, rel=0.6)
    assert "long_calls" not in found


def test_idle_time_that_nothing_explains_is_said(tmp_path: Path) -> None:
    """Kernels that were launched in time and begin late."""
    events = []
    for number in range(6):
        at = number * STEP
        first, second = work(at + 10, 300), work(at + 800, 100)
        second[0] = kineto.launch(at + 20, 3, correlation=second[0]["args"]["correlation"])
        events += [kineto.step(number, at, STEP), *first, *second]
    run = rankscope.open(kineto.write_ranks(tmp_path, {0: events}), executor="serial")
    said = sentence(run.diagnosis().headline)
    assert said.startswith("No finding explains why the device is idle for")
    assert "No finding saves" not in said
