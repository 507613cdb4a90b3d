"""`rankscope slices`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated

import typer

from rankscope.cli.analyze import TABLE, TableOptions, write_result
from rankscope.cli.options import DEFAULTS, RunOptions, Source, opened
from rankscope.cli.signature import with_options
from rankscope.compare.slices import compare_slices
from rankscope.errors import ConfigError
from rankscope.pipeline import Run
from rankscope.report.formatting import plain
from rankscope.results import Result


@with_options()
def slices(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The event's name; a regular expression with --regex.")],
    source: Source,
    regex: Annotated[bool, typer.Option("--regex", help="NAME is a regular expression; case is ignored.")] = False,
    by: Annotated[
        str | None,
        typer.Option(
            help="One row per step, rank, name (over all ranks), or event. Default: step; with --compare, name."
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option("--compare", metavar="DIR", help="A second run, shown next to this one."),
    ] = None,
    table: TableOptions = TABLE,
    options: RunOptions = DEFAULTS,
) -> None:
    """Statistics of all events with one name, over ranks and steps: count, duration, spread."""
    own = {"match" if regex else "name": name, "by": by or ("step" if compare is None else "name")}
    if compare is not None and by == "event":
        raise ConfigError("single events of two runs cannot be paired", hint="write --by name, rank or step")

    def check(opened_run: Run, result: Result) -> None:
        if result.frame.is_empty():
            _nowhere(opened_run, name, regex=regex)

    def with_other(result: Result) -> Result:
        if compare is None:
            return result
        with opened([compare], replace(options, run=None)) as other:
            return compare_slices(result, other.analyze("slices", parameters={"slices": own})["slices"])

    write_result("slices", source, own, table, options, check, with_other)


def _nowhere(run: Run, name: str, *, regex: bool) -> None:
    """Suggest similar names, unless events of this name exist outside the chosen steps.

    Raises:
        ConfigError: no event of the run is called so.
    """
    # A pattern searches Python's frames too.
    every = run.of_all_steps().analyze("slices", parameters={"slices": {"match": ".", "by": "name"}})["slices"]
    names = every.frame["name"].drop_nulls().unique().sort()
    if (names.str.contains(f"(?i){name}") if regex else names == name).any():
        return
    near = ", ".join(plain(each, limit=80) for each in near_names(name, names))
    raise ConfigError(
        f"{'nothing is found by' if regex else 'no event is called'} {name!r} in {run.path}",
        hint=f"nearest: {near}" if near else "rankscope analyze slices DIR --by name lists all names",
    )


def near_names(name: str, names: Iterable[str], most: int = 5) -> list[str]:
    """Suggestions: names that contain the text, ignoring case, the shortest first; then similar ones."""
    known, low = list(names), name.lower()
    holding = sorted((each for each in known if low in each.lower()), key=lambda each: (len(each), each))
    alike = difflib.get_close_matches(low, [each.lower() for each in known], n=most, cutoff=0.6)
    back = {each.lower(): each for each in reversed(known)}
    return list(dict.fromkeys([*holding, *(back[each] for each in alike)]))[:most]
