"""Bubbles by hand, and of a simulated pipeline whose waiting is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests import kineto

import rankscope
from rankscope.experiments.simulate import Job, parse_mesh, simulate


def p2p(kind: str, ts: float, dur: float, me: int, peer: int, number: int) -> list[kineto.Event]:
    end = "Dst Rank" if kind == "send" else "Src Rank"
    stream = 20 if kind == "send" else 21
    return [
        kineto.launch(number + 1, 0.5, correlation=10 * number + (kind == "send")),
        kineto.collective(
            ts, dur, kind=kind, group="1", description="mesh_pp", ranks=(0, 1), stream=stream,
            correlation=10 * number + (kind == "send"), **{end: peer},
        ),
    ]  # fmt: skip


def test_by_hand(tmp_path: Path) -> None:
    # Two stages, one step of 100 µs, two microbatches. Stage 1 waits 30 µs for the first, 5 of which a copy hides;
    # stage 0 waits 40 µs for gradients while its own optimizer computes for 10 of them.
    first = [
        kineto.step(1, 0, 100),
        kineto.launch(0.5, 0.2, correlation=900),
        kineto.kernel("gemm", 1, 29, correlation=900),
        *p2p("send", 30, 2, 0, 1, 1),
        *p2p("send", 50, 2, 0, 1, 2),
        *p2p("recv", 52, 40, 0, 1, 3),
        kineto.launch(4, 0.2, correlation=901),
        kineto.kernel("adam", 60, 10, correlation=901),
    ]
    second = [
        kineto.step(1, 0, 100),
        *p2p("recv", 2, 30, 1, 0, 1),
        kineto.launch(1.8, 0.1, correlation=902),
        kineto.memcpy(10, 5, correlation=902),
        *p2p("recv", 51, 1, 1, 0, 2),
        *p2p("send", 90, 2, 1, 0, 3),
    ]
    run = rankscope.open(kineto.write_ranks(tmp_path, {0: first, 1: second}), executor="serial")
    assert run.pipeline_bubble().drop("bubble_ratio").rows() == [
        (0, 1, 1, 100_000, 44_000, 34_000, 2, pytest.approx(1 / 3)),
        (1, 1, 1, 100_000, 33_000, 28_000, 1, pytest.approx(1 / 3)),
    ]
    assert run.pipeline_bubble()["bubble_ratio"].to_list() == [0.34, 0.28]


def test_an_operation_of_several_kernels(tmp_path: Path) -> None:
    """A send of two kernels, [20, 80) µs, while a product computes in [30, 70)."""
    events = [kineto.step(1, 0, 100), kineto.launch(1, 1, correlation=9), kineto.kernel("gemm", 30, 40, correlation=9)]
    for number, at in ((1, 20), (2, 50)):
        events += [
            kineto.launch(1 + number, 0.5, correlation=number, external=5),
            kineto.collective(
                at, 30, kind="send", group="1", description="mesh_pp", correlation=number, external=5, **{"Dst Rank": 1}
            ),
        ]
    other = [kineto.step(1, 0, 100), *p2p("recv", 20, 60, 1, 0, 1)]
    run = rankscope.open(kineto.write_ranks(tmp_path, {0: events, 1: other}), executor="serial")
    assert run.pipeline_bubble().select("stage", "p2p_ns", "bubble_ns").rows() == [
        (0, 60_000, 20_000),
        (1, 60_000, 60_000),
    ]


def test_without_point_to_point_there_is_no_pipeline(tmp_path: Path) -> None:
    run = rankscope.open(kineto.write_ranks(tmp_path, {0: [kineto.step(1, 0, 9), kineto.collective(2, 3)]}))
    assert run.pipeline_bubble().height == 0


@pytest.fixture(scope="module")
def piped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("piped")
    job = Job(ranks=8, steps=2, mesh=parse_mesh("pp=4,tp=2"), layers=1, gradient_norm=False, synchronize=False)
    return folder, simulate(folder, job, costs=False)


def test_a_simulated_pipeline_waits_as_long_as_is_known(piped: tuple[Path, Any]) -> None:
    folder, _ = piped
    run = rankscope.open(folder, executor="serial")
    found = run.pipeline_bubble()
    assert found["stage"].unique().sort().to_list() == [0, 1, 2, 3]
    assert (found["microbatches"] == 8).all()
    assert (found["ranks"] == 2).all()
    assert found["ideal_ratio"].to_list() == pytest.approx([3 / 11] * found.height)
    # Every send and receive is matched; what they wait is never more than what they take.
    matched = run.collectives().filter(pl.col("collective").is_in(["send", "recv"]))
    alone = matched.filter(pl.col("match").is_null())
    # The others lie at the edges: the recording begins and ends on each rank when its own step does.
    assert alone.height <= 8
    assert alone["launch_ns"].null_count() == alone.height
    matched = matched.filter(pl.col("match").is_not_null())
    assert (matched["matched_ranks"] == 2).all()
    ends = matched.group_by("match").agg(pl.col("peers").n_unique(), pl.col("collective").unique().sort())
    assert (ends["peers"] == 1).all()
    assert set(map(tuple, ends["collective"].to_list())) == {("recv", "send")}
    # The first stage waits for the last gradient as long as the pipeline is deep: near the ideal.
    first = found.filter(pl.col("stage") == 0)["bubble_ratio"].mean()
    assert abs(first - 3 / 11) < 0.08


def test_half_of_a_pipeline(piped: tuple[Path, Any], tmp_path: Path) -> None:
    """Ranks of two stages alone: the stages and their number are known still, and their waiting."""
    folder, _ = piped
    for path in folder.glob("rank[0-3]_*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    half, whole = rankscope.open(tmp_path, executor="serial"), rankscope.open(folder, executor="serial")
    found = half.pipeline_bubble()
    assert found["stage"].unique().sort().to_list() == [0, 1]
    assert found.equals(whole.pipeline_bubble().filter(pl.col("stage") < 2))
    (finding,) = [f for f in half.analyze("collectives")["collectives"].findings if f.id == "incomplete-groups"]
    assert finding.ranks == (0, 1, 2, 3)
