"""``rankscope measure show``.

In: a directory with result files. Out: the results as tables or JSON.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from rankscope.cli.measure import options as o
from rankscope.cli.writing import TextFormat
from rankscope.errors import RankscopeError
from rankscope.experiments.measure.files import load_all
from rankscope.experiments.measure.results import Scaling
from rankscope.show.report import scaling_plot


def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The output directory of an experiment.")],
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a study's curve: .png, .svg or .pdf.")] = None,
    form: o.Form = TextFormat.table,
) -> None:
    """Show the results in a directory again; if there are several, JSON is a list of them."""
    results = load_all(folder)
    if not results:
        raise RankscopeError(
            "no result of a measurement",
            path=folder,
            hint="run an experiment first: rankscope measure overhead -o DIR …",
        )
    study = next((result for result in results if isinstance(result, Scaling)), None)
    if plot is not None:
        if study is None:
            raise RankscopeError(
                "no scaling study to draw", path=folder, hint="run one first: rankscope measure scaling -o DIR …"
            )
        scaling_plot.check(plot)
    o.finish(results[0] if len(results) == 1 else results, folder, form)
    if plot is not None and study is not None:
        scaling_plot.draw(study, plot)
        typer.echo(f"curve: {os.fspath(plot)}", err=True)
