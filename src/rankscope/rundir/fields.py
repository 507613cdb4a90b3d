"""Reading JSON written by others: each field is what it should be, or its default. Nothing here raises.

Traces and manifests are other people's files. A manifest from a newer version, an edited one, or one made to
do harm gives what can be read of it, so that one odd field never costs a run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_MAX_INT = 2**63 - 1
_MAX_TEXT = 65_536


def integer(value: object) -> int | None:
    """A 64-bit whole number, also when it was written as ``3.0``; a bool is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value == value and abs(value) < 2**53 and value == int(value):
        return int(value)
    return value if isinstance(value, int) and -_MAX_INT <= value <= _MAX_INT else None


def count(value: object) -> int | None:
    """A whole number that is not negative."""
    number = integer(value)
    return number if number is not None and number >= 0 else None


def number(value: object) -> float | None:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        as_float = float(value)
    except OverflowError:
        return None
    return as_float if as_float == as_float and abs(as_float) != float("inf") else None


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
