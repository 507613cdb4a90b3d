"""Differences between two runs, row by row, and whether they are significant.

In: the samples of both runs, paired by name and shape. Out: one row per pair, with the change and its p-value.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.experiments.compare.pairs import Pairs, match_keys
from rankscope.experiments.compare.samples import KEYS, MODULES, PLACE, Samples
from rankscope.primitives.statistics import welch_test, welch_verdicts
from rankscope.results import Column

SECTIONS = (
    "steps",
    "savings",
    "phases",
    "collectives",
    "kernels",
    "operators",
    *MODULES,
    "memory",
    "snapshots",
    "stacks",
)
TOTALS = ("step_time", "wall", "device")
"""Rows of the sections steps and phases that are the total of the others."""
COLUMNS = (
    Column(
        "section",
        pl.String,
        "",
        "steps, savings (by the replay), phases, collectives, kernels, operators, modules_device, modules_host, "
        "memory, snapshots or stacks",
    ),
    Column("name", pl.String, "", "what is compared; if several became one, or one became several, joined by commas"),
    Column("partner", pl.String, "", "its name in the second run, if different"),
    Column("shapes", pl.String, "", "shapes of the operator's inputs; null if several were combined"),
    Column(
        "operator",
        pl.String,
        "",
        "of a kernel: the operator that launches it; of an operator in a module: the operator, null for the module",
    ),
    Column("method", pl.String, "", "how the rows were paired: by name, other shapes, operator, fused; or alone"),
    Column("unit", pl.String, "", "unit of a, b, change and spread"),
    Column("a", pl.Float64, "", "in the first run: mean per rank and step; null if it has no such row"),
    Column("b", pl.Float64, "", "in the second"),
    Column("change", pl.Float64, "", "b − a; a missing row counts as 0"),
    Column("change_ratio", pl.Float64, "ratio", "change divided by a; null if a is 0"),
    Column("a_calls", pl.Float64, "count", "calls per rank and step in the first run"),
    Column("b_calls", pl.Float64, "count", "in the second"),
    Column("a_spread", pl.Float64, "", "standard deviation over ranks and steps in the first run"),
    Column("b_spread", pl.Float64, "", "in the second"),
    Column(
        "chance",
        pl.Float64,
        "ratio",
        "p-value of the change (Welch's t-test over steps); null with one step on either side",
    ),
    Column(
        "significant",
        pl.Boolean,
        "",
        "whether the change is significant, corrected for the number of rows in its section; null if there are too few "
        "steps to tell",
    ),
    Column(
        "verdict",
        pl.String,
        "",
        "the same in words, with the test, its samples and the p-value; null if only one run has the row",
    ),
    Column("a_samples", pl.Int64, "count", "samples of the test in the first run: steps; for memory snapshots, ranks"),
    Column("b_samples", pl.Int64, "count", "in the second"),
)
_NAMES_SHOWN = 6
_BY_RANK = ("snapshots", "stacks")
"""Sections whose samples are ranks."""


def compare(a: Samples, b: Samples) -> pl.DataFrame:
    """Compare two runs row by row.

    The test's samples are steps, each the mean over ranks: ranks of one step are not independent, because they wait for
    each other. Memory snapshots belong to no step, so their samples are ranks.

    Returns:
        `COLUMNS`, by section: the totals of steps and phases first, the rest by how much they changed.
    """
    sides = (a, b)
    keys = [side.values.select(KEYS).unique(maintain_order=True) for side in sides]
    pairs = match_keys(keys[0], keys[1])
    means = [_measured(side, pairs, number) for number, side in enumerate(sides)]
    rows = []
    for pair, section in _described(pairs)["pair", "section"].iter_rows():
        one, two = (measured.get((pair, section)) for measured in means)
        rows.append((pair, *_row(one, two)))
    schema = {"pair": pl.Int64, **dict.fromkeys(_NUMBERS, pl.Float64), **dict.fromkeys(_SIZES, pl.Int64)}
    numbers = pl.DataFrame(rows, schema=schema, orient="row")
    frame = _described(pairs).join(numbers, on="pair", how="left", maintain_order="left")
    judged = [_judged(part) for part in frame.partition_by("section", maintain_order=True)]
    return by_section(_sorted(pl.concat(judged) if judged else _judged(frame)).select(c.name for c in COLUMNS))


def by_section(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows in the order of `SECTIONS`, otherwise as they were."""
    place = pl.col("section").replace_strict({s: n for n, s in enumerate(SECTIONS)}, default=len(SECTIONS))
    return frame.sort(place, maintain_order=True)


_NUMBERS = ("a", "b", "change", "change_ratio", "a_calls", "b_calls", "a_spread", "b_spread", "chance")
_SIZES = ("a_samples", "b_samples")
Float = npt.NDArray[np.float64]


def _judged(section: pl.DataFrame) -> pl.DataFrame:
    """The rows of one section with their verdicts."""
    sizes = list(section.select(_SIZES).iter_rows())
    by_rank = not section.is_empty() and section["section"][0] in _BY_RANK
    verdicts = welch_verdicts(section["chance"].to_list(), sizes, "rank" if by_rank else "step")
    return section.with_columns(
        significant=pl.Series([verdict.significant for verdict in verdicts], dtype=pl.Boolean),
        verdict=pl.Series([str(verdict) if min(verdict.n) else None for verdict in verdicts], dtype=pl.String),
    )


def _measured(side: Samples, pairs: Pairs, number: int) -> dict[tuple[int, str], tuple[Float, Float, float]]:
    """For each pair: values per rank-step, samples of the test (steps, as means over ranks), calls per rank-step."""
    keys = pairs.keys.filter(pl.col("side") == number).drop("side")
    values = side.values.join(keys, on=list(KEYS), nulls_equal=True)
    summed = values.group_by("pair", "section", *PLACE).agg(pl.col("value").sum(), pl.col("calls").sum())
    # What did not run in a step counts as 0 there.
    places = side.places.with_columns(pl.struct("window", "step").rank("dense").alias("moment"))
    grid = places.join(keys.select("pair", "section").unique(), on="section")
    full = grid.join(summed, on=["pair", "section", *PLACE], how="left", nulls_equal=True).with_columns(
        pl.col("value", "calls").fill_null(0)
    )
    found: dict[tuple[int, str], tuple[Float, Float, float]] = {}
    for key, part in full.partition_by("pair", "section", as_dict=True).items():
        by_step = part.group_by("moment", maintain_order=True).agg(pl.col("value").mean())["value"].to_numpy()
        by_place = part["value"].to_numpy()
        calls = float(part["calls"].sum()) / part.height
        found[int(key[0]), str(key[1])] = by_place, by_place if key[1] in _BY_RANK else by_step, calls
    return found


def _row(
    one: tuple[Float, Float, float] | None, two: tuple[Float, Float, float] | None
) -> tuple[float | int | None, ...]:
    a, b = (None if side is None else float(side[0].mean()) for side in (one, two))
    change = (b or 0.0) - (a or 0.0)
    # A side without the row is missing, not a sample of zeros.
    p_value = welch_test(one[1], two[1]) if one is not None and two is not None else None
    return (
        a,
        b,
        change,
        change / a if a else None,
        None if one is None else one[2],
        None if two is None else two[2],
        *(None if side is None or side[0].size < 2 else float(side[0].std(ddof=1)) for side in (one, two)),
        p_value,
        *(0 if side is None else side[1].size for side in (one, two)),
    )


def _described(pairs: Pairs) -> pl.DataFrame:
    """The names, shapes and operator of each pair, from the keys on both sides."""

    def names(side: int) -> pl.Expr:
        return pl.col("name").filter(pl.col("side") == side).unique(maintain_order=True)

    def only(column: str) -> pl.Expr:
        values = pl.col(column).drop_nulls().unique()
        return pl.when(values.len() == 1).then(values.first())

    def shown_names(column: str) -> pl.Expr:
        more = pl.col(column).list.len().cast(pl.Int64) - _NAMES_SHOWN
        shown = pl.col(column).list.head(_NAMES_SHOWN).list.join(", ")
        return pl.when(more > 0).then(pl.format("{} and {} more", shown, more)).otherwise(shown)

    grouped = pairs.keys.group_by("pair", "section", "unit", maintain_order=True).agg(
        names(0).alias("first"), names(1).alias("second"), only("shapes").alias("shapes"),
        only("operator").alias("operator"),
    )  # fmt: skip
    first, second = shown_names("first"), shown_names("second")
    has_first = pl.col("first").list.len() > 0
    same = pl.col("first").list.sort() == pl.col("second").list.sort()
    return grouped.join(pairs.pairs, on="pair").with_columns(
        name=pl.when(has_first).then(first).otherwise(second),
        partner=pl.when(has_first & (pl.col("second").list.len() > 0) & ~same).then(second),
    )


def _sorted(frame: pl.DataFrame) -> pl.DataFrame:
    totals = {name: place for place, name in enumerate(TOTALS)}
    measures = pl.col("section").is_in(["steps", "phases"])
    return frame.sort(
        pl.when(measures).then(pl.col("name").replace_strict(totals, default=len(totals), return_dtype=pl.Int64)),
        -pl.col("change").abs(),
        "name",
        nulls_last=True,
    )
