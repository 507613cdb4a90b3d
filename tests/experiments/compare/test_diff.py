"""Two runs compared: against hand-made traces, and against a plain reading of real ones."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests import kineto

import rankscope
from rankscope.errors import ConfigError
from rankscope.experiments.compare import Diff
from rankscope.experiments.compare.gate import parse_condition

SHAPES = [[8, 8], [8, 8]]


def job(folder: Path, *, gemm: float, name: str = "gemm", ranks: int = 2, extra: bool = False) -> Path:
    """Ranks with four steps of 1 ms; each runs one kernel of about `gemm` µs, rank 1 a microsecond longer."""
    by_rank = {}
    for rank in range(ranks):
        events: list[kineto.Event] = []
        for number in range(4):
            at, ids = 1000.0 * number, 10 * number
            events += [
                kineto.step(number, at, 1000),
                kineto.op("aten::mm", at + 10, 30, external=ids + 1, dims=SHAPES),
                kineto.launch(at + 15, 5, correlation=ids + 1, external=ids + 1),
                kineto.kernel(name, at + 20, gemm + rank + number % 2, correlation=ids + 1, external=ids + 1),
            ]
            if extra:
                events.append(kineto.op("aten::extra", at + 900, 7))
        by_rank[rank] = events
    return kineto.write_ranks(folder, by_rank)


def row(diff: Diff, section: str, name: str) -> dict[str, Any]:
    return diff.section(section).filter(pl.col("name") == name).row(0, named=True)


def test_means_changes_and_their_spread(tmp_path: Path) -> None:
    diff = rankscope.diff(job(tmp_path / "a", gemm=100), job(tmp_path / "b", gemm=150))
    found = row(diff, "kernels", "gemm")
    # Ranks 0 and 1, steps alternate: 100, 101 and 101, 102.
    assert (found["a"], found["b"]) == (101_000, 151_000)
    assert found["change"] == 50_000
    assert found["change_ratio"] == pytest.approx(50 / 101)
    assert (found["a_calls"], found["b_calls"]) == (1, 1)
    # Two of 100, four of 101, two of 102: squares 4 × 1 over 7.
    assert found["a_spread"] == pytest.approx(1000 * (4 / 7) ** 0.5)
    assert found["significant"] is True
    assert found["method"] == "name"
    assert row(diff, "steps", "compute")["change"] == 50_000
    assert row(diff, "operators", "aten::mm")["change"] == 0
    assert row(diff, "operators", "aten::mm")["significant"] is False


def test_renamed_kernels_are_paired_by_their_operator(tmp_path: Path) -> None:
    diff = rankscope.diff(job(tmp_path / "a", gemm=100), job(tmp_path / "b", gemm=90, name="Cijk"))
    found = row(diff, "kernels", "gemm")
    assert (found["partner"], found["operator"], found["method"]) == ("Cijk", "aten::mm", "operator and shapes")
    assert found["change"] == -10_000


def test_what_only_one_has(tmp_path: Path) -> None:
    diff = rankscope.diff(job(tmp_path / "a", gemm=100), job(tmp_path / "b", gemm=100, extra=True))
    found = row(diff, "operators", "aten::extra")
    assert found["a"] is None
    assert (found["b"], found["change"], found["change_ratio"], found["method"]) == (7000, 7000, None, "alone")
    assert (found["significant"], found["verdict"]) == (None, None)


def test_modules_are_compared_with_those_inside_them(tmp_path: Path) -> None:
    def folder(name: str, mm: float, *, extra: bool = False) -> Path:
        events: list[kineto.Event] = []
        for number in range(3):
            at, ids = 1000.0 * number, 10 * number
            events += [
                kineto.step(number, at, 1000),
                kineto.frame("nn.Module: Net_0", at + 5, 800),
                kineto.op("aten::relu", at + 10, 20, external=ids + 3),
                kineto.frame("nn.Module: Linear_0", at + 100, 400),
                kineto.op("aten::mm", at + 110, mm, external=ids + 1),
                kineto.launch(at + 111, 5, correlation=ids + 1, external=ids + 1),
                kineto.kernel("gemm", at + 600, 3 * mm, correlation=ids + 1, external=ids + 1),
                kineto.op("aten::item", at + 900, 7),
            ]
            if extra:
                events.append(kineto.op("aten::add", at + 450, 9))
        return kineto.write_ranks(tmp_path / name, {0: events})

    diff = rankscope.diff(folder("a", 30), folder("b", 40, extra=True))
    shown = diff.section("modules_host").select("name", "operator", "a", "b", "method").rows()
    assert sorted(shown) == [
        ("Net_0", None, 50_000, 69_000, "name"),
        ("Net_0/Linear_0", None, 30_000, 49_000, "name"),
        ("Net_0/Linear_0/aten::add", "aten::add", None, 9_000, "alone"),
        ("Net_0/Linear_0/aten::mm", "aten::mm", 30_000, 40_000, "name"),
        ("Net_0/aten::relu", "aten::relu", 20_000, 20_000, "name"),
        ("outside modules", None, 7_000, 7_000, "name"),
        ("outside modules/aten::item", "aten::item", 7_000, 7_000, "name"),
    ]
    device = {name: (a, b) for name, a, b in diff.section("modules_device").select("name", "a", "b").rows()}
    assert device["Net_0"] == device["Net_0/Linear_0"] == (90_000, 120_000)
    assert parse_condition("modules_device:Net_0 > 10%").fails(diff) is not None


def test_three_steps_against_two_are_too_few(tmp_path: Path) -> None:
    """The second step of B takes 3.2 times as long as its first: nobody can tell whether B is slower."""

    def once(folder: Path, durations: list[float], ranks: int = 1) -> Path:
        events: list[kineto.Event] = []
        for number, duration in enumerate(durations):
            events += [
                kineto.step(number, 2000 * number, 1000),
                kineto.launch(2000 * number + 1, 1, correlation=number + 1),
                kineto.kernel("k", 2000 * number + 5, duration, correlation=number + 1),
            ]
        return kineto.write_ranks(folder, dict.fromkeys(range(ranks), events))

    few = row(rankscope.diff(once(tmp_path / "a", [100, 101, 102]), once(tmp_path / "b", [101, 321])), "kernels", "k")
    assert few["change_ratio"] == pytest.approx(1.089, abs=0.001)
    assert few["significant"] is None
    # t = 110 / √(12 100 + 1/3) = 1, with one degree of freedom: p = 0.5.
    assert few["verdict"] == "too few steps to tell (Welch's t-test, 3 and 2 steps, p = 0.5)"
    assert (few["a_samples"], few["b_samples"]) == (3, 2)
    # One step of many ranks is one sample: what slows the step slows them all.
    one = row(
        rankscope.diff(once(tmp_path / "c", [100], ranks=6), once(tmp_path / "d", [150], ranks=6)), "kernels", "k"
    )
    assert (one["significant"], one["verdict"]) == (None, "too few steps to tell (1 and 1 steps)")
    many = row(
        rankscope.diff(once(tmp_path / "e", [100, 130, 90, 110, 95]), once(tmp_path / "f", [99, 131, 92, 100, 110])),
        "kernels",
        "k",
    )
    assert (many["significant"], many["verdict"][:15]) == (False, "not significant")
    assert "5 and 5 steps" in many["verdict"]


def test_two_ranks_of_one_run(tmp_path: Path) -> None:
    run = rankscope.open(job(tmp_path / "a", gemm=100))
    found = row(rankscope.diff(run, ranks=[0, 1]), "kernels", "gemm")
    assert (found["a"], found["b"]) == (100_500, 101_500)
    with pytest.raises(ConfigError, match="no trace of rank 7"):
        rankscope.diff(run, ranks=[0, 7])
    with pytest.raises(ConfigError, match="two ranks"):
        rankscope.diff(run)


def test_a_kernel_that_skips_steps_counts_as_nothing_there(tmp_path: Path) -> None:
    def once(folder: Path, durations: list[float]) -> Path:
        events: list[kineto.Event] = []
        for number, duration in enumerate(durations):
            events.append(kineto.step(number, 1000 * number, 1000))
            if duration:
                events += [
                    kineto.launch(1000 * number + 1, 1, correlation=number + 1),
                    kineto.kernel("k", 1000 * number + 5, duration, correlation=number + 1),
                ]
        return kineto.write_ranks(folder, {0: events})

    diff = rankscope.diff(once(tmp_path / "a", [30, 0, 0, 30]), once(tmp_path / "b", [30, 30, 30, 30]))
    found = row(diff, "kernels", "k")
    assert (found["a"], found["b"], found["a_calls"]) == (15_000, 30_000, 0.5)


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Diff:
    """Two jobs, of which the second needs half as long again for its kernels."""
    folder = tmp_path_factory.mktemp("slower")
    return rankscope.diff(job(folder / "a", gemm=100), job(folder / "b", gemm=150))


@pytest.mark.parametrize(
    ("condition", "fails"),
    [
        ("compute > 5%", True),
        ("compute > 60 %", False),
        ("compute>40us", True),
        ("compute > 50us", False),
        ("compute >= 50us", True),
        ("kernels:gemm > 0.04 ms", True),
        ("step_time > 5%", False),
        ("step_time < -1%", False),
        ("findings > 100", False),
    ],
)
def test_conditions(slower: Diff, condition: str, fails: bool) -> None:
    breach = parse_condition(condition).fails(slower)
    assert (breach is not None) == fails
    if breach is not None and "compute" in condition:
        assert (breach.name, breach.change, breach.unit, breach.significant) == ("compute", 50_000, "ns", True)
        assert breach.ratio == pytest.approx(50 / 101)


def test_each_row_of_a_name_is_held_to_the_limit(tmp_path: Path) -> None:
    """One operator with two shapes: that with fewer elements takes longer, the other, which comes first, less."""

    def once(folder: Path, small: float, large: float) -> Path:
        events: list[kineto.Event] = []
        for number in range(4):
            at = 1000.0 * number
            events += [
                kineto.step(number, at, 1000),
                kineto.op("aten::mm", at + 10, small, dims=SHAPES),
                kineto.op("aten::mm", at + 500, large, dims=[[64, 64], [64, 64]]),
            ]
        return kineto.write_ranks(folder, {0: events})

    diff = rankscope.diff(once(tmp_path / "a", 10, 400), once(tmp_path / "b", 20, 300))
    assert [each["change"] for each in diff.section("operators").to_dicts()] == [-100_000, 10_000]
    breach = parse_condition("aten::mm > 5%").fails(diff)
    assert breach is not None
    assert (breach.change, breach.ratio) == (10_000, 1.0)
    assert parse_condition("operators:aten::mm > 11us").fails(diff) is None


@pytest.mark.parametrize("text", ["", "step_time", "step_time > ", "> 5%", "step_time > 5 parsecs"])
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(ConfigError, match="not a condition"):
        parse_condition(text)


def test_a_condition_on_what_is_not_there_says_what_is(tmp_path: Path) -> None:
    diff = rankscope.diff(job(tmp_path / "a", gemm=100), job(tmp_path / "b", gemm=150))
    with pytest.raises(ConfigError, match="no row is called") as error:
        parse_condition("stepp_time > 5%").fails(diff)
    assert "step_time" in str(error.value.hint)
    with pytest.raises(ConfigError, match="is in ns"):
        parse_condition("step_time > 5MB").fails(diff)


def test_a_run_that_recorded_nothing_passes_no_condition(tmp_path: Path) -> None:
    full = job(tmp_path / "a", gemm=100, ranks=1)
    empty = kineto.write_ranks(tmp_path / "b", {0: []})
    for diff, which in ((rankscope.diff(full, empty), "B"), (rankscope.diff(empty, full), "A")):
        with pytest.raises(ConfigError, match=f"cannot be judged: {which} has no step_time"):
            parse_condition("step_time > 5%").fails(diff)
    # What only one of them ran did take no time in the other.
    assert parse_condition("kernels:gemm > 5%").fails(rankscope.diff(full, empty)) is None
    assert parse_condition("kernels:gemm > 5%").fails(rankscope.diff(empty, full)) is not None


def test_a_kernel_that_is_not_there_is_answered_with_the_nearest(tmp_path: Path) -> None:
    diff = rankscope.diff(job(tmp_path / "a", gemm=100), job(tmp_path / "b", gemm=150))
    with pytest.raises(ConfigError, match="no row is called 'gem'") as error:
        parse_condition("kernels:gem > 5%").fails(diff)
    assert error.value.hint == "nearest of the 1 kernels: gemm"


def test_json_holds_what_the_frame_does(tmp_path: Path) -> None:
    diff = rankscope.diff(job(tmp_path / "a", gemm=100), job(tmp_path / "b", gemm=150))
    content = json.loads(json.dumps(diff.to_json(), allow_nan=False))
    assert len(content["rows"]) == diff.frame.height
    assert set(content["rows"][0]) == set(content["columns"])
    assert content["a"]["ranks"] == [0, 1]


def plain_kernels(path: Path) -> dict[str, tuple[int, int]]:
    """Time and calls by kernel of what was launched inside steps, in plain Python."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    spans = [
        (e["ts"], e["ts"] + e["dur"])
        for e in events
        if str(e.get("name", "")).startswith("ProfilerStep#") and e.get("cat") != "gpu_user_annotation"
    ]
    launches = {
        e["args"]["correlation"]: e["ts"]
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver", "Runtime") and "correlation" in e.get("args", {})
    }
    found: dict[str, tuple[int, int]] = {}
    for e in events:
        if e.get("cat") not in ("Kernel", "Memcpy", "Memset", "kernel", "gpu_memcpy", "gpu_memset"):
            continue
        at = launches.get(e["args"].get("correlation"))
        if at is not None and any(first <= at < last for first, last in spans):
            time, calls = found.get(e["name"], (0, 0))
            found[e["name"]] = time + e["dur"] * 1000, calls + 1
    return found


@pytest.mark.slow
def test_real_runs_against_a_plain_reading(shared_traces: Path) -> None:
    """ResNet-50 with no and with four loader workers: loading falls, and every kernel is accounted for."""
    paths = [shared_traces / "tensorboard-plugin" / f"resnet50_num_workers_{n}" for n in (0, 4)]
    diff = rankscope.diff(*paths)
    loading = row(diff, "steps", "data_loading")
    assert loading["change"] / loading["a"] < -0.9
    assert loading["significant"] is True
    # Of what exists in both, nothing falls by more.
    parts = diff.section("steps").filter(pl.col("name") != "step_time")
    assert parts.sort("change")["name"][0] == "data_loading"
    assert parts.sort("change")["change"][0] < 10 * parts.sort("change")["change"][1]
    assert [finding.id for finding in diff.lost] == ["data_loading"]
    kernels = diff.section("kernels")
    for side, path in zip("ab", paths, strict=True):
        files = [plain_kernels(file) for file in sorted(path.glob("*.json*"))]
        steps = rankscope.open(path).step_time().height
        total = kernels[side].fill_null(0).sum() * steps
        assert total == pytest.approx(sum(time for plain in files for time, _ in plain.values()), rel=1e-9)
        calls = kernels[f"{side}_calls"].fill_null(0).sum() * steps
        assert calls == pytest.approx(sum(count for plain in files for _, count in plain.values()))


def test_two_vendors_are_paired(shared_traces: Path) -> None:
    """H100 against MI300X: most kernels have other names, and their operators tell which is which."""
    name = "Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
    diff = rankscope.diff(shared_traces / "tracelens/h100" / name, shared_traces / "tracelens/mi300" / name)
    kernels = diff.section("kernels")
    paired = kernels.filter(pl.col("a").is_not_null() & pl.col("b").is_not_null())
    for side in "ab":
        assert paired[side].sum() > 0.95 * kernels[side].fill_null(0).sum()
    assert "attn_fwd" in set(paired["partner"].drop_nulls())


def test_phases_and_memory_are_compared(tmp_path: Path) -> None:
    """Each rank's steps: a forward of 100 µs that becomes one of 150, and a peak of 3 MB that becomes one of 2."""

    def once(folder: Path, forward: float, peak: int) -> Path:
        def events(rank: int) -> list[kineto.Event]:
            made: list[kineto.Event] = []
            for number in range(4):
                at = 1000.0 * number
                made += [
                    kineto.step(number, at, 1000),
                    kineto.op("aten::mm", at + 10, forward, sequence=number),
                    kineto.memory(at + 20, 1_000_000, allocated=peak, reserved=8_000_000, address=16, device=rank),
                    kineto.memory(at + 90, -1_000_000, allocated=peak - 1_000_000, reserved=8_000_000, address=16,
                                  device=rank),
                ]  # fmt: skip
            return made

        return kineto.write_ranks(folder, {rank: events(rank) for rank in range(2)})

    diff = rankscope.diff(once(tmp_path / "a", 100, 3_000_000), once(tmp_path / "b", 150, 2_000_000))
    assert row(diff, "phases", "forward")["change"] == 50_000
    # The ranks' devices have numbers of their own, and are one row.
    assert row(diff, "memory", "device: peak allocated")["change"] == -1_000_000
    assert row(diff, "memory", "device: peak reserved")["change"] == 0
    assert row(diff, "memory", "device: allocated in a step")["b"] == 1_000_000


def snapshot(folder: Path, *sizes: int) -> Path:
    """A memory snapshot whose blocks, in use, are of so many bytes; one stack each, in a segment of twice the size."""
    blocks = [
        {"size": size, "requested_size": size, "state": "active_allocated",
         "frames": [{"filename": "model.py", "line": 10 + n, "name": f"layer{n}"}]}
        for n, size in enumerate(sizes)
    ]  # fmt: skip
    free = {"size": sum(sizes), "requested_size": 0, "state": "inactive", "frames": []}
    segment = {
        "device": 0, "address": 0, "total_size": 2 * sum(sizes), "allocated_size": sum(sizes),
        "active_size": sum(sizes), "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
        "is_expandable": False, "frames": [], "blocks": [*blocks, free],
    }  # fmt: skip
    folder.mkdir()
    (folder / "rank0.memory.pickle").write_bytes(pickle.dumps({"segments": [segment], "device_traces": [[]]}))
    return folder


def test_memory_snapshots_are_compared(tmp_path: Path) -> None:
    diff = rankscope.diff(snapshot(tmp_path / "a", 1000, 600), snapshot(tmp_path / "b", 400, 600))
    held = {row["name"]: (row["a"], row["b"]) for row in diff.section("snapshots").to_dicts()}
    assert held["snapshot: allocated"] == (1600, 1000)
    assert held["snapshot: reserved"] == (3200, 2000)
    assert held["snapshot: largest free block"] == (1600, 1000)
    first, second = diff.section("stacks").to_dicts()
    assert "layer0" in first["name"]
    assert (first["a"], first["b"], first["change"], first["unit"]) == (1000, 400, -600, "bytes")
    assert second["change"] == 0


def test_steps_are_told_by_what_changed_most(tmp_path: Path) -> None:
    diff = rankscope.diff(job(tmp_path / "a", gemm=100), job(tmp_path / "b", gemm=150))
    steps = diff.section("steps")
    assert steps["name"][0] == "step_time"
    changes = steps["change"].abs().to_list()[1:]
    assert changes == sorted(changes, reverse=True)
    assert diff.section("phases")["name"].to_list()[:2] == ["wall", "device"]


@pytest.mark.slow
def test_workers_take_the_loading_away(shared_traces: Path) -> None:
    """ResNet-50 with no loader's workers and with four: loading comes first, and by how much it falls."""
    folders = [shared_traces / "tensorboard-plugin" / f"resnet50_num_workers_{n}" for n in (0, 4)]
    steps = rankscope.diff(*folders).section("steps")
    whole, first = steps.row(0, named=True), steps.row(1, named=True)
    assert (whole["name"], first["name"]) == ("step_time", "data_loading")
    means = [rankscope.open(folder, executor="serial").step_time()["data_loading_ns"].mean() for folder in folders]
    assert first["change"] == pytest.approx(means[1] - means[0])
    assert first["change_ratio"] < -0.9
    assert first["significant"]


def test_findings_about_several_ranks_are_not_one_ranks(tmp_path: Path) -> None:
    """Ranks 0 and 1 wait for data, by 300 and 400 of 1000 µs: what is said of both is the run's, in no diff of two."""
    by_rank = {
        rank: [
            event
            for n in range(4)
            for event in (
                kineto.step(n, 1000 * n, 1000),
                kineto.loading(1000 * n + 1, wait),
                kineto.launch(1000 * n + 500, 5, correlation=n + 1),
                kineto.kernel("gemm", 1000 * n + 505, 400, correlation=n + 1),
            )
        ]
        for rank, wait in enumerate((300, 400, 2))
    }
    run = rankscope.open(kineto.write_ranks(tmp_path, by_rank), executor="serial")
    (finding,) = [each for each in run.diagnose() if each.id == "data_loading"]
    assert finding.ranks == (0, 1)
    diff = rankscope.diff(run, ranks=[0, 2])
    assert (diff.gained, diff.lost) == ((), ())
    assert row(diff, "steps", "data_loading")["a"] == 300_000


def test_a_rank_whose_file_is_cut_is_compared_only_if_named(tmp_path: Path) -> None:
    folder = job(tmp_path / "a", gemm=100)
    path = folder / "rank1.json"
    text = path.read_bytes()
    path.write_bytes(text[: int(0.6 * len(text))])
    other = job(tmp_path / "b", gemm=100)
    diff = rankscope.diff(folder, other)
    assert (diff.a["ranks"], diff.b["ranks"]) == ([0], [0, 1])
    assert row(diff, "kernels", "gemm")["a"] == 100_500
    assert rankscope.diff(folder, other, ranks=[1]).a["ranks"] == [1]
