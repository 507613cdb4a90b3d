"""placement: where ranks sit, as a grid of hosts and as a grid of the mesh."""

from __future__ import annotations

from pathlib import Path

from tests import kineto

import rankscope
from rankscope.experiments.simulate import Job, parse_mesh, simulate


def test_a_mesh_lies_as_it_is_named(tmp_path: Path) -> None:
    simulate(tmp_path, Job(ranks=12, steps=1, mesh=parse_mesh("pp=2,dp=2,tp=3"), layers=1), costs=False)
    rows = rankscope.open(tmp_path, executor="serial").placement().to_dicts()
    for rank, row in enumerate(rows):
        pp, dp, tp = rank // 6, rank // 3 % 2, rank % 3
        assert row["rank"] == rank
        assert (row["mesh_row"], row["mesh_column"]) == (rank // 3, tp)
        assert row["mesh_row_label"] == f"pp={pp} dp={dp}"
        assert row["mesh"] == f"pp={pp} dp={dp} tp={tp}"
        assert row["mesh_column_dimension"] == "tp"


def test_hosts_in_the_order_of_their_lowest_rank(tmp_path: Path) -> None:
    hosts = {0: "zeta", 1: "zeta", 2: "alpha", 3: "alpha"}
    for rank, host in hosts.items():
        content = kineto.trace(kineto.small_step(), rank=rank, world_size=4, host_name=host)
        kineto.write(tmp_path / f"rank{rank}.json", content)
    rows = rankscope.open(tmp_path, executor="serial").placement().to_dicts()
    assert [(row["host"], row["host_row"], row["host_column"]) for row in rows] == [
        ("zeta", 0, 0), ("zeta", 0, 1), ("alpha", 1, 0), ("alpha", 1, 1),
    ]  # fmt: skip


def test_what_no_file_says_is_null(tmp_path: Path) -> None:
    kineto.write(tmp_path / "rank0.json", kineto.trace(kineto.small_step(), rank=0))
    (row,) = rankscope.open(tmp_path, executor="serial").placement().to_dicts()
    assert {name for name, value in row.items() if value is not None} == {"rank"}
