"""The job as it happens obeys cause and effect."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.experiments.simulate import Job, parse_mesh, simulate_timing
from rankscope.experiments.simulate.mesh import MeshLayout

MESHES = [
    "dp=8",
    "tp=4",
    "pp=4",
    "ep=4,dp=2",
    "dp=2,tp=2,pp=2",
    "pp=2,dp=2,ep=2,tp=2",
]


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("style", ["ddp", "fsdp"])
def test_no_collective_ends_before_its_last_arrival(mesh: str, style: str) -> None:
    sizes = parse_mesh(mesh)
    ranks = int(np.prod(list(sizes.values())))
    truth = simulate_timing(Job(ranks=ranks, steps=2, mesh=sizes, layers=2, data_parallel=style))
    seen = 0
    by_instance: dict[tuple[object, ...], list[tuple[int, int, int, int]]] = {}
    for rank in range(ranks):
        c = truth.collectives(rank)
        for i, arrival in enumerate(c["arrival_ns"]):
            p2p = c["collective"][i] in ("send", "recv")
            kind = tuple(sorted((rank, c["peer"][i]))) if p2p else c["collective"][i]
            key = (c["group"][i], kind, c["sequence"][i], c["stream"][i] if not p2p else 0)
            row = (arrival, c["end_ns"][i], c["transfer_ns"][i], c["wait_ns"][i])
            by_instance.setdefault(key, []).append(row)
    for rows in by_instance.values():
        last = max(row[0] for row in rows)
        assert len({row[2] for row in rows}) == 1, "a transfer is one for the whole group"
        assert all(end >= last + transfer for _, end, transfer, _ in rows)
        assert all(arrival + wait == last for arrival, _, _, wait in rows)
        seen += len(rows) > 1
    assert seen


@pytest.mark.parametrize("mesh", MESHES)
def test_groups_cover_the_mesh(mesh: str) -> None:
    sizes = parse_mesh(mesh)
    layout = MeshLayout.of(sizes, int(np.prod(list(sizes.values()))))
    for dim, size in sizes.items():
        groups = {layout.groups_of(rank)[dim] for rank in range(layout.size)}
        assert sorted(rank for group in groups for rank in group.ranks) == list(range(layout.size))
        assert len({group.name for group in groups}) == len(groups), "names are unique"
        for group in groups:
            assert len(group.ranks) == size
            others = [
                [c for d, c in zip(layout.dims, layout.coordinate(r), strict=True) if d != dim] for r in group.ranks
            ]
            assert all(other == others[0] for other in others), "a group differs in one coordinate only"


def test_coordinates_are_row_major() -> None:
    layout = MeshLayout.of({"dp": 2, "tp": 4, "pp": 2}, 16)
    assert [layout.coordinate(r) for r in (0, 1, 2, 8)] == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
    assert layout.group_of(5, "tp") == (1, 3, 5, 7)
    assert layout.stage_ranks(1).tolist() == [1, 3, 5, 7, 9, 11, 13, 15]


def test_pipeline_stages_wait_for_each_other() -> None:
    truth = simulate_timing(Job(ranks=4, steps=1, mesh={"pp": 4}, microbatches=4))
    stages = truth.engine.stages
    received = []
    for stage in stages[1:]:
        first = next(c.index for c in stage.program.communications if c.message.kind == "recv" and c.message.forward)
        received.append(int(stage.end[-1, first, 0]))
    assert received == sorted(received), "a microbatch comes to one stage after the other"
    sends = [c for c in stages[0].program.communications if c.message.kind == "send"]
    assert len(sends) == 4
    forwards = [c for c in stages[1].program.communications if c.message.kind == "recv" and c.message.forward]
    for send, recv in zip(sends, forwards, strict=True):
        skew = abs(int(stages[0].end[-1, send.index, 0]) - int(stages[1].end[-1, recv.index, 0]))
        assert skew <= 90_000, "both ends of a message end together"


def test_hosts_never_go_back_in_time() -> None:
    truth = simulate_timing(Job(ranks=8, steps=3, mesh={"dp": 4, "tp": 2}, synchronize=False))
    for stage in truth.engine.stages:
        assert (np.diff(stage.host, axis=1) >= 0).all()
        assert (np.diff(stage.stream, axis=1) >= 0).all()


def test_the_same_seed_gives_the_same_times_whatever_else_there_is() -> None:
    """A draw belongs to its rank: in a bigger job the same ranks draw the same."""
    small = simulate_timing(Job(ranks=4, steps=1, gradient_norm=False)).engine.stages[0]
    large = simulate_timing(Job(ranks=8, steps=1, gradient_norm=False)).engine.stages[0]
    first = small.program.communications[0].index
    np.testing.assert_array_equal(small.arrival[0, first], large.arrival[0, first, :4])
