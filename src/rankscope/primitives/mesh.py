"""The position of each rank in the job's mesh: data, tensor, pipeline, expert parallel, and host.

The job's metadata takes precedence (`init_device_mesh`'s names and this rank's coordinate). Else the process groups
are used: torch's DeviceMesh describes its groups as `mesh_dp`, Megatron as `TENSOR_MODEL_PARALLEL_GROUP`; groups
without a description form a dimension if they are similar (equal size, equal distance of ranks) and disjoint. A rank's
coordinate is its index in its group. Dimensions that divide the ranks independently (inside each group of one, the
coordinate of the other is constant) span the mesh; dimensions that divide them in another way (`ep` inside `dp`, hosts)
are listed separately.

In: the mesh and groups recorded in each rank's trace. Out: dimensions, and each rank's coordinates.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import polars as pl

from rankscope.store.trace_info import TraceInfo

METADATA, GROUPS, NONE = "metadata", "groups", "none"
HOST = "host"
PIPELINE = ("pp", "pipe", "pipeline", "stage")

# As Megatron's parallel_state describes its groups.
_MEGATRON = {
    "tensor_model_parallel": "tp",
    "pipeline_model_parallel": "pp",
    "data_parallel": "dp",
    "data_parallel_group_with_cp": "dp_cp",
    "context_parallel": "cp",
    "expert_model_parallel": "ep",
    "expert_tensor_parallel": "etp",
    "expert_data_parallel": "edp",
}
# Groups that are not a dimension of a mesh: all ranks, or a few ranks for one purpose (tied embeddings).
_NO_DIMENSION = re.compile(
    r"default_pg|world|undefined|.*embedding.*|model_parallel|tensor_and_.*|expert_tensor_(and_)?model.*|.*partial.*|"
)
# Of two incompatible dimensions, the one that spans the mesh: the first here, then the smaller.
_BASIC = (*PIPELINE, "cp", "tp", "tensor", "model", "dp_replicate", "replicate", "dp_shard", "shard", "fsdp", "dp")
_OTHERS = ("ep", "etp", "edp", "expert", "efsdp")

# Larger coordinates are damaged data.
MOST = 1 << 20

Groups = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class Mesh:
    """The mesh of a job, as far as it is known.

    Attributes:
        dims: the independent dimensions that span it, slowest first if known from metadata.
        other_dims: dimensions that divide the ranks in another way: expert parallel inside data parallel, `host`.
        source: where they come from: `metadata`, `groups`, or `none`. `host` always comes from the traces' host names.
        frame: one row per rank and dimension: rank, dimension, coordinate, cell, label. Ranks with one `cell` are a
            group along that dimension: all their other coordinates are equal. `label` names the coordinate
            (`pp=1`, `host=node0003`).
    """

    dims: tuple[str, ...]
    other_dims: tuple[str, ...]
    source: str
    frame: pl.DataFrame

    @property
    def pipeline(self) -> str | None:
        """The dimension of pipeline stages."""
        return next((dim for dim in (*self.dims, *self.other_dims) if dim in PIPELINE), None)

    def labels(self) -> dict[int, str]:
        """The coordinates of each rank as a label: `dp=1 tp=0`."""
        frame = self.frame.filter(pl.col("dimension").is_in(self.dims))
        found = frame.group_by("rank", maintain_order=True).agg(pl.col("label").str.join(" "))
        return dict(found.iter_rows())


def infer_mesh(traces: Sequence[TraceInfo], groups: Iterable[tuple[str, Sequence[int]]] = ()) -> Mesh:
    """The mesh of a run.

    Args:
        traces: its files.
        groups: further process groups from collectives: description and global ranks, whose order does not count if a
            trace lists the same ranks.
    """
    ranks = sorted({info.rank for info in traces if info.rank is not None})
    recorded = _recorded_coordinates(traces)
    named = _named([*_listed(traces), *groups])
    size = max([*(info.world_size or 0 for info in traces), *(rank + 1 for rank in ranks)], default=0)
    named = {dim: members for dim, members in named.items() if not any(len(group) >= size for group in members)} | {
        # A group of all ranks is a dimension only if it has the name of one.
        dim: members
        for dim, members in named.items()
        if dim in (*_BASIC, *_OTHERS)
    }
    positions = {
        dim: {rank: index for group in members for index, rank in enumerate(group)} for dim, members in named.items()
    }
    if recorded:
        dims, source = tuple(recorded), METADATA
        coordinates: dict[str, Mapping[int, int]] = dict(recorded)
    else:
        dims = _independent(named, positions)
        source = GROUPS if dims else NONE
        coordinates = {dim: positions[dim] for dim in dims}
    # Leave out groups that only combine dimensions of the mesh (`dp_cp`), or rename one.
    others = [dim for dim in named if dim not in dims and not _composite(named[dim], coordinates)]
    cells = _cells(ranks, dims, coordinates)
    for dim in others:
        coordinates[dim] = positions[dim]
        cells[dim] = {rank: number for number, group in enumerate(named[dim]) for rank in group}
    hosts = _hosts(traces)
    if len(set(hosts.values())) > 1:
        numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts[rank] for rank in sorted(hosts)))}
        others.append(HOST)
        coordinates[HOST] = {rank: numbers[host] for rank, host in hosts.items()}
        cells[HOST] = dict.fromkeys(hosts, 0)
    rows = [
        (rank, dim, index, cells[dim].get(rank, -1), f"{dim}={hosts[rank] if dim == HOST else index}")
        for dim in (*dims, *others)
        for rank in ranks
        if (index := coordinates[dim].get(rank)) is not None
    ]
    schema = {"rank": pl.Int64, "dimension": pl.String, "coordinate": pl.Int64, "cell": pl.Int64, "label": pl.String}
    return Mesh(dims, tuple(others), source, pl.DataFrame(rows, schema=schema, orient="row"))


def dimension_name(description: str) -> str | None:
    """The dimension that a group's description names (`tp` in `TENSOR_MODEL_PARALLEL_GROUP`); None if it names none.

    If the label also has the group's name (`3 mesh_tp`), the description is its last word.
    """
    last = description.strip().split(" ")[-1].lower()
    plain = last.removesuffix("_gloo")
    if (megatron := _MEGATRON.get(plain.removesuffix("_group"), _MEGATRON.get(plain))) is not None:
        return megatron
    if plain.endswith("_group") and _NO_DIMENSION.fullmatch(plain.removesuffix("_group")):
        return None
    name = plain.removeprefix("mesh_").removesuffix("_group")
    # A group without description has a bare number.
    return None if _NO_DIMENSION.fullmatch(name) or name.isdigit() or not name.isidentifier() else name


def _recorded_coordinates(traces: Sequence[TraceInfo]) -> dict[str, dict[int, int]]:
    """Coordinates by dimension from the metadata, for the dimensions that most ranks name."""
    meshes = {
        info.rank: dict(info.mesh)
        for info in traces
        if info.rank is not None and info.mesh and max(info.mesh.values()) < MOST
    }
    if not meshes:
        return {}
    most = Counter(tuple(mesh) for mesh in meshes.values()).most_common(1)[0][0]
    return {dim: {rank: mesh[dim] for rank, mesh in meshes.items() if tuple(mesh) == most} for dim in most}


def _hosts(traces: Sequence[TraceInfo]) -> dict[int, str]:
    return {info.rank: info.host for info in traces if info.rank is not None and info.host}


def _listed(traces: Sequence[TraceInfo]) -> list[tuple[str, tuple[int, ...]]]:
    groups: dict[tuple[str, tuple[int, ...]], None] = {}
    for info in traces:
        for group in info.groups:
            ranks = tuple(group.get("ranks") or ())
            groups[str(group.get("description") or ""), ranks] = None
    return list(groups)


def _named(listed: Iterable[tuple[str, Sequence[int]]]) -> dict[str, list[tuple[int, ...]]]:
    """Disjoint groups by dimension; groups of one name that overlap are not a dimension."""
    by_name: dict[str, dict[frozenset[int], tuple[int, ...]]] = {}
    nameless: dict[frozenset[int], tuple[int, ...]] = {}
    for description, ranks in listed:
        group, members = tuple(ranks), frozenset(ranks)
        if len(group) < 2 or len(members) < len(group):
            continue
        name = dimension_name(description)
        if name is not None:
            by_name.setdefault(name, {}).setdefault(members, group)
        elif description.strip().split(" ")[-1].lower() in ("", "undefined"):
            nameless.setdefault(members, group)
    for members, group in nameless.items():
        strides = {b - a for a, b in pairwise(group)}
        # Evenly spaced ranks are rows of a grid; others may be any set.
        if len(strides) == 1:
            by_name.setdefault(f"{len(group)}_ranks_{strides.pop()}_apart", {})[members] = group
    known = {group for name, groups in by_name.items() if not name[0].isdigit() for group in groups}
    named = {}
    for name, groups in by_name.items():
        if name[0].isdigit() and (known & set(groups) or len(groups) < 2):
            continue
        if sum(len(group) for group in groups) == len({rank for group in groups for rank in group}):
            named[name] = sorted(groups.values())
    return named


def _independent(named: Mapping[str, Groups], positions: Mapping[str, Mapping[int, int]]) -> tuple[str, ...]:
    """Dimensions that are independent of each other, slowest first; basic ones are preferred."""

    def rank_of(dim: str) -> tuple[int, int, str]:
        known = _BASIC.index(dim) if dim in _BASIC else len(_BASIC) + (dim in _OTHERS)
        return known, len(named[dim][0]), dim

    chosen: list[str] = []
    for dim in sorted(named, key=rank_of):
        if all(_constant(named[dim], positions[c]) and _constant(named[c], positions[dim]) for c in chosen):
            chosen.append(dim)
    # Neighbors in the fastest dimension are one rank apart.
    return tuple(sorted(chosen, key=lambda dim: (-abs(named[dim][0][1] - named[dim][0][0]), dim)))


def _constant(groups: Groups, position: Mapping[int, int]) -> bool:
    """Whether a coordinate is the same throughout each of the groups."""
    return all(len({position.get(rank) for rank in group} - {None}) <= 1 for group in groups)


def _composite(groups: Groups, coordinates: Mapping[str, Mapping[int, int]]) -> bool:
    """Whether complete dimensions of the mesh span the groups: each is as large as the coordinates in it allow."""
    extents = {dim: len(set(position.values())) for dim, position in coordinates.items()}
    for group in groups:
        spanned = 1
        for dim, position in coordinates.items():
            seen = {position.get(rank) for rank in group} - {None}
            if len(seen) > 1:
                if len(seen) != extents[dim]:
                    return False
                spanned *= extents[dim]
        if spanned != len(group):
            return False
    return True


def _cells(
    ranks: Sequence[int], dims: Sequence[str], coordinates: Mapping[str, Mapping[int, int]]
) -> dict[str, dict[int, int]]:
    """For each dimension the number of each rank's group along it: ranks whose other coordinates are equal."""
    cells: dict[str, dict[int, int]] = {}
    for dim in dims:
        numbers: dict[tuple[int | None, ...], int] = {}
        cells[dim] = {}
        for rank in ranks:
            if rank in coordinates[dim]:
                key = tuple(coordinates[other].get(rank) for other in dims if other != dim)
                cells[dim][rank] = numbers.setdefault(key, len(numbers))
    return cells


def mesh_slices(mesh: Mesh) -> list[tuple[str, frozenset[int]]]:
    """Slices of the mesh, with labels: a coordinate along a dimension, a host, a group along a dimension."""
    by_coordinate = mesh.frame.group_by("dimension", "label").agg(pl.col("rank"))
    by_cell = mesh.frame.filter(pl.col("cell") >= 0).group_by("dimension", "cell").agg(pl.col("rank"))
    return [
        *((label, frozenset(ranks)) for _, label, ranks in by_coordinate.sort("dimension", "label").iter_rows()),
        *(
            (f"the {dimension} group of ranks {', '.join(map(str, sorted(ranks)))}", frozenset(ranks))
            for dimension, _, ranks in by_cell.sort("dimension", "cell").iter_rows()
        ),
    ]
