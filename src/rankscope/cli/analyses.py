"""`rankscope analyses`.

In: nothing, or an analysis's name. Out: the list, or that analysis's docs, on the terminal.
"""

from __future__ import annotations

import inspect
import os
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rankscope.analyses import get_analysis, listed_analyses
from rankscope.results import Analysis


def analyses(
    name: Annotated[str | None, typer.Argument(help="Show one analysis: its documentation and its columns.")] = None,
) -> None:
    """List the analyses, or explain one of them."""
    # In a pipe each row is one line.
    console = Console(highlight=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 10_000)
    if name is None:
        table = Table.grid(padding=(0, 3))
        for analysis in listed_analyses().values():
            table.add_row(Text(analysis.name, style="bold"), Text(analysis.title))
        console.print(table)
        return
    analysis = get_analysis(name)
    console.print(Text(_unfolded(inspect.cleandoc(analysis.doc))))
    if analysis.parameters:
        console.print()
        console.print(_options(analysis))
    console.print()
    console.print(_columns(analysis))
    for view in analysis.views:
        console.print()
        console.print(Text(f"{view.usage}: {_unfolded(inspect.cleandoc(view.doc))}"))
        console.print()
        console.print(_columns(view))


def _unfolded(text: str) -> str:
    """Join the lines of each paragraph, for the terminal to wrap; indented lines, such as formulas, stay."""
    parts = text.split("\n\n")
    return "\n\n".join(part if part.startswith(" ") or "\n " in part else part.replace("\n", " ") for part in parts)


def _columns(analysis: Analysis) -> Table:
    table = Table("column", "unit", "meaning", box=None, header_style="bold", pad_edge=False)
    for column in analysis.columns:
        table.add_row(Text(column.name), Text(column.unit), Text(column.doc))
    return table


def _options(analysis: Analysis) -> Table:
    table = Table("option", "default", "meaning", box=None, header_style="bold", pad_edge=False)
    for parameter in analysis.parameters:
        default = "" if parameter.default in (None, False) else str(parameter.default)
        table.add_row(Text(parameter.usage), Text(default), Text(parameter.doc))
    return table
