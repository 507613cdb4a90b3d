"""The ranks' parts of one analysis, with little memory per rank.

A frame of a few rows needs more memory for its columns' objects and buffers than for its values. So the frames of
`BLOCK` ranks are one frame, and a rank's part is a slice of it, made when it is asked for.

In: parts, in any order. Out: a sequence of them in the order of ranks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import TypeVar, cast, overload

import polars as pl

from rankscope.store.part_cache import Part

P = TypeVar("P")

BLOCK = 32
_SINGLE = ""


@dataclass(frozen=True)
class _Run:
    """Parts with the same columns, one after another.

    Attributes:
        frames: by name; the only one is `_SINGLE` if a part is a single frame.
        starts: by name, the first row of each part, and the number of rows.
        single: whether a part is a single frame.
    """

    frames: Mapping[str, pl.DataFrame]
    starts: Mapping[str, Sequence[int]]
    single: bool
    count: int

    def part(self, index: int) -> Part:
        slices = {
            name: frame.slice(self.starts[name][index], self.starts[name][index + 1] - self.starts[name][index])
            for name, frame in self.frames.items()
        }
        return slices[_SINGLE] if self.single else slices


class PackedParts(Sequence[Part]):
    """Parts of ranks, in the order of their positions; positions may be left out.

    Args:
        size: the number of positions.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._waiting: dict[int, dict[int, Part | None]] = {}
        self._blocks: dict[int, list[_Run]] = {}

    def put(self, position: int, part: Part | None) -> None:
        """Add the part at a position; None if there is none."""
        block = position // BLOCK
        members = self._waiting.setdefault(block, {})
        members[position] = part
        if len(members) == min(BLOCK, self._size - block * BLOCK):
            del self._waiting[block]
            self._blocks[block] = _packed([part for _, part in sorted(members.items()) if part is not None])

    @property
    def _runs(self) -> Iterator[_Run]:
        return (run for _, runs in sorted(self._blocks.items()) for run in runs)

    def __len__(self) -> int:
        return sum(run.count for run in self._runs)

    def __iter__(self) -> Iterator[Part]:
        return (run.part(index) for run in self._runs for index in range(run.count))

    @overload
    def __getitem__(self, index: int) -> Part: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Part]: ...
    def __getitem__(self, index: int | slice) -> Part | Sequence[Part]:
        return list(self)[index]

    def together(self) -> list[Part]:
        """The parts, those with the same columns as one."""
        return [dict(run.frames) if not run.single else run.frames[_SINGLE] for run in self._runs]


def together(parts: Sequence[P]) -> Sequence[P]:
    """Parts of an analysis for which it does not matter whose they are: packed ones as few large parts."""
    return cast("Sequence[P]", parts.together()) if isinstance(parts, PackedParts) else parts


def _packed(parts: Sequence[Part]) -> list[_Run]:
    runs = []
    for _, same in groupby(parts, _columns):
        members = list(same)
        named = [{_SINGLE: part} if isinstance(part, pl.DataFrame) else part for part in members]
        frames = {name: pl.concat([part[name] for part in named], rechunk=True) for name in named[0]}
        starts = {name: list(accumulate((part[name].height for part in named), initial=0)) for name in named[0]}
        runs.append(_Run(frames, starts, isinstance(members[0], pl.DataFrame), len(members)))
    return runs


def _columns(part: Part) -> Hashable:
    """What parts must have in common to be packed."""
    if isinstance(part, pl.DataFrame):
        return tuple(part.schema.items())
    return tuple((name, tuple(frame.schema.items())) for name, frame in part.items())
