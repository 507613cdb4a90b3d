"""Pair the rows of two runs: by name and shapes, or by the launching operator if names changed.

In: the keys of both sides. Out: a pair for each. Each level pairs what the levels before it did not:

1. the same name, shapes and launching operator
2. the same name: its shapes or its launching operator changed
3. kernels of the same operator and shapes under other names: another library, vendor or algorithm
4. kernels of the same operator, whatever its shapes
5. a compiler's fused kernels, whose names list the operators in them: `triton_poi_fused_add_gelu_0`
6. alone: only one run has it
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl

from rankscope.experiments.compare.samples import KEYS

_FUSED = re.compile(r"fused_+(?P<operators>.+?)(?:_\d+)?(?:_kernel)?$")
_OPERATOR = re.compile(r"^(?:\w+::)?(?P<stem>\w+?)_?$")
KERNELS = "kernels"
METHODS = ("name", "other shapes", "operator and shapes", "operator", "fused", "alone")


@dataclass(frozen=True)
class Pairs:
    """Which keys belong together.

    Attributes:
        keys: `KEYS`, ``side`` (0 or 1), ``pair`` (a number): every key of both sides.
        pairs: ``pair``, ``method`` (of `METHODS`): one row per pair.
    """

    keys: pl.DataFrame
    pairs: pl.DataFrame


def match_keys(a: pl.DataFrame, b: pl.DataFrame) -> Pairs:
    """Pair the keys of two runs.

    Args:
        a: distinct `KEYS` of the first run.
        b: those of the second.
    """
    rest = pl.concat([a.select(KEYS).with_columns(side=pl.lit(0)), b.select(KEYS).with_columns(side=pl.lit(1))])
    done: list[pl.DataFrame] = []
    levels: tuple[tuple[str, tuple[str, ...], bool], ...] = (
        ("name", KEYS, False),
        ("other shapes", ("section", "unit", "name"), False),
        ("operator and shapes", ("section", "unit", "operator", "shapes"), True),
        ("operator", ("section", "unit", "operator"), True),
    )
    for method, by, kernels in levels:
        candidates = rest
        if kernels:
            # Only kernels of operators: those of collectives and copies keep their names.
            candidates = rest.filter((pl.col("section") == KERNELS) & pl.col("operator").is_not_null())
        both = candidates.group_by(by).agg(pl.col("side").n_unique().alias("sides")).filter(pl.col("sides") == 2)
        matched = candidates.join(both, on=list(by), how="semi", nulls_equal=True)
        done.append(
            matched.with_columns(
                method=pl.lit(method),
                group=pl.concat_str(pl.lit(method), *(pl.col(name).fill_null("∅") for name in by), separator="\x1f"),
            )
        )
        rest = rest.join(matched, on=[*KEYS, "side"], how="anti", nulls_equal=True)
    fused = _fused(rest)
    done.append(fused)
    rest = rest.join(fused, on=[*KEYS, "side"], how="anti", nulls_equal=True)
    alone = pl.concat_str(pl.lit("alone"), "side", "section", pl.col("name").fill_null("∅"), separator="\x1f")
    done.append(rest.with_columns(method=pl.lit("alone"), group=alone))
    keys = pl.concat(done).with_columns(pair=pl.col("group").rank("dense").cast(pl.Int64))
    return Pairs(keys.select(*KEYS, "side", "pair"), keys.select("pair", "method").unique("pair", maintain_order=True))


def _fused(rest: pl.DataFrame) -> pl.DataFrame:
    """Pair fused kernels with the operators in them of the other run: one pair per connected set."""
    paired = rest.with_columns(method=pl.lit("fused"), group=pl.lit("")).clear()
    for side in (0, 1):
        fused = rest.filter((pl.col("side") == side) & pl.col("name").str.contains("fused_"))
        unfused = rest.filter(pl.col("side") != side)
        # An operator is represented by its kernels if there are any, else by its self time on the host.
        operator = pl.when(pl.col("section") == KERNELS).then(pl.col("operator")).otherwise(pl.col("name"))
        unfused = unfused.filter(pl.col("section").is_in(["operators", KERNELS])).with_columns(by=operator)
        for section in fused["section"].unique():
            operators = unfused.filter((pl.col("section") == section) & pl.col("by").is_not_null())
            names = fused.filter(pl.col("section") == section)["name"].unique().to_list()
            group = components(operators["by"].unique().to_list(), names)
            if not group:
                continue
            known = pl.DataFrame({"by": list(group), "group": [f"fused\x1f{section}\x1f{n}" for n in group.values()]})
            both = pl.concat([operators, fused.filter(pl.col("section") == section).with_columns(by=pl.col("name"))])
            found = both.join(known, on="by").with_columns(method=pl.lit("fused"))
            paired = pl.concat([paired, found.select(paired.columns)])
    return paired.unique([*KEYS, "side"], maintain_order=True)


def components(operators: Iterable[str], fused: Iterable[str]) -> dict[str, int]:
    """Operators and fused kernels that share work: a number for each of them that has a partner."""
    stems: dict[str, list[str]] = {}
    for name in operators:
        found = _OPERATOR.match(name)
        if found:
            stems.setdefault(found["stem"], []).append(name)
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    for kernel in fused:
        for stem in fused_operators(kernel, list(stems)):
            for name in stems[stem]:
                parent[root(name)] = root(kernel)
    numbers: dict[str, int] = {}
    return {name: numbers.setdefault(root(name), len(numbers)) for name in parent}


def fused_operators(name: str, known: Sequence[str]) -> list[str]:
    """The known operators that a fused kernel's name lists. The longest match wins.

    Inductor joins names by `_`, and names contain `_` themselves: `fused_native_layer_norm_add_0`.
    """
    found = _FUSED.search(name)
    if not found:
        return []
    words = [word for word in found["operators"].split("_") if word]
    stems = {tuple(stem.strip("_").split("_")): stem for stem in known}
    longest = max((len(stem_words) for stem_words in stems), default=0)
    listed: list[str] = []
    position = 0
    while position < len(words):
        for size in range(min(longest, len(words) - position), 0, -1):
            stem = stems.get(tuple(words[position : position + size]))
            if stem is not None:
                listed.append(stem)
                position += size
                break
        else:
            position += 1
    return listed
