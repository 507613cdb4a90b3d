"""`rankscope report`.

In: a run. Out: one HTML file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from rankscope.cli.options import DEFAULTS, RunOptions, Source, opened
from rankscope.cli.signature import with_options
from rankscope.errors import RankscopeError
from rankscope.show.report.formatting import number_of, plain
from rankscope.show.report.html_report import MAX_BYTES, write_report


@with_options()
def report(
    source: Source,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("report.html"),
    max_mb: Annotated[
        float,
        typer.Option(
            "--max-mb",
            min=0.1,
            help="Maximum size in megabytes: beyond it, part of the timeline is left out, with a note.",
        ),
    ] = MAX_BYTES / 1e6,
    anonymize: Annotated[
        bool,
        typer.Option(
            "--anonymize", help="Replace names of hosts, users, paths, runs, groups, modules and ranges by numbers."
        ),
    ] = False,
    options: RunOptions = DEFAULTS,
) -> None:
    """Write one HTML file with all results and the timeline, which opens offline and can be attached to a ticket."""
    limit = round(max_mb * 1e6)
    with opened(source, options) as opened_run:
        page = write_report(opened_run, limit=limit, anonymize=anonymize)
    save(page, output)
    message = f"report: {plain(output, limit=4096)} ({number_of(len(page), 'bytes')})"
    if len(page) > limit:
        message += f"; more than --max-mb {max_mb:g}, because the tables, which are always complete, are larger"
    Console(highlight=False, soft_wrap=True).print(Text(message))


def save(page: bytes, output: Path) -> None:
    """Write the page.

    Raises:
        RankscopeError: it cannot be written there.
    """
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(page)
    except OSError as error:
        raise RankscopeError(f"cannot be written: {error.strerror}", path=output, hint="choose another -o") from error
