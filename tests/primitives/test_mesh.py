from __future__ import annotations

import random
from itertools import product

import pytest

from rankscope.primitives.mesh import Mesh, dimension_name, infer_mesh
from rankscope.store.trace_info import TraceInfo


def coordinates(mesh: Mesh) -> dict[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = {}
    for row in mesh.frame.iter_rows(named=True):
        found.setdefault(row["rank"], {})[row["dimension"]] = row["coordinate"]
    return found


def cells(mesh: Mesh, dimension: str) -> set[tuple[int, ...]]:
    by_cell: dict[int, list[int]] = {}
    for row in mesh.frame.iter_rows(named=True):
        if row["dimension"] == dimension:
            by_cell.setdefault(row["cell"], []).append(row["rank"])
    return {tuple(sorted(ranks)) for ranks in by_cell.values()}


def grid(**sizes: int) -> dict[int, dict[str, int]]:
    """Row-major, as init_device_mesh lays ranks out."""
    return {
        rank: dict(zip(sizes, place, strict=True))
        for rank, place in enumerate(product(*(range(size) for size in sizes.values())))
    }


def along(places: dict[int, dict[str, int]], *dims: str) -> list[tuple[int, ...]]:
    """The groups along dimensions, by brute force: ranks that agree in all others."""
    found: dict[tuple[int, ...], list[int]] = {}
    for rank, place in places.items():
        found.setdefault(tuple(at for dim, at in place.items() if dim not in dims), []).append(rank)
    return [tuple(group) for group in found.values()]


def infos(
    places: dict[int, dict[str, int]], names: dict[str, list[tuple[int, ...]]], **more: object
) -> list[TraceInfo]:
    """Each rank lists the groups that it is in, as torch's distributedInfo does."""
    return [
        TraceInfo(
            path=f"rank{rank}",
            rank=rank,
            world_size=len(places),
            groups=(
                {"name": "0", "description": "default_pg", "ranks": list(places)},
                *(
                    {"name": "1", "description": name, "ranks": list(group)}
                    for name, groups in names.items()
                    for group in groups
                    if rank in group
                ),
            ),
            **more,  # type: ignore[arg-type]
        )
        for rank in places
    ]


@pytest.mark.parametrize(
    ("description", "name"),
    [
        ("mesh_dp_shard", "dp_shard"),
        ("3 mesh_tp", "tp"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp_cp"),
        ("DATA_PARALLEL_GROUP_GLOO", "dp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("EMBEDDING_GROUP", None),
        ("POSITION_EMBEDDING_GROUP", None),
        ("MODEL_PARALLEL_GROUP", None),
        ("TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", None),
        ("0 default_pg", None),
        ("undefined", None),
        ("7", None),
        ("", None),
        ("<script>", None),
    ],
)
def test_what_a_description_speaks_of(description: str, name: str | None) -> None:
    assert dimension_name(description) == name


def test_metadata_counts_before_groups() -> None:
    places = grid(dp=2, tp=2)
    traces = [
        TraceInfo(path="", rank=rank, mesh=place, host="a" if rank < 2 else "b") for rank, place in places.items()
    ]
    mesh = infer_mesh(traces, [("mesh_tp", (0, 3)), ("mesh_tp", (1, 2))])
    assert (mesh.dims, mesh.source) == (("dp", "tp"), "metadata")
    assert mesh.other_dims == ("host",)
    assert cells(mesh, "tp") == {(0, 1), (2, 3)}
    assert cells(mesh, "dp") == {(0, 2), (1, 3)}
    assert mesh.labels() == {0: "dp=0 tp=0", 1: "dp=0 tp=1", 2: "dp=1 tp=0", 3: "dp=1 tp=1"}
    assert mesh.frame.filter(dimension="host")["label"].to_list() == ["host=a", "host=a", "host=b", "host=b"]
    assert mesh.pipeline is None


@pytest.mark.parametrize("seed", range(30))
def test_groups_tell_the_mesh_that_made_them(seed: int) -> None:
    chance = random.Random(seed)
    dims = ["pp", "dp", "cp", "tp"]
    chance.shuffle(dims)
    dims = dims[: chance.randint(2, 4)]
    places = grid(**{dim: chance.choice([2, 3, 4]) for dim in dims})
    names = {f"mesh_{dim}": along(places, dim) for dim in dims}
    if {"dp", "cp"} <= set(dims):
        names["mesh_dp_cp"] = along(places, "dp", "cp")
    kept = chance.sample(sorted(places), max(2, len(places) // 2))
    mesh = infer_mesh([info for info in infos(places, names) if info.rank in kept])
    assert mesh.source == "groups"
    found = coordinates(mesh)
    for dim in dims:
        if dim in mesh.dims:
            assert all(found[rank][dim] == places[rank][dim] for rank in kept if dim in found.get(rank, {}))
            expected = {tuple(r for r in group if r in kept) for group in along(places, dim)} - {()}
            assert cells(mesh, dim) == expected
    # Every group of a rank that is there is listed, so no dimension is lost.
    assert set(mesh.dims) == set(dims)
    assert mesh.other_dims == ()


def test_megatron_with_experts_beside() -> None:
    places = grid(pp=2, dp=4, tp=2)
    halves = [half for group in along(places, "dp") for half in (group[:2], group[2:])]
    names = {
        "TENSOR_MODEL_PARALLEL_GROUP": along(places, "tp"),
        "PIPELINE_MODEL_PARALLEL_GROUP": along(places, "pp"),
        "DATA_PARALLEL_GROUP": along(places, "dp"),
        "DATA_PARALLEL_GROUP_WITH_CP": along(places, "dp"),
        "MODEL_PARALLEL_GROUP": along(places, "pp", "tp"),
        "TENSOR_AND_DATA_PARALLEL_GROUP": along(places, "dp", "tp"),
        "EMBEDDING_GROUP": [(0, 8)],
        "EXPERT_MODEL_PARALLEL_GROUP": halves,
    }
    mesh = infer_mesh(infos(places, names))
    assert mesh.dims == ("pp", "dp", "tp")
    assert mesh.other_dims == ("ep",)
    assert mesh.pipeline == "pp"
    assert cells(mesh, "ep") == {tuple(half) for half in halves}
    assert {rank: {d: c for d, c in at.items() if d != "ep"} for rank, at in coordinates(mesh).items()} == places


def test_groups_without_a_description_are_told_by_their_shape() -> None:
    places = grid(dp=2, tp=4)
    names = {"undefined": [*along(places, "tp"), *along(places, "dp")]}
    mesh = infer_mesh(infos(places, names))
    assert mesh.dims == ("2_ranks_4_apart", "4_ranks_1_apart")
    assert cells(mesh, "4_ranks_1_apart") == {(0, 1, 2, 3), (4, 5, 6, 7)}


def test_where_nothing_is_known_nothing_is_said() -> None:
    mesh = infer_mesh([TraceInfo(path="", rank=0), TraceInfo(path="", rank=1), TraceInfo(path="")])
    assert (mesh.dims, mesh.other_dims, mesh.source, mesh.frame.height) == ((), (), "none", 0)
    alone = infer_mesh(infos(grid(dp=4), {}))
    assert alone.dims == ()
    assert infer_mesh(infos(grid(dp=4), {"mesh_dp": [(0, 1, 2, 3)]})).dims == ("dp",)
    hosts = infer_mesh([TraceInfo(path="", rank=rank, host=f"n{rank // 2}") for rank in range(4)])
    assert (hosts.dims, hosts.other_dims) == ((), ("host",))
    assert coordinates(hosts) == {0: {"host": 0}, 1: {"host": 0}, 2: {"host": 1}, 3: {"host": 1}}


def test_groups_of_one_name_that_overlap_are_no_dimension() -> None:
    assert infer_mesh(infos(grid(dp=4), {"mesh_tp": [(0, 1), (1, 2)]})).dims == ()


def test_absurd_coordinates_are_none() -> None:
    traces = [TraceInfo(path="", rank=rank, mesh={"dp": 10**30 if rank else 0}) for rank in range(2)]
    assert infer_mesh(traces).frame.filter(dimension="dp")["rank"].to_list() == [0]


def test_a_group_in_an_order_of_its_own_is_the_one_of_the_collectives() -> None:
    """The metadata has the order of the group, the collectives only its ranks, ascending."""
    places = grid(dp=2, tp=2)
    listed = infos(places, {"mesh_tp": [(1, 0), (3, 2)]})
    mesh = infer_mesh(listed, [("1 mesh_tp", (0, 1)), ("1 mesh_tp", (2, 3))])
    assert mesh.dims == ("tp",)
    assert {rank: at["tp"] for rank, at in coordinates(mesh).items()} == {0: 1, 1: 0, 2: 1, 3: 0}
