"""Options defined once, as fields of dataclasses: for a command line, a variable and a Python argument.

``nodes: int = option(1, "How many nodes.", least=1)`` gives a field its default and its documentation; code that
makes a command line of the dataclass reads them with :func:`options_of`.

In: a dataclass. Out: its options, and their names on a command line.
"""

from __future__ import annotations

import dataclasses
from typing import Any

OFF = "--no-"
"""Begins the name that turns a switch off."""
_KEY = "option"


@dataclasses.dataclass(frozen=True)
class Option:
    """The properties of an option besides its type and its default."""

    help: str
    names: tuple[str, ...] = ()
    """On the command line; ``--field-name`` where there are none."""
    metavar: str | None = None
    least: int | None = None
    most: int | None = None


def option(
    default: Any, help: str, *names: str, metavar: str | None = None, least: int | None = None, most: int | None = None
) -> Any:
    """A dataclass field that is an option, with its default and its documentation."""
    return dataclasses.field(default=default, metadata={_KEY: Option(help, names, metavar, least, most)})


def options_of(cls: Any) -> dict[str, Option]:
    """The options among the fields of a dataclass, by field name."""
    return {field.name: field.metadata[_KEY] for field in dataclasses.fields(cls) if _KEY in field.metadata}


def command_line_names(cls: Any) -> dict[str, str]:
    """Names on a command line, and the field that each sets: ``{"--with-stack": "with_stack"}``.

    A switch that is on by default has a second name, which turns it off: ``--no-watch``.
    """
    names: dict[str, str] = {}
    for field, option in options_of(cls).items():
        own = option.names or (f"--{field.replace('_', '-')}",)
        off = [OFF + own[0][len("--") :]] if getattr(cls, field) is True else []
        names.update(dict.fromkeys((*own, *off), field))  # for Python 3.8
    return names
