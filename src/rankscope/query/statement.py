"""Check that a text is one query that only reads the run's tables.

The engines parse SQL themselves. Before that, the text is cut into words here: it must be one `SELECT` (or
`WITH … SELECT`) without functions that read files, and the names in it say which tables are needed. What another lexer
could read in another way, such as a backslash before a quote, is refused.

In: SQL. Out: a `Statement`, or an error that says what is not allowed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from rankscope.errors import ConfigError

MAX_CHARACTERS = 100_000
_NEAREST = 5

_TOKEN = re.compile(
    r"(?P<space>\s+|--[^\n]*|/\*.*?\*/)"
    r"|(?P<text>'(?:[^']|'')*')"
    r'|(?P<quoted>"(?:[^"]|"")*"|`[^`]*`)'
    r"|(?P<word>[^\W\d][\w$]*)"
    r"|(?P<number>\d[\w.]*)"
    r"|(?P<mark>.)",
    re.DOTALL,
)
_READS_FILES = re.compile(
    r"(read|scan|parquet|sniff|iceberg|delta|st_read|sqlite|postgres|mysql)_\w+|glob|getenv|query(_table)?"
)
TABLE_FUNCTIONS = frozenset(("unnest", "range", "generate_series", "json_each", "json_tree"))
"""Functions that may stand in the place of a table: they make rows of their arguments."""
_WRITES = frozenset(("insert", "update", "delete", "merge", "truncate", "create", "drop", "alter", "copy"))
_HINT = "write one SELECT, or WITH … SELECT, over the run's tables: rankscope query --tables lists them"


class QueryError(ConfigError):
    """A query that is not allowed, not valid, or too expensive."""


@dataclass(frozen=True)
class Statement:
    """One query.

    Attributes:
        sql: its text, without a semicolon at the end.
        names: every name in it, as written; tables, columns, aliases and functions alike.
        called: the names in it that a parenthesis follows, in lower case: functions, among others.
    """

    sql: str
    names: frozenset[str]
    called: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int

    @property
    def name(self) -> str | None:
        """The identifier; None for other tokens."""
        if self.kind == "word":
            return self.text
        if self.kind == "quoted":
            return self.text[1:-1].replace('""', '"')
        return None

    @property
    def keyword(self) -> str:
        """The word in lower case; empty for other tokens, quoted names among them."""
        return self.text.lower() if self.kind == "word" else ""


def parse_statement(sql: str) -> Statement:
    """Check a query.

    Raises:
        QueryError: it is not one query that only reads tables.
    """
    if len(sql) > MAX_CHARACTERS:
        raise QueryError(f"the query has more than {MAX_CHARACTERS:,} characters", hint="write a shorter one")
    tokens = _tokens(sql)
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    if not tokens:
        raise QueryError("the query is empty", hint=_HINT)
    if any(token.text == ";" for token in tokens):
        raise QueryError("there is more than one statement", hint=_HINT)
    first = tokens[0].keyword
    if first not in ("select", "with"):
        raise QueryError(f"the query begins with {tokens[0].text[:40]!r}: only SELECT is allowed", hint=_HINT)
    _refuse_writes(tokens)
    _refuse_functions(tokens)
    names = frozenset(name for token in tokens if (name := token.name) is not None)
    called = frozenset(
        name.lower() for token, after in pairwise(tokens) if after.text == "(" and (name := token.name) is not None
    )
    return Statement(sql[tokens[0].start : tokens[-1].end], names, called)


def _tokens(sql: str) -> list[_Token]:
    if "\\'" in sql or '\\"' in sql:
        raise QueryError("a backslash before a quote is not supported", hint="write '' for a quote within a text")
    tokens = [_Token(m.lastgroup or "", m.group(), m.start(), m.end()) for m in _TOKEN.finditer(sql)]
    tokens = [token for token in tokens if token.kind != "space"]
    for token in tokens:
        if token.kind == "mark" and token.text in ("'", '"', "`"):
            raise QueryError(f"the quote {token.text} at character {token.start + 1} is not closed")
        if token.kind == "mark" and token.text in ("$", "\\", "\0"):
            raise QueryError(f"{token.text!r} is not supported", hint="write texts in single quotes")
    for one, other in pairwise(tokens):
        if other.text.startswith("/*") or (one.text == "/" and other.text == "*"):
            raise QueryError("a comment is not closed", hint="write */ at its end")
    return tokens


def _refuse_writes(tokens: list[_Token]) -> None:
    """`WITH … DELETE`, and the same within parentheses."""
    depth = 0
    for before, token in zip([None, *tokens], tokens, strict=False):
        opened = before is not None and before.text in ("(", ")")
        depth += (token.text == "(") - (token.text == ")")
        if token.keyword in _WRITES and opened:
            raise QueryError(f"{token.text.upper()} is not allowed: a query only reads", hint=_HINT)
        if token.keyword == "into":
            raise QueryError("INTO is not allowed: a query only reads", hint=_HINT)
    if depth:
        raise QueryError("the parentheses do not match", hint="close each one that is opened")


def _refuse_functions(tokens: list[_Token]) -> None:
    """Functions that read files, functions in the place of a table, and files in the place of a table."""
    for place, token in enumerate(tokens):
        before = tokens[place - 1].keyword if place else ""
        after = tokens[place + 1].text if place + 1 < len(tokens) else ""
        if before in ("from", "join") and token.kind == "text" and not _within_call(tokens, place):
            raise QueryError("a query reads no files", hint="rankscope query --tables lists the tables")
        name = (token.name or "").lower()
        if not name or after != "(":
            continue
        is_table = before in ("from", "join", "lateral") and not _within_call(tokens, place)
        if _READS_FILES.fullmatch(name) or (is_table and name not in TABLE_FUNCTIONS):
            raise QueryError(f"{token.text} is not allowed: a query reads no files", hint=_HINT)


def _within_call(tokens: list[_Token], place: int) -> bool:
    """Whether a token is an argument of a function, as in `extract(year FROM …)`, and not part of a subquery."""
    depth = 0
    for index in range(place - 1, 0, -1):
        depth += (tokens[index].text == ")") - (tokens[index].text == "(")
        if depth < 0:
            return tokens[index + 1].keyword not in ("select", "with") and tokens[index - 1].name is not None
    return False


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The five known names that are most like a misspelled one, the nearest first."""
    names = sorted(set(known))
    lower = name.lower()
    close = difflib.get_close_matches(lower, names, n=_NEAREST, cutoff=0.55)
    parts = [word for word in re.split(r"\W|_", lower) if len(word) > 2]
    holding = [each for each in names if lower in each or (len(each) > 3 and each in lower)]
    sharing = [each for each in names if any(part in each.split("_") for part in parts)]
    return list(dict.fromkeys([*close, *holding, *sharing]))[:_NEAREST]
