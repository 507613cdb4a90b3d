"""Jobs in which two or three of ten steps are long: what they cost is a share of the mean of the same steps.

The jobs are executed by `benchmarks.savings.model`, which uses nothing of rankscope: the truth of each is known.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.savings.model import Job
from tests import kineto
from tests.answers.diagnosis.rules.test_tensor_cores import A100
from tests.claims.check import false_claims

import rankscope
from rankscope.results import Finding
from rankscope.show.report.formatting import sentence

MEAN = "mean step time (slowest rank)"


def executed(program: Callable[[Job, int], None], *, ranks: int = 1) -> Job:
    """Ten steps."""
    job = Job(ranks)
    for number in range(10):
        with job.step(number):
            program(job, number)
            job.synchronize("cudaDeviceSynchronize")
        job.host(1, "aten::empty")
    return job


def found_in(folder: Path) -> dict[str, Finding]:
    run = rankscope.open(folder, executor="serial")
    assert not false_claims(run)
    return {each.id: each for each in run.diagnosis().stated}


def evidence(finding: Finding) -> dict[str, object]:
    return {each.name: each.value for each in finding.evidence}


def narrow(job: Job, time: float, blocks: float = 0.25) -> None:
    job.launch(time, "narrow", **{"blocks per SM": blocks, "est. achieved occupancy %": 10})


def test_few_blocks_in_long_steps_are_a_part_of_the_mean_step(tmp_path: Path) -> None:
    """10 ms in each step, and 40 more in three with a quarter of the blocks: 9 of 22 ms, 41 %.

    As a share of the median step of 10 ms, it was 90 %.
    """

    def program(job: Job, number: int) -> None:
        job.launch(10_000)
        if number % 4 == 1:
            narrow(job, 40_000)

    finding = found_in(executed(program).write(tmp_path))["low_occupancy"]
    assert finding.saving_ns == pytest.approx(9_000_000, rel=0.001)
    assert evidence(finding)[MEAN] == pytest.approx(22_000_000, rel=0.002)


def test_few_blocks_for_longer_in_some_steps_are_a_part_of_the_mean_step(tmp_path: Path) -> None:
    """The same kernel in all steps: 1 ms in seven, 40 in three, three quarters of it: 9.5 of 22.7 ms."""

    def program(job: Job, number: int) -> None:
        job.launch(10_000)
        narrow(job, 40_000 if number % 4 == 1 else 1_000)

    finding = found_in(executed(program).write(tmp_path))["low_occupancy"]
    assert finding.saving_ns == pytest.approx(9_525_000, rel=0.001)
    assert evidence(finding)[MEAN] == pytest.approx(22_700_000, rel=0.002)


def test_few_blocks_in_a_single_step_need_not_come_again(tmp_path: Path) -> None:
    def program(job: Job, number: int) -> None:
        job.launch(10_000)
        if number == 4:
            narrow(job, 40_000)

    assert "low_occupancy" not in found_in(executed(program).write(tmp_path))


def products(which: Callable[[int], bool]) -> Callable[[Job, int], None]:
    """8 ms of other work in each step, and 30 ms of float32 products without tensor cores in some."""
    shapes = {"dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}

    def program(job: Job, number: int) -> None:
        job.launch(8_000, "elementwise", op="aten::add")
        if which(number):
            job.launch(30_000, "ampere_sgemm_128x64_nn", args=shapes)

    return program


def test_products_off_tensor_cores_in_some_steps_are_a_part_of_the_mean_step(tmp_path: Path) -> None:
    """9 of 17 ms in the mean step; TF32 takes an eighth of it. The median step has 8 ms and none of them."""
    job = executed(products(lambda number: number % 4 == 1))
    found = found_in(job.write(tmp_path, deviceProperties=[A100]))
    assert found["tensor_cores"].saving_ns == pytest.approx(9_000_000 * (1 - 19.5 / 156), rel=0.001)
    assert found["precision"].saving_ns == pytest.approx(9_000_000 * (1 - 19.5 / 312), rel=0.001)
    for name in ("tensor_cores", "precision"):
        assert evidence(found[name])[MEAN] == pytest.approx(17_000_000, rel=0.002)


def test_products_in_a_single_step_need_not_come_again(tmp_path: Path) -> None:
    job = executed(products(lambda number: number == 6))
    assert not {"tensor_cores", "precision"} & set(found_in(job.write(tmp_path, deviceProperties=[A100])))


def compiled(which: Callable[[int], bool]) -> Callable[[Job, int], None]:
    """Two graphs; in some steps the guards take 20 ms before each, in which the device has nothing to do."""

    def program(job: Job, number: int) -> None:
        for region in ("0/0", "1/0"):
            job.launch(2_000)
            job.synchronize()
            if which(number):
                job.host(20_000, "TorchDynamo Cache Lookup")
            job.host(10, f"Torch-Compiled Region: {region}")

    return program


def test_guards_in_some_steps_are_a_part_of_the_mean_step(tmp_path: Path) -> None:
    """40 ms in three of ten steps, half of which one graph keeps: 6 of 16 ms, where the median step has 4."""
    finding = found_in(executed(compiled(lambda number: number % 4 == 1)).write(tmp_path))["graph_breaks"]
    assert finding.saving_ns == pytest.approx(6_000_000, rel=0.001)
    assert evidence(finding)[MEAN] == pytest.approx(16_000_000, rel=0.01)


def test_guards_in_a_single_step_need_not_come_again(tmp_path: Path) -> None:
    assert "graph_breaks" not in found_in(executed(compiled(lambda number: number == 2)).write(tmp_path))


def evaluating(which: Callable[[int], bool]) -> Callable[[Job, int], None]:
    """Five reductions of a number, 2 ms each, in steps that evaluate; one in the others."""

    def program(job: Job, number: int) -> None:
        job.launch(8_000)
        for _ in range(5 if which(number) else 1):
            job.reduce(2_000, 1)
        job.wait()

    return program


def test_small_collectives_in_some_steps_are_a_part_of_the_mean_step(tmp_path: Path) -> None:
    """8 of 10 ms in three of ten steps: 2.4 of 12.4 ms in the mean."""
    job = executed(evaluating(lambda number: number % 4 == 1), ranks=2)
    finding = found_in(job.write(tmp_path))["small_collectives"]
    assert finding.saving_ns == pytest.approx(2_400_000, rel=0.001)
    assert evidence(finding)[MEAN] == pytest.approx(12_400_000, rel=0.01)


def test_small_collectives_in_a_single_step_need_not_come_again(tmp_path: Path) -> None:
    job = executed(evaluating(lambda number: number == 3), ranks=2)
    assert "small_collectives" not in found_in(job.write(tmp_path))


def logging(which: Callable[[int], bool]) -> Callable[[Job, int], None]:
    """Kernels of 5 ms; in some steps the host is in an operator for 30 ms before it launches the second."""

    def program(job: Job, number: int) -> None:
        job.launch(5_000)
        job.launch(5_000, host=35_000 - 5 if which(number) else 0.0)

    return program


def with_calls(job: Job, every: float = 50) -> Job:
    """The host's long operators consist of short ones: it is busy, not asleep."""
    for rank in job._ranks:
        for event in [each for each in rank.events if each["name"] == "aten::mm" and each["dur"] > 1000]:
            at = event["ts"]
            while at + every < event["ts"] + event["dur"] - 10:
                rank.events.append(kineto.op("aten::index", at, every / 2))
                at += every
    return job


def test_late_launches_in_some_steps_are_named_with_these(tmp_path: Path) -> None:
    """30 ms in steps 1, 5 and 9: 9 of 19 ms in the mean, and none in the median step. Nothing was said about them."""
    job = with_calls(executed(logging(lambda number: number % 4 == 1)))
    run = rankscope.open(job.write(tmp_path), executor="serial")
    finding = found_in(tmp_path)["launch_bound"]
    assert finding.title == "The device waits for the host to launch kernels in 3 of 10 steps"
    assert finding.steps == (1, 5, 9)
    assert finding.severity == "warning"
    assert finding.saving_ns == pytest.approx(9_000_000, rel=0.01)
    assert evidence(finding)["device idle until a late launch, steps 1, 5 and 9"] == pytest.approx(
        30_000_000 * 3, rel=0.01
    )
    assert evidence(finding)[MEAN] == pytest.approx(19_000_000, rel=0.01)
    headline = sentence(run.diagnosis().headline)
    assert headline.startswith(f"{finding.title}. Up to 9.0") and "of the 19.0 ms mean step" in headline


def test_late_launches_in_a_single_step_need_not_come_again(tmp_path: Path) -> None:
    job = with_calls(executed(logging(lambda number: number == 5)))
    assert "launch_bound" not in found_in(job.write(tmp_path))


@pytest.mark.parametrize("waits_ms", [(10, 20, 30, 40, 50), (10, 10, 10, 10, 10)])
def test_a_loader_that_is_slow_in_exactly_half_of_the_steps(tmp_path: Path, waits_ms: tuple[int, ...]) -> None:
    """A worker dies after five of ten steps of 10 ms. The median wait is half of the shortest one: no step has that."""

    def program(job: Job, number: int) -> None:
        if number >= 5:
            job.load(waits_ms[number - 5] * 1_000)
        job.launch(10_000)

    finding = found_in(executed(program).write(tmp_path))["data_loading"]
    total = sum(waits_ms) * 1_000_000
    assert "in 5 of 10 steps" in finding.title
    assert finding.steps == (5, 6, 7, 8, 9)
    assert finding.saving_ns == pytest.approx(total / 10, rel=0.01)
    assert evidence(finding)[MEAN] == pytest.approx(10_000_000 + total / 10, rel=0.01)
