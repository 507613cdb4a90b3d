"""`rankscope export chakra`.

In: a run. Out: one Chakra execution trace per rank, and their process groups.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from rankscope.cli.options import DEFAULTS, RunOptions, Source, opened
from rankscope.cli.signature import with_options
from rankscope.rundir.plurals import counted
from rankscope.show.export.chakra import write_chakra
from rankscope.show.report.formatting import plain


@with_options()
def chakra(
    source: Source,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The directory to write to.")] = Path(
        "chakra"
    ),
    options: RunOptions = DEFAULTS,
) -> None:
    """Write the collectives as Chakra execution traces, for simulators such as ASTRA-sim.

    One file per rank: `chakra.RANK.et`, and `comm_groups.json` with the ranks of each process group. Compute is not
    included: a rank's nodes follow each other on their stream.
    """
    with opened(source, options) as opened_run:
        written = write_chakra(opened_run, output)
    message = f"chakra: {counted(written.nodes, 'node')} in {counted(len(written.files), 'file')} in "
    Console(highlight=False, soft_wrap=True).print(Text(message + plain(output, limit=4096)))
    for reason, count in sorted(written.left_out.items()):
        Console(stderr=True, highlight=False, soft_wrap=True).print(Text(f"left out: {count:,} {reason}"))
