"""Large frames of many ranks, compressed: columns are decompressed when they are read.

The rows of ranks repeat each other: a rank's collectives take 90 kB as a frame and 6 kB compressed. What is large even
so is in a temporary file.

In: frames of rows. Out: the same rows, with the columns that are asked for.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from threading import Lock
from typing import IO, Any
from weakref import finalize

import polars as pl

LARGE_BYTES = 1 << 20
"""Smaller frames are not worth it."""
_BLOCK_BYTES = 1 << 20
"""The size of the blocks: they are decompressed one after another, and small ones are hardly smaller compressed."""
_IN_MEMORY_BYTES = 1 << 18
_Block = bytes | tuple[int, int]
"""The bytes, or where they are in a file: start and length."""


class BlockFile:
    """Blocks of bytes: the first in memory, what exceeds that in a temporary file, as long as one can be written."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._lock = Lock()
        self._size = 0
        self._end = 0

    def put(self, content: bytes) -> _Block:
        """Keep a block; what is returned gives it back."""
        with self._lock:
            self._size += len(content)
            if self._size <= _IN_MEMORY_BYTES:
                return content
            with suppress(OSError):
                if self._file is None:
                    self._file = tempfile.TemporaryFile(prefix="rankscope-", buffering=0)  # noqa: SIM115  # open as long as this
                    finalize(self, self._file.close)
                self._file.seek(self._end)
                if self._file.write(content) == len(content):
                    self._end += len(content)
                    return self._end - len(content), len(content)
        return content

    def get(self, block: _Block) -> bytes:
        """A block."""
        if isinstance(block, bytes) or self._file is None:
            return bytes(block)
        start, length = block
        with self._lock:
            self._file.seek(start)
            return self._file.read(length)


class CompressedFrame:
    """The rows of a frame as compressed blocks.

    Args:
        blocks: the rows in their order, all with the same columns.
        file: where they are kept, perhaps with those of other frames; None for a file of its own.
    """

    def __init__(self, blocks: Iterable[pl.DataFrame], file: BlockFile | None = None) -> None:
        self._file = BlockFile() if file is None else file
        self._blocks: list[_Block] = []
        self._schema = pl.Schema()
        self._height = 0
        for block in blocks:
            self.append(block)

    def append(self, block: pl.DataFrame) -> None:
        """Add rows at the end."""
        content = io.BytesIO()
        block.write_ipc(content, compression="zstd")
        self._blocks.append(self._file.put(content.getvalue()))
        self._schema = block.schema
        self._height += block.height

    def __getstate__(self) -> dict[str, Any]:
        """To another process it goes with all its blocks."""
        blocks = [self._file.get(block) for block in self._blocks]
        return {"_blocks": blocks, "_schema": self._schema, "_height": self._height}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _file=BlockFile())

    @property
    def schema(self) -> pl.Schema:
        """Names and types of the columns."""
        return self._schema

    @property
    def height(self) -> int:
        """The number of rows."""
        return self._height

    def select(self, *columns: str, where: pl.Expr | None = None) -> pl.DataFrame:
        """All rows, or those of a condition on these columns, with these columns; without any, all columns."""
        blocks = self.blocks(*columns)
        return pl.concat([block if where is None else block.filter(where) for block in blocks])

    def blocks(self, *columns: str) -> Iterator[pl.DataFrame]:
        """Its rows, some at a time, with these columns; without any, all columns."""
        return (self.block(number, *columns) for number in range(len(self._blocks)))

    def block(self, number: int, *columns: str) -> pl.DataFrame:
        """One of its blocks, with these columns; without any, all columns."""
        found = pl.read_ipc(io.BytesIO(self._file.get(self._blocks[number])), columns=list(columns) or None)
        return found.select(columns) if columns else found


StoredFrame = pl.DataFrame | CompressedFrame


def stored(frame: StoredFrame, large: int = LARGE_BYTES, file: BlockFile | None = None) -> StoredFrame:
    """A frame, compressed if it is large.

    Args:
        large: bytes from which it is.
        file: where its blocks are kept; None for a file of its own.
    """
    if isinstance(frame, CompressedFrame) or frame.is_empty() or frame.estimated_size() < large:
        return frame
    rows = max(1, int(frame.height * _BLOCK_BYTES / frame.estimated_size()))
    return CompressedFrame(frame.iter_slices(rows), file)


def stored_blocks(blocks: Iterable[pl.DataFrame]) -> StoredFrame:
    """Blocks of rows as one frame, compressed if it is large; at least one block."""
    rest = iter(blocks)
    first: list[pl.DataFrame] = []
    size = 0
    for block in rest:
        first.append(block)
        size += int(block.estimated_size())
        if size >= LARGE_BYTES:
            return CompressedFrame(_joined(chain(first, rest)))
    return pl.concat(first)


def _joined(blocks: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """The same rows in blocks of at least `_BLOCK_BYTES`."""
    waiting: list[pl.DataFrame] = []
    size = 0
    for block in blocks:
        waiting.append(block)
        size += int(block.estimated_size())
        if size >= _BLOCK_BYTES:
            yield pl.concat(waiting, rechunk=True)
            waiting, size = [], 0
    if waiting:
        yield pl.concat(waiting, rechunk=True)


def loaded(frame: StoredFrame, *columns: str, where: pl.Expr | None = None) -> pl.DataFrame:
    """Some columns of a frame, without any all; and the rows of a condition on these columns."""
    if isinstance(frame, CompressedFrame):
        return frame.select(*columns, where=where)
    found = frame.select(columns) if columns else frame
    return found if where is None else found.filter(where)


def blocks_of(frame: StoredFrame, *columns: str) -> Iterator[pl.DataFrame]:
    """The rows of a frame, some at a time, with these columns; without any, all columns."""
    return frame.blocks(*columns) if isinstance(frame, CompressedFrame) else iter([loaded(frame, *columns)])


class Frames(Mapping[str, pl.DataFrame]):
    """Frames by name, some of them compressed: `[name]` gives all columns, `columns` and `blocks` fewer.

    Args:
        by_name: as they are stored.
    """

    def __init__(self, by_name: Mapping[str, StoredFrame]) -> None:
        self.by_name = by_name

    def __getitem__(self, name: str) -> pl.DataFrame:
        return loaded(self.by_name[name])

    def __contains__(self, name: object) -> bool:
        return name in self.by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_name)

    def __len__(self) -> int:
        return len(self.by_name)

    def columns(self, name: str, *columns: str, where: pl.Expr | None = None) -> pl.DataFrame:
        """Some columns of a frame, and the rows of a condition on them."""
        return loaded(self.by_name[name], *columns, where=where)

    def blocks(self, name: str, *columns: str) -> Iterator[pl.DataFrame]:
        """Some columns of a frame, some rows at a time."""
        return blocks_of(self.by_name[name], *columns)

    def only(self, names: Iterable[str]) -> Frames:
        """Those with these names."""
        return Frames({name: self.by_name[name] for name in names if name in self.by_name})
