"""Names that differ between ranks, runs or steps only in a hash are one name wherever these are compared.

torch.compile names the graphs and files that it makes by a hash (`## Call CompiledFxGraph f2ai… ##`), and Triton 2 ends
a kernel's name with what it knows of each argument: `_0d1d2de` has three, all divisible by 16. Two ranks, or two
runs, of one program differ in them. The number at the end of Inductor's names (`triton_poi_fused_add_0`) is none: it is
counted within a graph, ranks with one program agree on it, and kernels that differ in it alone are different ones.

In: names as recorded. Out: the same with `…` in place of each hash, or of what is known of the arguments (`_0…2`). The
timeline and the tables of events keep them.
"""

from __future__ import annotations

import re

import polars as pl

HASH = "…"
_DIGEST = re.compile(
    # In base 32 or 16.
    r"(?<![A-Za-z0-9])(?:[a-z2-7]{50,52}|[A-Z2-7]{50,52}|[0-9a-f]{32,64})(?![A-Za-z0-9])"
)
_ARGUMENTS = re.compile(r"(?<=_)0[cde0-9]+$")
_KNOWN = re.compile(r"c?d?e?")
"""Of one argument: it is 1, divisible by 16, divisible by 8."""


def without_hashes(name: str) -> str:
    """A name with `…` in place of each hash."""
    # First: those of many arguments look like a hash.
    return _DIGEST.sub(HASH, _ARGUMENTS.sub(lambda match: _bare_arguments(match[0]), name))


def _bare_arguments(suffix: str) -> str:
    """The suffix of a Triton kernel without what is known of its arguments, which are numbered from 0; any other suffix
    as it is."""
    at = count = 0
    while suffix.startswith(str(count), at):
        known = _KNOWN.match(suffix, at + len(str(count)))
        at, count = known.end() if known is not None else at, count + 1
    is_one = at == len(suffix) and count > 1 and not suffix.isdigit()
    return f"0{HASH}{count - 1}" if is_one else suffix


def names_without_hashes(names: pl.Series) -> pl.Series:
    """The same for a column: the distinct names are few."""
    distinct = names.drop_nulls().unique()
    changed = {name: bare for name in distinct if (bare := without_hashes(name)) != name}
    return names.replace(changed) if changed else names


def with_shared_names(frame: pl.DataFrame) -> pl.DataFrame:
    """A table whose ``name`` is without hashes."""
    return frame.with_columns(names_without_hashes(frame["name"]))
