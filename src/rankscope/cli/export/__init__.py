"""``rankscope export``: one subcommand per format of another tool. In: a run. Out: files for that tool."""

from __future__ import annotations

import typer

from rankscope.cli.export.chakra import chakra
from rankscope.cli.export.perfetto import perfetto
from rankscope.cli.export.speedscope import speedscope

export = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="Write a run in the format of another tool."
)
for command in (chakra, perfetto, speedscope):
    export.command()(command)
