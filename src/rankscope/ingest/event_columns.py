"""What columns are made of: events of one table, as they were decoded or as the compiled reader gives them.

`table_columns` says which columns a table has, and asks these for the values of each.

In: events. Out: their values by field: a list or a Polars series, None if there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import Raw, Struct
from msgspec.json import Decoder

from rankscope.ingest import event_types as ev
from rankscope.primitives.intervals import Int64

Values = list[Any] | pl.Series | None
"""The values of a column; None if all are null."""


class Arguments(Protocol):
    """The arguments of events, by their names in `event_types`."""

    def values(self, name: str) -> Values:
        """Numbers, texts or flags."""
        ...

    def words(self, name: str) -> Values:
        """What is a text or a number, as text."""
        ...

    def json(self, name: str) -> Values:
        """Raw JSON as compact text; a JSON string as its content."""
        ...

    def present(self, name: str) -> npt.NDArray[np.bool_]:
        """Which events have the argument."""
        ...


class Events(Protocol):
    """Events of one table."""

    def __len__(self) -> int: ...

    def take(self, rows: Int64) -> Events:
        """Some of the events, in ascending order."""
        ...

    def names(self) -> Values:
        """Their names."""
        ...

    def by_name(self, value: Callable[[str], Any], dtype: pl.DataType) -> Values:
        """A value that follows from the name (empty if there is none), computed once for each."""
        ...

    def phases(self) -> Values:
        """Their phases."""
        ...

    def categories(self) -> Values:
        """Their categories."""
        ...

    def ids(self, name: str) -> Values:
        """`pid`, `tid` or `id` as integers: a text that is not a number has a negative one (`table_builder`)."""
        ...

    def numeric_tids(self) -> Values:
        """`tid` where it is written as an integer."""
        ...

    def json_arguments(self) -> Values:
        """All arguments as compact JSON."""
        ...

    def arguments(self, decoder: Decoder[list[Any]], kind: type[Struct]) -> Arguments:
        """Their arguments, with the fields of a class."""
        ...


class Reader(Protocol):
    """Decodes and converts what is not decoded yet (`table_builder.TableBuilder`)."""

    def tracks(self, values: list[ev.Number]) -> pl.Series | list[int | None]:
        """Process or thread ids as integers."""
        ...

    def json(self, values: Sequence[Raw]) -> pl.Series | None:
        """Raw JSON as compact text; None if all values are absent."""
        ...

    def args(self, decoder: Decoder[list[Any]], kind: type[Struct], events: list[ev.Event]) -> list[Any]:
        """The arguments of events of one kind."""
        ...


class DecodedEvents:
    """Events that msgspec decoded."""

    def __init__(self, reader: Reader, events: list[ev.Event]) -> None:
        self._reader = reader
        self._events = events

    def __len__(self) -> int:
        return len(self._events)

    def take(self, rows: Int64) -> DecodedEvents:
        """Some of the events, in ascending order."""
        if rows.size == len(self._events):
            return self
        return DecodedEvents(self._reader, [self._events[row] for row in rows.tolist()])

    def names(self) -> Values:
        """Their names."""
        return [event.name for event in self._events]

    def by_name(self, value: Callable[[str], Any], dtype: pl.DataType) -> Values:
        """A value that follows from the name, computed once for each."""
        names = [event.name for event in self._events]
        known = {name: value(name or "") for name in set(names)}
        return [known[name] for name in names]

    def phases(self) -> Values:
        """Their phases."""
        return [event.ph for event in self._events]

    def categories(self) -> Values:
        """Their categories."""
        return [event.cat for event in self._events]

    def ids(self, name: str) -> Values:
        """`pid`, `tid` or `id` as integers."""
        return self._reader.tracks([getattr(event, name) for event in self._events])

    def numeric_tids(self) -> Values:
        """`tid` where it is written as an integer."""
        return [event.tid if isinstance(event.tid, int) else None for event in self._events]

    def json_arguments(self) -> Values:
        """All arguments as compact JSON."""
        return self._reader.json([event.args for event in self._events])

    def arguments(self, decoder: Decoder[list[Any]], kind: type[Struct]) -> DecodedArguments:
        """Their arguments, with the fields of a class."""
        return DecodedArguments(self._reader, self._reader.args(decoder, kind, self._events))


class DecodedArguments:
    """Arguments that msgspec decoded."""

    def __init__(self, reader: Reader, args: Sequence[Struct]) -> None:
        self._reader = reader
        self._args = args

    def values(self, name: str) -> Values:
        """Numbers, texts or flags."""
        return [getattr(each, name) for each in self._args]

    def words(self, name: str) -> Values:
        """What is a text or a number, as text."""
        return [None if (value := getattr(each, name)) is None else str(value) for each in self._args]

    def json(self, name: str) -> Values:
        """Raw JSON as compact text."""
        return self._reader.json([getattr(each, name) for each in self._args])

    def present(self, name: str) -> npt.NDArray[np.bool_]:
        """Which events have the argument."""
        return np.array([getattr(each, name) is not None for each in self._args], dtype=np.bool_)


def is_absent(values: object) -> bool:
    """Whether a column has no values. The check costs a twentieth of making the column."""
    if not isinstance(values, list):
        return values is None
    # Counting None is fast only if there is nothing else, so check the ends first.
    return not values or (values[0] is None and values[-1] is None and values.count(None) == len(values))


def unless_empty(values: Values) -> Values:
    """Texts; None if all are empty."""
    if isinstance(values, pl.Series):
        return values if (values != "").any() else None
    return None if is_absent(values) or not any(values or ()) else values


def coalesced(values: Values, others: Values) -> Values:
    """The values, with nulls replaced by the other values."""
    if is_absent(others) or (isinstance(values, list) and None not in values):
        return values
    if values is None or others is None:
        return others
    if isinstance(values, pl.Series) and isinstance(others, pl.Series):
        return values.zip_with(values.is_not_null(), others) if values.null_count() else values
    return [other if value is None else value for value, other in zip(values, others, strict=True)]
