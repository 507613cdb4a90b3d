"""The command line: one file per subcommand, discovered.

A module here with a function of the same name is a subcommand; the function's docstring is its help. One with a
``typer.Typer`` of the same name is a group of subcommands. A name that is reserved in Python or used by the standard
library takes a trailing underscore. A command line imports only the module of its subcommand; the help of the others is
read from their source.

In: the arguments of a command line. Out: the output of a subcommand; errors without a traceback, with status 2.
"""

from __future__ import annotations

import ast
import errno
import inspect
import io
import os
import pkgutil
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import typer

from rankscope import __version__
from rankscope.errors import RankscopeError

_ORDER = ("demo", "run", "summary", "findings", "report", "diff", "measure", "analyze", "analyses")


def _version(show: bool) -> None:
    if show:
        typer.echo(f"rankscope {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Profile a distributed PyTorch job on every rank, and see where the time goes."""


def make_app(arguments: Sequence[str] | None = None) -> typer.Typer:
    """The application with every subcommand.

    Args:
        arguments: the command line; only its subcommand is imported. By default all are.
    """
    app = typer.Typer(
        no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False
    )
    app.callback()(_root)
    names = {module.name: module.name.rstrip("_").replace("_", "-") for module in pkgutil.iter_modules(__path__)}
    for name in sorted(names, key=lambda n: (_ORDER.index(n) if n in _ORDER else len(_ORDER), n)):
        if arguments is not None and names[name] not in arguments[:1]:
            help_text = _help_in_source(name)
            if help_text is not None:
                app.command(names[name], help=help_text)(_not_imported)
            continue
        module = import_module(f"{__name__}.{name}")
        command: Any = getattr(module, name, None)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        elif callable(command):
            settings, kind = getattr(module, "CONTEXT_SETTINGS", None), getattr(module, "COMMAND", None)
            app.command(names[name], cls=kind, context_settings=settings)(command)
    return app


def _not_imported() -> None:
    """A subcommand that this command line does not use."""


def _help_in_source(name: str) -> str | None:
    """The help of a subcommand: its function's docstring or its group's `help`; None if it has neither."""
    folder = Path(__path__[0])
    package = folder / name / "__init__.py"
    tree = ast.parse((package if package.exists() else folder / f"{name}.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return inspect.cleandoc(ast.get_docstring(node) or "")
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            keywords = {keyword.arg: keyword.value for keyword in node.value.keywords}
            if (
                any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
                and "help" in keywords
            ):
                return str(ast.literal_eval(keywords["help"]))
    return None


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning for the user, without the line of code: for example that a plugin cannot be loaded."""
    from rankscope.show.report.formatting import plain

    typer.echo(f"warning: {plain(str(message), limit=2000)}", err=True)


def main() -> None:
    """Run the command line. Errors that are meant for the user are shown without a traceback; status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal without UTF-8 shows `?` for missing characters, which is better than no result.
            stream.reconfigure(errors="replace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            make_app(sys.argv[1:])()
    except RankscopeError as error:
        from rankscope.show.report.errors import print_error

        print_error(error)
        sys.exit(2)
    except BrokenPipeError:
        # Piped into `head`, which has read enough.
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        typer.echo("error: the output could not be written: no space left on device", err=True)
        with open(os.devnull, "w") as nothing:  # noqa: PTH123  # what is left in the buffer would fail again at exit
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        sys.exit(2)
