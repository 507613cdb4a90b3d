"""The allocator frees and allocates device memory in the middle of steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import kineto
from tests.answers.diagnosis.rules.steps import diagnosed, work

import rankscope


def make(at: float, taken: float, *, name: str = "cudaFree") -> list[kineto.Event]:
    """Two kernels of 200 µs; between them the device waits for `taken` µs, until the host has freed and allocated."""
    return [
        *work(at + 10, 200),
        kineto.op("aten::empty", at + 20, 200 + taken),
        kineto.launch(at + 200, 10 + taken / 2, name=name),
        kineto.launch(at + 210 + taken / 2, taken / 2, name="cudaMalloc"),
        *work(at + 210 + taken + 5, 200),
    ]


def test_fires_where_it_happens_in_every_step(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda _, at: make(at, 300))
    finding = found["memory_retries"]
    assert finding.severity == "warning"
    assert finding.saving_ns == 300_000
    assert "30 % of a step" in finding.title
    assert "expandable_segments" in finding.advice
    assert [each.value for each in finding.evidence if "driver's" in each.name] == [4, 4]
    # What is left to it is late launches of some microseconds.
    assert (found["launch_bound"].saving_ns or 0) < 20_000


def test_fires_of_the_step_in_which_it_happens(tmp_path: Path) -> None:
    """In one step of three: that one is named, and what it costs per step is not known."""
    found = diagnosed(tmp_path, lambda rank, at: make(at, 400) if at == 1000 else work(at + 10, 800), steps=3, ranks=2)
    finding = found["memory_retries"]
    assert (finding.severity, finding.saving_ns, finding.steps) == ("warning", None, (1,))
    assert "idle in step 1" in finding.title
    assert finding.ranks == (0, 1)
    assert finding.evidence[0].value == 400_000
    assert "launch_bound" not in found


@pytest.mark.parametrize("name", ["hipFree", "hipHostMalloc", "cudaHostAlloc", "cuMemRelease"])
def test_fires_of_other_calls(tmp_path: Path, name: str) -> None:
    finding = diagnosed(tmp_path, lambda _, at: make(at, 300, name=name))["memory_retries"]
    assert finding.saving_ns == 300_000
    assert ("Pin host memory" in finding.advice) == ("Host" in name)


def test_fires_softly_where_the_device_works_meanwhile(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda _, at: [*make(at, 300), *work(at + 12, 900, stream=9)])
    assert (found["memory_retries"].severity, found["memory_retries"].saving_ns) == ("info", None)


def test_does_not_fire_about_the_pool_of_the_driver(tmp_path: Path) -> None:
    """cudaMallocAsync and cudaFreeAsync return at once, and that backend makes them for every tensor."""

    def calls(_: int, at: float) -> list[kineto.Event]:
        names = ("cudaMallocAsync", "cudaFreeAsync")
        return [*work(at + 10, 900), *(kineto.launch(at + 100 + n, 1, name=name) for n, name in enumerate(names))]

    assert "memory_retries" not in diagnosed(tmp_path, calls)


def test_does_not_fire_about_a_first_allocation(tmp_path: Path) -> None:
    """Short enough for the device to work on meanwhile, in one of four steps."""
    assert "memory_retries" not in diagnosed(
        tmp_path, lambda _, at: [*work(at + 10, 900), *([kineto.launch(30, 200, name="cudaMalloc")] if at == 0 else [])]
    )


@pytest.mark.parametrize(
    ("name", "steps"), [("torchrec/all-to-all-4ranks", (4,)), ("tracelens/mi300/ddp_resnet18_no_pool", ())]
)
def test_real_jobs_that_wait_for_the_allocator(shared_traces: Path, name: str, steps: tuple[int, ...]) -> None:
    """cudaFree and cudaMalloc take 210 ms of one step of three; hipFree takes 3.0 of 3.4 s without a caching pool."""
    found = {each.id: each for each in rankscope.open(shared_traces / name, executor="serial").diagnose()}
    assert found["memory_retries"].severity == "warning"
    assert found["memory_retries"].steps == steps
    assert (found["launch_bound"].saving_ns or 0) < 15_000_000 if "launch_bound" in found else True


@pytest.mark.parametrize("marked", [True, False])
def test_does_not_fire_about_the_free_that_makes_the_context(tmp_path: Path, marked: bool) -> None:
    """`cudaFree(0)` before the first kernel, and the first allocations: what every process begins with."""
    events = [
        kineto.launch(5, 200, name="cudaFree"),
        kineto.launch(210, 20, name="cudaMalloc"),
        *(event for at in (300, 600, 900) for event in work(at, 250)),
    ]
    steps = [kineto.step(0, 0, 1200)] if marked else []
    run = rankscope.open(kineto.write_ranks(tmp_path, {0: [*steps, *events]}), executor="serial")
    assert "memory_retries" not in {each.id for each in run.diagnose()}
