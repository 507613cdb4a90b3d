"""`rankscope cache`.

In: what to do. Out: a list of cached traces, or an empty cache.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rankscope.rundir.plurals import counted
from rankscope.show.report.formatting import number_of, plain
from rankscope.store.cache import Cache


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove the tables; traces stay as they are.")] = False,
) -> None:
    """List the traces whose tables are cached, or clear the cache."""
    console, store = Console(highlight=False), Cache()
    if clear:
        console.print(f"{store.clear()} removed from {plain(str(store.root))}", markup=False)
        return
    table = Table.grid(padding=(0, 3))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    entries = store.entries()
    for entry in entries:
        table.add_row(number_of(entry.bytes, "bytes"), Text(plain(entry.info.path)))
    console.print(table)
    total = number_of(sum(entry.bytes for entry in entries), "bytes")
    console.print(f"{counted(len(entries), 'trace')}, {total} in {plain(str(store.root))}", markup=False)
