"""A group moves its data slower than other transfers of the run.

Fires if collectives of one kind and type, of 1 MB or more, reach less than half of the best bus bandwidth in the run
for that kind at a smaller size: a larger one should be no slower. It is compared with smaller ones of its own group and
of groups over as many hosts, as links between hosts are slower than those within one; where the hosts are not known,
with those of its own group only. The saving is the transfer time that the better rate would save, a part of the mean
step and at most what is exposed there. On the CPU, Gloo's transfers within a host are copies by the same cores that
compute, so only those across hosts are judged, and only where most of the communication is exposed. Groups that differ
at equal sizes are covered by the finding slow-network of `stragglers`.
"""

from __future__ import annotations

import polars as pl

from rankscope.answers.diagnosis.anchors import collective_anchor, collectives_of
from rankscope.answers.diagnosis.effects import SLOW_TRANSFERS
from rankscope.answers.diagnosis.step_costs import (
    average_step,
    number_of_steps,
    on_device,
    severity_of,
    shown_size,
    step_counts,
    steps_of,
    within_available,
)
from rankscope.results import Anchor, Evidence, Finding, Inputs, Rule

_LARGE = 1_000_000
"""Bytes: below, latency decides the bandwidth."""
_FAR = 0.5
"""Of the best bandwidth."""
_MEASURED = 3
"""Collectives of each size: a median of fewer says little."""
_LINKS = (
    "Check which links that group uses (NCCL_DEBUG=INFO: NVLink, PCIe, sockets), whether its ranks are "
    "placed across hosts or sockets that need not be, and whether other traffic shares the network."
)
_GLOO = (
    "Check which interface Gloo uses (GLOO_SOCKET_IFNAME), whether the group's ranks need to be on several hosts, and "
    "whether other traffic shares the network."
)
_ROW = ("collective", "dtype", "bytes", "group", "group_size", "hosts")


def find(inputs: Inputs) -> list[Finding]:
    """One finding for the run, about what costs most."""
    (step, unit), number = average_step(inputs), number_of_steps(inputs)
    frame = inputs.results.get("collective_summary")
    if frame is None or step is None or frame.is_empty():
        return []
    known = frame.filter(
        pl.col("bus_bandwidth").is_not_null()
        & (pl.col("bytes") >= _LARGE)
        & (pl.col("measured") >= _MEASURED)
        & ~pl.col("estimate").fill_null(True)
    )
    if not on_device(inputs):
        known = known.filter(pl.lit(_is_exposed(inputs)) & (pl.col("placement") == "across hosts"))
    slow = (
        known.join(_best_of_smaller(known), on=list(_ROW), how="inner", nulls_equal=True)
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
    ranks = _ranks(inputs, worst["group"]) or tuple(step_counts(inputs))
    # On the rank that has most exposed: a transfer that overlaps with compute costs nothing.
    most = within_available(dict.fromkeys(ranks, round(worst["saving"])), ("exposed_communication_ns",), inputs)
    saving = next(iter(most.values()))
    severity = severity_of(saving, step)
    if severity is None:
        return []
    return [
        Finding(
            rule.name,
            severity,
            f"{worst['collective']} of {shown_size(worst['bytes'])} in group {worst['group']} moves "
            f"{worst['bus_bandwidth']:.3g} GB/s where smaller ones reach {worst['best']:.3g} GB/s",
            ranks=ranks,
            steps=steps_of(inputs),
            evidence=(
                Evidence("bus bandwidth", worst["bus_bandwidth"], "GB/s"),
                Evidence("best bus bandwidth at a smaller size", worst["best"], "GB/s"),
                Evidence("collectives measured", worst["measured"], "count"),
                Evidence("median transfer", round(worst["transfer_ns"]), "ns"),
                Evidence(unit.length, step, "ns"),
            ),
            saving_ns=saving,
            anchor=_anchor(worst, inputs),
            advice=_LINKS if on_device(inputs) else _GLOO,
        )
    ]


def _is_exposed(inputs: Inputs) -> bool:
    """Whether most of the communication is exposed: one that overlaps is as slow as the cores that it gets."""
    overlap, exposed = (
        inputs.results["distributed"].select(pl.col("overlap_ns", "exposed_communication_ns").sum()).row(0)
    )
    return bool(exposed >= overlap)


def _anchor(worst: dict[str, object], inputs: Inputs) -> Anchor | None:
    """The slow collective, where it takes as long as in most steps."""
    same = pl.all_horizontal(pl.col(name) == worst[name] for name in ("group", "collective", "bytes"))
    rows = collectives_of(inputs, same)
    if rows is None:
        return None
    reason = "This transfer has less than half of the bandwidth that smaller ones reach"
    return collective_anchor(inputs, rows, reason, by="transfer_ns")


def _best_of_smaller(known: pl.DataFrame) -> pl.DataFrame:
    """The best bus bandwidth at smaller sizes of the group, or of groups on as many hosts: the row's columns, and
    ``best``. A join of all pairs would take memory in proportion to the square of the groups."""
    rows = known.select(_ROW).unique(maintain_order=True)
    for key in ("group", "hosts"):
        alike = ["collective", "dtype", key]
        sizes = known.drop_nulls(key).group_by(*alike, "bytes").agg(pl.col("bus_bandwidth").max()).sort("bytes")
        smaller = pl.col("bus_bandwidth").cum_max().shift(1).over(alike)
        best = sizes.select(*alike, "bytes", smaller.alias(f"best_of_{key}"))
        rows = rows.join(best, on=[*alike, "bytes"], how="left", nulls_equal=True)
    return (
        rows.with_columns(pl.max_horizontal("best_of_group", "best_of_hosts").alias("best"))
        .select(*_ROW, "best")
        .drop_nulls("best")
    )


def _ranks(inputs: Inputs, group: str) -> tuple[int, ...]:
    """The recorded ranks of a group."""
    if group is None or "collectives" not in inputs.results:
        return ()
    rows = inputs.columns("collectives", "rank", "group", where=pl.col("group") == group)
    return tuple(rows["rank"].unique().sort().to_list())


rule = Rule(
    "slow_network",
    __doc__,
    ("step_time", "collective_summary", "collectives", "distributed", "kernels"),
    find,
    parts=("communication",),
    symptom_of=(SLOW_TRANSFERS,),
)
