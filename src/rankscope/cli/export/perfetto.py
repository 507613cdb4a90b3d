"""`rankscope export perfetto`.

In: a run. Out: an archive, or one trace, that ui.perfetto.dev opens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from rankscope.cli.options import DEFAULTS, RunOptions, Source, opened
from rankscope.cli.signature import with_options
from rankscope.errors import ConfigError
from rankscope.rundir.plurals import counted
from rankscope.rundir.ranges import as_ranges
from rankscope.show.export.perfetto import Archived, Merged, write_archive, write_merged
from rankscope.show.report.formatting import number_of, plain


@with_options()
def perfetto(
    source: Source,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The file. Default: run.zip, or run.pftrace.gz."),
    ] = None,
    merged: Annotated[
        bool, typer.Option("--merged", help="One trace with all ranks: .pftrace, .json, or either with .gz.")
    ] = False,
    keep_paths: Annotated[
        bool, typer.Option("--keep-paths", help="Keep the path that each trace was written to.")
    ] = False,
    options: RunOptions = DEFAULTS,
) -> None:
    """Write a run for Perfetto: open the file at ui.perfetto.dev, with all ranks on one clock.

    By default an archive of the traces as they are, with a manifest (Perfetto v58 or newer). With --merged one trace
    for any version: crossing slices are put on lanes, collectives are linked across ranks, and findings have a track.
    """
    if merged and keep_paths:
        raise ConfigError("--keep-paths is about the archive", hint="leave it out: a merged trace holds no such path")
    path = output or Path("run.pftrace.gz" if merged else "run.zip")
    if not merged and path.suffix.lower() != ".zip":
        raise ConfigError(f"{path.name!r} is not a name of an archive", hint="end it in .zip, or add --merged")
    with opened(source, options) as opened_run:
        lines = (
            _merged(write_merged(opened_run, path))
            if merged
            else _archived(write_archive(opened_run, path, keep_paths=keep_paths))
        )
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(f"perfetto: {lines[0]} in {plain(path, limit=4096)}"))
    for line in lines[1:]:
        Console(stderr=True, highlight=False, soft_wrap=True).print(Text(line))


def _archived(written: Archived) -> list[str]:
    lines = [f"{counted(written.files, 'trace')}"]
    if not written.aligned:
        lines.append("not all ranks share a collective: their clocks could not be compared")
    elif written.residual_ns is not None:
        lines[0] += f", clocks aligned to {number_of(written.residual_ns, 'ns')}"
    for rank, error in written.drifts.items():
        lines.append(
            f"the clock of rank {rank} drifts, by up to {number_of(error, 'ns')} here; --merged corrects for it"
        )
    if written.cut:
        lines.append(f"damaged, written up to there: rank {as_ranges(set(written.cut))}")
    return lines


def _merged(written: Merged) -> list[str]:
    arrows = f"{counted(written.arrows, 'arrow')}, {written.collectives:,} between ranks"
    lines = [f"{counted(written.slices, 'slice')}, {arrows}, {counted(written.findings, 'finding')}"]
    if written.unbound:
        lines.append(f"left out: {counted(written.unbound, 'arrow')} without an event at both ends")
    return lines
