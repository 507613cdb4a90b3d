"""Frames with declared columns: their schema, the columns of most, concatenation of ranks, and values for files.

In: columns as an analysis declares them, and the ranks' frames. Out: a frame with these columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import polars as pl

from rankscope.results.compressed_frames import StoredFrame, stored_blocks
from rankscope.results.packed_parts import together
from rankscope.store.part_cache import Part
from rankscope.store.schema import Column

RANK_AND_WINDOW = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("window", pl.Int64, "", "index of the rank's trace file, from 0"),
)
"""The first columns of an analysis with rows per trace file."""


def schema_of(columns: Sequence[Column]) -> pl.Schema:
    """The Polars schema of some columns, in their order."""
    return pl.Schema({column.name: column.dtype for column in columns})


def concat_ranks(parts: Sequence[Part], columns: Sequence[Column]) -> pl.DataFrame:
    """Concatenate the ranks' frames, with the declared columns and types.

    Parts without rows may have columns of any type, or none: they add nothing.
    """
    schema = schema_of(columns)
    filled = [part for part in together(parts) if isinstance(part, pl.DataFrame) and part.height]
    if not filled:
        return pl.DataFrame(schema=schema)
    frame = filled[0] if len(filled) == 1 else pl.concat(filled, how="vertical_relaxed")
    return _typed(frame, schema)


def stored_ranks(parts: Sequence[Part], columns: Sequence[Column]) -> StoredFrame:
    """The same, compressed if it is large: the rows of all ranks are not in memory at once."""
    schema = schema_of(columns)
    filled = (_typed(part, schema) for part in together(parts) if isinstance(part, pl.DataFrame) and part.height)
    first = next(filled, None)
    return pl.DataFrame(schema=schema) if first is None else stored_blocks(chain([first], filled))


def _typed(frame: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    return frame if frame.schema == schema else frame.select(pl.col(name).cast(dtype) for name, dtype in schema.items())


def finite(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame for files and JSON: NaN and infinity, which traces may contain, become null."""
    floats = [name for name, dtype in frame.schema.items() if dtype.is_float()]
    return frame.with_columns(pl.when(pl.col(name).is_finite()).then(pl.col(name)) for name in floats)
