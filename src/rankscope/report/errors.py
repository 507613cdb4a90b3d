"""An error as the terminal shows it."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from rankscope.errors import RankscopeError
from rankscope.report.formatting import plain


def print_error(error: RankscopeError) -> None:
    """What is wrong, with which file, and what to do, on standard error."""
    errors = Console(stderr=True, soft_wrap=True)
    said = Text("error: ", style="bold red")
    what = error.what if error.path is None else f"{plain(error.path, limit=2000)}: {error.what}"
    # File names, and what a file begins with, are other people's text.
    # Lines of its own, such as the last ones of a job's output, are set in: none passes for one of ours.
    first, *others = what.splitlines() or [""]
    said.append(plain(first, limit=2000), style="default")
    for line in others:
        said.append(f"\n    {plain(line, limit=2000)}", style="default")
    errors.print(said)
    if error.hint:
        errors.print(Text(f"  → {plain(error.hint, limit=2000)}", style="default"))
