"""`rankscope slices`.

In: a name and a run, or two. Out: one row per rank, step, kind and name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated

import typer

from rankscope.cli.analyze import TABLE, TableOptions, write_result
from rankscope.cli.options import DEFAULTS, RunOptions, Source, opened
from rankscope.cli.signature import with_options
from rankscope.engine.pipeline import Run
from rankscope.errors import ConfigError
from rankscope.experiments.compare.slices import compare_slices
from rankscope.results import Result
from rankscope.show.report.formatting import plain

_SUGGESTED = 5
"""Names."""


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
        str | None, typer.Option("--compare", metavar="DIR", help="A second run, shown next to this one.")
    ] = None,
    table: TableOptions = TABLE,
    options: RunOptions = DEFAULTS,
) -> None:
    """Statistics of all events with one name, over ranks and steps: count, duration, spread."""
    parameters = {"match" if regex else "name": name, "by": by or ("step" if compare is None else "name")}
    if compare is not None and by == "event":
        raise ConfigError("single events of two runs cannot be paired", hint="write --by name, rank or step")

    def check(opened_run: Run, result: Result) -> None:
        if result.frame.is_empty():
            _check_name(opened_run, name, regex=regex)

    def with_other(result: Result) -> Result:
        if compare is None:
            return result
        with opened([compare], replace(options, run=None)) as other:
            return compare_slices(result, other.analyze("slices", parameters={"slices": parameters})["slices"])

    write_result("slices", source, parameters, table, options, check, with_other)


def _check_name(run: Run, name: str, *, regex: bool) -> None:
    """Check that the run has events of this name, at least outside the selected steps.

    Raises:
        ConfigError: it has none; the hint suggests similar names.
    """
    # With a pattern, Python frames are included.
    all_names = run.with_all_steps().analyze("slices", parameters={"slices": {"match": ".", "by": "name"}})["slices"]
    names = all_names.frame["name"].drop_nulls().unique().sort()
    if (names.str.contains(f"(?i){name}") if regex else names == name).any():
        return
    suggestions = ", ".join(plain(near_name, limit=80) for near_name in near_names(name, names))
    raise ConfigError(
        f"no event {'matches' if regex else 'is called'} {name!r} in {run.path}",
        hint=f"nearest: {suggestions}" if suggestions else "rankscope analyze slices DIR --by name lists all names",
    )


def near_names(name: str, names: Iterable[str]) -> list[str]:
    """Suggestions: names that contain the text, ignoring case, the shortest first; then similar ones."""
    names, lower = list(names), name.lower()
    containing = sorted((known for known in names if lower in known.lower()), key=lambda known: (len(known), known))
    by_lower = {known.lower(): known for known in reversed(names)}
    similar = difflib.get_close_matches(lower, [known.lower() for known in names], n=_SUGGESTED, cutoff=0.6)
    return list(dict.fromkeys([*containing, *(by_lower[match] for match in similar)]))[:_SUGGESTED]
