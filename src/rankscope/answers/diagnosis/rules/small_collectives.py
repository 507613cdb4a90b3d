"""Ranks synchronize repeatedly in small collectives.

Fires if a step has two or more collectives of 4 KiB or less, or barriers: a loss or a flag reduced in every
micro-step. Each delays all ranks until the last one arrives; with a single one at the end of a step, delays on
different ranks would cancel out. The saving is the time in them on the rank with the least, less the shortest of each
step, which stays: a rank that is always late costs as much with a single one, and is covered by `stragglers`. It is a
part of the mean step, and what a single step of several does is left out. Time that overlaps with compute is no saving,
and messages between two ranks (send, recv) do not count. If ranks are missing, no saving is stated: all of it may be
waiting for them.
"""

from __future__ import annotations

import polars as pl

from rankscope.answers.diagnosis.advice import job_of
from rankscope.answers.diagnosis.anchors import collective_anchor, collectives_of
from rankscope.answers.diagnosis.recurring_costs import recurs
from rankscope.answers.diagnosis.step_costs import (
    average_step,
    severity_of,
    step_counts,
    steps_of,
    unrecorded_ranks,
    within_available,
)
from rankscope.primitives.communicators import POINT_TO_POINT
from rankscope.results import Evidence, Finding, Inputs, Rule

SMALL = 4096
"""Bytes: a loss, a flag, a few metrics."""
_OFTEN = 2
"""In a step: a single one lets delays of different ranks cancel out."""


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run."""
    (step, unit), counts = average_step(inputs), step_counts(inputs)
    small = collectives_of(
        inputs,
        pl.col("step").is_not_null()
        & ((pl.col("bytes") <= SMALL) | (pl.col("collective") == "barrier"))
        # A pipeline's stages wait for each other by design, and only these two.
        & ~pl.col("collective").is_in(POINT_TO_POINT),
    )
    if small is None or step is None:
        return []
    steps = small.group_by("rank", "window", "step").agg(
        pl.len().alias("calls"), pl.col("duration_ns").sum().alias("total"), pl.col("duration_ns").min().alias("one")
    )
    often = steps.filter(pl.col("calls") >= _OFTEN)
    count = pl.col("rank").replace_strict(counts, default=1, return_dtype=pl.Int64)
    means = (
        often.group_by("rank")
        .agg(
            (pl.col("total") - pl.col("one")).sum().alias("spare"),
            pl.col("total", "calls").sum(),
            pl.len().alias("steps"),
        )
        .filter(recurs(pl.col("steps"), count))
        .with_columns(pl.col("spare", "total", "calls") / count)
    )
    if means.height < len(counts) or means.is_empty():
        return []
    least = means.sort("spare", "rank").row(0, named=True)
    spare = within_available({least["rank"]: round(least["spare"])}, ("exposed_communication_ns",), inputs)
    saving: int | None = spare[least["rank"]]
    severity = severity_of(spare[least["rank"]], step)
    if severity is None:
        return []
    if unrecorded_ranks(inputs):
        # All of it may be waiting for them.
        severity, saving = "info", None
    kinds = small.group_by("collective").len().sort("len", "collective", descending=[True, False])["collective"]
    return [
        Finding(
            rule.name,
            severity,
            f"Ranks synchronize in {least['calls']:.0f} small collectives {unit.per}",
            ranks=tuple(sorted(counts)),
            steps=steps_of(inputs),
            evidence=(
                Evidence(f"small collectives {unit.per}", round(least["calls"]), "count"),
                Evidence("most frequent", kinds[0]),
                Evidence(f"time in them {unit.per}, rank {least['rank']} (the lowest)", round(least["total"]), "ns"),
                Evidence(unit.length, step, "ns"),
            ),
            saving_ns=saving,
            anchor=collective_anchor(
                inputs,
                small.filter(pl.col("rank") == least["rank"]),
                "Ranks wait for each other in this small collective",
            ),
            advice=(
                "Exchange flags and sizes once per batch in one tensor, and take barriers out of the loop."
                if job_of(inputs).infers
                else "Reduce the loss, metrics and flags once per step or less often, put them into one tensor, and "
                "take barriers out of the loop."
            ),
        )
    ]


rule = Rule("small_collectives", __doc__, ("step_time", "collectives"), find, parts=("communication",))
