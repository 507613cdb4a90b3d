"""Placement of each rank: host, position on the host, coordinates in the mesh.

One row per rank with a trace, and two ways to arrange them as a grid. `host_row` and `host_column` put one host in each
row: hosts ordered by their lowest rank, ranks on a host by local rank. `mesh_row` and `mesh_column` put the fastest
dimension of the mesh along a row (usually tensor parallel: the ranks that communicate most) and all slower ones down
the rows. The mesh comes from the job's metadata, else from its process groups, as in `mesh`; columns are null if the
host, or the mesh, is not known.

    host_row = index of the host among the hosts      host_column = index of the rank on its host
    mesh_row = index of (c1, …, cn−1) in order        mesh_column = cn, its coordinate in the fastest dimension

How to read it: in the page's grid of ranks, a complete row that stands out is a host or a coordinate of the slower
dimensions, a column is a coordinate of the fastest; a single cell is one rank. That is where to look for the cause: a
network, uneven work, a device.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from rankscope.primitives.communicators import NAMED_BY, named_group_ranks
from rankscope.primitives.mesh import Mesh, infer_mesh
from rankscope.results import Analysis, Column, Finding, Headline, Inputs, schema_of
from rankscope.rundir.plurals import plural

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("host", pl.String, "", "its host"),
    Column("local_rank", pl.Int64, "", "local rank on the host"),
    Column("host_row", pl.Int64, "", "index of the host among the hosts, from 0"),
    Column("host_column", pl.Int64, "", "index of the rank on its host, from 0"),
    Column("mesh", pl.String, "", "its coordinates in the mesh, slowest dimension first: `pp=0 dp=1 tp=3`"),
    Column("mesh_row", pl.Int64, "", "index of its coordinates in all dimensions but the fastest, from 0"),
    Column("mesh_row_label", pl.String, "", "these coordinates; the name of the dimension if there is only one"),
    Column("mesh_column", pl.Int64, "", "its coordinate in the fastest dimension"),
    Column("mesh_column_dimension", pl.String, "", "the fastest dimension"),
)


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """Each rank's host and mesh, laid out."""
    first_traces = {info.rank: info for info in inputs.traces if info.rank is not None}
    hosts = {rank: info.host for rank, info in first_traces.items()}
    for info in inputs.traces:
        # Some of a rank's traces may lack the host.
        if info.rank is not None and info.host:
            hosts[info.rank] = info.host
    rows = [(rank, hosts[rank], first_traces[rank].local_rank) for rank in sorted(first_traces)]
    frame = pl.DataFrame(rows, schema={"rank": pl.Int64, "host": pl.String, "local_rank": pl.Int64}, orient="row")
    mesh = infer_mesh(inputs.traces, named_group_ranks(inputs.columns("collectives", *NAMED_BY)))
    placed = frame.with_columns(_on_hosts()).join(_in_mesh(mesh), on="rank", how="left").sort("rank")
    return placed.select(pl.col(name).cast(kind) for name, kind in schema_of(COLUMNS).items()), []


def _on_hosts() -> list[pl.Expr]:
    known = pl.col("host").is_not_null()
    lowest = pl.col("rank").min().over("host")
    position = pl.struct(pl.col("local_rank").fill_null(0), "rank").rank("ordinal").over("host") - 1
    return [
        pl.when(known).then(pl.when(known).then(lowest).rank("dense") - 1).alias("host_row"),
        pl.when(known).then(position).alias("host_column"),
    ]


def _in_mesh(mesh: Mesh) -> pl.DataFrame:
    """rank, mesh, mesh_row, mesh_row_label, mesh_column, mesh_column_dimension."""
    if not mesh.dims:
        empty = {"rank": pl.Int64, "mesh": pl.String, "mesh_row": pl.Int64, "mesh_row_label": pl.String}
        return pl.DataFrame(schema={**empty, "mesh_column": pl.Int64, "mesh_column_dimension": pl.String})
    fastest, slower = mesh.dims[-1], mesh.dims[:-1]
    wide = mesh.frame.filter(pl.col("dimension").is_in(mesh.dims)).pivot(
        on="dimension", index="rank", values="coordinate"
    )
    labels = pl.DataFrame(list(mesh.labels().items()), schema={"rank": pl.Int64, "mesh": pl.String}, orient="row")
    row_label = (
        pl.concat_str([pl.format(f"{dim}={{}}", pl.col(dim)) for dim in slower], separator=" ") if slower else None
    )
    order = pl.struct(slower).rank("dense") - 1 if slower else pl.lit(0)
    return wide.join(labels, on="rank").select(
        "rank",
        "mesh",
        order.alias("mesh_row"),
        (pl.lit(fastest) if row_label is None else row_label).alias("mesh_row_label"),
        pl.col(fastest).alias("mesh_column"),
        pl.lit(fastest).alias("mesh_column_dimension"),
    )


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    if not frame.height:
        return None
    hosts = frame["host"].drop_nulls().n_unique()
    values = {"ranks": (frame.height, "count")}
    text = f"{{ranks}} {plural('rank', frame.height)}"
    if not hosts:
        return Headline.of(f"{text}; hosts are not recorded.", **values)
    return Headline.of(f"{text} on {{hosts}} {plural('host', hosts)}.", hosts=(hosts, "count"), **values)


analysis = Analysis(
    name="placement",
    doc=__doc__,
    columns=COLUMNS,
    across_ranks=across_ranks,
    headline=headline,
    requires=("collectives",),
)
