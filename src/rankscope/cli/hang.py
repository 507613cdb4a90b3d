"""`rankscope hang`.

In: the dumps of a hung job. Out: the verdict as text or JSON.
"""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from rankscope.answers.hang import read
from rankscope.cli.writing import show, write
from rankscope.show.report.hang import hang_report

NO_HANG = 1
"""Exit status if the dumps show no hang, or one that is over; an error's is 2."""


class Format(str, Enum):
    """How the verdict is written."""

    text = "text"
    json = "json"


def hang(
    source: Annotated[
        list[str],
        typer.Argument(metavar="DIR|FILE…", help="A run directory, or dumps of the Flight Recorder (pickle or JSON)."),
    ],
    form: Annotated[Format, typer.Option("--format", "-f", help="Output format.")] = Format.text,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
    stacks: Annotated[bool, typer.Option("--stacks", help="Show the complete stacks of all ranks.")] = False,
) -> None:
    """Explain why a job hangs: which collective, which ranks did not arrive, where they are, and why.

    Reads rankscope's own dumps, those of torch's Flight Recorder, and the stacks of torch.distributed.debug. Exit code
    0: there is a verdict, which may say that the cause is not known; 1: there is no hang, or it is over; 2: no dumps.
    """
    verdict = read(source)
    if form is Format.json:
        write(f"{json.dumps(verdict.to_json(), indent=1)}\n".encode(), output)
    else:
        show(hang_report(verdict, stacks=stacks), output)
    if not verdict.found or verdict.over:
        raise typer.Exit(NO_HANG)
