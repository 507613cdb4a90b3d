"""What the host did while each device had nothing to do, one row a device.

The rows of `idle` that are of whole devices, side by side: each cause a column, operators of all names together. The
causes exclude one another and sum to `idle_ns` exactly:

    idle = data loading + synchronisation + runtime + operators + Python + nothing

How to read it: the greatest column says where to look next: `data_loading`, `synchronization`, `launches` for the
runtime, `operators` for operators; Python and nothing are code of the user's between them.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from rankscope.results import Analysis, Column, Finding, Headline, Inputs, greatest

CAUSES = ("data_loading", "synchronisation", "runtime", "operator", "python", "nothing")
COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("device", pl.Int64, "", "the device's index"),
    Column("data_loading_ns", pl.Int64, "ns", "the host loaded data"),
    Column("synchronisation_ns", pl.Int64, "ns", "the host was in a call that waits for the device"),
    Column("runtime_ns", pl.Int64, "ns", "the host was in another runtime call"),
    Column("operator_ns", pl.Int64, "ns", "the host was in an operator"),
    Column("python_ns", pl.Int64, "ns", "the host was in Python, as far as stacks were recorded"),
    Column("nothing_ns", pl.Int64, "ns", "the host recorded nothing"),
    Column("idle_ns", pl.Int64, "ns", "all of them"),
)


_DOING = {
    "data_loading": "loads data",
    "synchronisation": "waits for the device",
    "runtime": "is in another runtime call",
    "operator": "is in an operator",
    "python": "is in Python",
    "nothing": "records nothing",
}


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """Put the causes of each device side by side."""
    frame = (
        inputs.results["idle"]
        .filter(pl.col("stream").is_null())
        .group_by("rank", "device")
        .agg(
            *(pl.col("idle_ns").filter(pl.col("cause") == cause).sum().alias(f"{cause}_ns") for cause in CAUSES),
            pl.col("idle_ns").sum(),
        )
        .sort("rank", "device")
    )
    return frame.select(pl.col(column.name).cast(pl.Int64) for column in COLUMNS), []


def headline(frame: pl.DataFrame) -> Headline | None:
    """The answer in one sentence."""
    worst = greatest(frame, "idle_ns")
    if worst is None:
        return None
    cause = max(CAUSES, key=lambda cause: int(worst[f"{cause}_ns"]))
    idles = "’s device idles the most:" if frame.height > 1 else "’s device idles"
    return Headline.of(
        f"Rank {{rank}}{idles} {{idle}}, {{share}} of it while the host {{doing}}.",
        rank=(worst["rank"], ""),
        idle=(worst["idle_ns"], "ns"),
        share=(worst[f"{cause}_ns"] / worst["idle_ns"], "ratio"),
        doing=(_DOING[cause], ""),
    )


analysis = Analysis(
    name="idle_causes",
    doc=__doc__,
    columns=COLUMNS,
    across_ranks=across_ranks,
    headline=headline,
    requires=("idle",),
)
