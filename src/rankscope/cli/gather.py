"""`rankscope gather`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankscope.jobs.gather.__main__ import run_gather


def gather(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory to gather into; made if need be.")],
    sources: Annotated[
        list[str] | None, typer.Argument(metavar="[HOST:DIR]…", help="Where parts of the run lie; none: only look.")
    ] = None,
    ssh: Annotated[str, typer.Option("--ssh", metavar="COMMAND", help="The remote shell with its options.")] = "ssh",
    part: Annotated[bool, typer.Option("--part", help="One of several: do not ask if all is there.")] = False,
    world_size: Annotated[int | None, typer.Option(min=1, help="How many ranks, where no manifest says.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of words.")] = False,
) -> None:
    """Bring the ranks' traces from their hosts' disks into one place, and say whether all are there.

    By rsync where both ends have it, else by scp; folders of this machine too. A file is never replaced by a different
    one, except a trace that its manifest here proves cut. What was cut off is gone on with by the same command. Exit
    code 1: something is missing.
    """
    raise typer.Exit(run_gather(run, sources or [], shell=ssh, part=part, world_size=world_size, as_json=as_json))
