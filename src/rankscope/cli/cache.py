"""`rankscope cache`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from rankscope.report.words import plain, quantity
from rankscope.store.cache import Cache


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove the tables; traces are never touched.")] = False,
) -> None:
    """List the traces whose tables are kept, so that a second look is quick; or remove the tables."""
    console, kept = Console(highlight=False), Cache()
    if clear:
        console.print(f"{kept.clear()} removed from {plain(str(kept.root))}", markup=False)
        return
    table = Table.grid(padding=(0, 3))
    entries = kept.entries()
    for entry in entries:
        table.add_row(quantity(entry.bytes, "bytes"), plain(entry.info.path))
    console.print(table)
    total = quantity(sum(entry.bytes for entry in entries), "bytes")
    console.print(f"{len(entries)} traces, {total} in {plain(str(kept.root))}", markup=False)
