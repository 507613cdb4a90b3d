"""The critical path on the timeline: the same sums as the analysis, without holes, on the events that it names."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests import kineto
from tests.analyses.reference import write_reference
from tests.show.timeline.test_call_trees import drawn

from rankscope.engine.pipeline import Run
from rankscope.primitives.dependencies import CATEGORIES
from rankscope.show.timeline.column_file import read_column_file
from rankscope.show.timeline.critical_path import NEEDED, CriticalPaths
from rankscope.show.timeline.timeline import Timeline

REAL = [
    "gloo-2ranks/ddp_gpt_straggler_rank1.*",
    "gloo-2ranks/fsdp2_gpt_shapes.*",
    "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "hta/critical_path/end_to_end/simple_add/input/trace.json.gz",
]
ROUNDED_NS = 2  # of clocks that are shifted and stretched
Times = Counter[tuple[int, str]]


def paths_of(run: Run, timeline: Timeline) -> CriticalPaths:
    frames = {name: result.frame for name, result in run.analyze(*NEEDED).items()}
    return CriticalPaths(timeline, frames, run.options.communication)


def read(found: bytes | None) -> tuple[dict[str, Any], dict[str, Any]]:
    assert found is not None
    return read_column_file(found)


def times(columns: dict[str, Any], head: dict[str, Any]) -> Times:
    """ns by rank and category."""
    sums: Times = Counter()
    for rank, code, start, end in zip(
        *(columns[n].tolist() for n in ("rank", "category", "start_ns", "end_ns")), strict=True
    ):
        sums[rank, head["categories"][code]] += int(end - start)
    return +sums


def of_analysis(run: Run, path: str, step: int | None, rank: int | None = None) -> Times:
    frame = run.critical_path().filter((pl.col("path") == path) & pl.col("step").eq_missing(step))
    if rank is not None:
        frame = frame.filter(pl.col("rank") == rank)
    return +Counter(
        {(row["rank"], name): row[f"{name}_ns"] for row in frame.to_dicts() for name in CATEGORIES}
    )  # fmt: skip


def steps_of(timeline: Timeline, rank: int) -> list[tuple[int | None, int]]:
    """A rank's steps, with an instant in each."""
    return [(number, (start + end) // 2) for number, start, end in timeline.ranks[rank].lanes.steps]


def abuts(columns: dict[str, Any]) -> bool:
    """Whether the parts follow one another in time without holes or overlap."""
    apart = columns["start_ns"][1:] - columns["end_ns"][:-1]
    return bool((abs(apart) <= ROUNDED_NS).all())


def check(run: Run, timeline: Timeline) -> None:
    paths = paths_of(run, timeline)
    frame = run.critical_path()
    ranks = sorted(timeline.ranks)
    for rank in ranks:
        for step, at in steps_of(timeline, rank):
            expected = of_analysis(run, "rank", step, rank)
            if not expected:
                continue  # not a complete step
            head, columns = read(paths.path(at, rank))
            assert (head["step"], head["of_rank"]) == (step, rank)
            assert times(columns, head) == expected
            assert abuts(columns)
            lies_within(timeline, columns)
    across = frame.filter(pl.col("path") == "all ranks")
    for step, at in steps_of(timeline, ranks[0]):
        if step in across["step"].to_list():
            head, columns = read(paths.path(at))
            assert (head["step"], head["of_rank"]) == (step, None)
            assert times(columns, head) == of_analysis(run, "all ranks", step)
            residual = timeline.clock.residual_ns or 0
            assert (abs(columns["start_ns"][1:] - columns["end_ns"][:-1]) <= residual + ROUNDED_NS).all()
            lies_within(timeline, columns)


def lies_within(timeline: Timeline, columns: dict[str, Any]) -> None:
    """Each part that names an event is within that, on a lane of the part's rank."""
    for rank, lane, row, start, end in zip(
        *(columns[n].tolist() for n in ("rank", "lane", "row", "start_ns", "end_ns")), strict=True
    ):
        if lane < 0:
            continue
        in_run, own = timeline.place(lane)
        assert in_run.lanes.rank == rank
        at = int(in_run.lanes.events.pointer[own]) + row
        assert in_run.lanes.events.start[at] - ROUNDED_NS <= start < end <= in_run.lanes.events.end[at] + ROUNDED_NS


@pytest.mark.parametrize("name", REAL)
def test_as_the_analysis(shared_traces: Path, tmp_path: Path, name: str) -> None:
    for file in shared_traces.glob(name):
        (tmp_path / file.name).symlink_to(file)
    check(*drawn(tmp_path))


def test_as_the_analysis_on_the_reference_run(tmp_path: Path) -> None:
    check(*drawn(write_reference(tmp_path)))


def test_the_path_changes_to_the_rank_that_arrives_last(tmp_path: Path) -> None:
    def events(late: int) -> list[kineto.Event]:
        return [
            *(kineto.collective(-1000 + 100 * number, 50, sequence=number) for number in range(5)),
            kineto.step(1, 0, 200),
            kineto.op("aten::mm", 25 + late, 15),
            kineto.launch(30 + late, 5, correlation=1),
            kineto.kernel("gemm", 36 + late, 24, correlation=1),
            kineto.launch(50 + late, 2, correlation=2),
            kineto.collective(62 + late, 98 - late, sequence=9, correlation=2),
            kineto.launch(100, 64, name="cudaStreamSynchronize"),
        ]

    run, timeline = drawn(kineto.write_ranks(tmp_path, {0: events(0), 1: events(50)}))
    ((_, at),) = steps_of(timeline, 0)
    head, columns = read(paths_of(run, timeline).path(at))
    origin = timeline.clock.ranks[0].bases[0]

    def named(lane: int, row: int) -> str | None:
        if lane < 0:
            return None
        in_run, own = timeline.place(lane)
        place = int(in_run.lanes.events.pointer[own]) + row
        return timeline.names[int(in_run.names[in_run.lanes.arrays["name"][place]])]

    parts = zip(*(columns[n].tolist() for n in ("rank", "category", "lane", "row", "start_ns", "end_ns")), strict=True)
    found = [
        (rank, head["categories"][code], named(lane, row), (int(start) - origin) / 1000, (int(end) - origin) / 1000)
        for rank, code, lane, row, start, end in parts
    ]
    # Rank 0 arrived at 62 and waited until 112, so all before that is on rank 1.
    assert {part[0] for part in found if part[3] < 112} == {1}
    ncclkernel = next(part for part in found if part[1] == "communication")
    assert ncclkernel[3:] == (112, 160)
    assert (1, "compute", "gemm", 86, 110) in found
    assert (1, "launch", "cudaLaunchKernel", 80, 85) in found
    assert (1, "launch", None, 85, 86) in found  # the call has ended, the kernel has not started
    assert (1, "host_op", "aten::mm", 75, 80) in found


def test_nothing_without_steps_or_a_common_clock(tmp_path: Path) -> None:
    ranks = {rank: [kineto.step(1, 0, 100), kineto.op("aten::mm", 10, 20)] for rank in (0, 1)}
    run, timeline = drawn(kineto.write_ranks(tmp_path, ranks))
    paths = paths_of(run, timeline)
    assert paths.path(50_000) is None  # the ranks have no collective in common
    assert read(paths.path(50_000, 1))[0]["of_rank"] == 1
    assert paths.path(50_000, 7) is None
