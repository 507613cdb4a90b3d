"""DDP's buckets are too large to overlap, or too small for their number of calls.

Too large: the last bucket of the backward has more than twice DDP's 25 MiB and ends after the backward's compute. The
saving is the part of that tail that a last bucket of 25 MiB would not have, but no more than the backward's compute
that the rest could overlap with.

Too small: more buckets per step than 25 MiB would need, mostly under 1 MB, with exposed time. The saving is that time
less the share that the needed number of buckets would keep.

Waiting for later ranks is excluded from both (`collectives`), as bucket sizes do not change it. Where it is not known,
the bucket of the least exposed rank counts; if ranks are missing, none does.
Both are medians over the steps with buckets, on the rank with the most. If fewer than half of the steps have buckets
(gradients that are accumulated over several), the saving is a part of the mean step; a single step of several with
buckets is left out. On the CPU, compute and communication share the cores, so the bound is seldom reached. Sizes need
`record_shapes` if the library writes none (Gloo).
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from rankscope.answers.diagnosis.anchors import collective_anchor, collectives_of
from rankscope.answers.diagnosis.effects import SLOW_TRANSFERS
from rankscope.answers.diagnosis.recurring_costs import in_some_steps, recurs
from rankscope.answers.diagnosis.step_costs import (
    MEAN_STEP,
    mean_step_ns,
    relevant_ranks,
    severity_of,
    step_counts,
    step_ns,
    step_words,
    steps_of,
    unrecorded_ranks,
)
from rankscope.results import Anchor, Evidence, Finding, Inputs, Rule

CAP = 25 << 20
"""DDP's default bucket, bytes."""
_SMALL = 1_000_000
"""Bytes: the latency of an all-reduce of less is most of its time."""
_ENOUGH = 4
"""Buckets: up to this number is never too many, however small they are."""


def find(inputs: Inputs) -> list[Finding]:
    """At most one finding."""
    step, frame = step_ns(inputs), inputs.results.get("ddp_buckets")
    unit = step_words(inputs)
    if frame is None or step is None:
        return []
    known = frame.filter(pl.col("bytes").is_not_null() & pl.col("duration_ns").is_not_null())
    if known.is_empty():
        return []
    known = _without_waits(known, collectives_of(inputs), all_ranks=not unrecorded_ranks(inputs))
    if known.is_empty():
        return []
    steps = _by_step(known)
    usual, mean = _usual_by_rank(steps, step_counts(inputs)), mean_step_ns(inputs)
    if usual.is_empty():
        return []
    seldom = mean is not None and usual.select(in_some_steps(pl.col("steps"), pl.col("of")).all()).item()
    step = mean if seldom and mean is not None else step
    if seldom:
        usual = usual.with_columns(pl.col("large", "small") * pl.col("part"))
    large, small = (
        usual.sort(kind, "rank", descending=[True, False]).row(0, named=True) for kind in ("large", "small")
    )
    kind, worst = ("large", large) if large["large"] >= small["small"] else ("small", small)
    saving = round(worst[kind])
    severity = severity_of(saving, step)
    if severity is None:
        return []
    title = (
        f"DDP's last bucket of {worst['last'] / 1e6:.0f} MB starts too late to overlap with the backward"
        if kind == "large"
        else f"DDP sends {worst['buckets']:.0f} buckets {unit.per} where a few would do"
    )
    return [
        Finding(
            rule.name,
            severity,
            title,
            ranks=relevant_ranks(dict(usual.select("rank", kind).iter_rows()), step),
            steps=steps_of(inputs),
            evidence=(
                Evidence(f"buckets {unit.per}", round(worst["buckets"]), "count"),
                Evidence(f"gradients {unit.per}", round(worst["bytes"]), "bytes"),
                Evidence("last bucket", round(worst["last"]), "bytes"),
                Evidence("time after the backward's compute, without waiting", round(worst["tail"] or 0), "ns"),
                Evidence("backward", round(worst["backward"] or 0), "ns"),
                Evidence(f"exposed, all buckets, without waiting, {unit.per}", round(worst["exposed"]), "ns"),
                *_of_few_steps(worst["part"], step if seldom else None),
            ),
            saving_ns=saving,
            anchor=_anchor(kind, worst["rank"], known, steps, inputs),
            advice=(
                "Lower bucket_cap_mb (25 is the default): the first buckets are then reduced during the backward."
                if kind == "large"
                else "Raise bucket_cap_mb: each all-reduce has a fixed latency, whatever its size."
            ),
        )
    ]


def _of_few_steps(part: float, mean: int | None) -> list[Evidence]:
    """What the saving is a part of, if most steps have no buckets; the figures before it are of steps that do."""
    if mean is None:
        return []
    return [Evidence("share of the steps that have buckets", part, "ratio"), Evidence(MEAN_STEP.length, mean, "ns")]


def _anchor(kind: str, rank: int, known: pl.DataFrame, steps: pl.DataFrame, inputs: Inputs) -> Anchor | None:
    """The last bucket, or the small one with most exposed time, in the rank's median step."""
    collectives = collectives_of(inputs)
    own = steps.filter(pl.col("rank") == rank).sort(kind, "window", "step")
    if collectives is None or own.is_empty():
        return None
    median = own.row((own.height - 1) // 2, named=True)
    buckets = known.filter(*(pl.col(name).eq_missing(median[name]) for name in ("rank", "window", "step")))
    chosen = buckets.sort("bucket" if kind == "large" else "exposed_ns").tail(1)
    reason = (
        "DDP's last bucket: it ends after the backward's compute, so that nothing overlaps with its end"
        if kind == "large"
        else "One of DDP's small buckets, which nothing overlaps with"
    )
    rows = collectives.join(chosen, on=["rank", "window", "start_ns"], how="semi")
    return collective_anchor(inputs, rows, reason)


def _by_step(buckets: pl.DataFrame) -> pl.DataFrame:
    """By rank and step: its buckets, and the saving if the last is too ``large`` or most too ``small``."""
    return (
        buckets.sort("bucket")
        .group_by("rank", "window", "step")
        .agg(
            pl.len().alias("buckets"),
            pl.col("bytes").sum(),
            pl.col("bytes").median().alias("median"),
            pl.col("bytes").last().alias("last"),
            pl.min_horizontal(pl.col("tail_ns").last(), pl.col("exposed_ns").last()).alias("tail"),
            pl.col("exposed_ns").sum().alias("exposed"),
            # Without it there is nothing that an earlier bucket could overlap with.
            pl.col("backward_ns").last().fill_null(0).alias("backward"),
        )
        .with_columns(
            pl.min_horizontal(
                pl.when(pl.col("last") > 2 * CAP).then(pl.col("tail") * (1 - CAP / pl.col("last"))).otherwise(0),
                "backward",
            )
            .fill_null(0)
            .alias("large"),
            (pl.col("bytes") / CAP).ceil().clip(_ENOUGH).alias("needed"),
        )
        .with_columns(
            pl.when((pl.col("buckets") > pl.col("needed")) & (pl.col("median") < _SMALL))
            .then(pl.col("exposed") * (1 - pl.col("needed") / pl.col("buckets")))
            .otherwise(0.0)
            .alias("small")
        )
    )


def _usual_by_rank(steps: pl.DataFrame, counts: Mapping[int, int]) -> pl.DataFrame:
    """Medians over a rank's steps with buckets, and which part of its steps these are, if they recur."""
    count = pl.col("rank").replace_strict(counts, default=1, return_dtype=pl.Int64)
    # As a step's length is: one in which others had the cores or the network must not weigh in alone.
    return (
        steps.group_by("rank")
        .agg(
            pl.col("large", "small", "buckets", "bytes", "tail", "exposed", "last", "backward").median(),
            pl.len().alias("steps"),
            count.first().alias("of"),
        )
        .filter(recurs(pl.col("steps"), pl.col("of")))
        .with_columns((pl.col("steps") / pl.col("of")).alias("part"))
    )


def _without_waits(buckets: pl.DataFrame, collectives: pl.DataFrame | None, *, all_ranks: bool) -> pl.DataFrame:
    """Buckets with tail_ns and exposed_ns less what of them is waiting for a later rank, which comes first.

    Where the waiting is not known, the rank that is exposed least waits least. If ranks are missing, it may be all.
    """
    if collectives is None or collectives.is_empty():
        return buckets if all_ranks else buckets.clear()
    where = ["rank", "window", "start_ns", "duration_ns"]
    waits = collectives.select(*where, "wait_ns").drop_nulls("wait_ns").group_by(where).agg(pl.col("wait_ns").max())
    joined = buckets.join(waits, on=where, how="left", maintain_order="left")
    known, transfer = pl.col("wait_ns").is_not_null(), pl.col("duration_ns") - pl.col("wait_ns")
    return joined.filter(known | all_ranks).with_columns(
        pl.when(known)
        .then(pl.min_horizontal(name, transfer))
        .otherwise(pl.col(name).min().over("window", "step", "bucket"))
        .alias(name)
        for name in ("tail_ns", "exposed_ns")
    )


rule = Rule(
    "bucket_size",
    __doc__,
    ("step_time", "ddp_buckets", "collectives"),
    find,
    parts=("communication",),
    symptom_of=(SLOW_TRANSFERS,),
)
