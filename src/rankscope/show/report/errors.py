"""Errors in the terminal.

In: a `RankscopeError`. Out: its file, problem and hint on standard error.
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from rankscope.errors import RankscopeError
from rankscope.show.report.formatting import plain


def print_error(error: RankscopeError) -> None:
    """Print the file, the problem and the hint on standard error."""
    errors = Console(stderr=True, soft_wrap=True)
    line = Text("error: ", style="bold red")
    what = error.what if error.path is None else f"{plain(error.path, limit=2000)}: {error.what}"
    # File names and file contents are untrusted text. Further lines (the output of a job) are indented: none
    # passes for one of rankscope's.
    first, *others = what.splitlines() or [""]
    line.append(plain(first, limit=2000), style="default")
    for other in others:
        line.append(f"\n    {plain(other, limit=2000)}", style="default")
    errors.print(line)
    if error.hint:
        errors.print(Text(f"  → {plain(error.hint, limit=2000)}", style="default"))
