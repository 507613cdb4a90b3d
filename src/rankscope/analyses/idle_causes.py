"""What the host did while each device was idle, one row per device.

The device rows of `idle`, with each cause as a column and operators of all names together. The causes are mutually
exclusive and sum to `idle_ns` exactly:

    idle = data loading + synchronization + runtime + operators + Python + nothing

How to read it: the largest column says where to look next: `data_loading`, `synchronization`, `launches` for the
runtime, `operators` for operators; Python and nothing are user code between them.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from rankscope.primitives.activity import HOST_ACTIVITY
from rankscope.results import Analysis, Column, Finding, Headline, Inputs, greatest

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("device", pl.Int64, "", "device index"),
    Column("data_loading_ns", pl.Int64, "ns", "the host was loading data"),
    Column("synchronisation_ns", pl.Int64, "ns", "the host was in a call that waits for the device"),
    Column("runtime_ns", pl.Int64, "ns", "the host was in another runtime call"),
    Column("operator_ns", pl.Int64, "ns", "the host was in an operator"),
    Column("python_ns", pl.Int64, "ns", "the host was in Python, if stacks were recorded"),
    Column("nothing_ns", pl.Int64, "ns", "nothing was recorded on the host"),
    Column("idle_ns", pl.Int64, "ns", "total idle time"),
)


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """Turn the causes of each device into columns."""
    frame = (
        inputs.results["idle"]
        .filter(pl.col("stream").is_null())
        .group_by("rank", "device")
        .agg(
            *(pl.col("idle_ns").filter(pl.col("cause") == cause).sum().alias(f"{cause}_ns") for cause in HOST_ACTIVITY),
            pl.col("idle_ns").sum(),
        )
        .sort("rank", "device")
    )
    return frame.select(pl.col(column.name).cast(pl.Int64) for column in COLUMNS), []


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    worst = greatest(frame, "idle_ns")
    if worst is None:
        return None
    cause = max(HOST_ACTIVITY, key=lambda cause: int(worst[f"{cause}_ns"]))
    most = "is idle most" if frame.height > 1 else "is idle"
    return Headline.of(
        f"The device of rank {{rank}} {most}: {{idle}}, of which {{share}} while {{doing}}.",
        rank=(worst["rank"], ""),
        idle=(worst["idle_ns"], "ns"),
        share=(worst[f"{cause}_ns"] / worst["idle_ns"], "ratio"),
        doing=(HOST_ACTIVITY[cause], ""),
    )


analysis = Analysis(
    name="idle_causes",
    doc=__doc__,
    whole_recording=True,
    columns=COLUMNS,
    across_ranks=across_ranks,
    headline=headline,
    requires=("idle",),
)
