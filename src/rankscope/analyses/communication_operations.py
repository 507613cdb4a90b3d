"""Communication operations of each rank by kind: calls, sizes, time, transfer and wait.

One row per rank and kind of collective, the largest total first. Sizes are the full sizes of the operations, as in
`collectives`; calls without a size count only in `calls`. `transfer_ns` and `wait_ns` are sums over the calls of which
all ranks are known (`measured`), null if there is none; `mean_transfer_ns` is over these calls only.

    transfer = Σ shortest duration over the ranks of the call      wait = Σ (duration − transfer of the call)

This is the operations table of the TensorBoard plugin's Distributed view, with its data-transfer time.
`collective_summary` has the same over all ranks, by group and size.

How to read it: if transfer is most of the measured time, the cost is due to sizes and links; if wait is, to late ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from rankscope.results import Analysis, Column, Finding, Headline, Inputs, over_ranks, top_group
from rankscope.rundir.plurals import plural

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("collective", pl.String, "", "the kind of collective"),
    Column("calls", pl.Int64, "count", "number of calls"),
    Column("bytes", pl.Int64, "bytes", "sum of full sizes; null if no size is known"),
    Column("mean_bytes", pl.Int64, "bytes", "mean size of a call"),
    Column("total_ns", pl.Int64, "ns", "sum of durations: wait and transfer"),
    Column("mean_ns", pl.Int64, "ns", "mean duration"),
    Column("measured", pl.Int64, "count", "calls of which all ranks are known"),
    Column("transfer_ns", pl.Int64, "ns", "sum of their transfer times"),
    Column("mean_transfer_ns", pl.Int64, "ns", "mean transfer"),
    Column("wait_ns", pl.Int64, "ns", "sum of their time waiting for later ranks"),
    Column("estimate", pl.Boolean, "", "whether transfer and wait are only estimates"),
)
_READ = ("rank", "collective", "bytes", "duration_ns", "transfer_ns", "wait_ns", "estimate")


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """Group each rank's collectives by kind."""
    size, duration, transfer = pl.col("bytes"), pl.col("duration_ns"), pl.col("transfer_ns")
    known = transfer.is_not_null()
    frame = (
        inputs.columns("collectives", *_READ)
        .group_by("rank", "collective")
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            pl.when(size.is_not_null().any()).then(size.sum()).alias("bytes"),
            size.mean().round().cast(pl.Int64).alias("mean_bytes"),
            duration.sum().alias("total_ns"),
            duration.mean().round().cast(pl.Int64).alias("mean_ns"),
            known.sum().cast(pl.Int64).alias("measured"),
            pl.when(known.any()).then(transfer.sum()).alias("transfer_ns"),
            transfer.mean().round().cast(pl.Int64).alias("mean_transfer_ns"),
            pl.when(known.any()).then(pl.col("wait_ns").sum()).alias("wait_ns"),
            pl.when(known.any()).then(pl.col("estimate").filter(known).any()).alias("estimate"),
        )
        .sort("rank", "total_ns", "collective", descending=[False, True, False])
    )
    return frame.select(column.name for column in COLUMNS), []


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    most = top_group(frame, "collective", "total_ns", "calls")
    if most is None:
        return None
    calls = f"{{calls}} {plural('call', most['calls'])}{over_ranks(frame)}"
    return Headline.of(
        f"Top collective: {{collective}}, {{total}} in {calls}.",
        collective=(most["collective"], ""),
        total=(most["total_ns"], "ns"),
        calls=(most["calls"], "count"),
    )


analysis = Analysis(
    name="communication_operations",
    doc=__doc__,
    whole_recording=True,
    columns=COLUMNS,
    across_ranks=across_ranks,
    headline=headline,
    requires=("collectives",),
)
