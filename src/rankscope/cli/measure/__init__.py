"""``rankscope measure``: one subcommand per experiment. In: a script and options. Out: a result file."""

from __future__ import annotations

import typer

from rankscope.cli.measure.binding import binding
from rankscope.cli.measure.buckets import buckets
from rankscope.cli.measure.overhead import overhead
from rankscope.cli.measure.profiler import profiler
from rankscope.cli.measure.scaling import scaling
from rankscope.cli.measure.show import show

_CONTEXT_SETTINGS = {"allow_interspersed_args": False}  # everything after the script belongs to the script

measure = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Run a job several times, or change it while it runs, to measure costs. Finished jobs are kept: with the same "
    "`-o` and arguments, an experiment continues where it was interrupted.",
)
for command in (overhead, scaling, buckets, binding, profiler):
    measure.command(context_settings=_CONTEXT_SETTINGS)(command)
measure.command()(show)
