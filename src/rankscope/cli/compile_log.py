"""`rankscope compile-log`.

In: the logs of ``TORCH_TRACE``. Out: what was compiled, what caused recompilations, and how long it took.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.text import Text

from rankscope.cli.analyze import TABLE, TableOptions
from rankscope.cli.options import DEFAULTS, opened
from rankscope.cli.signature import with_options
from rankscope.cli.writing import Format, refuse_terminal, show, width_for, write
from rankscope.ingest.compile_log import compilations, read_compile_log, with_calls
from rankscope.results import Result
from rankscope.rundir.plurals import counted
from rankscope.show.export.formats import FORMATS
from rankscope.show.report.formatting import sentence
from rankscope.show.report.terminal import result_table


@with_options()
def compile_log(
    log: Annotated[Path, typer.Argument(metavar="DIR|LOG", help="A directory that TORCH_TRACE named, or one log.")],
    run: Annotated[
        str | None, typer.Option("--run", metavar="DIR", help="The job's traces: adds the calls of each region.")
    ] = None,
    table: TableOptions = TABLE,
) -> None:
    """Show what was compiled and recompiled, why, and how long it took on each rank, from the logs of `TORCH_TRACE`."""
    refuse_terminal(table.form.value, table.output)
    found = read_compile_log(log)
    frame = found.frame
    if run is not None:
        with opened([run], DEFAULTS) as opened_run:
            frame = with_calls(frame, opened_run.analyze("compile")["compile"].frame)
    result = Result(compilations, frame)
    if found.unread:
        Console(stderr=True).print(Text(f"{counted(found.unread, 'record')} could not be read"))
    if found.left_out:
        first = found.left_out[0].name
        Console(stderr=True).print(Text(f"{counted(len(found.left_out), 'log')} without a record left out: {first}"))
    if table.form is not Format.table:
        write(FORMATS[table.form.value](result, {"path": str(log)}), table.output)
        return
    shown = result_table(result, table.limit or None, width_for(table.output) or Console().width)
    headline = result.headline
    show(Group(Text(sentence(headline)), Text(), shown) if headline is not None else shown, table.output)
