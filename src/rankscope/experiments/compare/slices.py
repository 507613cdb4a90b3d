"""Compare events of one name in two runs: `rankscope slices NAME A --compare B`.

In: the results of `slices` of both runs. Out: one row per rank, step, kind and name of either run, the largest total
first; null where a run has none.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from rankscope.results import Column, Result


def _named(figure: str, side: str) -> str:
    """`median_ns` of the second run: `median_b_ns`."""
    return f"{figure.removesuffix('_ns')}_{side}{'_ns' if figure.endswith('_ns') else ''}"


_SIDES = (("a", "in the first run"), ("b", "in the second run"))
_FIGURES = (
    ("calls", pl.Int64, "count", "number of events"),
    ("total_ns", pl.Int64, "ns", "sum of durations"),
    ("median_ns", pl.Float64, "ns", "median duration"),
    ("p95_ns", pl.Float64, "ns", "95th percentile of durations"),
    ("max_ns", pl.Int64, "ns", "longest duration"),
)
_KEYS = ("rank", "step", "kind", "name")
COLUMNS = (
    Column("rank", pl.Int64, "", "the rank; null by name"),
    Column("step", pl.Int64, "", "N of `ProfilerStep#N`; null outside steps, by rank and by name"),
    Column("kind", pl.String, "", "operator, kernel, memcpy, memset, runtime, range or python"),
    Column("name", pl.String, "", "the event's name, as recorded"),
    *(
        Column(_named(name, side), dtype, unit, f"{doc} {where}")
        for name, dtype, unit, doc in _FIGURES
        for side, where in _SIDES
    ),
    Column("median_change", pl.Float64, "ratio", "change of the median duration, relative to the first run"),
)


def compare_slices(a: Result, b: Result) -> Result:
    """Combine two results of `slices` with the same parameters.

    Args:
        a: the first run's.
        b: the second run's.
    """
    joined = _side(a, "a").join(_side(b, "b"), on=_KEYS, how="full", coalesce=True, nulls_equal=True)
    before, after = pl.col("median_a_ns"), pl.col("median_b_ns")
    frame = joined.with_columns(pl.when(before > 0).then(after / before - 1).alias("median_change"))
    total = pl.max_horizontal("total_a_ns", "total_b_ns")
    frame = frame.sort("rank", "step", total, *_KEYS[2:], descending=[False, False, True, False, False])
    shape = replace(a.analysis, name="slices_compared", doc=__doc__, columns=COLUMNS, headline=None)
    return Result(shape, frame.select(column.name for column in COLUMNS), (*a.findings, *b.findings))


def _side(result: Result, side: str) -> pl.DataFrame:
    return result.frame.select(*_KEYS, *(pl.col(name).alias(_named(name, side)) for name, *_ in _FIGURES))
