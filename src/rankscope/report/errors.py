"""An error as the terminal shows it."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from rankscope.errors import LaunchError, RankscopeError
from rankscope.report.words import plain


def say_error(error: RankscopeError) -> None:
    """What is wrong, with which file, and what to do, on standard error."""
    errors = Console(stderr=True, soft_wrap=True)
    said = Text("error: ", style="bold red")
    # A job's own last lines say why it ended; of other errors a new line is part of a name.
    first, *more = error.what.rstrip().split("\n") if isinstance(error, LaunchError) else [error.what]
    what = first if error.path is None else f"{error.path}: {first}"
    # File names, and what a file begins with, are other people's text.
    said.append(plain(what, limit=2000), style="default")
    errors.print(said)
    for line in more:
        errors.print(Text(f"  {plain(line, limit=500)}", style="default"))
    if error.hint:
        errors.print(Text(f"  → {plain(error.hint, limit=2000)}", style="default"))
