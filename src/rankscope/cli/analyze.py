"""`rankscope analyze`."""

from __future__ import annotations

import io
import os
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rankscope.analyses import get_analysis
from rankscope.cli.options import Communication, Engine, RunId, Source, Steps, Workers, opened
from rankscope.errors import ConfigError, RankscopeError
from rankscope.export.formats import FORMATS
from rankscope.report.terminal import findings_list, result_table
from rankscope.report.words import inert
from rankscope.results import Result, by_weight

_PAGE_WIDTH = 10_000


class Format(str, Enum):
    """How a result is written."""

    table = "table"
    json = "json"
    csv = "csv"
    parquet = "parquet"


def analyze(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which analysis: `rankscope analyses` lists them.")],
    source: Source,
    form: Annotated[Format, typer.Option("--format", "-f", help="How to write it.")] = Format.table,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
    limit: Annotated[int, typer.Option(help="Rows of a table to show; 0 for all.", min=0)] = 50,
    steps: Steps = None,
    run: RunId = None,
    communication: Communication = None,
    executor: Engine = "processes",
    workers: Workers = None,
) -> None:
    """Run one analysis and write its result."""
    wanted = get_analysis(name).name
    to_terminal = output is None and sys.stdout.isatty()
    if form is Format.parquet and to_terminal:
        raise ConfigError("Parquet is not for a terminal", hint="name a file with -o, or pipe it on")
    with opened(source, steps, run, communication, executor, workers) as opened_run:
        result = opened_run.analyze(wanted)[wanted]
        about = opened_run.about()
        findings = tuple(by_weight([*opened_run.loaded.findings, *result.findings]))
    if form is Format.table:
        _write_table(result, output, limit, to_terminal)
    else:
        data = FORMATS[form.value](Result(result.analysis, result.frame, findings), about)
        _write(inert(data.decode()).encode() if to_terminal else data, output)
    worth = [finding for finding in findings if finding.severity != "info"]
    # JSON carries them itself; rows alone would look as good as whole ones.
    if worth and form is not Format.json:
        Console(stderr=True, highlight=False).print(findings_list(worth))


def _write_table(result: Result, output: Path | None, limit: int, to_terminal: bool) -> None:
    # Piped on, a table must not be folded to the 80 columns that no terminal has.
    fits = to_terminal or (output is None and "COLUMNS" in os.environ)
    text = io.StringIO()
    console = Console(file=None if output is None else text, highlight=False, width=None if fits else _PAGE_WIDTH)
    console.print(result_table(result, limit or None, console.width))
    if output is not None:
        _write(text.getvalue().encode(), output)


def _write(data: bytes, output: Path | None) -> None:
    if output is None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        output.write_bytes(data)
    except OSError as error:
        raise RankscopeError(f"cannot be written: {error.strerror}", path=output, hint="choose another -o") from error
