"""The ranks' parts of one analysis, with little memory per rank.

A frame of a few rows needs more memory for its columns' objects and buffers than for its values. So the frames of
`BLOCK` ranks are one frame, or of `BLOCKS` as many where that is small, and compressed. A rank's part is a slice of
it, made when it is asked for.

In: parts, in any order. Out: a sequence of them in the order of ranks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Generic, TypeVar, cast, overload

import polars as pl

from rankscope.results.compressed_frames import BlockFile, StoredFrame, loaded, stored
from rankscope.store.part_cache import Part

P = TypeVar("P")

BLOCK = 32
BLOCKS = 8
"""So many blocks of small parts are put together."""
_LARGE_BYTES = 1 << 18
"""Blocks of this size are not: unpacked, they would take too much memory."""
_COMPRESSED_FROM = 1 << 12
_SINGLE = ""


@dataclass(frozen=True)
class _Run:
    """Parts with the same columns, one after another.

    Attributes:
        frames: by name; the only one is `_SINGLE` if a part is a single frame.
        heights: by name, the number of rows of each part.
        single: whether a part is a single frame.
    """

    frames: Mapping[str, StoredFrame]
    heights: Mapping[str, Sequence[int]]
    single: bool
    count: int

    @property
    def is_small(self) -> bool:
        """Whether it can be put together with its neighbors."""
        return all(
            isinstance(frame, pl.DataFrame) and frame.estimated_size() < _LARGE_BYTES for frame in self.frames.values()
        )

    def compressed(self, file: BlockFile) -> _Run:
        """The same with its frames compressed in a file, as far as that is worth it."""
        frames = {name: stored(frame, _COMPRESSED_FROM, file) for name, frame in self.frames.items()}
        return replace(self, frames=frames)

    def together(self) -> Part:
        """All of them as one."""
        frames = {name: loaded(frame) for name, frame in self.frames.items()}
        return frames[_SINGLE] if self.single else frames

    def parts(self) -> Iterator[Part]:
        frames = {name: loaded(frame) for name, frame in self.frames.items()}
        starts = {name: list(accumulate(heights, initial=0)) for name, heights in self.heights.items()}
        for index in range(self.count):
            slices = {
                name: frame.slice(starts[name][index], self.heights[name][index]) for name, frame in frames.items()
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
        self._file = BlockFile()

    def put(self, position: int, part: Part | None) -> None:
        """Add the part at a position; None if there is none."""
        block = position // BLOCK
        members = self._waiting.setdefault(block, {})
        members[position] = part
        if len(members) < min(BLOCK, self._size - block * BLOCK):
            return
        del self._waiting[block]
        packed = _packed([part for _, part in sorted(members.items()) if part is not None])
        self._blocks[block] = [run if run.is_small else run.compressed(self._file) for run in packed]
        neighbors = range(block - block % BLOCKS, min(block - block % BLOCKS + BLOCKS, -(-self._size // BLOCK)))
        if all(each in self._blocks for each in neighbors):
            runs = _merged([run for each in neighbors for run in self._blocks.pop(each)])
            self._blocks[neighbors[0]] = [run.compressed(self._file) for run in runs]

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
        frames = {name: pl.concat([part[name] for part in named], rechunk=True) for name in named[0]}
        heights = {name: [part[name].height for part in named] for name in named[0]}
        runs.append(_Run(frames, heights, isinstance(members[0], pl.DataFrame), len(members)))
    return runs


def _merged(runs: Sequence[_Run]) -> list[_Run]:
    """Runs in their order, neighbors that are small and have the same columns as one."""
    merged = []
    for (is_small, *_), same in groupby(runs, lambda run: (run.is_small, run.single, _schemas(run.frames))):
        members = list(same)
        if is_small and len(members) > 1:
            frames = {
                name: pl.concat([loaded(run.frames[name]) for run in members], rechunk=True)
                for name in members[0].frames
            }
            heights = {name: [height for run in members for height in run.heights[name]] for name in frames}
            members = [_Run(frames, heights, members[0].single, sum(run.count for run in members))]
        merged += members
    return merged


def _columns(part: Part) -> Hashable:
    """What parts must have in common to be packed."""
    return tuple(part.schema.items()) if isinstance(part, pl.DataFrame) else _schemas(part)


def _schemas(frames: Mapping[str, StoredFrame]) -> Hashable:
    return tuple((name, tuple(frame.schema.items())) for name, frame in frames.items())
