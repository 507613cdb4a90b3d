"""Kernels so short that launching them takes longer than running them.

Speaks where compute kernels shorter than 10 µs make up a good part of a rank's kernels while its device stands idle in
between. A launch costs the host some microseconds; below that the device waits for the next one. The saving is the
idle time of the steps that is neither data loading nor communication, times the share of the short kernels among all.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.kernels import COMPUTE
from rankscope.results import Evidence, Finding, Inputs, Rule
from rankscope.rules.measures import severity_of, step_ns, steps_of

SHORT_NS = 10_000
_SHARE = 0.3


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run."""
    step, kernels, times = step_ns(inputs), inputs.results.get("kernels"), inputs.results.get("step_time")
    if kernels is None or times is None or kernels.is_empty():
        return []
    compute = kernels.filter(pl.col("category") == COMPUTE)
    by_rank = (
        compute.group_by("rank")
        .agg(
            pl.col("calls").sum(),
            pl.col("calls").filter(pl.col("median_ns") < SHORT_NS).sum().alias("short"),
            pl.col("total_ns").filter(pl.col("median_ns") < SHORT_NS).sum().alias("short_ns"),
            pl.col("total_ns").sum(),
        )
        .with_columns((pl.col("short") / pl.col("calls")).alias("share"))
    )
    idle = times.group_by("rank").agg(
        (pl.col("runtime_ns") + pl.col("host_op_ns") + pl.col("other_ns")).mean().alias("idle_ns")
    )
    found = (
        by_rank.join(idle, on="rank")
        .with_columns((pl.col("idle_ns") * pl.col("share")).alias("saving"))
        .filter(pl.col("share") >= _SHARE)
        .sort("saving", "rank", descending=[True, False])
    )
    if found.is_empty():
        return []
    worst = found.row(0, named=True)
    saving = round(worst["saving"])
    severity = severity_of(saving, step)
    if severity is None:
        return []
    return [
        Finding(
            rule.name,
            severity,
            f"{100 * worst['share']:.0f} % of the compute kernels last under 10 µs, with the device idle between them",
            ranks=tuple(sorted(found["rank"].to_list())),
            steps=steps_of(inputs),
            evidence=(
                Evidence("compute kernels", worst["calls"]),
                Evidence("shorter than 10 µs", worst["short"]),
                Evidence("time in these", worst["short_ns"], "ns"),
                Evidence("device idle while the host launches or computes, per step", round(worst["idle_ns"]), "ns"),
            ),
            saving_ns=saving,
            advice=(
                "Let torch.compile fuse them, use CUDA graphs (mode='reduce-overhead'), fused optimizers "
                "(AdamW(fused=True)) and foreach operations, or a larger batch."
            ),
        )
    ]


rule = Rule("small_kernels", __doc__, ("step_time", "kernels"), find)
