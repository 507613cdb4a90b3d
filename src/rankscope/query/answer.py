"""Run a query and turn an engine's error into one for people.

In: a `Request`. Out: its rows, or a `QueryError` that names near tables and columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rankscope.query.engines import Request, Rows, run
from rankscope.query.statement import QueryError, nearest

_QUOTED = re.compile(r"[\"'`]([^\"'`\n]{1,200})[\"'`]|column named (\S+)|relation (\S+)")
_LONGEST = 600


def answer(request: Request) -> Rows | QueryError:
    """The rows of a query, or why there are none."""
    try:
        return run(request)
    except QueryError as error:
        return _hinted(error.what, request) if error.hint is None else error
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # Polars' panics are no `Exception`s; not every error can be pickled.
        return _hinted(f"{_kind(error)}{_first_part(str(error))}", request)


def _kind(error: BaseException) -> str:
    return "" if type(error).__module__.startswith(("polars", "duckdb", "_duckdb")) else f"{type(error).__name__}: "


def _first_part(message: str) -> str:
    """An engine's message without the plan that follows it."""
    shown = re.split(
        r"\n\s*\n|Resolved plan until failure|Stack Trace|Candidate (?:bindings|functions)|; valid columns|LINE \d+:",
        message.strip(),
    )[0]
    return re.sub(r"\s+", " ", shown)[:_LONGEST].rstrip(" .")


def _hinted(what: str, request: Request) -> QueryError:
    """The error with what was probably meant."""
    if re.search(r"duplicate", what, re.IGNORECASE):
        return QueryError(what, hint="two columns of the result have one name: give one another name with AS")
    named = {table: request.known[table] for table in (*request.tables, *request.frames) if table in request.known}
    columns = {column for names in named.values() for column in names}
    for found in _QUOTED.finditer(what):
        name = next(group for group in found.groups() if group).strip("\"'`.,;:!").split(".")[-1]
        if name in columns or name in named or not re.fullmatch(r"\w+", name):
            continue
        is_table = re.search(r"relation|table", what, re.IGNORECASE) is not None and "column" not in what.lower()
        near = nearest(name, request.known if is_table else columns)
        if near:
            return QueryError(what, hint=f"near names: {', '.join(near)}")
    return QueryError(what, hint=f"rankscope query --tables{_only(named)} lists the columns")


def _only(tables: Mapping[str, object]) -> str:
    return f" {next(iter(tables))}" if len(tables) == 1 else ""
