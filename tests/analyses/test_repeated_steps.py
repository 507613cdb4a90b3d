"""Windows of a rank that number their steps alike: one profiler per epoch, or attempts of an elastic job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from tests.kineto import Event, collective, kernel, launch, op, step, trace, write

import rankscope
from rankscope.engine.pipeline.clock import clock_of
from rankscope.primitives.steps import count_steps, distinct_steps
from rankscope.show.report.summary import windows_numbered_alike
from rankscope.show.timeline.heat_map import heat_of

WINDOWS, STEPS, LENGTH = 5, 3, 200.0


def events_of(start: float, number: int, place: int, arrives: float) -> list[Event]:
    """A step whose host launches 30 µs of compute, and an all_reduce that arrives when it is said, and ends at 160.

    The host waits for it.
    """
    one, two = 2 * place + 1, 2 * place + 2
    return [
        step(number, start, LENGTH),
        op("aten::mm", start + 5, 15, external=one, dims=[[8, 8], [8, 8]]),
        launch(start + 10, 5, correlation=one, external=one),
        kernel("ampere_sgemm_128x64", start + 20, 30, correlation=one, external=one),
        op("c10d::allreduce_", start + arrives - 20, 15, external=two),
        launch(start + arrives - 15, 5, correlation=two, external=two),
        launch(start + arrives, 160 - arrives, name="cudaStreamSynchronize"),
        collective(start + arrives, 160 - arrives, correlation=two, external=two, sequence=place),
    ]


def opened(folder: Path, late: Sequence[tuple[int, int]], *, alike: bool) -> rankscope.Run:
    """Five windows of three steps of two ranks, of which rank 1 comes 60 µs late in the windows and steps given."""
    for rank in range(2):
        for window in range(WINDOWS):
            events = []
            for number in range(STEPS):
                place = window * STEPS + number
                arrives = 120.0 if rank == 1 and (window, number) in late else 60.0
                start = 10_000.0 * window + LENGTH * number
                events += events_of(start, number if alike else place, place, arrives)
            write(folder / f"rank{rank}.window{window}.json", trace(events, rank=rank, world_size=2))
    return rankscope.open(folder, executor="serial")


ALL = [(window, step) for window in range(WINDOWS) for step in range(STEPS)]


def test_steps_of_all_windows_count(tmp_path: Path) -> None:
    run = opened(tmp_path, ALL, alike=True)
    assert run.overview()["steps"].to_list() == [WINDOWS * STEPS]
    # What came before a file's first collective is not recorded alike on all ranks.
    assert run.stragglers()["steps"].to_list() == [WINDOWS * (STEPS - 1)] * 2
    diagnosis = run.diagnosis()
    assert (diagnosis.stragglers.state, diagnosis.stragglers.ranks) == ("straggler", (1,))
    assert "Whether a difference lasts" not in [each.what for each in diagnosis.not_judged]
    assert "too_few_steps" not in [each.id for each in run.findings]
    (found,) = [each for each in run.findings if each.id == "straggler"]
    counts = {each.name: each.value for each in found.evidence}
    assert counts["steps in which it is late"] == counts["steps compared"] == WINDOWS * (STEPS - 1)
    assert counts["local time above its peers' median, mean over steps"] == 60_000


def test_each_step_has_a_critical_path_of_its_own(tmp_path: Path) -> None:
    alike, apart = (opened(tmp_path / str(each), ALL, alike=each).critical_path() for each in (True, False))
    assert alike.height == apart.height == 3 * WINDOWS * STEPS  # the steps' own on two ranks, and the one across both
    assert alike.drop("step").equals(apart.drop("step"))
    own = alike.filter(pl.col("path") == "rank")
    assert own["path_ns"].unique().to_list() == [round(1000 * LENGTH)]
    assert sorted(own["step"].unique()) == list(range(STEPS))


def test_the_verdict_is_that_of_steps_with_numbers_of_their_own(tmp_path: Path) -> None:
    late = [(window, 1) for window in range(WINDOWS)]
    for name, chosen in (("all", ALL), ("some", late), ("none", [])):
        alike = opened(tmp_path / f"{name}-alike", chosen, alike=True)
        apart = opened(tmp_path / f"{name}-apart", chosen, alike=False)
        assert alike.stragglers().equals(apart.stragglers())
        assert results_of(alike) == results_of(apart)
        by_step, expected = (each.stragglers(by="step").drop("step") for each in (alike, apart))
        assert by_step.equals(expected)


def results_of(run: rankscope.Run) -> list[Any]:
    """The findings but for the one that steps begin again."""
    found = [each for each in run.findings if each.id != "run-doubtful"]
    return [(each.id, each.severity, each.title, each.ranks, each.saving_ns) for each in found]


def test_a_step_is_named_as_the_traces_number_it(tmp_path: Path) -> None:
    by_step = opened(tmp_path, ALL, alike=True).stragglers(by="step")
    assert by_step.filter(pl.col("rank") == 1)["step"].to_list() == [1, 2] * WINDOWS


def frame(rows: Sequence[tuple[int, int, int | None]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=dict.fromkeys(("rank", "window", "step"), pl.Int64), orient="row")


def test_a_rank_that_lacks_a_window_repeats_no_number() -> None:
    rows = frame([(0, 0, 1), (0, 0, 2), (0, 1, 5), (0, 2, 9), (1, 0, 1), (1, 0, 2), (1, 1, 9), (1, 1, None)])
    assert count_steps(rows) == 4
    assert distinct_steps([rows])[0] == {}


def test_steps_follow_one_another_within_a_window_alone() -> None:
    """An attempt that resumes from a checkpoint repeats some numbers; beside them stand what others name."""
    huge = 2**63 - 1
    rows = frame([(0, 0, 3), (0, 0, 4), (0, 1, 4), (0, 1, 5), (0, 1, 7), (0, 1, huge), (0, 1, None)])
    named, (own, beside) = distinct_steps([rows, frame([(0, 0, 5), (0, 1, 3)])])
    assert count_steps(rows) == 6
    numbers = own["step"].to_list()
    assert [named.get(number) for number in numbers] == rows["step"].to_list()
    assert len(set(numbers)) == len(numbers)
    after = numbers[:2] + beside["step"].to_list()[:1]
    assert after == list(range(after[0], after[0] + 3))
    assert numbers[3] == numbers[2] + 1
    assert numbers[4] > numbers[3] + 1
    assert beside["step"][1] == numbers[2] - 1 > after[-1] + 1


def test_steps_that_are_numbered_alike_are_shown_window_by_window(tmp_path: Path) -> None:
    run = opened(tmp_path, [(3, 1)], alike=True)
    by_step = run.stragglers(by="step").filter(pl.col("rank") == 1)
    assert by_step["step"].to_list() == [1, 2] * WINDOWS
    assert by_step["window"].to_list() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert by_step.filter(pl.col("waited_ns") > 0).select("window", "step").rows() == [(3, 1)]
    shown = heat_of(run, clock_of(run))
    assert shown is not None
    assert shown["steps"] == [0, 1, 2] * WINDOWS
    assert shown["windows"] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    of_rank_1 = shown["lateness_ns"][WINDOWS * STEPS :]
    assert [place for place, late in enumerate(of_rank_1) if late] == [3 * STEPS + 1]
    assert windows_numbered_alike(run.traces) == WINDOWS
    assert windows_numbered_alike(opened(tmp_path / "other", [], alike=False).traces) == 1
