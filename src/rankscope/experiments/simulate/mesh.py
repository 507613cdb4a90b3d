"""Ranks on a mesh: coordinates, process groups, and which ranks run the same program.

In: sizes by dimension. Out: coordinates and groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rankscope.errors import ConfigError
from rankscope.experiments.simulate.jitter import I64

DIMENSIONS = ("dp", "tp", "pp", "ep")
WORLD = "world"


@dataclass(frozen=True)
class Group:
    """A process group."""

    name: str
    description: str
    dim: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class MeshLayout:
    """The mesh, row-major as torch's ``init_device_mesh`` lays it out: the last dimension's ranks are neighbors."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, mesh: Mapping[str, int], ranks: int) -> MeshLayout:
        """Check sizes against the number of ranks."""
        unknown = [dim for dim in mesh if dim not in DIMENSIONS]
        if unknown or any(size < 1 for size in mesh.values()):
            raise ConfigError(f"the mesh {dict(mesh)} has an unknown dimension or size", hint="known: dp, tp, pp, ep")
        layout = cls(tuple(mesh), tuple(mesh.values()))
        if layout.size != ranks:
            raise ConfigError(
                f"the mesh {dict(mesh)} has {layout.size} ranks, the job {ranks}",
                hint="the sizes must multiply to the number of ranks",
            )
        return layout

    @property
    def size(self) -> int:
        """The number of ranks."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def stages(self) -> int:
        """The depth of the pipeline."""
        return self.shape[self.dims.index("pp")] if "pp" in self.dims else 1

    def extent(self, dim: str) -> int:
        """The size of a dimension's groups; 1 for a dimension that is not in the mesh."""
        if dim == WORLD:
            return self.size
        return self.shape[self.dims.index(dim)] if dim in self.dims else 1

    @cached_property
    def grid(self) -> I64:
        """The ranks, in the mesh's shape."""
        return np.arange(self.size, dtype=np.int64).reshape(self.shape)

    def coordinate(self, rank: int) -> tuple[int, ...]:
        """A rank's coordinates."""
        return tuple(int(c) for c in np.unravel_index(rank, self.shape))

    def stage_of(self, rank: int) -> int:
        """A rank's pipeline stage."""
        return self.coordinate(rank)[self.dims.index("pp")] if "pp" in self.dims else 0

    def stage_ranks(self, stage: int) -> I64:
        """The ranks of a pipeline stage, in order; equal indices in all stages correspond."""
        return self._stage_grid(stage).ravel()

    def _stage_grid(self, stage: int) -> I64:
        return np.asarray(self.grid.take(stage, axis=self.dims.index("pp"))) if "pp" in self.dims else self.grid

    @property
    def stage_dims(self) -> tuple[str, ...]:
        """The dimensions within a stage."""
        return tuple(dim for dim in self.dims if dim != "pp")

    @property
    def stage_shape(self) -> tuple[int, ...]:
        """The shape of a stage."""
        return tuple(size for dim, size in zip(self.dims, self.shape, strict=True) if dim != "pp")

    def leaders(self, stage: int, dim: str) -> I64:
        """For each rank of a stage the first rank of its group along ``dim``, which keys the group's random draws."""
        grid = self._stage_grid(stage)
        if dim == WORLD:
            return np.zeros(grid.size, dtype=np.int64)
        if dim not in self.stage_dims:
            return grid.ravel()
        first = grid.take([0], axis=self.stage_dims.index(dim))
        return np.broadcast_to(first, grid.shape).ravel()

    def group_of(self, rank: int, dim: str) -> tuple[int, ...]:
        """The ranks of the group along ``dim`` that ``rank`` is in."""
        if dim == WORLD:
            return tuple(range(self.size))
        index: list[int | slice] = list(self.coordinate(rank))
        index[self.dims.index(dim)] = slice(None)
        return tuple(int(r) for r in self.grid[tuple(index)])

    def groups_of(self, rank: int, *, shared_names: bool = False) -> dict[str, Group]:
        """A rank's process groups by dimension, ``world`` among them.

        Every rank makes every group, in the same order, so names are numbered over all groups; with ``shared_names``
        each dimension has one name.
        """
        found = {WORLD: Group("0", "default_pg", WORLD, self.group_of(rank, WORLD))}
        next_name = 1
        for axis, dim in enumerate(self.dims):
            count = self.size // self.shape[axis]
            others = [c for i, c in enumerate(self.coordinate(rank)) if i != axis]
            shape = [s for i, s in enumerate(self.shape) if i != axis]
            index = int(np.ravel_multi_index(others, shape)) if shape else 0
            name = str(axis + 1) if shared_names else str(next_name + index)
            found[dim] = Group(name, f"mesh_{dim}", dim, self.group_of(rank, dim))
            next_name += count
        return found
