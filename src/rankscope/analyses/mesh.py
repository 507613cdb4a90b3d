"""Differences along each dimension of the mesh: data, tensor, pipeline parallel, hosts.

One row per dimension and coordinate (all ranks with `pp=1`), and, in a mesh of at least three dimensions, one per
group along a dimension (the ranks of one tensor-parallel group; see `level`). The mesh comes from the job's metadata,
else from the names and ranks of its process groups (`mesh_dp`, `TENSOR_MODEL_PARALLEL_GROUP`, …); see `source`. `host`
is a dimension if several hosts are known. Times are means over the steps and over the ranks whose files are complete:
compute and exposed communication (`step_time`), waiting for later ranks (`collectives`: the sum of a step's waits, null
if a group is incomplete) and lateness (`stragglers`). Imbalance compares compute within a dimension and level:

    imbalance = (max − mean) / mean

This is percent imbalance (Pearce et al., 2012): 0 is balanced, 0.5 means that the slowest has 1.5 times the mean.
Balancing saves x / (1 + x) of its compute: for an imbalance of 0.5 a third. A finding needs the coordinate to compute
longest in three of four steps, four steps where there are two coordinates, and, except along the pipeline, ranks that
are significantly late (`stragglers`); on the CPU, where operators of equal work differ, only the pipeline is judged.

How to read it: an imbalance along `pp` is layers spread unevenly over stages, along `dp` batches of unequal work, along
`ep` experts; one along `host`, or of single groups, points at machines. Much waiting without imbalance: see
`stragglers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from rankscope.primitives.communicators import NAMED_BY, named_group_ranks
from rankscope.primitives.imbalance import computes_longest
from rankscope.primitives.mesh import HOST, Mesh, infer_mesh
from rankscope.primitives.statistics import Significance
from rankscope.results import Analysis, Column, Evidence, Finding, Headline, Inputs, greatest, schema_of

COLUMNS = (
    Column("dimension", pl.String, "", "the dimension: `dp`, `tp`, `pp`, …, `host`"),
    Column(
        "level", pl.String, "", "`coordinate`: all ranks with it; `group`: ranks that differ in this dimension only"
    ),
    Column("label", pl.String, "", "the coordinate (`pp=1`), or the group by its coordinates in the other dimensions"),
    Column("coordinate", pl.Int64, "", "the coordinate, from 0; null for a group"),
    Column("ranks", pl.Int64, "count", "its recorded ranks"),
    Column("step_ns", pl.Int64, "ns", "mean window of a step"),
    Column("compute_ns", pl.Int64, "ns", "mean compute per step"),
    Column("exposed_communication_ns", pl.Int64, "ns", "mean exposed communication per step"),
    Column("wait_ns", pl.Int64, "ns", "mean wait for later ranks per step; null if not known"),
    Column("lateness_ns", pl.Int64, "ns", "mean lateness of its ranks per step; null if not known"),
    Column("imbalance", pl.Float64, "ratio", "of compute, within this dimension and level: (max − mean) / mean"),
    Column("source", pl.String, "", "where the dimension comes from: `metadata`, `groups` or `host` names"),
)
_TIMES = ("step_ns", "compute_ns", "exposed_communication_ns", "wait_ns", "lateness_ns")
# Smaller differences of compute are normal variation between steps.
REPORTED_IMBALANCE = 0.05


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """Average each rank's steps over the ranks of each coordinate."""
    mesh = infer_mesh(inputs.traces, named_group_ranks(inputs.columns("collectives", *NAMED_BY)))
    if not mesh.frame.height:
        return pl.DataFrame(schema=schema_of(COLUMNS)), []
    rows = _by_coordinate(mesh).join(_mean_times(inputs), on="rank", how="left")
    incomplete = [info.rank for info in inputs.traces if info.is_incomplete]
    # If a file lacks events, its times are unknown.
    rows = rows.with_columns(
        pl.when(~pl.col("rank").is_in(incomplete)).then(pl.col(name)).alias(name) for name in _TIMES
    )
    frame = (
        rows.group_by("dimension", "level", "label", "coordinate", maintain_order=True)
        .agg(
            pl.col("rank").n_unique().cast(pl.Int64).alias("ranks"),
            *(pl.col(name).mean().round().cast(pl.Int64) for name in _TIMES),
        )
        .with_columns(_imbalance().alias("imbalance"))
        .with_columns(
            pl.when(pl.col("dimension") == HOST).then(pl.lit(HOST)).otherwise(pl.lit(mesh.source)).alias("source")
        )
    )
    return frame.select(column.name for column in COLUMNS), _findings(frame, rows, mesh, inputs)


def _imbalance() -> pl.Expr:
    compute = pl.col("compute_ns")
    mean = compute.mean().over("dimension", "level")
    several = compute.count().over("dimension", "level") > 1
    return pl.when(several & (mean > 0)).then((compute.max().over("dimension", "level") - mean) / mean)


def _by_coordinate(mesh: Mesh) -> pl.DataFrame:
    """One row per rank and coordinate, and per rank and group: rank, dimension, level, label, coordinate."""
    several = pl.col("coordinate").n_unique().over("dimension") > 1
    coordinates = mesh.frame.filter(several).select(
        "rank", "dimension", pl.lit("coordinate").alias("level"), "label", "coordinate"
    )
    order = {dim: index for index, dim in enumerate((*mesh.dims, *mesh.other_dims))}
    parts = [coordinates]
    if len(mesh.dims) > 2:
        parts += [_groups(mesh, dim) for dim in mesh.dims]
    return pl.concat(parts).sort(
        pl.col("dimension").replace_strict(order, return_dtype=pl.Int64), "level", "coordinate", "label", "rank"
    )


def _groups(mesh: Mesh, dim: str) -> pl.DataFrame:
    others = mesh.frame.filter(pl.col("dimension").is_in(mesh.dims) & (pl.col("dimension") != dim))
    named = others.group_by("rank", maintain_order=True).agg(pl.col("label").str.join(" "))
    return named.select(
        "rank", pl.lit(dim).alias("dimension"), pl.lit("group").alias("level"), "label",
        pl.lit(None, pl.Int64).alias("coordinate"),
    )  # fmt: skip


def _mean_times(inputs: Inputs) -> pl.DataFrame:
    """Mean times of each rank's steps."""
    steps = inputs.results["step_time"]
    # For a trace without a device, compute in step_time is operators.
    means = steps.group_by("rank").agg(
        pl.col("window_ns").mean().alias("step_ns"),
        pl.col("compute_ns").mean(),
        pl.col("exposed_communication_ns").mean(),
        pl.len().alias("steps"),
    )
    waited = inputs.columns("collectives", "rank", "step", "wait_ns", "estimate")
    known = waited.filter(pl.col("wait_ns").is_not_null() & ~pl.col("estimate").fill_null(False))
    if steps["step"].drop_nulls().len():
        known = known.drop_nulls("step")
    # A sum over some groups cannot be compared with a sum over all of them.
    groups = inputs.distinct("collectives", "rank", "group", "group_ranks", "group_size")
    recorded = pl.col("rank").n_unique().over("group", "group_ranks")
    partly = groups.filter(recorded < pl.col("group_size"))["rank"].unique()
    waits = known.filter(~pl.col("rank").is_in(partly.implode())).group_by("rank").agg(pl.col("wait_ns").sum())
    late = inputs.results["stragglers"].select("rank", "lateness_ns")
    return (
        means.join(waits, on="rank", how="left")
        .with_columns(pl.col("wait_ns") / pl.col("steps"))
        .join(late, on="rank", how="left")
    )


def _lasts(row: Mapping[str, Any], ranks: pl.DataFrame, mesh: Mesh, inputs: Inputs) -> bool:
    """Whether a coordinate computes longest in most steps, and its ranks are late, where they are compared with others.

    Args:
        row: of the coordinate.
        ranks: rank, label of all coordinates of its dimension.
    """
    steps = inputs.results["step_time"].select("rank", "window", "step", "compute_ns")
    by_label = ranks.join(steps, on="rank").group_by("window", "step", pl.col("label").alias("who"))
    longest = computes_longest(by_label.agg(pl.col("compute_ns").mean()))
    if longest is None or longest.who != row["label"]:
        return False
    if row["dimension"] == mesh.pipeline:
        return True  # stages run different programs
    device = inputs.results["device_time"]
    if not (device["compute_ns"] + device["communication_ns"]).sum():
        return False  # operators of equal work take longer on a shared core
    own = ranks.filter(pl.col("label") == row["label"])["rank"].implode()
    verdicts = inputs.results["stragglers"].filter(pl.col("rank").is_in(own))["significance"].drop_nulls()
    return verdicts.is_empty() or Significance.SIGNIFICANT.value in verdicts


def _findings(frame: pl.DataFrame, rows: pl.DataFrame, mesh: Mesh, inputs: Inputs) -> list[Finding]:
    """A finding for the slowest coordinate of each dimension whose compute differs."""
    worst = (
        frame.filter((pl.col("level") == "coordinate") & (pl.col("imbalance") > REPORTED_IMBALANCE))
        .with_columns(pl.col("compute_ns").mean().over("dimension").alias("mean_ns"))
        .filter(pl.col("compute_ns") == pl.col("compute_ns").max().over("dimension"))
        .unique("dimension", keep="first", maintain_order=True)
    )
    places = rows.filter(pl.col("level") == "coordinate").select("dimension", "rank", "label")
    return [
        Finding(
            id="mesh-imbalance",
            severity="info",
            title=f"{row['label']} computes {100 * row['imbalance']:.1f} % longer than the mean "
            f"along {row['dimension']}",
            ranks=tuple(
                rows.filter((pl.col("dimension") == row["dimension"]) & (pl.col("label") == row["label"]))["rank"]
                .unique()
                .sort()
            ),
            evidence=(
                Evidence(f"compute per step, {row['label']}", row["compute_ns"], "ns"),
                Evidence(f"compute per step, mean along {row['dimension']}", round(row["mean_ns"]), "ns"),
                Evidence("imbalance", round(row["imbalance"], 4), "ratio"),
            ),
            saving_ns=round(row["compute_ns"] - row["mean_ns"]),
            advice="Balance the work: layers per stage, tokens per rank; or check the slower device or host.",
        )
        for row in worst.iter_rows(named=True)
        if _lasts(row, places.filter(pl.col("dimension") == row["dimension"]), mesh, inputs)
    ]


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    worst = greatest(frame, "imbalance")
    if worst is None:
        return None
    rows = frame.filter((pl.col("dimension") == worst["dimension"]) & (pl.col("level") == worst["level"]))
    most = greatest(rows, "compute_ns")
    if most is None:
        return None
    text = "Largest imbalance of compute along {dimension}: {label} is {imbalance} above the mean."
    return Headline.of(
        text, dimension=(worst["dimension"], ""), label=(most["label"], ""), imbalance=(worst["imbalance"], "ratio")
    )


analysis = Analysis(
    name="mesh",
    doc=__doc__,
    columns=COLUMNS,
    across_ranks=across_ranks,
    headline=headline,
    requires=("collectives", "step_time", "stragglers", "device_time"),
    has_findings=True,
)
