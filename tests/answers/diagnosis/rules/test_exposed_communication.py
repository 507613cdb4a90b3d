"""Communication that no compute hides."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests import kineto
from tests.answers.diagnosis.rules.steps import diagnosed, work

import rankscope
from rankscope.answers.diagnosis.rules import exposed_communication, small_problem
from rankscope.experiments.simulate import Fault, Job, simulate
from rankscope.primitives.job_kind import JobKind


def reduce(at: float, dur: float, late: float = 0) -> list[kineto.Event]:
    identity = round(at * 16) + 7
    return [
        kineto.launch(at + late - 5, 3, correlation=identity),
        kineto.collective(at + late, dur - late, correlation=identity, ranks=(0, 1), elements=1 << 20),
    ]


def test_fires_where_it_is_exposed(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda _, at: [*work(at + 10, 500), *reduce(at + 520, 300)], ranks=2)
    finding = found["exposed_communication"]
    assert finding.severity == "warning"
    assert finding.saving_ns == 300_000
    assert finding.evidence[-1].value == "all_reduce of 4.19 MB over 2 ranks: 100 % of it"
    assert finding.title.endswith(", most of it all_reduce of 4.19 MB over 2 ranks")


def test_no_more_than_the_compute_it_could_hide_behind(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda _, at: [*work(at + 10, 100), *reduce(at + 120, 800)], ranks=2)
    assert found["exposed_communication"].saving_ns == 100_000


def test_does_not_fire_where_it_is_hidden(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda _, at: [*work(at + 10, 900), *reduce(at + 20, 300)], ranks=2)
    assert "exposed_communication" not in found


def test_does_not_fire_about_waiting(tmp_path: Path) -> None:
    """Rank 1 comes 290 µs late: rank 0 waits, and no overlap would hide that."""

    def make(rank: int, at: float) -> list[kineto.Event]:
        return [*work(at + 10, 500 + 290 * rank), *reduce(at + 520, 300, 290 * rank)]

    found = diagnosed(tmp_path, make, ranks=2)
    finding = found.get("exposed_communication")
    assert finding is None or (finding.saving_ns or 0) <= 10_000


def test_only_what_all_ranks_could_hide_counts(tmp_path: Path) -> None:
    """Rank 1 hides all but 40 µs: its step gets no shorter by what rank 0 could hide besides."""

    def make(rank: int, at: float) -> list[kineto.Event]:
        return [*work(at + 10, 500 + 260 * rank), *reduce(at + 510, 300)]

    assert diagnosed(tmp_path, make, ranks=2)["exposed_communication"].saving_ns == 40_000


def test_the_rank_that_is_exposed_least_need_not_have_the_least_compute(tmp_path: Path) -> None:
    """Rank 0 computes for 100 µs and is exposed for 300; rank 1 computes for 400, hides 50 and is exposed for 250."""

    def make(rank: int, at: float) -> list[kineto.Event]:
        return [*work(at + (510 if rank == 0 else 260), 100 if rank == 0 else 400), *reduce(at + 610, 300)]

    finding = diagnosed(tmp_path, make, ranks=2)["exposed_communication"]
    evidence = {each.name: each.value for each in finding.evidence}
    assert evidence["without waiting, rank 1 (the lowest)"] == 250_000
    assert evidence["compute that could run at the same time"] == finding.saving_ns == 100_000
    assert finding.title.startswith("25 % of a step")


def test_without_a_rank_waiting_is_not_called_transfer(tmp_path: Path) -> None:
    """Rank 1 comes 250 µs late to 300 µs of all-reduce: with both ranks 50 µs could overlap; with one nobody knows."""

    def make(rank: int, at: float) -> list[kineto.Event]:
        return [*work(at + 10, 500 + 250 * rank), *reduce(at + 520, 300, 250 * rank)]

    both = diagnosed(tmp_path / "both", make, ranks=2)["exposed_communication"]
    assert both.saving_ns == 50_000
    for rank in (0, 1):
        alone = tmp_path / f"rank{rank}"
        alone.mkdir()
        (alone / f"rank{rank}.json").write_bytes((tmp_path / "both" / f"rank{rank}.json").read_bytes())
        found = {each.id: each for each in rankscope.open(alone, executor="serial").diagnose()}["exposed_communication"]
        assert (found.severity, found.saving_ns) == ("info", None)
        assert "is unknown" in found.title
        evidence = {each.name: each.value for each in found.evidence}
        assert evidence["ranks without a complete trace, at least"] == "1 rank"
        assert "Record all ranks" in found.advice


def test_a_share_of_the_devices_span_where_no_steps_are_marked(tmp_path: Path) -> None:
    """The host loads for 101 ms before 1 ms of work, of which 530 µs are exposed: 53 %, not 0.5."""
    events = {rank: [kineto.loading(0, 101_000), *work(101_010, 470), *reduce(101_480, 530)] for rank in (0, 1)}
    run = rankscope.open(kineto.write_ranks(tmp_path, events), executor="serial")
    found = {each.id: each for each in run.diagnose()}["exposed_communication"]
    assert found.title.startswith("53 % of the recorded span is exposed communication")
    assert found.saving_ns == 470_000
    overview = run.overview().row(0, named=True)
    assert overview["exposed_share"] == pytest.approx(0.53)
    assert overview["step_ns"] == run.step_time()["window_ns"][0] == 1_000_000
    assert "data_loading" not in {each.id for each in run.diagnose()}


REAL_SETS = [
    pytest.param("torchrec/all-to-all-4ranks", marks=pytest.mark.slow),
    pytest.param("torchrec/ddp-resnet18-2ranks", marks=pytest.mark.slow),
    pytest.param("torchrec/rank2-sleeps-4ranks", marks=pytest.mark.slow),
    "tensorboard-plugin/ddp_gloo_torch213_3ranks",
    pytest.param("modded-nanogpt-h100-8ranks", marks=pytest.mark.slow),
]
ABOUT_COMMUNICATION = ("exposed_communication", "small_problem", "small_collectives", "bucket_size", "slow_network")


@pytest.mark.parametrize("name", REAL_SETS)
def test_no_rank_less_makes_it_more(shared_traces: Path, tmp_path: Path, name: str) -> None:
    """What is waiting for a rank whose file is missing is never claimed as a saving, whichever rank it is."""
    files = sorted(each for each in (shared_traces / name).iterdir() if ".json" in each.name)
    if len(files) < 2:
        pytest.skip(f"the real trace {name} is not here")
    complete = savings_of(shared_traces / name)
    for number, _ in enumerate(files):
        fewer = tmp_path / f"without{number}"
        fewer.mkdir()
        for file in (*files[:number], *files[number + 1 :]):
            (fewer / file.name).symlink_to(file)
        for rule, saving in savings_of(fewer).items():
            assert saving <= complete.get(rule, 0), (rule, files[number].name)


@pytest.mark.slow
def test_no_rank_less_makes_it_more_in_simulated_jobs(tmp_path: Path) -> None:
    simulate(tmp_path / "all", Job(ranks=4, steps=3, seed=7, faults=(Fault.parse("slow_host:rank=2,magnitude=0.2"),)))
    complete = savings_of(tmp_path / "all")
    for rank in range(4):
        shutil.copytree(tmp_path / "all", tmp_path / f"without{rank}")
        (missing,) = (tmp_path / f"without{rank}").glob(f"rank{rank}_*")
        missing.unlink()
        for rule, saving in savings_of(tmp_path / f"without{rank}").items():
            assert saving <= complete.get(rule, 0), (rule, rank)


def savings_of(folder: Path) -> dict[str, int]:
    run = rankscope.open(folder, executor="serial")
    return {each.id: each.saving_ns or 0 for each in run.diagnose() if each.id in ABOUT_COMMUNICATION}


@pytest.mark.parametrize(
    ("dtype", "hook"),
    [("Float", "a bf16 compression hook, gradient"), ("float32", "a bf16 compression hook, gradient"),
     ("BFloat16", ""), ("c10::BFloat16", ""), ("Half", ""), (None, "hook for gradients in float32")],
)  # fmt: skip
def test_gradients_in_bfloat16_need_no_hook_that_makes_them_so(dtype: str | None, hook: str) -> None:
    ddp = JobKind("training", "ddp")
    heaviest = exposed_communication._Heaviest("all_reduce", 4_000_000, 8, dtype, 1.0)
    advice = exposed_communication._advice(ddp, heaviest)
    assert hook in advice
    assert ("hook" in advice) is bool(hook)
    assert "no_sync" in advice


@pytest.mark.parametrize(
    ("job", "kind", "helps"),
    [
        (JobKind("training", "ddp"), "all_reduce", True),
        (JobKind("training", "fsdp"), "all_gather", True),
        (JobKind("training", "ddp"), "all_to_all", False),
        (JobKind("training", "fsdp", frozenset({"tensor"})), "all_reduce", False),
        (JobKind("training", None, frozenset({"pipeline"})), "send_recv", False),
        (JobKind("training", None, frozenset({"context"})), "all_gather", False),
    ],
)
def test_a_larger_batch_is_advised_where_the_bytes_do_not_grow_with_it(job: JobKind, kind: str, helps: bool) -> None:
    advice = exposed_communication._advice(job, exposed_communication._Heaviest(kind, None, 8, None, 1.0))
    assert ("larger batches" in advice) is helps
    assert ("larger batch" in small_problem._advice(job)) is (helps or kind in ("all_to_all", "send_recv"))


def test_the_hook_has_a_type_of_the_device() -> None:
    heaviest = exposed_communication._Heaviest("all_reduce", None, 8, "Float", 1.0)
    assert "an fp16 compression hook" in exposed_communication._advice(JobKind("training", "ddp"), heaviest, "float16")
