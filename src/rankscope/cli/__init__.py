"""The command line: one file a subcommand, discovered.

A module here with a function of its own name is a subcommand; the function's docstring is its help. One with a
``typer.Typer`` of its own name is a group of subcommands. A name that Python keeps for itself, or that a module of the
standard library has, takes a trailing underscore.

In: the arguments of a command line. Out: the output of a subcommand; errors without a traceback, with status 2.
"""

from __future__ import annotations

import io
import pkgutil
import sys
import warnings
from importlib import import_module
from typing import Any, TextIO

import typer

from rankscope import __version__
from rankscope.errors import RankscopeError
from rankscope.report.errors import print_error
from rankscope.report.formatting import plain

_ORDER = ("demo", "run", "summary", "findings", "report", "diff", "measure", "analyze", "analyses")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rankscope {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Profile a distributed PyTorch job on every rank, and see where the time goes."""


def make_app() -> typer.Typer:
    """The application with every subcommand."""
    app = typer.Typer(
        no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False
    )
    app.callback()(_root)
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    for name in sorted(names, key=lambda n: (_ORDER.index(n) if n in _ORDER else len(_ORDER), n)):
        module = import_module(f"{__name__}.{name}")
        command: Any = getattr(module, name, None)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        elif callable(command):
            settings, kind = getattr(module, "CONTEXT_SETTINGS", None), getattr(module, "COMMAND", None)
            app.command(name.rstrip("_").replace("_", "-"), cls=kind, context_settings=settings)(command)
    return app


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning as a line for the user, without the place in the code: a package whose analysis cannot be loaded."""
    typer.echo(f"warning: {plain(str(message), limit=2000)}", err=True)


def main() -> None:
    """Run the command line. Errors that are meant for the user are shown without a traceback; status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal without UTF-8 shows `?` for what it has no letter for: better than not showing a result.
            stream.reconfigure(errors="replace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            make_app()()
    except RankscopeError as error:
        print_error(error)
        sys.exit(2)
    except BrokenPipeError:
        # Piped into `head`: what was wanted has been shown.
        sys.stderr.close()
        sys.exit(0)
