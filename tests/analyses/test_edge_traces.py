"""Every analysis on what is hardly a trace: no steps, no host, no device, nothing at all, ranks of different kinds."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from tests import kineto
from tests.analyses.reference import rank_events, write_reference

import rankscope
from rankscope.analyses import all_analyses
from rankscope.engine.pipeline import Run
from rankscope.show.export.formats import FORMATS

HOST = [kineto.step(1, 0, 100), kineto.op("aten::mm", 10, 30), kineto.annotation("gloo:all_reduce", 50, 20, tid=9)]
CASES: dict[str, dict[int, list[kineto.Event]]] = {
    "empty": {0: []},
    "two empty ranks": {0: [], 1: []},
    "one rank empty": {0: kineto.small_step(), 1: []},
    "one rank of the host alone": {0: kineto.small_step(), 1: HOST},
    "the host alone": {0: HOST, 1: HOST},
    "operators alone": {0: [kineto.op("aten::mm", 0, 10)]},
    "steps alone": {0: [kineto.step(1, 0, 10), kineto.step(2, 10, 10)]},
    "no steps": {0: [event for event in kineto.small_step() if not event["name"].startswith("ProfilerStep")]},
    "the device alone": {0: [kineto.kernel("gemm", 0, 10), kineto.collective(5, 10), kineto.memcpy(20, 5)]},
    "a marker alone": {0: [kineto.event("mark", 3, ph="i", cat="x")]},
    "no durations": {0: [kineto.kernel("gemm", 5, None), kineto.step(1, 0, None)]},  # type: ignore[arg-type]
    "negative durations": {0: [kineto.kernel("gemm", 5, -3), kineto.step(1, 0, -10), kineto.op("a", 1, -1)]},
    "no names": {0: [kineto.event(None, 5, 3, cat="kernel"), kineto.event(None, 1, 2, cat="user_annotation")]},
    "no stream": {0: [kineto.event("ncclX", 5, 3, cat="kernel"), kineto.step(1, 0, 20), kineto.launch(1, 1)]},
    "one step number twice": {0: [*kineto.small_step(0), *kineto.small_step(100, correlation=9)]},
    "steps that overlap": {0: [*kineto.small_step(0), *kineto.small_step(40, 2, correlation=9)]},
    "absurd numbers": {0: [kineto.kernel("gemm", 5, 3, **{"blocks per SM": 1e300, "est. achieved occupancy %": 1e39})]},
    "negative steps": {0: [kineto.annotation("ProfilerStep#-1", 0, 9), kineto.annotation("ProfilerStep#x", 0, 9)]},
}


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pl.Schema]:
    """What each analysis's columns are on a trace that has everything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKSCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))
        run = rankscope.open(write_reference(tmp_path_factory.mktemp("reference")), executor="serial")
        return {name: run.analyze(name)[name].frame.schema for name in all_analyses()}


def check(run: Run, schemas: dict[str, pl.Schema]) -> None:
    for name, analysis in all_analyses().items():
        result = run.analyze(name)[name]
        assert result.frame.columns == [column.name for column in analysis.columns], name
        assert result.frame.schema == schemas[name], name
        for form in FORMATS.values():
            form(result, run.about())
        found = json.loads(FORMATS["json"](result, run.about()))
        assert len(found["rows"]) == result.frame.height
    steps = run.step_time()
    unknown = sorted({info.rank for info in run.loaded.infos if info.account.hides_work})
    assert steps.filter(pl.col("compute_ns").is_null())["rank"].unique().sort().to_list() in ([], unknown)
    steps = steps.drop_nulls("compute_ns")
    categories = steps.columns[steps.columns.index("gap_before_ns") + 1 :]
    assert steps.filter(pl.sum_horizontal(categories) != pl.col("window_ns")).is_empty()
    device = run.device_time()
    assert (device["busy_ns"] + device["idle_ns"] == device["span_ns"]).all()
    assert device["rank"].to_list() == run.ranks


@pytest.fixture
def any_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that no trace has are refused; a rank that lacks steps which another has is not, and looks the same."""
    monkeypatch.setattr("rankscope.engine.pipeline.load.check_steps", lambda infos, steps: None)


@pytest.mark.usefixtures("any_steps")
@pytest.mark.parametrize("steps", [None, pytest.param("1:1", marks=pytest.mark.slow), "900:"])
@pytest.mark.parametrize("name", CASES)
def test_every_analysis(tmp_path: Path, schemas: dict[str, pl.Schema], name: str, steps: str | None) -> None:
    folder = kineto.write_ranks(tmp_path / "run", CASES[name])
    check(rankscope.open(folder, executor="serial", steps=steps), schemas)


def opened(tmp_path: Path, by_rank: dict[int, list[kineto.Event]], **options: str) -> Run:
    return rankscope.open(kineto.write_ranks(tmp_path / "run", by_rank), executor="serial", **options)


def two_windows(folder: Path, first: list[kineto.Event], second: list[kineto.Event]) -> Run:
    """Two files of rank 0, of which the second was recorded an hour later."""
    for number, events in enumerate((first, second)):
        content = kineto.trace(events, rank=0, world_size=1, base_time_ns=number * 3600 * 10**9)
        kineto.write(folder / f"rank0_iter{number}_{number}.json", content)
    return rankscope.open(folder, executor="serial")


def test_windows_are_added_up(tmp_path: Path, schemas: dict[str, pl.Schema]) -> None:
    one = opened(tmp_path / "one", {0: kineto.small_step()}).device_time().row(0, named=True)
    run = two_windows(tmp_path / "two", kineto.small_step(), kineto.small_step(number=2, correlation=7))
    check(run, schemas)
    both = run.device_time().row(0, named=True)
    # Each by itself: the hour between them is nobody's idle time.
    assert {name: value for name, value in both.items() if name.endswith("_ns")} == {
        name: 2 * value for name, value in one.items() if name.endswith("_ns")
    }
    assert both["overlap_ratio"] == one["overlap_ratio"]
    steps = run.step_time()
    assert steps.select("window", "step").rows() == [(0, 1), (1, 2)]
    assert steps["gap_before_ns"].to_list() == [None, None]
    assert run.collectives()["window"].to_list() == [0, 1]


def test_a_window_says_which_file_it_is_even_after_an_empty_one(tmp_path: Path, schemas: dict[str, pl.Schema]) -> None:
    run = two_windows(tmp_path, [kineto.event("mark", 3, ph="i", cat="x")], kineto.small_step(number=2))
    check(run, schemas)
    assert run.step_time().select("window", "step").rows() == [(1, 2)]
    assert run.collectives()["window"].to_list() == [1]


def test_steps_left_open_on_both_sides_are_all_steps(tmp_path: Path) -> None:
    folder = kineto.write_ranks(tmp_path / "run", {0: rank_events(0)})
    everything = rankscope.open(folder, executor="serial").step_time()
    assert rankscope.open(folder, executor="serial", steps=(None, None)).step_time().equals(everything)


@pytest.mark.parametrize(
    ("steps", "kept"),
    [("10:11", [10, 11]), ("10:10", [10]), ("11:", [11]), (":10", [10]), ("10", [10]), (None, [10, 11])],
)
def test_both_ends_of_steps_are_included(tmp_path: Path, steps: str | None, kept: list[int]) -> None:
    run = opened(tmp_path, {0: rank_events(0)}, **({"steps": steps} if steps else {}))
    assert run.step_time()["step"].to_list() == kept
    assert sorted(set(run.collectives()["step"])) == kept
    calls = {row["name"]: row["calls"] for row in run.kernels().to_dicts()}
    assert calls.get("ampere_sgemm_128x64_nn", 0) == 2 * len(kept)
    # A launchless kernel belongs to no step.
    assert ("backlog_gemm" in calls) is (steps is None)


def test_chosen_steps_of_a_host_trace_are_what_lies_in_their_ranges(tmp_path: Path) -> None:
    events = [
        kineto.step(1, 0, 50),
        kineto.step(2, 50, 50),
        kineto.op("aten::mm", 40, 30),
        kineto.annotation("gloo:all_reduce", 60, 20, tid=9),
    ]
    row = opened(tmp_path, {0: events}, steps="2").device_time().row(0, named=True)
    assert (row["compute_ns"], row["communication_ns"], row["overlap_ns"]) == (20_000, 20_000, 10_000)


@pytest.mark.usefixtures("any_steps")
def test_a_device_trace_without_work_in_the_chosen_steps_is_not_read_on_the_host(tmp_path: Path) -> None:
    row = opened(tmp_path, {0: rank_events(0)}, steps="900:").device_time().row(0, named=True)
    assert row["span_ns"] == row["compute_ns"] == row["communication_ns"] == 0
    assert row["overlap_ratio"] is None


def test_a_rank_without_device_events_among_others_is_a_finding(tmp_path: Path) -> None:
    run = opened(tmp_path, {0: kineto.small_step(), 1: HOST})
    run.device_time()
    found = next(finding for finding in run.findings if finding.id == "ranks-without-device-events")
    assert (found.severity, found.ranks) == ("warning", (1,))


def test_gloo_beside_a_device_is_a_finding(tmp_path: Path) -> None:
    run = opened(tmp_path, {0: [*kineto.small_step(), kineto.annotation("gloo:all_reduce", 50, 20, tid=9)]})
    run.device_time()
    found = next(finding for finding in run.findings if finding.id == "gloo-beside-device")
    assert (found.severity, found.evidence[0].value) == ("info", 20_000)


@pytest.mark.parametrize("by_rank", [{0: HOST, 1: HOST}, {0: kineto.small_step(), 1: kineto.small_step()}, {0: []}])
def test_ranks_of_one_kind_are_none(tmp_path: Path, by_rank: dict[int, list[kineto.Event]]) -> None:
    run = opened(tmp_path, by_rank)
    run.device_time()
    assert not {finding.id for finding in run.findings} & {"ranks-without-device-events", "gloo-beside-device"}


@pytest.mark.slow
@pytest.mark.usefixtures("shared_cache")
def test_every_analysis_on_every_real_trace(shared_traces: Path, schemas: dict[str, pl.Schema]) -> None:
    paths = sorted(path for path in shared_traces.rglob("*.json*") if path.is_file())
    assert len(paths) > 60
    for path in paths:
        check(rankscope.open(path, executor="serial"), schemas)
