"""Sort the rows of tables by an external merge sort, so that memory does not grow with the trace.

Frames are appended in file order. Beyond a memory limit, the rows of the largest table are sorted by start and written
as one Parquet fragment. At the end the fragments are merged: only their times are read to compute the final order, and
as each fragment is sorted, a slice of the merged table is a range of rows of each fragment. So no table is ever
completely in memory, except for a few integer columns for links.

In: frames of rows. Out: sorted slices of each table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.store.schema import TABLES, Column, Table

Int64 = npt.NDArray[np.int64]

PENDING_BYTES = 48 << 20
SLICE_ROWS = 1 << 16
_ROW_GROUP = 1 << 15
FRAGMENT_SUFFIX = ".fragment"


class Spool:
    """The rows of every table of one trace.

    Args:
        folder: makes the directory where fragments are written; None to keep everything in memory.
    """

    def __init__(self, folder: Callable[[], Path] | None = None) -> None:
        self._folder = folder
        self._frames: dict[str, list[pl.DataFrame]] = {name: [] for name in TABLES}
        self._fragments: dict[str, list[pl.DataFrame | pl.LazyFrame]] = {name: [] for name in TABLES}
        self._lengths: dict[str, list[int]] = {name: [] for name in TABLES}
        self._arrivals: dict[str, list[npt.NDArray[np.int32]]] = {name: [] for name in TABLES}
        self._rows = dict.fromkeys(TABLES, 0)
        self._bytes = dict.fromkeys(TABLES, 0)
        self._orders: dict[str, Int64] = {}
        self._written = 0

    def append(self, name: str, frame: pl.DataFrame) -> None:
        """Append rows with some of a table's columns."""
        self._frames[name].append(frame)
        self._rows[name] += frame.height
        self._bytes[name] += int(frame.estimated_size())
        if self._folder is not None and sum(self._bytes.values()) > PENDING_BYTES:
            self._flush(max(self._bytes, key=self._bytes.__getitem__))

    def rows(self, name: str) -> int:
        """How many rows a table has so far."""
        return self._rows[name]

    def _flush(self, name: str) -> None:
        """Turn the pending frames of a table into one sorted fragment with all columns."""
        frames = self._frames[name]
        if not frames:
            return
        # They have some of the table's columns each; nulls fill the gaps.
        stacked = pl.concat(frames, how="diagonal", rechunk=True)
        frames.clear()
        frame, order = _sorted(stacked)
        frame = conform(frame, TABLES[name])
        del stacked
        self._bytes[name] = 0
        self._arrivals[name].append(order.astype(np.int32) + sum(self._lengths[name]))
        self._lengths[name].append(frame.height)
        if self._folder is None:
            self._fragments[name].append(frame)
            return
        file = self._folder() / f".{name}.{self._written}{FRAGMENT_SUFFIX}"
        self._written += 1
        frame.write_parquet(file, compression="zstd", compression_level=1, row_group_size=_ROW_GROUP)
        self._fragments[name].append(pl.scan_parquet(file, glob=False))

    def take(self, name: str) -> Iterator[pl.DataFrame]:
        """Take the rows of a table out of it, in slices: they may be appended again, to any table."""
        self._flush(name)
        fragments, self._fragments[name] = self._fragments[name], []
        lengths, self._lengths[name] = self._lengths[name], []
        self._arrivals[name].clear()
        self._orders.pop(name, None)
        self._rows[name] = 0
        for fragment, length in zip(fragments, lengths, strict=True):
            for start in range(0, length, SLICE_ROWS):
                yield _collected(fragment.slice(start, SLICE_ROWS))

    # -- after the last row -------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Flush the pending rows of each table as its last fragment."""
        folder = self._folder
        for name, fragments in self._fragments.items():
            # A table without fragments on disk stays in memory.
            self._folder = folder if fragments else None
            self._flush(name)
        self._folder = folder

    def columns(self, name: str, columns: list[str]) -> pl.DataFrame:
        """Some columns of a table, in its final order."""
        if not self._fragments[name]:
            return TABLES[name].empty().select(columns)
        frame = pl.concat([_chosen(fragment, columns) for fragment in self._fragments[name]])
        return frame if len(self._fragments[name]) == 1 else frame[self._order(name)]

    def slices(self, name: str) -> Iterator[pl.DataFrame]:
        """The rows of a table in their final order, in slices."""
        fragments = self._fragments[name]
        if len(fragments) == 1:
            for start in range(0, self._rows[name], SLICE_ROWS):
                yield _collected(fragments[0].slice(start, SLICE_ROWS))
            return
        bounds = np.cumsum([0, *self._lengths[name]])
        taken = np.zeros(len(fragments), dtype=np.int64)
        order = self._order(name) if fragments else np.empty(0, dtype=np.int64)
        for start in range(0, order.size, SLICE_ROWS):
            rows = order[start : start + SLICE_ROWS]
            owner = np.searchsorted(bounds, rows, side="right") - 1
            counts = np.bincount(owner, minlength=len(fragments))
            # Take each fragment's next rows, then put them in order.
            parts = [
                _collected(fragments[index].slice(int(taken[index]), int(counts[index])))
                for index in np.flatnonzero(counts)
            ]
            taken += counts
            position = np.empty(rows.size, dtype=np.int64)
            position[np.argsort(owner, kind="stable")] = np.arange(rows.size)
            yield pl.concat(parts)[position]

    def final_rows(self, name: str) -> Int64:
        """The final row number of each row, in the order in which rows were appended."""
        order = self._order(name)
        arrival = np.concatenate([np.empty(0, dtype=np.int32), *self._arrivals[name]])
        moved = np.empty(order.size, dtype=np.int64)
        moved[arrival[order]] = np.arange(order.size)
        return moved

    def _order(self, name: str) -> Int64:
        """For each row of the final table, its row in the concatenated fragments."""
        if name not in self._orders:
            keys = _sort_keys(TABLES[name])
            merge = len(self._fragments[name]) > 1 and keys
            self._orders[name] = (
                _order_of(pl.concat([_chosen(fragment, keys) for fragment in self._fragments[name]]))
                if merge
                else np.arange(self._rows[name])
            )
        return self._orders[name]

    def forget(self, name: str) -> None:
        """Free the memory of a table that is done."""
        self._fragments[name].clear()
        self._orders.pop(name, None)


def _nulls(column: Column, size: int) -> pl.Series:
    nulls: pl.Series = _null(column).new_from_index(0, size)
    return nulls


@cache
def _null(column: Column) -> pl.Series:
    # Making a series costs more than extending a short one, so each is made once.
    return pl.Series(column.name, [None], dtype=column.dtype)


def conform(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """The frame with exactly the table's columns, in order; missing ones are null."""
    schema = frame.schema
    return pl.DataFrame(
        [
            _nulls(column, frame.height)
            if column.name not in schema
            else frame.get_column(column.name)
            if schema[column.name] == column.dtype
            else frame.get_column(column.name).cast(column.dtype)
            for column in table.columns
        ]
    )


def _collected(fragment: pl.DataFrame | pl.LazyFrame) -> pl.DataFrame:
    return fragment.collect() if isinstance(fragment, pl.LazyFrame) else fragment


def _chosen(fragment: pl.DataFrame | pl.LazyFrame, columns: Sequence[str]) -> pl.DataFrame:
    # A lazy plan for columns in memory costs more than the rest of the work on a small table.
    if isinstance(fragment, pl.LazyFrame):
        return fragment.select(columns).collect()
    return pl.DataFrame([fragment.get_column(name) for name in columns])


def _sort_keys(table: Table) -> list[str]:
    return [name for name in ("start_ns", "end_ns", "time_ns") if name in table.schema]


def _sorted(frame: pl.DataFrame) -> tuple[pl.DataFrame, Int64]:
    """Rows sorted by start, longest first, else in the given order; and the original row number of each."""
    keys = [name for name in ("start_ns", "end_ns", "time_ns") if name in frame.columns]
    if not keys:
        return frame, np.arange(frame.height)
    order = _order_of(_chosen(frame, keys))
    # A thread's events are mostly written in order.
    return (frame, order) if (order[1:] > order[:-1]).all() else (frame[order], order)


def _order_of(keys: pl.DataFrame) -> Int64:
    if "time_ns" in keys.columns:
        return np.argsort(keys["time_ns"].to_numpy(), kind="stable")
    start, end = keys["start_ns"].to_numpy(), keys["end_ns"].to_numpy()
    order = np.argsort(start, kind="stable")
    # Starts are nearly sorted, so sorting them is fast; ends are not, so only ties are sorted by them.
    sorted_starts = start[order]
    tied = np.zeros(order.size + 1, dtype=np.bool_)
    np.equal(sorted_starts[1:], sorted_starts[:-1], out=tied[1:-1])
    positions = np.flatnonzero(tied[1:] | tied[:-1])
    if positions.size:
        rows = order[positions]
        order[positions] = rows[np.lexsort((-end[rows], start[rows]))]
    return order
