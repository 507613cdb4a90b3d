"""``rankscope measure show``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankscope.cli.measure import options as o
from rankscope.errors import RankscopeError
from rankscope.measure.files import load_all
from rankscope.measure.results import Scaling
from rankscope.report import curve


def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The output directory of an experiment.")],
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a study's curve: .png, .svg or .pdf.")] = None,
    form: o.Form = o.Format.table,
) -> None:
    """Show again what was measured."""
    results = load_all(folder)
    if not results:
        raise RankscopeError("no result of a measurement", path=folder, hint="`rankscope measure overhead -o DIR …`")
    for result in results:
        o.finish(result, folder, form)
        if plot is not None and isinstance(result, Scaling):
            curve.draw(result, plot)
