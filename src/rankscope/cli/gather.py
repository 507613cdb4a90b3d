"""`rankscope gather`.

In: hosts' directories. Out: one run directory, and whether it is complete.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankscope.jobs.gather.__main__ import run_gather


def gather(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory to gather into; created if missing.")],
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="[HOST:DIR]…", help="Where parts of the run are, also URLs. Without any: only check."),
    ] = None,
    ssh: Annotated[str, typer.Option("--ssh", metavar="COMMAND", help="The remote shell with its options.")] = "ssh",
    part: Annotated[bool, typer.Option("--part", help="One of several gathers: skip the final check.")] = False,
    world_size: Annotated[int | None, typer.Option(min=1, help="Number of ranks, if no manifest has it.")] = None,
    ranks: Annotated[
        str | None,
        typer.Option(metavar="RANKS", help="The ranks that were recorded (0,2 or 0-3), if no manifest has it."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Copy the ranks' traces from their hosts' disks into one directory, and check that it is complete.

    With rsync where both ends have it, else scp; local directories work too. A file is never replaced by a different
    one, except a trace that its manifest here proves incomplete. The same command continues an interrupted copy. Exit
    code 1: something is missing.
    """
    raise typer.Exit(
        run_gather(run, sources or [], shell=ssh, part=part, world_size=world_size, ranks=ranks, as_json=as_json)
    )
