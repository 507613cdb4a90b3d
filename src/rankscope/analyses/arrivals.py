"""Order of arrival: which ranks arrive first and last at their collectives.

One row per process group and rank, over the collectives that `stragglers` compares: of the recorded steps (all, if no
step is marked), matched on at least two ranks, without point-to-point operations, the first of a group in a file, and
incomplete files. Arrivals are the collectives' starts on aligned clocks (`clock`). A rank is `first` if it arrived
before the median of the others by more than the clocks' residual and no rank arrived before it, `last` if it arrived
after the median by more than the residual and no rank arrived after it. Arrivals within the residual are neither, so
the two need not sum to the number of collectives.

    place     = 0 for the first arrival at a collective, 1 for the last, evenly spaced in between
    lateness  = arrival minus the median of the *other* ranks' arrivals, negative for early ranks

How to read it: a rank that is last in most collectives of every group is slow itself (`stragglers` shows why); one that
is last in only one group is delayed by that group, or far from it in the network.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from rankscope.primitives.arrival_skew import arrivals_by_event
from rankscope.primitives.clocks import base_times, with_clock
from rankscope.primitives.communicators import POINT_TO_POINT
from rankscope.primitives.stragglers.waits import SETTLED, with_aligned_arrivals
from rankscope.results import Analysis, Column, Finding, Headline, Inputs, greatest, incomplete_files, schema_of
from rankscope.rundir.plurals import plural

COLUMNS = (
    Column("group", pl.String, "", "the process group"),
    Column("rank", pl.Int64, "", "the rank"),
    Column("collectives", pl.Int64, "count", "collectives in which its arrival can be compared"),
    Column("first", pl.Int64, "count", "how often it arrived first by more than the residual"),
    Column("last", pl.Int64, "count", "how often it arrived last by more than the residual"),
    Column("between", pl.Int64, "count", "how often neither"),
    Column("last_share", pl.Float64, "ratio", "share of collectives in which it arrived last"),
    Column("mean_place", pl.Float64, "ratio", "mean place among the arrivals: 0 first, 1 last"),
    Column("median_lateness_ns", pl.Int64, "ns", "median lateness; negative if early"),
    Column("max_lateness_ns", pl.Int64, "ns", "largest lateness"),
)


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """Order the arrivals of each collective, and count by group and rank."""
    rows = _arrivals(inputs)
    if not rows.height:
        return pl.DataFrame(schema=schema_of(COLUMNS)), []
    found = arrivals_by_event(rows["event"].to_numpy(), rows["arrival_ns"].to_numpy())
    latest = np.zeros(rows.height, dtype=np.bool_)
    latest[found.last] = True
    others = pl.len().over("match") - 1
    rows = rows.with_columns(
        pl.Series("late", found.late),
        pl.Series("latest", latest),
        ((pl.col("arrival_ns").rank("average").over("match") - 1) / others).alias("place"),
        (pl.col("arrival_ns") == pl.col("arrival_ns").min().over("match")).alias("earliest"),
    )
    first = pl.col("earliest") & (pl.col("late") < -pl.col("residual_ns"))
    last = pl.col("latest") & (pl.col("late") > pl.col("residual_ns"))
    frame = (
        rows.group_by("group", "rank")
        .agg(
            pl.len().cast(pl.Int64).alias("collectives"),
            first.sum().cast(pl.Int64).alias("first"),
            last.sum().cast(pl.Int64).alias("last"),
            pl.col("place").mean().alias("mean_place"),
            pl.col("late").median().round().cast(pl.Int64).alias("median_lateness_ns"),
            pl.col("late").max().alias("max_lateness_ns"),
        )
        .with_columns(
            (pl.col("collectives") - pl.col("first") - pl.col("last")).alias("between"),
            (pl.col("last") / pl.col("collectives")).alias("last_share"),
        )
        .sort("group", "rank")
    )
    return frame.select(column.name for column in COLUMNS), []


def _arrivals(inputs: Inputs) -> pl.DataFrame:
    """The collectives that `stragglers` compares, with their arrivals on the common clock."""
    clock = inputs.results["clock"].select("rank", "offset_ns", "drift_ppm", "at_ns", "residual_ns")
    rows = inputs.columns("collectives", "rank", "window", "group", "match", "collective", "step", "start_ns", "end_ns")
    known = pl.col("match").is_not_null() & pl.col("start_ns").is_not_null()
    rows = rows.filter(known & ~pl.col("collective").is_in(POINT_TO_POINT)).with_columns(SETTLED.alias("settled"))
    rows = rows.join(incomplete_files(inputs.traces), on=["rank", "window"], how="anti", maintain_order="left")
    return with_aligned_arrivals(with_clock(rows, clock, base_times(inputs.traces)))


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    ranks = frame.group_by("rank", maintain_order=True).agg(pl.col("last", "collectives").sum())
    worst = greatest(ranks.with_columns((pl.col("last") / pl.col("collectives")).alias("share")), "share")
    if worst is None:
        return Headline.of("No rank arrives measurably late.") if frame.height else None
    collectives = f"its {{collectives}} {plural('collective', worst['collectives'])}"
    return Headline.of(
        f"Rank {{rank}} arrives last most often: in {{share}} of {collectives}.",
        rank=(worst["rank"], ""),
        share=(worst["share"], "ratio"),
        collectives=(worst["collectives"], "count"),
    )


analysis = Analysis(
    name="arrivals",
    doc=__doc__,
    columns=COLUMNS,
    across_ranks=across_ranks,
    headline=headline,
    requires=("collectives", "clock"),
)
