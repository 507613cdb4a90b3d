"""What each rank gives for the comparison of all: its matched collectives, what its steps launched, their paces.

With all columns, the collectives of all ranks take much memory. So the parts are read in blocks: once for arrivals,
which are compared across ranks, and once for local times, of which there are few.

In: parts of ranks. Out: what arrivals need of all ranks, and the ranks' local times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import polars as pl

from rankscope.primitives.clocks import with_clock
from rankscope.primitives.stragglers.paces import COLUMNS as PACES
from rankscope.primitives.stragglers.timeline import ENDED, PARTS, local_times

Part = Mapping[str, pl.DataFrame]

_WORK = ("ranged", "work_ns", "pieces")
_OF_STRETCHES = ("rank", "window", "match", "settled", "step", "start_ns", "end_ns")
_OF_ARRIVALS = (*_OF_STRETCHES, "arrival_ns", "residual_ns")
# What a rank gives: its matched collectives, what its steps launched, and the paces of its steps.
PARTS_OF_RANK = {
    "collectives": pl.Schema(
        dict.fromkeys(("rank", "window", "match", "step", "start_ns", "end_ns", "cut_ns", "count", *ENDED), pl.Int64)
        | {"settled": pl.Boolean, "on_host": pl.Boolean}
    ),
    "launched": pl.Schema(dict.fromkeys(("rank", "window", "step", "work", *_WORK), pl.Int64)),
    "paces": pl.Schema(dict.fromkeys(("rank", "window", *PACES), pl.Int64) | {"of_host": pl.Boolean}),
}


def concat_parts(parts: Iterable[Part]) -> dict[str, pl.DataFrame]:
    """The frames of each name below one another."""
    members = list(parts)
    return {
        name: pl.concat(
            [pl.DataFrame(schema=schema), *(part[name].select(schema.names()).cast(schema) for part in members)]
        )
        for name, schema in PARTS_OF_RANK.items()
    }


def narrow_parts(
    blocks: Iterable[Part], clock: pl.DataFrame, base: pl.DataFrame
) -> tuple[dict[str, pl.DataFrame], bool]:
    """The frames of all ranks, of collectives only what arrivals need; and whether all are of hosts.

    Args:
        blocks: parts of ranks, perhaps of several as one.
        clock: the analysis's result.
        base: base times of the files.
    """
    kept: list[Part] = []
    on_host = True
    clock = clock.select("rank", "offset_ns", "drift_ppm", "at_ns", "residual_ns")
    for part in blocks:
        block = concat_parts([part])
        on_host &= bool(block["collectives"]["on_host"].all())
        arrived = with_clock(block["collectives"].select(_OF_STRETCHES), clock, base)
        kept.append(block | {"collectives": arrived.select(_OF_ARRIVALS)})
    schemas = PARTS_OF_RANK | {
        "collectives": pl.Schema(dict.fromkeys(_OF_ARRIVALS, pl.Int64) | {"settled": pl.Boolean})
    }
    frames = {
        name: pl.concat([pl.DataFrame(schema=schema), *(block[name] for block in kept)])
        for name, schema in schemas.items()
    }
    return frames, on_host


def local_times_of(
    blocks: Iterable[Part], stretches: pl.DataFrame, collectives: pl.DataFrame, cut: pl.DataFrame
) -> pl.DataFrame:
    """The ranks' local times, step by step.

    Args:
        blocks: parts of ranks, perhaps of several as one.
        stretches: rank, match and step of the collectives, without those of incomplete traces.
        collectives: match, group, group_ranks.
        cut: incomplete traces: rank, window.
    """
    groups = collectives.select("match", "group", "group_ranks").drop_nulls("match").unique("match")
    events = (
        stretches.select("match", "step", "rank")
        .group_by("match")
        .agg(pl.col("step").max(), pl.col("rank").n_unique().alias("ranks"))
        .join(groups, on="match", how="left")
    )
    if events["step"].null_count() == events.height:
        events = events.with_columns(pl.lit(0, pl.Int64).alias("step"))
    whole = pl.col("ranks") == pl.col("ranks").max().over("group", "group_ranks")
    events = events.select("match", "step", whole.alias("whole")).sort("match")
    columns = [pl.col("rank", "window", "match", "count"), pl.col("cut_ns").alias("end_ns")]
    columns += [pl.col(name).alias(part) for part, name in zip(PARTS, ENDED, strict=True)]
    found = []
    for part in blocks:
        block = concat_parts([part])["collectives"].select(columns)
        if cut.height:
            block = block.join(cut, on=["rank", "window"], how="anti", maintain_order="left")
        of_rows = events[np.searchsorted(events["match"].to_numpy(), block["match"].to_numpy())]
        found.append(local_times(block.with_columns(of_rows["step"], of_rows["whole"])))
    return pl.concat(found)
