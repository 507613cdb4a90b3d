"""A group moves its data slower than other transfers of the run.

Fires if collectives of one kind and type, of 1 MB or more, reach less than half of the best bus bandwidth in the run
for that kind at that size or a smaller one: a larger one should be no slower. The saving is the transfer time that
the better rate would save, per step. Groups of the same kind that differ are covered by the finding slow-network of
`stragglers`; this rule excludes them if their sizes are equal.
"""

from __future__ import annotations

import polars as pl

from rankscope.diagnosis.step_costs import severity_of, step_ns, steps_of
from rankscope.results import Evidence, Finding, Inputs, Rule

_LARGE = 1_000_000
_FAR = 0.5
_MEASURED = 3


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run, about what costs most."""
    step, frame, number = step_ns(inputs), inputs.results.get("collective_summary"), len(steps_of(inputs))
    if frame is None or step is None or frame.is_empty():
        return []
    known = frame.filter(
        pl.col("bus_bandwidth").is_not_null()
        & (pl.col("bytes") >= _LARGE)
        & (pl.col("measured") >= _MEASURED)
        & ~pl.col("estimate").fill_null(True)
    ).sort("bytes")
    best = pl.col("bus_bandwidth").cum_max().over("collective", "dtype")
    slow = (
        known.with_columns(best.alias("best"))
        .filter(pl.col("bus_bandwidth") < _FAR * pl.col("best"))
        .with_columns(
            (
                pl.col("transfer_ns")
                * pl.col("measured")
                * (1 - pl.col("bus_bandwidth") / pl.col("best"))
                / max(number, 1)
            ).alias("saving")
        )
        .sort("saving", "group", descending=[True, False])
    )
    if slow.is_empty():
        return []
    worst = slow.row(0, named=True)
    saving = round(worst["saving"])
    severity = severity_of(saving, step)
    if severity is None:
        return []
    return [
        Finding(
            rule.name,
            severity,
            f"{worst['collective']} of {worst['bytes'] / 1e6:.3g} MB in group {worst['group']} moves "
            f"{worst['bus_bandwidth']:.3g} GB/s where {worst['best']:.3g} GB/s are possible",
            steps=steps_of(inputs),
            evidence=(
                Evidence("bus bandwidth", worst["bus_bandwidth"], "GB/s"),
                Evidence("the best at that size or a smaller one", worst["best"], "GB/s"),
                Evidence("collectives measured", worst["measured"], "count"),
                Evidence("median transfer", round(worst["transfer_ns"]), "ns"),
            ),
            saving_ns=saving,
            advice=(
                "See which links that group uses (NCCL_DEBUG=INFO: NVLink, PCIe, sockets), whether its ranks are "
                "placed across hosts or sockets that need not be, and whether other traffic shares the network."
            ),
        )
    ]


rule = Rule("slow_network", __doc__, ("step_time", "collective_summary"), find)
