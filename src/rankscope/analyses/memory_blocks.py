"""Each block of memory: who allocated it, how large it was, how long it lived.

One row per allocation, paired with the next release of that address on that device (`profile_memory`); a release
of something allocated before recording began has a row too, without `allocated_ns`, and what was not released while
recording has no `released_ns`.

    lifetime = released − allocated

Files of 2020–21 write no addresses, so nothing can be paired: they have no row here, and a finding says so.

How to read it: blocks that are large and never released are what fills a device: parameters, gradients, the optimizer's
state, or what the loop keeps. Blocks that are large and short-lived make its peak. Blocks of every step that none
releases are a leak.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from rankscope.primitives.allocations import MEMORY_COLUMNS, memory_blocks, memory_samples
from rankscope.results import Analysis, Column, Evidence, Finding, Inputs, Tables, concat_ranks, steps_by_window

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("window", pl.Int64, "", "which of the rank's files, from 0"),
    Column("device", pl.String, "", "`cpu`, or kind and number: `cuda:0`, `hip:0`, `xpu:0`"),
    Column("address", pl.Int64, "", "where it lay"),
    Column("bytes", pl.Int64, "bytes", "its size"),
    Column(
        "allocated_ns",
        pl.Int64,
        "ns",
        "when it was allocated, on the trace's own clock; null before recording began",
        instant=True,
    ),
    Column("released_ns", pl.Int64, "ns", "when it was released, likewise; null if not while recording", instant=True),
    Column("lifetime_ns", pl.Int64, "ns", "from one to the other"),
    Column("step", pl.Int64, "", "the step that it was allocated in; null outside of all steps"),
    Column("released_step", pl.Int64, "", "the step that it was released in"),
    Column("operator", pl.String, "", "the innermost operator that allocated it; null outside of all operators"),
    Column("released_by", pl.String, "", "the innermost operator that released it"),
)


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """A rank's blocks."""
    return steps_by_window(tables, inputs, COLUMNS, _of_window)


def _of_window(window: Tables, inputs: Inputs) -> pl.DataFrame:
    found = memory_samples(window["memory_events"], window["host_ops"], window["annotations"])
    made = memory_blocks(found.filter(pl.col("address").is_not_null()))
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
    """The ranks below one another; and which of them could not be paired."""
    frame = concat_ranks(parts, COLUMNS)
    known = set(frame["rank"].to_list()) if frame.height else set()
    silent = sorted(set(inputs.results["memory"]["rank"].drop_nulls().to_list()) - known)
    if not silent:
        return frame, []
    finding = Finding(
        id="memory-without-addresses",
        severity="info",
        title="Allocations cannot be paired with releases: these traces write no addresses",
        ranks=tuple(silent),
        evidence=(Evidence("ranks without addresses", len(silent), "count"),),
        advice="Record with a newer PyTorch: it writes the address of each allocation.",
    )
    return frame, [finding]


analysis = Analysis(
    name="memory_blocks",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    across_ranks=across_ranks,
    requires=("memory",),
    reads={
        "memory_events": MEMORY_COLUMNS,
        "host_ops": ("start_ns", "end_ns", "name", "pid", "tid"),
        "annotations": ("start_ns", "end_ns", "on_device", "step"),
    },
    has_findings=True,
    in_report=False,
)
