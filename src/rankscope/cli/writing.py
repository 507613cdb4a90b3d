"""How a subcommand writes its result: to the terminal, a pipe, or a file.

In: a table for people, or bytes. Out: the same on the terminal, in the pipe or in the file, or an error.
"""

from __future__ import annotations

import io
import os
import sys
from enum import Enum
from pathlib import Path

from rich.console import Console, RenderableType

from rankscope.errors import ConfigError, RankscopeError
from rankscope.show.report.formatting import inert

# In a pipe there is no terminal to wrap tables for.
_PAGE_WIDTH = 10_000


class Format(str, Enum):
    """How a table is written."""

    table = "table"
    json = "json"
    csv = "csv"
    parquet = "parquet"
    arrow = "arrow"


class TextFormat(str, Enum):
    """How something other than a table of rows is written."""

    table = "table"
    json = "json"


def width_for(output: Path | None) -> int | None:
    """The width of tables; None for that of the terminal."""
    fits = output is None and (sys.stdout.isatty() or "COLUMNS" in os.environ)
    return None if fits else _PAGE_WIDTH


def show(shown: RenderableType, output: Path | None) -> None:
    """Write a table or a text for people.

    Raises:
        RankscopeError: the file cannot be written.
    """
    if output is None and sys.stdout.isatty():
        Console(highlight=False).print(shown)
        return
    text = io.StringIO()
    Console(file=text, highlight=False, width=width_for(output)).print(shown)
    lines = (line.rstrip() for line in text.getvalue().splitlines())  # columns are padded to their width
    write("".join(f"{line}\n" for line in lines).encode(), output)


def refuse_terminal(form: str, output: Path | None) -> None:
    """Refuse to write a binary format to a terminal, before any work is done.

    Raises:
        ConfigError: the format is Parquet or Arrow, and it would be written to a terminal.
    """
    if form in ("parquet", "arrow") and output is None and sys.stdout.isatty():
        raise ConfigError(f"{form.title()} cannot be shown in a terminal", hint="name a file with -o, or use a pipe")


def write(data: bytes, output: Path | None) -> None:
    """Write bytes; on a terminal as text, without control sequences.

    Raises:
        RankscopeError: the file cannot be written.
    """
    if output is None:
        to_terminal = sys.stdout.isatty()
        sys.stdout.buffer.write(inert(data.decode("utf-8", "replace")).encode() if to_terminal else data)
        sys.stdout.buffer.flush()
        return
    try:
        output.write_bytes(data)
    except OSError as error:
        raise RankscopeError(f"cannot be written: {error.strerror}", path=output, hint="choose another -o") from error
