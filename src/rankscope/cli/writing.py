"""How a subcommand writes what it made: to the terminal, on into a pipe, or to a file."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

from rich.console import Console, RenderableType

from rankscope.errors import RankscopeError
from rankscope.report.words import inert

# Piped on, a table must not be folded to the 80 columns that no terminal has.
_PAGE_WIDTH = 10_000


def width_for(output: Path | None) -> int | None:
    """How wide a table may be; None for as wide as the terminal."""
    fits = output is None and (sys.stdout.isatty() or "COLUMNS" in os.environ)
    return None if fits else _PAGE_WIDTH


def show(shown: RenderableType, output: Path | None) -> None:
    """Write something that is made for reading.

    Raises:
        RankscopeError: the file cannot be written.
    """
    text = io.StringIO()
    console = Console(file=None if output is None else text, highlight=False, width=width_for(output))
    console.print(shown)
    if output is not None:
        write(text.getvalue().encode(), output)


def write(data: bytes, output: Path | None) -> None:
    """Write bytes; on a terminal without what it would obey.

    Raises:
        RankscopeError: the file cannot be written.
    """
    if output is None:
        sys.stdout.buffer.write(inert(data.decode()).encode() if sys.stdout.isatty() else data)
        sys.stdout.buffer.flush()
        return
    try:
        output.write_bytes(data)
    except OSError as error:
        raise RankscopeError(f"cannot be written: {error.strerror}", path=output, hint="choose another -o") from error
