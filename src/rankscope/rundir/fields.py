"""Reading untrusted JSON into dataclasses: each field gets a value of its type, or its default. Nothing here raises.

Traces and manifests are other people's files. From one of a newer version, an edited or a malicious one, what can be
read is read: one odd field does not cost the run. :func:`read` takes parsed JSON and returns a dataclass; the functions
after it read single values.

In: parsed JSON. Out: dataclasses and values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
D = TypeVar("D", bound="DataclassInstance")
Reader = Callable[[object], Any]
"""Reads a value of some type; None where it is something else."""

# Half of what 64 bits hold: the sum and the difference of two such numbers still fit.
_MAX_INT = 2**62
_MAX_TEXT = 65_536
MAX_RANKS = 1 << 20
"""The most ranks of a job. A greater number in a file is damage: counting up to it would take forever."""
MAX_STEP = 10**12
"""The largest step number."""


def read(cls: type[D], raw: object) -> D | None:
    """A dataclass from a JSON object, field by field; unknown keys are ignored.

    A field is an ``int`` (not negative, unless annotated as :data:`Signed`; within the bounds of :data:`Rank`,
    :data:`WorldSize` and :data:`Step`), a ``float``, a ``bool``, a ``str``, a dataclass, a
    ``tuple[X, ...]`` or a ``Mapping[str, X]`` of these, or ``Mapping[str, object]``; or None.

    Returns:
        None where `raw` is not an object, or lacks a field that has no default.
    """
    if not isinstance(raw, dict):
        return None
    values: dict[str, Any] = {}
    for field, reader in _readers(cls):
        value = reader(raw.get(field.name))
        if value is None or (value in ("", ()) and field.default is not None):
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                return None
        else:
            values[field.name] = value
    return cls(**values)


@cache
def _readers(cls: type[DataclassInstance]) -> list[tuple[dataclasses.Field[Any], Reader]]:
    hints = get_type_hints(cls, include_extras=True)
    return [(field, _reader(hints[field.name])) for field in dataclasses.fields(cls)]


def _reader(hint: Any) -> Reader:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        reader: Reader = parts[1]
        return reader
    if origin in (Union, UnionType):
        return _reader(next(part for part in parts if part is not NoneType))
    if origin is tuple:
        return partial(items, read=_reader(parts[0]))
    if origin is Mapping:
        return _BY_TYPE.get(hint) or partial(_mapping_of, _reader(parts[1]))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return getattr(hint, "from_json", partial(read, hint))
    return _BY_TYPE[hint]


def _mapping_of(reader: Reader, value: object) -> dict[str, Any] | None:
    """A JSON object of values that the reader understands; None where there are none."""
    return {key: item for key, raw in mapping(value).items() if (item := reader(raw)) is not None} or None


def integer(value: object) -> int | None:
    """A whole number of at most 62 bits, also when it was written as ``3.0``; a bool is not one."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value == value and abs(value) < 2**53 and value == int(value):
        return int(value)
    return value if isinstance(value, int) and -_MAX_INT <= value <= _MAX_INT else None


def count(value: object) -> int | None:
    """A whole number that is not negative."""
    number = integer(value)
    return number if number is not None and number >= 0 else None


def positive(value: object) -> int | None:
    """A whole number above zero."""
    return count(value) or None


def rank(value: object) -> int | None:
    """A rank of a job."""
    return _up_to(MAX_RANKS - 1, value)


def world_size(value: object) -> int | None:
    """A number of ranks, at least one."""
    return _up_to(MAX_RANKS, value) or None


def step(value: object) -> int | None:
    """The number of a step, or a number of steps."""
    return _up_to(MAX_STEP, value)


def _up_to(most: int, value: object) -> int | None:
    number = count(value)
    return number if number is not None and number <= most else None


def number(value: object) -> float | None:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        as_float = float(value)
    except OverflowError:
        return None
    return as_float if as_float == as_float and abs(as_float) != float("inf") else None


def switch(value: object) -> bool | None:
    """True or false."""
    return value if isinstance(value, bool) else None


def text(value: object) -> str | None:
    """A string, cut where it is absurdly long."""
    return value[:_MAX_TEXT] if isinstance(value, str) else None


def mapping(value: object) -> dict[str, object]:
    """A JSON object; anything else is an empty one."""
    return {k: v for k, v in value.items() if isinstance(k, str)} if isinstance(value, dict) else {}


def items(value: object, read: Callable[[object], T | None]) -> tuple[T, ...]:
    """The items of a list that ``read`` understands; anything else is an empty one."""
    if not isinstance(value, (list, tuple)):
        return ()
    return tuple(item for item in map(read, value) if item is not None)


def strings(value: object) -> dict[str, str]:
    """A JSON object of strings; numbers in it become strings, the rest is left out."""
    found: dict[str, str] = {}
    for key, item in mapping(value).items():
        if isinstance(item, str):
            found[key] = item[:_MAX_TEXT]
        elif isinstance(item, (int, float)):
            found[key] = str(item)
    return found


Signed = Annotated[int, integer]
Positive = Annotated[int, positive]
Rank = Annotated[int, rank]
WorldSize = Annotated[int, world_size]
Step = Annotated[int, step]
_BY_TYPE: dict[Any, Reader] = {
    int: count,
    float: number,
    bool: switch,
    str: text,
    Mapping[str, str]: strings,
    Mapping[str, object]: lambda value: mapping(value) or None,
    Mapping[str, Any]: lambda value: mapping(value) or None,
}
