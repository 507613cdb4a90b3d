"""Pipeline bubble: how long each stage waits for its neighbors.

One row per stage and step. The send and receive kernels of a pipeline run until the other side is ready. A stage's
bubble in a step is therefore the time in which one of them runs and nothing else does (no compute, no other
communication, no copy) within the step's window (`step_time`), averaged over the ranks of the stage:

    bubble = |p2p − everything else|                 bubble ratio = bubble / window

It includes the transfers themselves, and waiting for a neighbor that is late for another reason. Time in which no
kernel runs is not included: there the host is late (`step_time`, `idle`). Nor is waiting in a collective of all stages
at the end of the step (a gradient norm), where the later stages spend the time that the first ones wait for gradients.
So compare the largest bubble of a step, the first stage's, with the ideal. A pipeline of p equally fast stages has

    ideal ratio = (p − 1) / (m + p − 1)

with m microbatches, both for GPipe (fill and drain; Huang et al., 2019) and for 1F1B (Narayanan et al., 2021, who give
the equivalent (p − 1) / m of the time without bubble); interleaved stages have less. m is the number of sends of a rank
to one neighbor in a step, the most of any stage: without a backward, the last stage sends nothing. The stage is the
rank's coordinate on the mesh (`mesh`); null if no mesh is known, in which case one row covers all such ranks.

The saving of the finding is how much shorter a step would be with stages of equal work: its window − mean compute of
the stages / (1 − ideal ratio), at most the excess of the largest bubble over the ideal. Without an ideal there is none.

How to read it: a first stage near the ideal has the inherent cost of its schedule: more microbatches or interleaved
stages reduce it. If it is far above, a stage is slower than the others (`step_time`, `stragglers`), or the transfers
themselves are slow.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from rankscope.primitives.activity import covered_time
from rankscope.primitives.communicators import NAMED_BY, named_group_ranks
from rankscope.primitives.mesh import infer_mesh
from rankscope.results import (
    Analysis,
    Column,
    Evidence,
    Finding,
    Headline,
    Inputs,
    Tables,
    by_window,
    concat_ranks,
    greatest,
    schema_of,
)

COLUMNS = (
    Column("stage", pl.Int64, "", "the pipeline stage, from 0; null if no mesh is known"),
    Column("step", pl.Int64, "", "N of `ProfilerStep#N`"),
    Column("ranks", pl.Int64, "count", "recorded ranks of the stage"),
    Column("window_ns", pl.Int64, "ns", "the step's window, mean over ranks"),
    Column("p2p_ns", pl.Int64, "ns", "time with a send or receive running, mean over ranks"),
    Column("bubble_ns", pl.Int64, "ns", "time with a send or receive running and nothing else, mean over ranks"),
    Column("bubble_ratio", pl.Float64, "ratio", "bubble divided by window"),
    Column("microbatches", pl.Int64, "count", "sends of a rank to one neighbor in the step"),
    Column(
        "ideal_ratio",
        pl.Float64,
        "ratio",
        "bubble ratio of a balanced pipeline without interleaving; null if not known",
    ),
)
_RANK_COLUMNS = tuple(
    Column(name, pl.Int64, "", "")
    for name in ("rank", "window", "step", "window_ns", "p2p_ns", "bubble_ns", "sends")
)  # fmt: skip
P2P = ("send", "recv", "send_recv")
# Reported if the bubble exceeds the ideal by this share of the step.
REPORTED_EXCESS = 0.05


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """Each step's bubble on this rank."""
    collectives_of_rank = inputs.results["collectives"].filter(pl.col("source") != "launch")
    steps = inputs.results["step_time"].filter(pl.col("step").is_not_null())
    parts = []
    for file_number, window in enumerate(by_window(tables, inputs)):
        collectives = collectives_of_rank.filter(pl.col("window") == file_number)
        p2p = collectives.filter(pl.col("collective").is_in(P2P))
        steps_of_file = steps.filter(pl.col("window") == file_number)
        if not p2p.height or not steps_of_file.height:
            continue
        parts.append(_bubbles(window["device_events"], collectives, p2p, steps_of_file))
    return concat_ranks(parts, _RANK_COLUMNS)


def _bubbles(device: pl.DataFrame, collectives: pl.DataFrame, p2p: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    p2p_time = covered_time(p2p)
    # An operation may be several kernels: its own are those of its stream within its time.
    operations = p2p.select("stream", "start_ns", until="end_ns").sort("start_ns")
    others = (
        device.sort("start_ns")
        .join_asof(operations, on="start_ns", by="stream", strategy="backward", check_sortedness=False)
        .filter(pl.col("until").is_null() | (pl.col("end_ns") > pl.col("until")))
    )
    host = covered_time(collectives.filter(~pl.col("collective").is_in(P2P)))
    bubble = p2p_time - (covered_time(others) | host)
    start = steps["start_ns"].to_numpy()
    end = start + steps["window_ns"].to_numpy()
    sends = (
        p2p.filter(pl.col("collective").is_in(["send", "send_recv"]))
        .group_by("step", "peers", "stream")
        .agg(pl.len().cast(pl.Int64).alias("sends"))
        .group_by("step")
        .agg(pl.col("sends").max())
    )
    return steps.select(
        "rank", "window", "step", "window_ns",
        pl.Series("p2p_ns", p2p_time.within(start, end)), pl.Series("bubble_ns", bubble.within(start, end)),
    ).join(sends, on="step", how="left", maintain_order="left")  # fmt: skip


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """Average over the ranks of each stage."""
    rows = concat_ranks(parts, _RANK_COLUMNS)
    if not rows.height:
        return pl.DataFrame(schema=schema_of(COLUMNS)), []
    groups = named_group_ranks(inputs.columns("collectives", *NAMED_BY))
    mesh = infer_mesh(inputs.traces, groups)
    stages = mesh.frame.filter(pl.col("dimension") == (mesh.pipeline or "")).select(
        "rank", pl.col("coordinate").alias("stage")
    )
    count = _depth(mesh.pipeline, groups, stages)
    by_stage = rows.join(stages, on="rank", how="left")
    p, m = pl.lit(count, pl.Int64), pl.col("microbatches").max().over("step")
    frame = (
        by_stage.group_by("stage", "step")
        .agg(
            pl.col("rank").n_unique().cast(pl.Int64).alias("ranks"),
            *(pl.col(name).mean().round().cast(pl.Int64) for name in ("window_ns", "p2p_ns", "bubble_ns")),
            pl.col("sends").max().alias("microbatches"),
        )
        .sort("stage", "step")
        .with_columns(
            (pl.col("bubble_ns") / pl.when(pl.col("window_ns") > 0).then("window_ns")).alias("bubble_ratio"),
            pl.when(p > 1).then((p - 1) / (m + p - 1)).alias("ideal_ratio"),
        )
    )
    return frame.select(column.name for column in COLUMNS), _findings(frame, by_stage, count, _compute(stages, inputs))


def _depth(pipeline: str | None, groups: Sequence[tuple[str, tuple[int, ...]]], stages: pl.DataFrame) -> int | None:
    """The number of stages: the size of the pipeline's groups, else the number of recorded stages."""
    if pipeline is None or not stages.height:
        return None
    named = [
        len(ranks)
        for group, ranks in groups
        if group.lower().endswith((f"mesh_{pipeline}", "pipeline_model_parallel_group"))
    ]
    recorded = int(stages["stage"].to_numpy().max()) + 1
    return max([recorded, *named])


def _compute(stages: pl.DataFrame, inputs: Inputs) -> float:
    """Compute per step, mean over the stages, ns."""
    steps = inputs.results["step_time"].filter(pl.col("step").is_not_null())
    by_stage = steps.join(stages, on="rank").group_by("stage").agg(pl.col("compute_ns").mean())
    return float(by_stage["compute_ns"].to_numpy().mean()) if by_stage.height else 0.0


def _findings(frame: pl.DataFrame, rows: pl.DataFrame, stages: int | None, compute: float) -> list[Finding]:
    by_stage = frame.group_by("stage", maintain_order=True).agg(
        pl.col("bubble_ns").mean(), pl.col("window_ns").mean(), pl.col("ideal_ratio").mean()
    )
    worst = by_stage.sort(pl.col("bubble_ns") / pl.col("window_ns"), descending=True, nulls_last=True).row(
        0, named=True
    )
    ratio = worst["bubble_ns"] / max(worst["window_ns"], 1)
    ideal = worst["ideal_ratio"]
    if ratio <= REPORTED_EXCESS + (ideal or 0.0):
        return []
    stage = worst["stage"]
    waits = (
        "The ranks of the pipeline wait for their" if stage is None else f"Stage {stage} of the pipeline waits for its"
    )
    ranks = rows.filter(pl.col("stage").eq_missing(worst["stage"]))["rank"].unique().sort()
    saving = None
    if ideal is not None:
        beyond = worst["bubble_ns"] - ideal * worst["window_ns"]
        saving = max(0, round(min(beyond, worst["window_ns"] - compute / (1 - ideal))))
    ideal_text = "" if ideal is None else f" ({100 * ideal:.1f} % in a balanced pipeline)"
    evidence = [
        Evidence("mean bubble per step", round(worst["bubble_ns"]), "ns"),
        Evidence("mean window of a step", round(worst["window_ns"]), "ns"),
    ]
    if ideal is not None and stages is not None:
        evidence += [
            Evidence("stages", stages, "count"),
            Evidence("microbatches", int(frame["microbatches"].drop_nulls().to_numpy().max(initial=0)), "count"),
            Evidence("bubble of a balanced pipeline", round(ideal, 4), "ratio"),
            Evidence("compute per step, mean over the stages", round(compute), "ns"),
        ]
    return [
        Finding(
            id="pipeline-bubble",
            severity="warning" if ideal is not None else "info",
            title=f"{waits} neighbors for {100 * ratio:.1f} % of the step{ideal_text}",
            ranks=tuple(ranks),
            evidence=tuple(evidence),
            saving_ns=saving,
            advice="Balance the stages' work, or use more microbatches; check for a late stage (`stragglers`).",
        )
    ]


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    worst = greatest(frame, "bubble_ratio")
    if worst is None or worst["stage"] is None:
        return None
    values = {"stage": (worst["stage"], ""), "bubble": (worst["bubble_ratio"], "ratio")}
    if worst["step"] is None:
        return Headline.of("Largest pipeline bubble: {bubble} of the time, in stage {stage}.", **values)
    text = "Largest pipeline bubble: {bubble} of step {step}, in stage {stage}."
    return Headline.of(text, step=(worst["step"], ""), **values)


analysis = Analysis(
    name="pipeline_bubble",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    across_ranks=across_ranks,
    headline=headline,
    reads={"device_events": ("start_ns", "end_ns", "stream")},
    requires=("collectives", "step_time"),
    has_findings=True,
)
