"""Jobs of many kinds whose truth is known: what is found is that and nothing else, and all outputs agree.

The jobs are executed by `benchmarks.savings.model`, which uses nothing of rankscope. Durations vary by a percent or so,
from a formula.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import polars as pl
import pytest
from benchmarks.savings.model import Job
from tests import kineto
from tests.answers.diagnosis.agreement import agree
from tests.claims.check import false_claims

import rankscope
from rankscope.answers.diagnosis.verdict import Diagnosis
from rankscope.results import with_symptoms

Program = Callable[[Job, int], None]


def vary(*numbers: int) -> float:
    """A number from −0.5 to 0.5 that looks random."""
    return sum(number * prime for number, prime in zip(numbers, (7919, 104729, 1299709), strict=False)) % 97 / 97 - 0.5


def executed(program: Program, ranks: int = 1, steps: int = 12) -> Job:
    job = Job(ranks)
    for number in range(steps):
        with job.step(number):
            program(job, number)
            job.synchronize()
        job.host(1, "aten::empty")
    return job


def computed(job: Job, number: int, *, kernels: int = 4, time: float = 1000, ranks: int = 2) -> None:
    for part in range(kernels):
        job.launch([time * (1 + 0.02 * vary(number, part, rank)) for rank in range(ranks)])


def reduced(job: Job, time: float = 300, elements: int = 1 << 20) -> None:
    job.reduce(time, elements)
    job.wait()


def renamed(job: Job, names: Mapping[str, str], categories: Mapping[str, str] | None = None) -> Job:
    for rank in job._ranks:
        for event in rank.events:
            event["name"] = names.get(event["name"], event["name"])
            event["cat"] = (categories or {}).get(event["cat"], event["cat"])
    return job


def diagnosed(folder: Path) -> Diagnosis:
    """The diagnosis, whose claims are true and which all outputs agree with."""
    run = rankscope.open(folder, executor="serial")
    assert not false_claims(run)
    agree(run, page=True)
    return run.diagnosis()


# -- jobs without a problem ------------------------------------------------------------------------------------------


def sharded(job: Job, number: int) -> None:
    """FSDP: the next layer is gathered while this one computes."""
    for layer in range(6):
        job.reduce(500, 1 << 22, kind="all_gather")
        computed(job, number + layer, kernels=1, time=3000)
    job.wait()


def growing(job: Job, number: int) -> None:
    """Sequences grow from step to step, on both ranks alike."""
    computed(job, number, kernels=5, time=1000 + 200 * number)
    reduced(job, 50)


def overlapping(job: Job, number: int) -> None:
    for part in range(10):
        computed(job, number + part, kernels=1)
        job.reduce(400)
    computed(job, number, kernels=1, time=3000)
    job.wait()


def compiling_first(job: Job, number: int) -> None:
    """The first step takes 40 times as long."""
    if not number:
        for _ in range(200):
            job.host(2000, "aten::empty")
    computed(job, number, kernels=10)


def reading_the_loss(job: Job, number: int) -> None:
    """At the end of each step, when the device has nothing else to do for some microseconds only."""
    computed(job, number, kernels=20, time=500)


def meeting(job: Job, number: int) -> None:
    """Two barriers per step, in which ranks hardly wait."""
    for _ in range(2):
        computed(job, number)
        job.reduce(20, 1, kind="barrier")
        job.wait()


@pytest.mark.parametrize(
    ("program", "ranks"),
    [(sharded, 2), (growing, 2), (overlapping, 2), (compiling_first, 1), (reading_the_loss, 1), (meeting, 2)],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path, program: Program, ranks: int) -> None:
    diagnosis = diagnosed(executed(program, ranks).write(tmp_path))
    assert not diagnosis.findings
    assert diagnosis.stragglers.state in ("none", "one-rank")


# -- one problem -----------------------------------------------------------------------------------------------------


def test_a_checkpoint_beside_small_copies_is_no_cost_of_each_step(tmp_path: Path) -> None:
    """Each step copies for 10 µs as pageable memory, and one of twelve for 60 ms: no step to come has 5 ms of that."""

    def program(job: Job, number: int) -> None:
        computed(job, number, kernels=8)
        job.copy(60_000 if number == 7 else 10, pageable=True)

    assert not {each.id for each in diagnosed(executed(program).write(tmp_path)).stated}


def test_a_single_long_collection_among_short_ones_is_no_cost_of_each_step(tmp_path: Path) -> None:
    def program(job: Job, number: int) -> None:
        computed(job, number, kernels=8)
        job.synchronize()
        job.collect(50_000 if number == 7 else 10)

    assert not {each.id for each in diagnosed(executed(program).write(tmp_path)).stated}


def test_a_stall_is_no_call_that_waits(tmp_path: Path) -> None:
    """Rank 1 stalls once for 80 ms, after the call that ends each step."""

    def program(job: Job, number: int) -> None:
        job.host([2, 80_000 if number == 5 else 2], "aten::empty")
        computed(job, number)
        reduced(job)

    found = {each.id: each for each in diagnosed(executed(program, 2).write(tmp_path)).stated}
    assert set(found) == {"stall", "exposed_communication"}
    assert found["stall"].ranks == (1,)


def test_late_launches_on_an_xpu(tmp_path: Path) -> None:
    """Before each kernel of 500 µs the host is busy for 800: 300 of 800 µs."""

    def program(job: Job, number: int) -> None:
        for _ in range(10):
            job.launch(500)
            for _ in range(16):
                job.host(50, "aten::view")

    names = {"cudaLaunchKernel": "urEnqueueKernelLaunch", "cudaStreamSynchronize": "urQueueFinish"}
    job = renamed(executed(program), names, {"cuda_runtime": "xpu_runtime"})
    diagnosis = diagnosed(job.write(tmp_path))
    assert [each.id for each in diagnosis.findings] == ["launch_bound"]
    assert diagnosis.findings[0].saving_ns == pytest.approx(3_050_000, rel=0.02)


def test_copies_whose_memory_is_not_known_are_no_finding_on_rocm(tmp_path: Path) -> None:
    """ROCm's names do not say whether the host's memory is pinned."""

    def program(job: Job, number: int) -> None:
        job.copy(2000, pageable=True)
        computed(job, number, kernels=8)

    names = {
        "cudaLaunchKernel": "hipLaunchKernel", "cudaMemcpyAsync": "hipMemcpyAsync",
        "cudaStreamSynchronize": "hipStreamSynchronize", "Memcpy HtoD (Pageable -> Device)": "CopyHostToDevice",
    }  # fmt: skip
    assert not diagnosed(renamed(executed(program), names).write(tmp_path)).findings


def test_accumulated_gradients_without_a_recorded_backward_have_no_bucket_to_start_earlier(tmp_path: Path) -> None:
    """4 ms in every fourth step of 10 ms: 1 of 11 ms. Which compute is the backward, the trace does not show."""

    def program(job: Job, number: int) -> None:
        computed(job, number, kernels=5, time=2000)
        if number % 4 == 3:
            job.reduce(4000, 25 << 20, bucket=True)
            job.wait()

    diagnosis = diagnosed(executed(program, 2).write(tmp_path))
    assert [each.id for each in diagnosis.findings] == ["exposed_communication"]
    assert diagnosis.saving_ns == pytest.approx(1_000_000, rel=0.01)


def test_a_rank_without_device_events_computes_no_longer_than_others(tmp_path: Path) -> None:
    """Rank 1 recorded its host only: its operators are not compared with rank 0's kernels."""

    def program(job: Job, number: int) -> None:
        computed(job, number)
        reduced(job, 500)

    job = executed(program, 2)
    job._ranks[1].events = [each for each in job._ranks[1].events if each["cat"] != "kernel"]
    found = {each.id for each in diagnosed(job.write(tmp_path)).stated}
    assert "ranks-without-device-events" in found
    assert "imbalance" not in found


def test_two_of_eight_ranks(tmp_path: Path) -> None:
    """A fifth of the step is exposed, and any of it may be waiting for the ranks whose files are not here."""

    def program(job: Job, number: int) -> None:
        computed(job, number)
        reduced(job, 1000)

    job = executed(program, 2)
    for number, rank in enumerate(job._ranks):
        for each in rank.events:
            each["ts"], each["dur"] = round(each["ts"], 3), round(each["dur"], 3)
            if "Group size" in each.get("args", {}):
                each["args"] |= {"Group size": 8, "Process Group Ranks": str(list(range(8)))}
        kineto.write(tmp_path / f"rank{number}.json", kineto.trace(rank.events, rank=number, world_size=8))
    diagnosis = diagnosed(tmp_path)
    assert diagnosis.saving_ns == 0
    label = diagnosis.stragglers.label
    assert label.startswith("too few steps to tell") or label.endswith("among the recorded ranks")


def test_work_without_steps_after_a_long_wait(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rank 1's host waits for 100 ms first. No step is marked: the span is that of the devices."""
    job = Job(2)
    job.host([10, 100_000], "aten::empty")
    for number in range(20):
        computed(job, number, kernels=1)
        reduced(job, 100)
    job.synchronize()
    with caplog.at_level(logging.WARNING):
        diagnosis = diagnosed(job.write(tmp_path))
    assert not caplog.records
    assert not [each.id for each in diagnosis.stated if each.severity != "info"]
    assert diagnosis.stragglers.state == "too-few-steps"


def test_a_balanced_pipeline_without_a_backward_has_its_inherent_bubble(tmp_path: Path) -> None:
    """Four stages and four microbatches: 3 / 7 of a step. The last stage sends nothing."""

    def program(job: Job, number: int) -> None:
        for microbatch in range(4):
            for stage in range(4):
                job.launch(1000 * (1 + 0.02 * vary(number, microbatch)), by=[stage])
                if stage < 3:
                    job.send(stage, stage + 1, 20)
        reduced(job, 100, 1)

    found = {each.id for each in diagnosed(executed(program, 4).write(tmp_path)).stated}
    assert "pipeline-bubble" not in found


def test_a_file_without_steps_next_to_one_with_steps_is_not_a_step(tmp_path: Path) -> None:
    """Ten steps of 4.3 ms with a pageable copy of 0.3 ms, and a later file of 500 ms in which no step is marked."""

    def program(job: Job, number: int) -> None:
        job.copy(300, pageable=True)
        computed(job, number, ranks=1)

    later = Job()
    computed(later, 0, kernels=100, time=5000, ranks=1)
    later.synchronize()
    for name, job, offset in (("iter0_9", executed(program, steps=10), 0.0), ("iter20_29", later, 1e6)):
        (rank,) = job._ranks
        for each in rank.events:
            each["ts"], each["dur"] = round(each["ts"] + offset, 3), round(each["dur"], 3)
        kineto.write(tmp_path / f"rank0_{name}.json", kineto.trace(rank.events, rank=0, world_size=1))
    (finding,) = diagnosed(tmp_path).findings
    assert finding.id == "pageable_copies"
    assert finding.saving_ns == pytest.approx(300_000, rel=0.01)
    assert {each.name: each.value for each in finding.evidence}["mean step time (slowest rank)"] == pytest.approx(
        4_310_000, rel=0.01
    )


# -- several problems ------------------------------------------------------------------------------------------------


def test_problems_of_some_steps_save_no_more_than_the_mean_step_has(tmp_path: Path) -> None:
    """Every third step loads, copies, collects garbage, launches late and communicates for 3 ms each."""

    def program(job: Job, number: int) -> None:
        some = number % 3 == 0
        if some:
            job.load(3000)
            job.copy(3000, pageable=True)
            job.collect(3000)
        computed(job, number, kernels=3)
        if some:
            for _ in range(80):
                job.host(50, "aten::view")
            computed(job, number, kernels=1)
            reduced(job, 3000)

    diagnosis = diagnosed(executed(program, 2, steps=15).write(tmp_path))
    stated = {each.id: each for each in diagnosis.stated}
    found = {each.id: each for each in with_symptoms(diagnosis.findings)}
    for name in ("data_loading", "pageable_copies", "gc_pauses", "exposed_communication"):
        assert stated[name].saving_ns == pytest.approx(1_000_000, rel=0.01), name
        # One of the five steps with them is the first, which the replay does not measure: 4 of 14 remain.
        assert 12_000_000 / 14 * 0.99 <= (found[name].saving_ns or 0) <= 1_010_000, name
        assert "mean step" in " ".join(each.name for each in found[name].evidence)
    # All but the compute: 3 ms in each step and 1 ms in every third.
    assert diagnosis.saving_ns <= 7_680_000 - 3_330_000 + 10_000


def test_a_slow_loader_is_one_cause(tmp_path: Path) -> None:
    """Rank 5 of 8 waits 3 ms for data in each step of 8 ms; its device's idle time is the same time."""

    def program(job: Job, number: int) -> None:
        job.load([3000 if rank == 5 else 1 for rank in range(8)])
        computed(job, number, time=2000, ranks=8)
        reduced(job)

    diagnosis = diagnosed(executed(program, 8).write(tmp_path))
    first = diagnosis.findings[0]
    assert (first.id, first.ranks) == ("straggler", (5,))
    assert first.saving_ns == pytest.approx(3_000_000, rel=0.02)
    assert {each.id for each in first.symptoms} >= {"data_loading"}
    assert diagnosis.saving_ns <= 3_350_000


def test_waits_that_compute_covers_cost_nothing_and_are_no_transfer(tmp_path: Path) -> None:
    """Rank 2 launches 9 ms late, the others compute for a part of that time, and then all transfer for 4 ms.

    It was said that all their exposed communication is waiting, and that the transfer is the same time.
    """

    def program(job: Job, number: int) -> None:
        computed(job, number, kernels=1, time=3000, ranks=4)
        job.host([9000 if rank == 2 else 1 for rank in range(4)], "aten::nonzero")
        job.reduce(1000, 1 << 22)
        computed(job, number, ranks=4)
        reduced(job, 3000, 1 << 24)

    run = rankscope.open(executed(program, 4).write(tmp_path), executor="serial")
    first, *others = run.diagnosis().findings
    waits = run.distributed().select(pl.col("exposed_synchronizing_ns") + pl.col("exposed_unmatched_ns")).to_series()
    assert (first.id, first.ranks) == ("straggler", (2,))
    assert (first.cost_ns or 0) <= max(*waits, first.saving_ns or 0)
    assert "exposed_communication" in {each.id for each in others}


def test_a_loader_that_is_slow_in_some_steps_of_a_rank_is_one_cause(tmp_path: Path) -> None:
    """Rank 2 waits 25 ms for data in every fifth step, as when a worker starts again: it was two causes."""

    def program(job: Job, number: int) -> None:
        job.load([25_000 if rank == 2 and number % 5 == 4 else 100 for rank in range(4)])
        computed(job, number, kernels=8, ranks=4)
        reduced(job)

    first, *others = diagnosed(executed(program, 4, steps=15).write(tmp_path)).findings
    assert (first.id, first.ranks, first.steps) == ("straggler", (2,), (4, 9, 14))
    assert "data_loading" in {each.id for each in first.symptoms}
    assert not {each.id for each in others} & {"data_loading", "synchronizing_calls"}
