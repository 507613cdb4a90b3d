"""Too little compute per rank for its communication.

Fires if a rank's collectives, without the waiting for later ranks, take longer than all of its compute: overlap
cannot hide them then. The saving is what would stay exposed with perfect overlap: transfer less compute, mean over
ranks. Hiding the rest is covered by `exposed_communication`. It does not fire if the waiting is not known (missing
ranks).
"""

from __future__ import annotations

import polars as pl

from rankscope.diagnosis.step_costs import mean_of, on_device, severity_of, step_ns, step_words, steps_of
from rankscope.results import Evidence, Finding, Inputs, Rule

_KNOWN = 0.9
"""Of the collectives: of the others nobody knows what is waiting."""


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run."""
    step, times, rows = step_ns(inputs), inputs.results.get("step_time"), inputs.results.get("collectives")
    unit = step_words(inputs)
    if times is None or step is None or rows is None or rows.is_empty():
        return []
    inside = rows.filter(pl.col("step").is_not_null())
    known = inside.filter(pl.col("wait_ns").is_not_null())
    if known.height < _KNOWN * inside.height:
        return []
    waits = known.group_by("rank").agg(pl.col("wait_ns").sum())
    means = (
        times.group_by("rank")
        .agg(
            (pl.col("exposed_communication_ns")).mean().alias("exposed"),
            pl.col("compute_ns").mean().alias("compute"),
            pl.len().alias("steps"),
        )
        .join(waits, on="rank", how="inner")
        .with_columns((pl.col("exposed") - pl.col("wait_ns").fill_null(0) / pl.col("steps")).clip(0).alias("transfer"))
        .with_columns((pl.col("transfer") - pl.col("compute")).clip(0).alias("saving"))
    )
    saving = round(mean_of(means["saving"]))
    severity = severity_of(saving, step)
    if severity is None:
        return []
    return [
        Finding(
            rule.name,
            severity if on_device(inputs) else "info",
            "Each rank communicates longer than it computes: the batch or the model is too small for so many ranks",
            ranks=tuple(means.filter(pl.col("saving") > 0)["rank"].sort().to_list()),
            steps=steps_of(inputs),
            evidence=(
                Evidence(f"exposed transfer, per rank and {unit.noun}", round(mean_of(means["transfer"])), "ns"),
                Evidence(f"compute, per rank and {unit.noun}", round(mean_of(means["compute"])), "ns"),
                Evidence(unit.length, step, "ns"),
            ),
            saving_ns=saving,
            advice=(
                "Increase the work per rank: a larger batch, or gradient accumulation under no_sync; or fewer ranks, "
                "or shard within a host and replicate between hosts (HSDP)."
            ),
        )
    ]


rule = Rule("small_problem", __doc__, ("step_time", "collectives", "kernels"), find)
