"""`rankscope export speedscope`.

In: a run. Out: the host's stacks in speedscope's format.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from rankscope.cli.options import DEFAULTS, RunOptions, Source, opened
from rankscope.cli.signature import with_options
from rankscope.errors import ConfigError
from rankscope.rundir.plurals import counted
from rankscope.rundir.ranges import parse_numbers
from rankscope.show.export.speedscope import write_speedscope
from rankscope.show.report.formatting import plain

_MAX_RANKS = 1 << 20


class Only(str, Enum):
    """Which ranges."""

    all = "all"
    python = "python"
    operators = "operators"


@with_options()
def speedscope(
    source: Source,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")] = Path(
        "run.speedscope.json"
    ),
    ranks: Annotated[str | None, typer.Option("--ranks", help="Only these ranks: 0-3,8.")] = None,
    only: Annotated[Only, typer.Option("--only", help="Only Python functions, or only operators.")] = Only.all,
    options: RunOptions = DEFAULTS,
) -> None:
    """Write what the host's threads did for speedscope: a flame chart per thread of each rank.

    Open the file at speedscope.app or with `npx speedscope FILE`. Python functions are recorded with `with_stack`.
    """
    with opened(source, options) as opened_run:
        written = write_speedscope(opened_run, output, ranks=_numbers(ranks), only=only.value)
    message = f"speedscope: {counted(written.ranges, 'range')} of {counted(written.profiles, 'thread')} in "
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(message + plain(output, limit=4096)))
    if written.cut:
        console.print(Text(f"{counted(written.cut, 'range')} cut at the end of the range around them"))


def _numbers(text: str | None) -> list[int] | None:
    try:
        return None if text is None else parse_numbers(text, _MAX_RANKS)
    except ValueError as error:
        raise ConfigError(f"--ranks {text}: {error}", hint="write 0-3,8") from error
