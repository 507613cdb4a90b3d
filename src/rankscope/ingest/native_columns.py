"""Events of one table as the compiled reader gives them (`native.Piece`).

In: the columns of a piece. Out: values by field, as `event_columns.Events` describes them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.ingest import event_types as ev
from rankscope.ingest.event_columns import Values
from rankscope.ingest.event_types import CATEGORIES
from rankscope.ingest.native import AS_WRITTEN, PHASES, Column, Piece, Table
from rankscope.primitives.intervals import Int64

_START, _DURATION, _NAME, _CATEGORY, _PHASE, _ARGUMENTS = 0, 1, 2, 9, 10, 11
_IDS = {"pid": 3, "tid": 5, "id": 7}
_INTEGERS, _FLOATS, _CODES, _FLAGS = range(4)
_PHASES = pl.Series([None, *PHASES], dtype=pl.String)
_CATEGORIES = pl.Series([None, *CATEGORIES, None], dtype=pl.String)


class Converter(Protocol):
    """Converts texts (`table_builder.TableBuilder`)."""

    def track(self, value: ev.Number) -> int | None:
        """The number of a process or thread that is a text."""
        ...

    def compact(self, texts: list[str]) -> list[str | None]:
        """JSON values as compact text; None for an empty text."""
        ...

    def bounded(self, series: pl.Series) -> pl.Series:
        """The values with long texts cut, and values that are not numbers as null."""
        ...


class NativePiece:
    """What the tables of a piece have in common."""

    def __init__(self, piece: Piece, converter: Converter, longest: int) -> None:
        """Longest: texts that are longer, in bytes, are cut."""
        self.piece = piece
        self.converter = converter
        self.any_long = piece.longest > longest
        self.texts = pl.Series(piece.texts, dtype=pl.String)

    @cached_property
    def values(self) -> pl.Series:
        """The distinct JSON values, compact."""
        values = list(self.piece.values)
        written = [number for number, value in enumerate(values) if value and value[0] == AS_WRITTEN]
        texts = [(values[number] or "")[1:] for number in written]
        for number, value in zip(written, self.converter.compact(texts), strict=True):
            values[number] = value
        return pl.Series(values, dtype=pl.String)


class _Series:
    """The columns of one table as series.

    They are slices of one series for each type, which costs a twentieth of a new series for each column. Each table has
    its own, so that its memory is freed with its rows.
    """

    def __init__(self, piece: Piece, table: Table) -> None:
        self._buffers: tuple[npt.NDArray[Any], ...] = (piece.integers, piece.floats, piece.codes)
        self._bytes = piece.bytes
        self._rows = table.rows
        # Times become columns of their own.
        self._columns = [column for number, column in table.columns.items() if number not in (_START, _DURATION)]

    def values(self, column: Column) -> pl.Series:
        """Integers, floats or codes; any value where the row is null."""
        first, series = self._all[column.buffer]
        return series.slice(column.begins - first, self._rows)

    def absent(self, column: Column) -> pl.Series:
        """Which rows are null."""
        first, series = self._absent
        return series.slice(column.validity - first, self._rows)

    @cached_property
    def _all(self) -> list[tuple[int, pl.Series]]:
        """For each type where the table's columns begin, and all of them, one after another."""
        found = []
        for number, buffer in enumerate(self._buffers):
            begins = [column.begins for column in self._columns if column.buffer == number]
            first, end = (min(begins), max(begins) + self._rows) if begins else (0, 0)
            found.append((first, pl.Series(buffer[first:end])))
        return found

    @cached_property
    def _absent(self) -> tuple[int, pl.Series]:
        begins = [column.validity for column in self._columns if column.validity >= 0]
        return min(begins), pl.Series(self._bytes[min(begins) : max(begins) + self._rows] == 0)


class NativeEvents:
    """Events of one table.

    Attributes:
        table: which events, and where their columns are.
        rows: those of them that are meant; None for all.
    """

    def __init__(
        self, shared: NativePiece, table: Table, rows: Int64 | None = None, series: _Series | None = None
    ) -> None:
        self._shared = shared
        self.table = table
        self._rows = rows
        self._series = series or _Series(shared.piece, table)

    def __len__(self) -> int:
        return self.table.rows if self._rows is None else self._rows.size

    def times(self) -> tuple[Int64, Int64]:
        """Start and duration, ns; −1 where there is no duration."""
        columns = self.table.columns
        return self._raw(columns[_START]), self._raw(columns[_DURATION])

    def take(self, rows: Int64) -> NativeEvents:
        """Some of the events, in ascending order."""
        if rows.size == len(self):
            return self
        return NativeEvents(self._shared, self.table, rows if self._rows is None else self._rows[rows], self._series)

    def names(self) -> Values:
        """Their names."""
        return self._text(_NAME)

    def by_name(self, value: Callable[[str], Any], dtype: pl.DataType) -> Values:
        """A value that follows from the name, computed once for each."""
        codes = self._raw(self.table.columns[_NAME])
        texts = self._shared.piece.texts
        known: list[Any] = [None] * len(texts)
        for code in np.flatnonzero(np.bincount(codes, minlength=len(texts))).tolist():
            known[code] = value(texts[code] or "")
        return pl.Series(known, dtype=dtype)[self._column(self.table.columns[_NAME])]

    def phases(self) -> Values:
        """Their phases."""
        return _PHASES[self._column(self.table.columns[_PHASE])]

    def categories(self) -> Values:
        """Their categories."""
        return _CATEGORIES[self._column(self.table.columns[_CATEGORY])]

    def ids(self, name: str) -> Values:
        """`pid`, `tid` or `id` as integers."""
        numbers, texts = (self.table.columns.get(_IDS[name] + at) for at in (0, 1))
        if texts is None:
            return self._numbers(numbers)
        codes = self._raw(texts)
        found, valid = np.zeros(codes.size, dtype=np.int64), codes > 0
        if numbers is not None:
            found = np.where(valid, found, self._raw(numbers))
            valid |= self._valid(numbers)
        # Texts are numbered in the order in which they appear.
        distinct, first = np.unique(codes, return_index=True)
        for code in distinct[np.argsort(first)].tolist():
            if code:
                number = self._shared.converter.track(self._shared.piece.texts[code] or "")
                found[codes == code] = 0 if number is None else number
        return _series(found, valid)

    def numeric_tids(self) -> Values:
        """`tid` where it is written as an integer."""
        return self._numbers(self.table.columns.get(_IDS["tid"]))

    def json_arguments(self) -> Values:
        """All arguments as compact JSON."""
        return self._json(_ARGUMENTS)

    def arguments(self, decoder: object, kind: object) -> NativeEvents:
        """Their arguments: the columns are those of the class already."""
        return self

    # -- arguments ----------------------------------------------------------------------------------------------

    def values(self, name: str) -> Values:
        """Numbers, texts or flags."""
        number = self.table.arguments[name]
        column = self.table.columns.get(number)
        if column is None:
            return None
        if column.buffer == _CODES:
            return self._text(number)
        if column.buffer == _FLAGS:
            flags = self._raw(column)
            return _series(flags == 2, flags > 0)
        found = self._numbers(column)
        return self._shared.converter.bounded(found) if column.buffer == _FLOATS and found is not None else found

    def words(self, name: str) -> Values:
        """What is a text or a number, as text."""
        return self.values(name)

    def json(self, name: str) -> Values:
        """Raw JSON as compact text."""
        return self._json(self.table.arguments[name])

    def present(self, name: str) -> npt.NDArray[np.bool_]:
        """Which events have the argument, which is a text."""
        column = self.table.columns.get(self.table.arguments[name])
        return np.zeros(len(self), dtype=np.bool_) if column is None else self._raw(column) > 0

    # -- columns ------------------------------------------------------------------------------------------------

    def _raw(self, column: Column) -> Any:
        piece = self._shared.piece
        buffer = (piece.integers, piece.floats, piece.codes, piece.bytes)[column.buffer]
        found = buffer[column.begins : column.begins + self.table.rows]
        return found if self._rows is None else found[self._rows]

    def _column(self, column: Column) -> pl.Series:
        """Integers, floats or codes, without their nulls."""
        return self._chosen(self._series.values(column))

    def _chosen(self, series: pl.Series) -> pl.Series:
        return series if self._rows is None else series[pl.Series(self._rows)]

    def _valid(self, column: Column) -> npt.NDArray[np.bool_]:
        if column.validity < 0:
            return np.ones(len(self), dtype=np.bool_)
        found = self._shared.piece.bytes[column.validity : column.validity + self.table.rows] > 0
        return found if self._rows is None else found[self._rows]

    def _numbers(self, column: Column | None) -> pl.Series | None:
        if column is None:
            return None
        found = self._column(column)
        return found if column.validity < 0 else found.set(self._chosen(self._series.absent(column)), None)

    def _text(self, number: int) -> pl.Series | None:
        column = self.table.columns.get(number)
        if column is None:
            return None
        found = self._shared.texts[self._column(column)]
        return self._shared.converter.bounded(found) if self._shared.any_long else found

    def _json(self, number: int) -> pl.Series | None:
        column = self.table.columns.get(number)
        return None if column is None else self._shared.values[self._column(column)]


def _series(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None) -> pl.Series:
    found: pl.Series = pl.Series(values)
    return found if valid is None or valid.all() else found.set(pl.Series(~valid), None)
