"""Exposed communication that compute could hide.

Fires on a step's exposed communication less the waiting for later ranks in it: waiting is covered by `stragglers`,
and no overlap hides it. The saving is what could be hidden at most: the exposed transfer, but no more than the
compute that could run at the same time. The evidence names the collective with the most transfer time. On the CPU,
compute and communication share the cores: the finding is then never more than an info.
"""

from __future__ import annotations

import polars as pl

from rankscope.diagnosis.step_costs import mean_of, on_device, severity_of, step_ns, step_words, steps_of
from rankscope.results import Evidence, Finding, Inputs, Rule

_WORST_SHARE = 0.05


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run."""
    step, frame = step_ns(inputs), inputs.results.get("step_time")
    unit = step_words(inputs)
    if step is None or frame is None:
        return []
    rows = _transfers(inputs)
    means = frame.group_by("rank").agg(pl.col("exposed_communication_ns", "compute_ns").mean()).sort("rank")
    waits = rows.group_by("rank").agg(pl.col("wait_ns").sum()) if rows is not None else None
    steps = frame.group_by("rank").agg(pl.len().alias("steps"))
    means = means.join(steps, on="rank")
    if waits is not None:
        means = means.join(waits, on="rank", how="left").with_columns(
            (pl.col("wait_ns").fill_null(0) / pl.col("steps")).alias("wait_ns")
        )
    else:
        means = means.with_columns(wait_ns=pl.lit(0.0))
    # Exposed time is waiting first: a rank that came early has nothing left to compute.
    means = means.with_columns(
        (pl.col("exposed_communication_ns") - pl.col("wait_ns")).clip(0).alias("transfer_ns")
    ).with_columns(pl.min_horizontal("transfer_ns", "compute_ns").alias("saving"))
    saving = round(mean_of(means["saving"]))
    severity = severity_of(saving, step)
    if severity is None:
        return []
    # On the CPU compute and communication share the cores: hiding one behind the other gains little.
    severity = severity if on_device(inputs) else "info"
    exposed, hidden = (round(mean_of(means[name])) for name in ("exposed_communication_ns", "wait_ns"))
    evidence = [
        Evidence(f"exposed communication, per rank and {unit.noun}", exposed, "ns"),
        Evidence("of it waiting for later ranks, at most", min(exposed, hidden), "ns")
        if rows is not None and rows["wait_ns"].is_not_null().any()
        else Evidence("of it waiting for later ranks", "not known"),
        Evidence(unit.length, step, "ns"),
    ]
    named = _heaviest(rows)
    if named is not None:
        evidence.append(Evidence("most of it in", named))
    return [
        Finding(
            rule.name,
            severity,
            f"Communication that compute could hide takes {unit.share(saving, step)}",
            ranks=tuple(means.filter(pl.col("saving") >= _WORST_SHARE * step)["rank"].to_list()),
            steps=steps_of(inputs),
            evidence=tuple(evidence),
            saving_ns=saving,
            advice=(
                "Start it earlier, so that it overlaps with compute: "
                "for DDP smaller buckets (bucket_cap_mb) or static_graph, for FSDP "
                "prefetching of the next module's parameters; send less: a narrower dtype (a bf16 compression hook), "
                "gradient accumulation under no_sync; or larger batches per rank."
            ),
        )
    ]


def _transfers(inputs: Inputs) -> pl.DataFrame | None:
    rows = inputs.results.get("collectives")
    return None if rows is None or rows.is_empty() else rows.filter(pl.col("step").is_not_null())


def _heaviest(rows: pl.DataFrame | None) -> str | None:
    if rows is None or rows.is_empty():
        return None
    time = pl.coalesce("transfer_ns", "duration_ns")
    by = rows.group_by("collective", "bytes", "group_size").agg(time.sum().alias("t")).sort("t", descending=True)
    kind, size, ranks = by.row(0)[:3]
    return f"{kind}" + (f" of {size / 1e6:.3g} MB" if size else "") + (f" over {ranks} ranks" if ranks else "")


rule = Rule("exposed_communication", __doc__, ("step_time", "collectives", "kernels"), find)
