"""The ranks' parts of one analysis, with little memory per rank.

A frame of a few rows needs more memory for its columns' objects and buffers than for its values. So the frames of
`BLOCK` ranks are one frame, compressed if it is large, and a rank's part is a slice of it, made when it is asked for.

In: parts, in any order. Out: a sequence of them in the order of ranks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Generic, TypeVar, cast, overload

import polars as pl

from rankscope.results.compressed_frames import StoredFrame, loaded, stored
from rankscope.store.part_cache import Part

P = TypeVar("P")

BLOCK = 32
_LARGE_BYTES = 1 << 12
_SINGLE = ""


@dataclass(frozen=True)
class _Run:
    """Parts with the same columns, one after another.

    Attributes:
        frames: by name; the only one is `_SINGLE` if a part is a single frame.
        starts: by name, the first row of each part, and the number of rows.
        single: whether a part is a single frame.
    """

    frames: Mapping[str, StoredFrame]
    starts: Mapping[str, Sequence[int]]
    single: bool
    count: int

    def together(self) -> Part:
        """All of them as one."""
        frames = {name: loaded(frame) for name, frame in self.frames.items()}
        return frames[_SINGLE] if self.single else frames

    def parts(self) -> Iterator[Part]:
        frames = {name: loaded(frame) for name, frame in self.frames.items()}
        for index in range(self.count):
            slices = {
                name: frame.slice(self.starts[name][index], self.starts[name][index + 1] - self.starts[name][index])
                for name, frame in frames.items()
            }
            yield slices[_SINGLE] if self.single else slices


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
        return (part for run in self._runs for part in run.parts())

    @overload
    def __getitem__(self, index: int) -> Part: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Part]: ...
    def __getitem__(self, index: int | slice) -> Part | Sequence[Part]:
        return list(self)[index]

    def together(self) -> Iterator[Part]:
        """The parts, those with the same columns as one."""
        return (run.together() for run in self._runs)


@dataclass(frozen=True)
class _Together(Generic[P]):
    """Packed parts, many at a time: those before are not kept."""

    parts: PackedParts

    def __iter__(self) -> Iterator[P]:
        return cast("Iterator[P]", self.parts.together())


def together(parts: Sequence[P]) -> Iterable[P]:
    """Parts of an analysis for which it does not matter whose they are: packed ones as few large parts.

    Each iteration unpacks them again, one after another.
    """
    return _Together[P](parts) if isinstance(parts, PackedParts) else parts


def _packed(parts: Sequence[Part]) -> list[_Run]:
    runs = []
    for _, same in groupby(parts, _columns):
        members = list(same)
        named = [{_SINGLE: part} if isinstance(part, pl.DataFrame) else part for part in members]
        frames = {
            name: stored(pl.concat([part[name] for part in named], rechunk=True), _LARGE_BYTES) for name in named[0]
        }
        starts = {name: list(accumulate((part[name].height for part in named), initial=0)) for name in named[0]}
        runs.append(_Run(frames, starts, isinstance(members[0], pl.DataFrame), len(members)))
    return runs


def _columns(part: Part) -> Hashable:
    """What parts must have in common to be packed."""
    if isinstance(part, pl.DataFrame):
        return tuple(part.schema.items())
    return tuple((name, tuple(frame.schema.items())) for name, frame in part.items())
