"""Imbalance along the dimensions of a simulated mesh, one part of which is slow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest
from tests import kineto

import rankscope
from rankscope.engine.pipeline import Run
from rankscope.experiments.simulate import Fault, Job, Recording, parse_mesh, simulate


def made(folder: Path, mesh: str, ranks: int, fault: str | None = None, steps: int = 2, **recording: object) -> Run:
    faults = () if fault is None else (Fault.parse(fault),)
    norm = bool(recording.pop("gradient_norm", True))
    job = Job(ranks=ranks, steps=steps, mesh=parse_mesh(mesh), layers=1, faults=faults, gradient_norm=norm,
              recording=Recording(**recording))  # type: ignore[arg-type] # fmt: skip
    simulate(folder, job, costs=False)
    return rankscope.open(folder, executor="serial")


def brute(run: Run, ranks: dict[str, tuple[int, ...]]) -> dict[str, int]:
    """Mean compute of a step over sets of ranks, in plain Python."""
    steps = run.step_time().to_dicts()
    of_rank = {rank: _mean([s["compute_ns"] for s in steps if s["rank"] == rank]) for rank in range(4)}
    return {label: round(_mean([of_rank[rank] for rank in chosen])) for label, chosen in ranks.items()}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def test_a_slow_replica_shows_along_its_dimension_alone(tmp_path: Path) -> None:
    run = made(tmp_path, "dp=2,tp=2", 4, "slow_device:dp=1,magnitude=0.3", steps=5)
    frame = run.mesh()
    assert frame["level"].unique().to_list() == ["coordinate"]
    expected = brute(run, {"dp=0": (0, 1), "dp=1": (2, 3), "tp=0": (0, 2), "tp=1": (1, 3)})
    found = {row["label"]: row for row in frame.to_dicts()}
    assert {label: row["compute_ns"] for label, row in found.items()} == expected
    mean = (expected["dp=0"] + expected["dp=1"]) / 2
    assert found["dp=1"]["imbalance"] == pytest.approx((expected["dp=1"] - mean) / mean)
    assert found["dp=1"]["imbalance"] > 0.1
    assert found["tp=0"]["imbalance"] < 0.02
    (finding,) = run.analyze("mesh")["mesh"].findings
    assert finding.ranks == (2, 3)
    assert finding.title.startswith("dp=1 ")
    assert finding.saving_ns == pytest.approx(expected["dp=1"] - mean, abs=2)


def test_a_truncated_file_is_no_less_work(tmp_path: Path) -> None:
    run = made(tmp_path, "dp=2,tp=2", 4, truncated={1: 0.6})
    assert run.loaded.infos[1].truncated
    result = run.analyze("mesh")["mesh"]
    found = {row["label"]: row["compute_ns"] for row in result.frame.to_dicts()}
    assert found == brute(run, {"dp=0": (0,), "dp=1": (2, 3), "tp=0": (0, 2), "tp=1": (3,)})
    assert not result.findings


def test_the_wait_in_some_groups_is_not_the_wait(tmp_path: Path) -> None:
    """Rank 3 was not recorded: how long ranks 1 and 2 wait for it is unknown, so their sum is too."""
    run = made(tmp_path, "dp=2,tp=2", 4, missing=(3,), gradient_norm=False)
    waits = dict(run.mesh().filter(pl.col("level") == "coordinate").select("label", "wait_ns").iter_rows())
    partly = run.collectives().filter(pl.col("wait_ns").is_not_null()).group_by("rank").len()
    assert set(partly["rank"]) == {0, 1, 2}
    only = run.collectives().filter((pl.col("rank") == 0) & ~pl.col("estimate"))["wait_ns"]
    # Each of these coordinates has rank 0, and one of the others.
    assert waits["dp=0"] == waits["tp=0"] == round(only.sum() / 2)
    assert waits["dp=1"] is waits["tp=1"] is None


def test_waiting_between_steps_is_not_a_steps(tmp_path: Path) -> None:
    def events(rank: int, compute: float) -> list[kineto.Event]:
        made = [
            kineto.step(1, 0, 100),
            kineto.launch(5, 1, correlation=1),
            kineto.kernel("gemm", 10, compute, correlation=1),
        ]
        for number, at in ((2, 50), (3, 200)):  # the second is launched after the step
            late = 10 * rank
            made += [
                kineto.launch(at - 5, 1, correlation=number),
                kineto.collective(at + late, 30 - late, correlation=number, group="1", description="mesh_dp"),
            ]
        return made

    run = rankscope.open(kineto.write_ranks(tmp_path, {0: events(0, 20), 1: events(1, 30)}), executor="serial")
    assert run.mesh().select("label", "wait_ns").rows() == [("dp=0", 10_000), ("dp=1", 0)]


def test_groups_tell_what_metadata_does_not(tmp_path: Path) -> None:
    with_metadata = made(tmp_path / "told", "dp=2,pp=2,tp=2", 8).mesh()
    run = made(tmp_path / "inferred", "dp=2,pp=2,tp=2", 8, rankscope_metadata=False)
    # The names of our files hold the coordinates as well.
    for path in sorted((tmp_path / "inferred").glob("rank*")):
        path.rename(path.with_name(path.name.replace(path.name.split("_")[1] + "_", "")))
    run = rankscope.open(tmp_path / "inferred", executor="serial")
    found = run.mesh()
    assert set(with_metadata["source"]) == {"metadata"}
    assert set(found["source"]) == {"groups"}
    same = ["dimension", "level", "label", "ranks", "compute_ns"]
    assert found.select(same).sort(same).equals(with_metadata.select(same).sort(same))
    groups = found.filter(pl.col("level") == "group")
    assert groups.group_by("dimension").len().sort("dimension").rows() == [("dp", 4), ("pp", 4), ("tp", 4)]


def test_one_rank_has_nothing_to_be_held_against(tmp_path: Path) -> None:
    made(tmp_path / "all", "dp=2,tp=2", 4)
    path = next((tmp_path / "all").glob("rank1_*"))
    run = rankscope.open(path, executor="serial")
    assert run.mesh().height == 0
    assert run.analyze("mesh")["mesh"].findings == ()
    found = run.collectives()
    assert found.height > 0
    assert found["bytes"].null_count() == 0
    assert (
        found.select(pl.col("match", "wait_ns", "transfer_ns", "bus_bandwidth").is_null().all()).row(0) == (True,) * 4
    )
    summary = run.collective_summary()
    assert (summary["measured"] == 0).all()
    assert summary["count"].sum() == found.height
    assert run.clock()["method"].to_list() == ["wall clock"]
