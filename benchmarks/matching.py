"""Matching, clocks and stragglers: how many pairs are right, and CPU seconds by number of rows.

- right: random jobs of 2–16 ranks (tests/primitives/jobs.py: repeating layers, windows cut at both ends, up to 2 %
  lost, clocks hours and 100 ppm apart), seeds 1000 and up; a trial counts only if every pair is right.
- Gloo: all-reduces of one size that run two at a time (2 ranks, 6 steps of 6), which end in any order.
- CPU: the reduce of `collectives`, `clock` and `stragglers` together, on one thread, and the map of `stragglers` on
  traces without any other event; with and without recorded sequence numbers and step numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import polars as pl
from tests.primitives.jobs import Made, faults, gloo_job, random_job

from rankscope.analyses import get_analysis
from rankscope.primitives.communicators import COLUMNS
from rankscope.primitives.matching import match_collectives
from rankscope.results import Inputs, Options
from rankscope.store.schema import TABLES
from rankscope.store.trace_info import TraceInfo

TRIALS = 200
# Ranks, steps, layers: 48,000 rows over 8 ranks, then 400 collectives a rank.
SIZES = ((8, 498, 7), (128, 12, 20), (256, 12, 20), (512, 12, 20), (1024, 12, 20))


def right(job: Callable[[int], Made]) -> str:
    sure = wrong = wrong_rows = missing = rows = 0
    for seed in range(1000, 1000 + TRIALS):
        made = job(seed)
        found = match_collectives(made.rows.select(COLUMNS))
        rows += made.rows.height
        if found.doubts:
            continue
        bad, lonely = faults(made.rows, found)
        sure, wrong, wrong_rows, missing = sure + 1, wrong + (bad > 0), wrong_rows + bad, missing + lonely
    return (
        f"{sure - wrong} of {sure} sure trials right ({100 * (1 - wrong / max(sure, 1)):.1f} %), {TRIALS - sure} "
        f"ambiguous; of {rows:,} rows {wrong_rows} wrong, {missing} without the partner that they have"
    )


def mapped(rows: pl.DataFrame) -> list[pl.DataFrame]:
    """The rows as `collectives` maps them, by rank."""
    whole = rows.with_columns(
        pl.lit(0, pl.Int64).alias("window"),
        pl.lit(0, pl.Int64).alias("base_ns"),
        pl.lit(True).alias("on_device"),
        pl.lit(1 << 20, pl.Int64).alias("bytes"),
        pl.int_range(pl.len()).over("rank").alias("sequence"),
        pl.lit(None, pl.Int64).alias("launch_ns"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns"),
        pl.lit(None, pl.String).alias("peers"),
        pl.lit("kernel").alias("name"),
        pl.lit("kernel").alias("source"),
        *(pl.lit(1, pl.Int64).alias(name) for name in ("calls", "kernels")),
        pl.lit(0, pl.Int64).alias("unlaunched"),
    )
    return whole.partition_by("rank", maintain_order=True)


def cost(rows: pl.DataFrame) -> tuple[float, float, float, float]:
    """CPU seconds of collectives, clock, the map of stragglers, its reduce."""
    ranks = sorted(rows["rank"].unique())
    infos = tuple(TraceInfo(path=f"rank{rank}", rank=rank) for rank in ranks)
    inputs = Inputs(Options(), infos, {}, world_size=len(ranks))
    stragglers = get_analysis("stragglers")
    tables = {
        table: TABLES[table].empty().select(columns).with_columns(pl.lit(0, pl.Int16).alias("window"))
        for table, columns in stragglers.reads.items()
    }
    parts = mapped(rows)
    marks = [time.process_time()]
    collectives, _ = get_analysis("collectives").reduce(parts, inputs)
    marks.append(time.process_time())
    known = {"collectives": collectives}
    known["clock"], _ = get_analysis("clock").reduce([], Inputs(Options(), infos, known, -1, len(ranks)))
    marks.append(time.process_time())
    # As the pipeline should: a rank is given its own rows.
    by_rank = {key[0]: part for key, part in collectives.partition_by("rank", as_dict=True).items()}
    maps = [
        stragglers.per_rank(
            tables, Inputs(Options(), (info,), {**known, "collectives": by_rank[rank]}, rank, len(ranks))
        )
        for rank, info in zip(ranks, infos, strict=True)
    ]
    marks.append(time.process_time())
    stragglers.reduce(maps, Inputs(Options(), infos, known, -1, len(ranks)))
    marks.append(time.process_time())
    first, second, third, fourth = (b - a for a, b in pairwise(marks))
    return first, second, third, fourth


def main() -> None:
    print(f"without anchors: {right(random_job)}")
    print(f"with steps:      {right(lambda seed: random_job(seed, known_steps=True))}")
    print(f"Gloo: {right(gloo_job)}")
    print(f"Gloo, windows cut: {right(lambda seed: gloo_job(seed, cut=True))}")
    print(f"Gloo, without steps: {right(lambda seed: gloo_job(seed, known_steps=False))}")
    for ranks, steps, layers in SIZES:
        for known in ("nothing", "steps", "sequence"):
            made = random_job(
                7, ranks=ranks, steps=steps, layers=layers, jitter=0.02, step_jitter=1e6, lost=0.001,
                known_steps=known != "nothing", known_sequence=known == "sequence",
            )  # fmt: skip
            spent = cost(made.rows)
            names = ("collectives", "clock", "stragglers' map", "its reduce")
            parts = ", ".join(f"{name} {each:.2f}" for name, each in zip(names, spent, strict=True))
            total = spent[0] + spent[1] + spent[3]
            print(
                f"{ranks:5} ranks, {made.rows.height:7,} rows, {known} known: {parts} s; "
                f"reduces {total:.2f} s, {1e6 * total / made.rows.height:.0f} µs a row"
            )
