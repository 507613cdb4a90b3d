"""`rankscope slices`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankscope.cli.analyze import Format, write_result
from rankscope.cli.options import Communication, Engine, RunId, Source, Steps, Workers


def slices(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The event's name; a regular expression with --regex.")],
    source: Source,
    regex: Annotated[bool, typer.Option("--regex", help="NAME is a regular expression, case aside.")] = False,
    by: Annotated[str, typer.Option(help="A row for each: step, rank, name (over all ranks), or event.")] = "step",
    form: Annotated[Format, typer.Option("--format", "-f", help="How to write it.")] = Format.table,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
    limit: Annotated[int, typer.Option(help="Rows of a table to show; 0 for all.", min=0)] = 50,
    steps: Steps = None,
    run: RunId = None,
    communication: Communication = None,
    executor: Engine = "processes",
    workers: Workers = None,
) -> None:
    """Every event of one name, over ranks and steps: how often, how long, how they are spread."""
    own = {"match" if regex else "name": name, "by": by}
    write_result("slices", source, own, form, output, limit, steps, run, communication, executor, workers)
