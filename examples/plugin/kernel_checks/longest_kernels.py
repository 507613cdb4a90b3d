"""The longest kernels of each rank.

    duration = end − start

How to read it: a kernel that is much longer on one rank than on the others points at its device or its input.
"""

import polars as pl

from rankscope import Analysis, Bars, Column, Headline, Parameter

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("name", pl.String, "", "the kernel, as written in the trace"),
    Column("start_ns", pl.Int64, "ns", "when it starts, on the trace's clock", instant=True),
    Column("duration_ns", pl.Int64, "ns", "how long it ran"),
)


def per_rank(tables, inputs):
    """The longest kernels of one rank."""
    kernels = tables["device_events"].filter(pl.col("kind") == "kernel")
    longest = kernels.with_columns(
        duration_ns=pl.col("end_ns") - pl.col("start_ns"), rank=pl.lit(inputs.rank, pl.Int64)
    )
    return longest.top_k(int(inputs.parameters["count"]), by="duration_ns").select(
        "rank", "name", "start_ns", "duration_ns"
    )


def headline(frame):
    """The main result in one sentence."""
    if frame.is_empty():
        return None
    row = frame.sort("duration_ns").row(-1, named=True)
    return Headline.of(
        "The longest kernel is {name} on rank {rank}: {duration}.",
        name=(row["name"], ""),
        rank=(row["rank"], ""),
        duration=(row["duration_ns"], "ns"),
    )


analysis = Analysis(
    name="longest_kernels",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    reads={"device_events": ("start_ns", "end_ns", "name", "kind")},
    parameters=(Parameter("count", "how many kernels per rank", kind="number", default=3),),
    headline=headline,
    charts=(Bars(name="name", value="duration_ns", title="Longest kernels"),),
)
