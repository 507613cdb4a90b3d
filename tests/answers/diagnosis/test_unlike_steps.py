"""Jobs whose steps differ: what only some steps do is a part of the mean step. And clocks that are set meanwhile.

The jobs are executed by `benchmarks.savings.model`, which uses nothing of rankscope: the truth of each is known.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.savings.model import Job
from tests import kineto
from tests.answers.diagnosis.agreement import agree
from tests.claims.check import false_claims

import rankscope
from rankscope.results import Finding
from rankscope.show.report.formatting import sentence

STEPS = 12
BACKWARD = "autograd::engine::evaluate_function: MmBackward0"
XPU = {
    "cudaLaunchKernel": "urEnqueueKernelLaunch",
    "cudaStreamSynchronize": "urQueueFinish",
    "cudaMalloc": "urUSMDeviceAlloc",
    "cudaFree": "urUSMFree",
}


def executed(program: Callable[[Job, int], None], *, ranks: int = 1) -> Job:
    job = Job(ranks)
    for number in range(STEPS):
        with job.step(number):
            program(job, number)
        # Python between two steps.
        job.host(1, "aten::empty")
    return job


def of_run(folder: Path) -> tuple[rankscope.Run, dict[str, Finding]]:
    run = rankscope.open(folder, executor="serial")
    assert not false_claims(run)
    return run, {each.id: each for each in run.diagnosis().stated}


def diagnosed(folder: Path, program: Callable[[Job, int], None], **options: int) -> tuple[str, dict[str, Finding]]:
    run, found = of_run(executed(program, **options).write(folder))
    return sentence(run.diagnosis().headline), found


def test_an_item_in_every_third_step_is_a_part_of_the_mean_step(tmp_path: Path) -> None:
    """Eight kernels of 1 ms; in every third step the device waits 3 ms between them: 1 of 9 ms in the mean."""

    def program(job: Job, number: int) -> None:
        for _ in range(4):
            job.launch(1000)
        if number % 3 == 2:
            job.synchronize()
            job.host(3000, "aten::nonzero")
        for _ in range(4):
            job.launch(1000)

    headline, found = diagnosed(tmp_path, program)
    finding = found["synchronizing_calls"]
    assert finding.title == "Calls that wait for the device leave it idle for 11 % of the mean step"
    assert finding.saving_ns == pytest.approx(1_000_000, rel=0.01)
    assert headline == f"{finding.title}. Up to 1.00 ms of the 9.00 ms mean step (11.1 %) can be saved."


def collecting(which: Callable[[int], bool]) -> Callable[[Job, int], None]:
    def program(job: Job, number: int) -> None:
        for _ in range(10):
            job.launch(1000)
        job.synchronize()
        if which(number):
            job.collect(40_000)

    return program


def test_collections_in_every_fourth_step_are_a_part_of_the_mean_step(tmp_path: Path) -> None:
    """40 ms in every fourth step of 10 ms: 10 of 20 ms, which were said to be 100 % of a step."""
    headline, found = diagnosed(tmp_path, collecting(lambda number: number % 4 == 3))
    assert found["gc_pauses"].title == "Python's garbage collection takes 50 % of the mean step"
    assert "(50.0 %)" in headline


def test_a_single_collection_is_no_cost_of_a_step(tmp_path: Path) -> None:
    _, found = diagnosed(tmp_path, collecting(lambda number: number == 7))
    assert "gc_pauses" not in found


def test_data_that_comes_in_bursts_is_a_part_of_the_mean_step(tmp_path: Path) -> None:
    """40 ms of loading before every fourth step of 10 ms: half of the time, which was said to be 100 % of a step."""

    def program(job: Job, number: int) -> None:
        if number % 4 == 3:
            job.load(40_000)
        for _ in range(10):
            job.launch(1000)
        job.synchronize()

    headline, found = diagnosed(tmp_path, program)
    assert found["data_loading"].saving_ns == 10_000_000
    assert (
        headline
        == "The job waits for data in 3 of 12 steps. Up to 10.0 ms of the 20.0 ms mean step (50.0 %) can be saved."
    )


def test_data_that_every_step_waits_for_is_a_part_of_the_median_step(tmp_path: Path) -> None:
    """Loading takes 2 to 4 ms, 3 in the median and 3.1 in the mean: it comes in no bursts."""

    def program(job: Job, number: int) -> None:
        job.load((2000, 3000, 4000, 3400)[number % 4])
        for _ in range(7):
            job.launch(1000)
        job.synchronize()

    _, found = diagnosed(tmp_path, program)
    assert found["data_loading"].title == "The job waits for data for 31 % of a step"


def test_copies_in_every_third_step_are_a_part_of_the_mean_step(tmp_path: Path) -> None:
    """5 ms in every third step of 5 ms: 1.67 of 6.67 ms."""

    def program(job: Job, number: int) -> None:
        for _ in range(10):
            job.launch(500)
        if number % 3 == 2:
            job.copy(5000, pageable=True)
        job.synchronize()

    _, found = diagnosed(tmp_path, program)
    assert found["pageable_copies"].title == "Copies of pageable memory take 25 % of the mean step"


def test_accumulated_gradients_are_a_part_of_the_mean_step(tmp_path: Path) -> None:
    """One bucket of 12 ms in every fourth step, after a backward of 3.2 ms: 3 of 9.4 ms are exposed in the mean.

    A smaller bucket could overlap with at most the backward of these steps: 0.8 ms of the mean step.
    """

    def program(job: Job, number: int) -> None:
        for _ in range(8):
            job.launch(400)
        for _ in range(8):
            job.launch(400, op=BACKWARD)
        if number % 4 == 3:
            job.reduce(12_000, 200 << 20, bucket=True)
            job.wait()
        job.synchronize()

    _, found = diagnosed(tmp_path, program, ranks=2)
    exposed = found["exposed_communication"]
    assert exposed.title.startswith("32 % of the mean step is exposed communication")
    assert found["bucket_size"].saving_ns == pytest.approx(800_000, rel=0.02)


def test_allocations_on_an_xpu_are_named_as_such(tmp_path: Path) -> None:
    """Memory is freed and allocated for 160 µs after each kernel of 150 µs: no launch is slow."""

    def program(job: Job, _: int) -> None:
        for _ in range(20):
            job.launch(150)
            job.allocate(160)
        job.synchronize()

    job = executed(program)
    (events,) = ([{**each, "name": XPU.get(each["name"], each["name"])} for each in r.events] for r in job._ranks)
    for each in events:
        each["cat"] = {"cuda_runtime": "xpu_runtime"}.get(each["cat"], each["cat"])
        each["ts"], each["dur"] = round(each["ts"], 3), round(each["dur"], 3)
    run, found = of_run(kineto.write_ranks(tmp_path, {0: events}))
    assert found["memory_retries"].saving_ns == pytest.approx(20 * 160_000, rel=0.03)
    assert run.diagnosis().findings[0].id == "memory_retries"


def test_a_checkpoint_of_one_rank_delays_the_others_in_some_steps(tmp_path: Path) -> None:
    """After every third step rank 0 writes for 20 ms, and the others wait for it in the next step's all-reduce."""

    def program(job: Job, number: int) -> None:
        for part in range(2):
            for _ in range(8):
                job.launch([400 + (number * 3 + part + 5 * rank) % 7 for rank in range(4)])
            job.reduce(300)
        job.wait()
        job.synchronize()
        if number % 3 == 2:
            job.host([20_000, 0.0, 0.0, 0.0], "aten::to")

    run = rankscope.open(executed(program, ranks=4).write(tmp_path), executor="serial")
    (finding,) = [each for each in run.diagnosis().stated if each.id == "straggler"]
    why = "it runs aten::to more often (1 instead of 0 per step)"
    assert finding.title == f"Rank 0 delays the other ranks in some steps: {why}"
    assert finding.steps == (3, 6, 9)
    # Eleven steps are compared: of the first, the beginning is not known.
    assert finding.saving_ns == pytest.approx(3 * 20_000_000 / 11, rel=0.02)
    # A mean over all steps, it was said to be a share of the median step.
    assert "of the 13.4 ms mean step (40.5 %) can be saved" in sentence(run.diagnosis().headline)


@pytest.mark.parametrize("jump", [50_000, -3_000])
def test_a_clock_that_is_set_during_the_recording_delays_nobody(tmp_path: Path, jump: int) -> None:
    """Rank 1's clock is set between two steps: the other rank was said to wait for it, in collectives of 0.3 ms."""

    def program(job: Job, number: int) -> None:
        for part in range(3):
            for _ in range(8):
                job.launch([300 + 7 * ((number + part) % 3), 300 + 5 * ((number + 2 * part) % 4)])
            job.reduce(300)
        job.wait()
        job.synchronize()

    job = executed(program, ranks=2)
    begin = next(each["ts"] for each in job._ranks[1].events if each["name"] == "ProfilerStep#6")
    for each in job._ranks[1].events:
        each["ts"] += jump * (each["ts"] >= begin)
    run = rankscope.open(job.write(tmp_path), executor="serial")
    diagnosis = run.diagnosis()
    assert not {each.id for each in diagnosis.stated} & {"stall", "straggler"}
    assert diagnosis.stragglers.state in ("none", "too-few-steps")
    waited = run.stragglers()["waited_ns"].to_list()
    assert max(waited) < 3_000_000


def test_a_rank_without_steps_is_not_one_step(tmp_path: Path) -> None:
    """Only rank 0 calls `step()`: of the others, the time of twelve steps was said to be that of one."""

    def program(job: Job, _: int) -> None:
        for _ in range(8):
            job.launch(400, host=100)
        job.reduce(2000)
        job.wait()
        job.synchronize()

    job = executed(program, ranks=3)
    for rank in job._ranks[1:]:
        rank.events = [each for each in rank.events if not each["name"].startswith("ProfilerStep")]
    # Not `of_run`: what the claims are checked with takes every file for a step, too.
    run = rankscope.open(job.write(tmp_path), executor="serial")
    (exposed,) = [each for each in run.diagnosis().stated if each.id == "exposed_communication"]
    assert exposed.evidence[0].value == pytest.approx(2_000_000, rel=0.01)
    overview = run.overview().row(0, named=True)
    assert overview["exposed_communication_ns"] == pytest.approx(2_000_000, rel=0.01)
    assert run.diagnosis().not_judged[0].what == "Ranks 1, 2: time per step"


def test_a_rank_that_evaluates_alone_in_every_fourth_step_is_not_nobody(tmp_path: Path) -> None:
    """The others wait for it 20 ms in the steps after; it was said that "No single rank delays the others"."""

    def program(job: Job, number: int) -> None:
        for part in range(8):
            job.launch([1000 + (number * 3 + part + 5 * rank) % 7 for rank in range(4)])
        job.reduce(500)
        job.wait()
        if number % 4 == 3:
            for _ in range(20):
                job.launch(1000, by=(0,))
        job.synchronize()

    run = rankscope.open(executed(program, ranks=4).write(tmp_path), executor="serial")
    agree(run)
    verdict = run.diagnosis().stragglers
    assert (verdict.state, verdict.label) == ("none", "rank 0 in some steps, cause unclear")
    assert sentence(verdict.sentence).startswith("Rank 0 delays the others in some steps, but these traces do not")
