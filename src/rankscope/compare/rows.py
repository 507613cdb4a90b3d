"""Differences between two runs, row by row, and whether they are significant.

In: the samples of both runs, paired by name and shape. Out: one row per pair, with the change and its p-value.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.compare.pairs import Pairs, match_keys
from rankscope.compare.samples import KEYS, PLACE, Samples
from rankscope.primitives.statistics import significant, welch_test
from rankscope.results import Column

SECTIONS = ("steps", "phases", "collectives", "kernels", "operators", "memory", "snapshots", "stacks")
WHOLES = ("step_time", "wall", "device")
"""Of steps and phases: what the others of their section are parts of."""
COLUMNS = (
    Column("section", pl.String, "", "steps, phases, collectives, kernels, operators, memory, snapshots or stacks"),
    Column(
        "name", pl.String, "", "what is compared; several that became one, or one that became several, joined by commas"
    ),
    Column("partner", pl.String, "", "what the second run calls it, where that is something else"),
    Column("shapes", pl.String, "", "shapes of the operator's inputs; null where several were put together"),
    Column("operator", pl.String, "", "of a kernel: the operator that launches it"),
    Column(
        "method",
        pl.String,
        "",
        "how the two were found to be the same: by name, other shapes, operator, fused; or alone",
    ),
    Column("unit", pl.String, "", "of a, b, change and spread"),
    Column("a", pl.Float64, "", "in the first run: mean per rank and step; null where it has no such row"),
    Column("b", pl.Float64, "", "in the second"),
    Column("change", pl.Float64, "", "b − a; what one run does not have counts as nothing there"),
    Column("change_ratio", pl.Float64, "ratio", "change over a; null where a is nothing"),
    Column("a_calls", pl.Float64, "count", "calls per rank and step in the first run"),
    Column("b_calls", pl.Float64, "count", "in the second"),
    Column("a_spread", pl.Float64, "", "standard deviation over ranks and steps in the first run"),
    Column("b_spread", pl.Float64, "", "in the second"),
    Column(
        "chance",
        pl.Float64,
        "ratio",
        "p-value of the change (Welch's test over steps); null with one sample",
    ),
    Column(
        "significant",
        pl.Boolean,
        "",
        "whether the change is significant, corrected for the number of rows in its section",
    ),
)
SIGNIFICANCE = {True: "significant", False: "not significant", None: "too few steps to tell"}
"""What `significant` says, in words."""
_NAMES_SHOWN = 6


def compare(a: Samples, b: Samples) -> pl.DataFrame:
    """Two runs, row by row.

    The test's samples are steps, each the mean over ranks: ranks of one step are not independent, for they wait for one
    another. With a single step they are the ranks.

    Returns:
        `COLUMNS`; by section, the wholes of steps and phases first, the rest by how much they changed.
    """
    sides = (a, b)
    keys = [side.values.select(KEYS).unique(maintain_order=True) for side in sides]
    pairs = match_keys(keys[0], keys[1])
    means = [_measured(side, pairs, number) for number, side in enumerate(sides)]
    rows = []
    for pair, section in _described(pairs)["pair", "section"].iter_rows():
        one, two = (measured.get((pair, section)) for measured in means)
        rows.append((pair, *_row(one, two)))
    schema = {"pair": pl.Int64, **dict.fromkeys(_NUMBERS, pl.Float64)}
    numbers = pl.DataFrame(rows, schema=schema, orient="row")
    frame = _described(pairs).join(numbers, on="pair", how="left", maintain_order="left")
    judged = [
        part.with_columns(significant=pl.Series(significant(part["chance"].to_list()), dtype=pl.Boolean))
        for part in frame.partition_by("section", maintain_order=True)
    ]
    full = pl.concat(judged) if judged else frame.with_columns(significant=pl.lit(None, pl.Boolean))
    return _sorted(full).select(column.name for column in COLUMNS)


_NUMBERS = ("a", "b", "change", "change_ratio", "a_calls", "b_calls", "a_spread", "b_spread", "chance")
Float = npt.NDArray[np.float64]


def _measured(side: Samples, pairs: Pairs, number: int) -> dict[tuple[int, str], tuple[Float, Float, float]]:
    """By pair: values by rank-step, values by step (mean over ranks), calls by rank-step."""
    of_side = pairs.keys.filter(pl.col("side") == number).drop("side")
    values = side.values.join(of_side, on=list(KEYS), nulls_equal=True)
    summed = values.group_by("pair", "section", *PLACE).agg(pl.col("value").sum(), pl.col("calls").sum())
    # What did not run in a step counts as nothing there.
    places = side.places.with_columns(pl.struct("window", "step").rank("dense").alias("moment"))
    grid = places.join(of_side.select("pair", "section").unique(), on="section")
    full = grid.join(summed, on=["pair", "section", *PLACE], how="left", nulls_equal=True).with_columns(
        pl.col("value", "calls").fill_null(0)
    )
    found: dict[tuple[int, str], tuple[Float, Float, float]] = {}
    for key, part in full.partition_by("pair", "section", as_dict=True).items():
        by_step = part.group_by("moment", maintain_order=True).agg(pl.col("value").mean())["value"].to_numpy()
        by_place = part["value"].to_numpy()
        calls = float(part["calls"].sum()) / part.height
        found[int(key[0]), str(key[1])] = by_place, by_step if by_step.size > 1 else by_place, calls
    return found


def _row(one: tuple[Float, Float, float] | None, two: tuple[Float, Float, float] | None) -> tuple[float | None, ...]:
    a, b = (None if side is None else float(side[0].mean()) for side in (one, two))
    change = (b or 0.0) - (a or 0.0)
    # A side without the row at all is no sample of zeros: that it is missing is the message.
    likely = welch_test(one[1], two[1]) if one is not None and two is not None else None
    return (
        a,
        b,
        change,
        change / a if a else None,
        None if one is None else one[2],
        None if two is None else two[2],
        *(None if side is None or side[0].size < 2 else float(side[0].std(ddof=1)) for side in (one, two)),
        likely,
    )


def _described(pairs: Pairs) -> pl.DataFrame:
    """What to call each pair, from the keys on its sides."""

    def names(side: int) -> pl.Expr:
        return pl.col("name").filter(pl.col("side") == side).unique(maintain_order=True)

    def only(column: str) -> pl.Expr:
        values = pl.col(column).drop_nulls().unique()
        return pl.when(values.len() == 1).then(values.first())

    def said(column: str) -> pl.Expr:
        more = pl.col(column).list.len().cast(pl.Int64) - _NAMES_SHOWN
        shown = pl.col(column).list.head(_NAMES_SHOWN).list.join(", ")
        return pl.when(more > 0).then(pl.format("{} and {} more", shown, more)).otherwise(shown)

    grouped = pairs.keys.group_by("pair", "section", "unit", maintain_order=True).agg(
        names(0).alias("first"), names(1).alias("second"), only("shapes").alias("shapes"),
        only("operator").alias("operator"),
    )  # fmt: skip
    first, second = said("first"), said("second")
    has_first = pl.col("first").list.len() > 0
    same = pl.col("first").list.sort() == pl.col("second").list.sort()
    return grouped.join(pairs.pairs, on="pair").with_columns(
        name=pl.when(has_first).then(first).otherwise(second),
        partner=pl.when(has_first & (pl.col("second").list.len() > 0) & ~same).then(second),
    )


def _sorted(frame: pl.DataFrame) -> pl.DataFrame:
    wholes = {name: place for place, name in enumerate(WHOLES)}
    measures = pl.col("section").is_in(["steps", "phases"])
    return frame.sort(
        pl.col("section").replace_strict({s: n for n, s in enumerate(SECTIONS)}, default=len(SECTIONS)),
        pl.when(measures).then(pl.col("name").replace_strict(wholes, default=len(wholes), return_dtype=pl.Int64)),
        -pl.col("change").abs(),
        "name",
        nulls_last=True,
    )
