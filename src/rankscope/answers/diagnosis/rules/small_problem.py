"""Too little compute per rank for its communication.

Fires if a rank's collectives, without the waiting for later ranks, take longer than all of its compute: overlap
cannot hide them then. The saving is what would stay exposed with perfect overlap: transfer less compute, median over
steps, mean over ranks. Hiding the rest is covered by `exposed_communication`. It does not fire if the waiting is not
known (missing ranks).
"""

from __future__ import annotations

import polars as pl

from rankscope.answers.diagnosis.advice import any_of, job_of
from rankscope.answers.diagnosis.anchors import collective_anchor, collectives_of
from rankscope.answers.diagnosis.effects import SLOW_LINKS, SLOW_TRANSFERS, WAITING
from rankscope.answers.diagnosis.step_costs import (
    PLACE,
    mean_of,
    on_device,
    severity_of,
    step_ns,
    step_words,
    steps_of,
    unrecorded_ranks,
    usual,
)
from rankscope.primitives.job_kind import DDP, FSDP, JobKind
from rankscope.results import Anchor, Evidence, Finding, Inputs, Rule

_UNKNOWN = 0.1
"""Of all communication: how much of this is waiting is not known."""


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run."""
    step, times, frame = step_ns(inputs), inputs.results.get("step_time"), inputs.results.get("distributed")
    unit = step_words(inputs)
    if times is None or step is None or frame is None or frame.is_empty() or unrecorded_ranks(inputs):
        return []
    of_all = frame.select(pl.col("exposed_communication_ns") + pl.col("overlap_ns")).to_series().to_numpy().sum()
    if frame["unmatched_ns"].to_numpy().sum() > _UNKNOWN * of_all:
        return []
    # Concurrent collectives add up to more than their union: never more than what is exposed.
    excess = pl.min_horizontal(pl.col("transfer_ns") - pl.col("compute_ns"), "exposed_transfer_ns").clip(0)
    rows = frame.join(times.select(*PLACE, "compute_ns"), on=PLACE, nulls_equal=True)
    costs = usual(
        rows.with_columns(excess.alias("saving")), "transfer_ns", "exposed_transfer_ns", "compute_ns", "saving"
    )
    saving = round(mean_of(costs["saving"]))
    severity = severity_of(saving, step)
    if severity is None:
        return []
    exposed = round(mean_of(costs["exposed_transfer_ns"]))
    return [
        Finding(
            rule.name,
            severity if on_device(inputs) else "info",
            "Each rank communicates longer than it computes: the batch or the model is too small for so many ranks",
            ranks=tuple(costs.filter(pl.col("saving") > 0)["rank"].sort().to_list()),
            steps=steps_of(inputs),
            evidence=(
                Evidence(f"transfer, per rank and {unit.noun}", round(mean_of(costs["transfer_ns"])), "ns"),
                Evidence(f"exposed transfer, per rank and {unit.noun}", exposed, "ns"),
                Evidence(f"compute, per rank and {unit.noun}", round(mean_of(costs["compute_ns"])), "ns"),
                Evidence(unit.length, step, "ns"),
            ),
            saving_ns=saving,
            anchor=_anchor(costs, inputs),
            advice=_advice(job_of(inputs)),
        )
    ]


def _anchor(costs: pl.DataFrame, inputs: Inputs) -> Anchor | None:
    """The longest transfer of the rank that would save most."""
    rank = costs.sort("saving", "rank", descending=[True, False])["rank"][0]
    reason = "The longest transfer of a step, which takes longer in all of them than its compute"
    rows = collectives_of(inputs, pl.col("rank") == rank)
    return None if rows is None else collective_anchor(inputs, rows, reason, by="transfer_ns")


def _advice(job: JobKind) -> str:
    """How a rank gets more work, or less communication, in this kind of job."""
    if job.infers:
        return any_of(["increase the work per rank: more requests per batch", "serve on fewer ranks, as more replicas"])
    ways = [] if job.exchanges_activations else ["increase the work per rank: a larger batch"]
    if job.trains_with(DDP):
        ways.append("accumulate gradients under no_sync")
    if job.trains_with(FSDP):
        ways.append("shard within a host and replicate between hosts (HSDP)")
    return any_of([*ways, "use fewer ranks"])


rule = Rule(
    "small_problem",
    __doc__,
    ("step_time", "distributed", "collectives", "kernels"),
    find,
    parts=("communication",),
    symptom_of=(WAITING, SLOW_TRANSFERS, SLOW_LINKS),
)
