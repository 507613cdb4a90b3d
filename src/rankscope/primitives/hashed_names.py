"""Names that differ between ranks, runs or steps only in a hash are one name wherever these are compared.

torch.compile names the graphs and files that it makes by a hash (`## Call CompiledFxGraph f2ai… ##`), and Triton ends a
kernel's name with what it knows of each argument (`_0d1d2de`). Two ranks, or two runs, of one program differ in them.

In: names as recorded. Out: the same with `…` in place of each hash. The timeline and the tables of events keep them.
"""

from __future__ import annotations

import re

import polars as pl

HASH = "…"
_HASHED = re.compile(
    # Digests in base 32 and 16.
    r"(?<![A-Za-z0-9])(?:[a-z2-7]{50,52}|[A-Z2-7]{50,52}|[0-9a-f]{32,64})(?![A-Za-z0-9])"
    r"|(?<=_)\d+(?:de?|c|e)(?:\d+(?:de?|c|e)?)+$"  # Triton's arguments
)


def without_hashes(name: str) -> str:
    """A name with `…` in place of each hash."""
    return _HASHED.sub(HASH, name)


def names_without_hashes(names: pl.Series) -> pl.Series:
    """The same for a column: the distinct names are few."""
    distinct = names.drop_nulls().unique()
    changed = {name: bare for name in distinct if (bare := without_hashes(name)) != name}
    return names.replace(changed) if changed else names


def with_shared_names(frame: pl.DataFrame) -> pl.DataFrame:
    """A table whose ``name`` is without hashes."""
    return frame.with_columns(names_without_hashes(frame["name"]))
