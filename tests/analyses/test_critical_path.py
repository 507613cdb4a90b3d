"""The critical path against the longest path of programs with known dependencies, by hand, and against HTA's."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests import kineto
from tests.analyses.plain_programs import Program, programs
from tests.analyses.random_traces import traces

import rankscope
from rankscope.engine.pipeline import Run
from rankscope.primitives.dependencies import CATEGORIES

MANY = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
TIMES = [f"{name}_ns" for name in CATEGORIES]


def open_program(program: Program, folder: Path) -> Run:
    return rankscope.open(kineto.write_ranks(folder, program.events), executor="serial")


def found_by_rank(frame: pl.DataFrame) -> Counter[tuple[int, str]]:
    """µs by rank and category of some rows."""
    rows = frame.unpivot(TIMES, index="rank").filter(pl.col("value") > 0)
    return Counter({(rank, name.removesuffix("_ns")): value // 1000 for rank, name, value in rows.iter_rows()})


@MANY
@given(programs(1))
def test_one_ranks_path_is_the_longest(program: Program) -> None:
    assume(not program.unclear)
    with tempfile.TemporaryDirectory() as folder:
        frame = open_program(program, Path(folder)).critical_path()
    assert frame["path"].to_list() == ["rank"]
    assert found_by_rank(frame) == program.longest_path(0)


@MANY
@given(st.integers(2, 3).flatmap(programs))
def test_the_path_across_ranks_is_the_longest(program: Program) -> None:
    ends = sorted((node.end for node in program.last.values()), reverse=True)
    assume(not program.unclear)
    with tempfile.TemporaryDirectory() as folder:
        frame = open_program(program, Path(folder)).critical_path()
    across = frame.filter(pl.col("path") == "all ranks")
    # Ranks that end together after one collective have the same path but for where its last transfer is counted.
    last = [rank for rank, node in program.last.items() if node.end == ends[0]]
    assert found_by_rank(across) in [program.longest_path(rank) for rank in last]
    # A rank's own path waits where that across ranks changes to another.
    for rank, node in program.last.items():
        own = frame.filter((pl.col("path") == "rank") & (pl.col("rank") == rank))
        assert own["path_ns"].item() == 1000 * (node.end - 10_000)


@MANY
@given(traces())
def test_paths_add_up_to_the_steps(trace: kineto.Trace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = rankscope.open(kineto.write(Path(folder) / "rank0.json", trace), executor="serial")
        frame, steps = run.critical_path(), run.step_time().filter(pl.col("window_ns") > 0)
    assert frame["step"].to_list() == steps["step"].to_list()
    assert frame["path_ns"].to_list() == steps["window_ns"].to_list()
    assert frame.select(pl.sum_horizontal(TIMES)).to_series().to_list() == steps["window_ns"].to_list()
    assert frame.select(pl.min_horizontal(TIMES).min() >= 0).item() in (True, None)
    # Each kind of work is on the path at most as long as there is any.
    for column in ("compute_ns", "data_loading_ns"):
        assert (frame[column] <= frame["path_ns"]).all()


def test_by_hand(tmp_path: Path) -> None:
    """Rank 1 loads data for 50 µs longer; rank 0's collective waits for it, and its host for the collective."""

    def events(late: int) -> list[kineto.Event]:
        return [
            # These give the clocks: they are over before the step.
            *(kineto.collective(-1000 + 100 * number, 50, sequence=number) for number in range(5)),
            kineto.step(1, 0, 200),
            kineto.loading(0, 20 + late),
            kineto.op("aten::mm", 25 + late, 15),
            kineto.launch(30 + late, 5, correlation=1),
            kineto.kernel("gemm", 36 + late, 24, correlation=1),
            kineto.launch(50 + late, 2, correlation=2),
            kineto.collective(62 + late, 98 - late, sequence=9, correlation=2),
            kineto.launch(100, 64, name="cudaStreamSynchronize"),
            kineto.op("Optimizer.step", 170, 25),
        ]

    frame = rankscope.open(
        kineto.write_ranks(tmp_path, {0: events(0), 1: events(50)}), executor="serial"
    ).critical_path()
    nothing = dict.fromkeys((*TIMES, "waits_for"), 0) | {"waits_for": None}

    def row(path: str, rank: int, total: int, **times: int | None) -> dict[str, object]:
        known = {f"{name}_ns" if name != "waits_for" else name: value for name, value in times.items()}
        scaled = {name: value * 1000 if name.endswith("_ns") and value else value for name, value in known.items()}
        return {"path": path, "step": 1, "rank": rank, "path_ns": total * 1000} | nothing | scaled

    # From the end: 5 nothing, 25 optimizer, 6 nothing, 4 from the collective's end to the call's, its transfer.
    end = {"host_op": 25 + 5, "other": 5 + 6 + 5, "runtime": 4}
    # The gemm was launched 5 µs into the operator, after 5 of nothing and the loading.
    begin = {"launch": 6, "compute": 24, "kernel_gap": 2}
    assert frame.to_dicts() == [
        row("all ranks", 1, 200, **end, **begin, communication=48, data_loading=70),
        row("rank", 0, 200, **end, **begin, communication=48, wait=50, data_loading=20, waits_for=1),
        row("rank", 1, 200, **end, **begin, communication=48, data_loading=70),
    ]


def test_backward_thread_and_gloo(tmp_path: Path) -> None:
    """The main thread waits for the backward's thread, and that for Gloo's; each hands over without a gap recorded."""
    events = [
        kineto.step(1, 0, 2000),
        kineto.op("forward", 100, 300),
        kineto.op("backward", 450, 550, tid=kineto.BACKWARD_THREAD),
        kineto.annotation("gloo:all_reduce", 900, 800, tid=200),
        kineto.op("optimizer", 1750, 150),
    ]
    frame = rankscope.open(kineto.write(tmp_path / "rank0.json", kineto.trace(events))).critical_path()
    (row,) = frame.select(pl.col(TIMES) // 1000).to_dicts()
    # 100 before the forward, 50 to the backward, 50 after Gloo's range, 100 at the end; the backward until it issues.
    assert {name.removesuffix("_ns"): value for name, value in row.items() if value} == {
        "host_op": 300 + 450 + 150, "communication": 800, "other": 300,
    }  # fmt: skip


def test_what_was_launched_later_is_not_waited_for(tmp_path: Path) -> None:
    """A copy starts when the kernel of another stream has ended; a kernel launched after it ended between the two."""
    events = [
        kineto.step(1, 0, 60),
        kineto.launch(0, 2, correlation=1),
        kineto.kernel("needed", 5, 45, stream=7, correlation=1),
        kineto.launch(4, 2, correlation=2),
        kineto.kernel("copies", 52, 48, stream=20, correlation=2),
        kineto.launch(8, 2, correlation=3),
        kineto.kernel("launched later", 41, 10, stream=8, correlation=3),
    ]
    frame = rankscope.open(kineto.write(tmp_path / "rank0.json", kineto.trace(events))).critical_path()
    (row,) = frame.select(pl.col(TIMES) // 1000).to_dicts()
    found = {name.removesuffix("_ns"): value for name, value in row.items() if value}
    assert found == {"launch": 5, "compute": 45 + 48, "kernel_gap": 2}


HTA_SUMS = {101: (94_332, 1_009, 9), 102: (94_587, 1_149, 0), 103: (94_463, 1_107, 0), 104: (94_577, 1_086, 0)}


@pytest.mark.slow
def test_against_hta(shared_traces: Path, tmp_path: Path) -> None:
    """HTA 0.5.0's critical path of each step: its sums of kernels, kernel-kernel delays and launch delays, µs.

    HTA floors times to whole microseconds, so both read a file whose starts and ends are. It drops the last step and
    does not count the gap before the first kernel of a step whose path does not begin on the host.
    """
    (file,) = (shared_traces / "hta" / "ns_resolution_trace").iterdir()
    content = json.loads(gzip.decompress(file.read_bytes()))
    for event in content["traceEvents"]:
        if event.get("ph") == "X":
            end = int(event["ts"] + event["dur"])
            event["ts"] = int(event["ts"])
            event["dur"] = end - event["ts"]
    frame = rankscope.open(kineto.write(tmp_path / "rank0.json", content), executor="serial").critical_path()
    for row in frame.filter(pl.col("step") < 105).to_dicts():
        kernels, gaps, launches = HTA_SUMS[row["step"]]
        assert row["compute_ns"] + row["copies_ns"] == 1000 * kernels
        assert 0 <= row["kernel_gap_ns"] - 1000 * gaps <= 1000
        assert row["launch_ns"] == 1000 * launches
