"""Memory blocks: who allocated each, its size and lifetime.

One row per allocation, paired with the next release of that address on that device (`profile_memory`). The release of a
block that was allocated before the recording has a row too, without `allocated_ns`; a block that was not released while
recording has no `released_ns`.

    lifetime = released − allocated

Traces of 2020–21 record no addresses, so nothing can be paired: they have no rows here, and a finding reports it.

How to read it: large blocks that are never released fill the device: parameters, gradients, optimizer state, or data
that the loop keeps. Large short-lived blocks make the peak. Blocks of every step that are never released are a leak.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from rankscope.primitives.allocations import MEMORY_COLUMNS, memory_blocks, memory_samples
from rankscope.results import (
    RANK_AND_WINDOW,
    Analysis,
    Column,
    Evidence,
    Finding,
    Inputs,
    Tables,
    concat_ranks,
    rows_by_window,
)

COLUMNS = (
    *RANK_AND_WINDOW,
    Column("device", pl.String, "", "`cpu`, or kind and index: `cuda:0`, `hip:0`, `xpu:0`"),
    Column("address", pl.Int64, "", "its address"),
    Column("bytes", pl.Int64, "bytes", "its size"),
    Column(
        "allocated_ns",
        pl.Int64,
        "ns",
        "time of allocation; null if before the recording",
        instant=True,
    ),
    Column(
        "released_ns",
        pl.Int64,
        "ns",
        "time of release; null if not released while recording",
        instant=True,
    ),
    Column("lifetime_ns", pl.Int64, "ns", "from allocation to release"),
    Column("step", pl.Int64, "", "the step of the allocation; null outside steps"),
    Column("released_step", pl.Int64, "", "the step of the release; null outside steps"),
    Column("operator", pl.String, "", "innermost operator that allocated it; null outside operators"),
    Column("released_by", pl.String, "", "innermost operator that released it"),
)


def _of_window(window: Tables, inputs: Inputs) -> pl.DataFrame:
    found = memory_samples(window["memory_events"], window["host_ops"], window["annotations"])
    made = memory_blocks(found)
    names = window["host_ops"]["name"]
    return made.with_columns(
        pl.col("memory").alias("device"),
        (pl.col("released_ns") - pl.col("allocated_ns")).alias("lifetime_ns"),
        *(
            names.gather(made[row].set(made[row] < 0, None)).alias(name)
            for row, name in (("operator_row", "operator"), ("releasing_row", "released_by"))
        ),
    )


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """The blocks of the chosen steps; a finding names the ranks whose events could not be paired."""
    frame = concat_ranks(parts, COLUMNS)
    known = set(frame["rank"].to_list()) if frame.height else set()
    silent = sorted(set(inputs.results["memory"]["rank"].drop_nulls().to_list()) - known)
    frame = inputs.options.chosen(frame)
    if not silent:
        return frame, []
    finding = Finding(
        id="memory-without-addresses",
        severity="info",
        title="Allocations cannot be paired with releases: these traces record no addresses",
        ranks=tuple(silent),
        evidence=(Evidence("ranks without addresses", len(silent), "count"),),
        advice="Record with a newer PyTorch, which records the address of each allocation.",
    )
    return frame, [finding]


analysis = Analysis(
    name="memory_blocks",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=rows_by_window(COLUMNS, _of_window),
    across_ranks=across_ranks,
    requires=("memory",),
    needs_rows_of=("memory_events",),
    reads={
        "memory_events": MEMORY_COLUMNS,
        "host_ops": ("start_ns", "end_ns", "name", "pid", "tid"),
        "annotations": ("start_ns", "end_ns", "on_device", "step"),
    },
    has_findings=True,
    in_report=False,
)
