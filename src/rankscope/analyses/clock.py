"""Clock offset of each rank relative to the others.

One row per rank. `offset_ns` is added to the rank's wall clock (its trace's clock plus `baseTimeNanoseconds`) to get
the clock of the first rank of its component:

    common = wall + offset_ns + drift_ppm · 10⁻⁶ · (wall − at_ns)

**Within a host** there is one clock: all its ranks have the same offset. Ranks are on one host if their traces have the
same boot id, or else the same host name. A busy rank notices the end of a Gloo collective late, by up to 36 ms on a
loaded host, so a difference of ends is no clock there. Only a rank that cannot have its host's clock, because most of
its collectives end before those of the host's other ranks start or the reverse, has one of its own.

**Between hosts**, or ranks whose host is unknown, collectives bound the offset: no rank ends a synchronizing collective
before the last has started it. A host's start is the last of its ranks' and its end the first. The bounds that 90 % of
the collectives keep, give or take the ends' own noise (at most 0.1 ms), leave an interval. It is cut to the median
difference d of the ends ± p · (1 + 4 / n), where p is the 90th percentile of |end difference − d| and n the number of
collectives. On a device, where ends agree to microseconds, the ends decide; of busy ranks on the CPU, the bounds.
Within the interval, the offset makes both hosts' earliest ends equally early after the last arrival: late ends do not
move it. It is 0 if the interval contains 0: then the wall clocks agree. Many hosts are compared along a spanning tree
of those that share most collectives.

`residual_ns` bounds the error against the first rank; smaller time differences between ranks are not meaningful. It is
the distance from the offset to the far end of the interval, summed along the tree; for ranks that share their host with
others at least 0.1 ms, to which the times of traces agree with the clock of their host (70 µs in all known ones). Where
ends agree better, it is the 90th percentile of their deviations from the other ranks', the first rank's or its own.
Fewer than 4 collectives fit one another by construction: their ends count as if they differed by as much as is known
(p is 0.1 ms on devices, 40 ms for Gloo).

Broadcast, reduce, gather, scatter, send and recv are left out: their ranks need not end together. SendRecv and
all_to_all count without deviations beyond 5 median absolute deviations. A drift is given only where |drift| · span is
more than 4 times the deviations of the ends; over a few seconds a fit yields spurious drifts of dozens of ppm. For
ranks that share no collective with others, `method` is `wall clock`; they have the offset of their host, if others do.

Offsets between hosts are reported if they exceed 1 ms and both residuals. Those between ranks of one host are not a
difference of clocks, and have a finding of their own.

How to read it: for a rank with an unusually large residual, lateness and waits are less reliable; a rank with method
`wall clock` cannot be compared with any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from rankscope.primitives.clocks import align_clocks, base_times
from rankscope.primitives.communicators import ONE_SIDED, POINT_TO_POINT, UNEVEN
from rankscope.results import Analysis, Column, Evidence, Finding, Headline, Inputs

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("offset_ns", pl.Int64, "ns", "offset to add to its wall clock; 0 on the first rank of a component"),
    Column("drift_ppm", pl.Float64, "ppm", "clock drift to correct; null if not distinguishable from noise"),
    Column("at_ns", pl.Int64, "ns", "wall clock time at which the offset is exact"),
    Column(
        "residual_ns",
        pl.Int64,
        "ns",
        "bound on the error of its times; null without collectives",
    ),
    Column("anchors", pl.Int64, "count", "collectives that it shares with others"),
    Column("component", pl.Int64, "", "ranks with the same number are linked, by a host or by collectives"),
    Column(
        "method",
        pl.String,
        "",
        "`reference` (the first rank of a component), `host` (the clock of its host, which is the reference's), "
        "`collectives`, or `wall clock`",
    ),
)

# Offsets worth reporting: clocks of one host agree to some dozens of microseconds.
REPORTED_OFFSET_NS = 1_000_000
# The largest difference of the ends of one collective on real runs: kernels, and Gloo on busy hosts.
KERNELS_APART_NS, GLOO_APART_NS = 100_000, 40_000_000


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """Find the offsets from the matched collectives."""
    machines = {info.rank: info.machine for info in inputs.traces if info.rank is not None}
    rows = (
        inputs.columns("collectives", "rank", "window", "match", "source", "collective", "start_ns", "end_ns")
        .filter(pl.col("match").is_not_null() & (pl.col("source") != "launch"))
        .filter(~pl.col("collective").is_in([*ONE_SIDED, *POINT_TO_POINT]))
        .join(base_times(inputs.traces), on=["rank", "window"], how="left")
    )
    clocks = align_clocks(
        machines,
        rows["rank"].to_numpy(),
        rows["match"].to_numpy(),
        (rows["start_ns"] + rows["base_ns"].fill_null(0)).to_numpy(),
        (rows["end_ns"] + rows["base_ns"].fill_null(0)).to_numpy(),
        rows["collective"].is_in(UNEVEN).to_numpy(),
        worst=GLOO_APART_NS if (rows["source"] == "gloo").any() else KERNELS_APART_NS,
    )
    _, first = np.unique(clocks.component, return_index=True)
    reference = np.isin(np.arange(clocks.ranks.size), first)
    shares = clocks.host == clocks.host[first[clocks.component]]
    linked = clocks.anchors > 0
    ppm = pl.Series(clocks.drift * 1e6)
    frame = pl.DataFrame(
        {
            "rank": clocks.ranks,
            "offset_ns": clocks.offset,
            "drift_ppm": pl.select(pl.when(ppm != 0).then(ppm)).to_series(),
            "at_ns": clocks.at,
            "residual_ns": pl.select(pl.when(pl.Series(linked)).then(pl.Series(clocks.residual))).to_series(),
            "anchors": clocks.anchors,
            "component": clocks.component,
            "method": np.select([~linked, reference, shares], ["wall clock", "reference", "host"], "collectives"),
        }
    )
    traced = {info.rank for info in inputs.traces if not info.is_snapshot and not info.is_empty}
    return frame.select(column.name for column in COLUMNS), _findings(
        frame.filter(pl.col("rank").is_in(sorted(rank for rank in traced if rank is not None))), machines
    )


def _findings(frame: pl.DataFrame, hosts: Mapping[int, str | None]) -> list[Finding]:
    findings = []
    alone = frame.filter(pl.col("method") == "wall clock")
    if alone.height and frame.height > 1:
        findings.append(
            Finding(
                id="clock-not-aligned",
                severity="warning",
                title="Some ranks share no matched collective with other ranks: their times cannot be compared",
                ranks=tuple(alone["rank"]),
                evidence=(Evidence("ranks on their wall clock", alone.height, "count"),),
                advice="Record the same steps on all ranks, and at least one collective on each.",
            )
        )
    parts = frame.filter(pl.col("anchors") > 0)["component"].n_unique()
    if parts > 1:
        findings.append(
            Finding(
                id="clock-components",
                severity="info",
                title="No collective links all ranks: times are comparable only within each set of linked ranks",
                evidence=(Evidence("sets of linked ranks", parts, "count"),),
            )
        )
    return [*findings, *_offset_findings(frame, hosts)]


def _offset_findings(frame: pl.DataFrame, hosts: Mapping[int, str | None]) -> list[Finding]:
    """Findings on offsets beyond the residuals: between hosts, whose wall clocks differ, and within a host."""
    linked = frame.filter(pl.col("anchors") > 0).with_columns(
        pl.col("rank").replace_strict(hosts, default=None, return_dtype=pl.String).alias("host")
    )
    # If the host is unknown, each rank is compared separately. A host has the median offset of its ranks.
    machine = pl.coalesce("host", pl.format("rank {}", pl.col("rank")))
    linked = linked.with_columns(
        pl.col("offset_ns").quantile(0.5, "lower").over("component", machine).cast(pl.Int64).alias("host_ns")
    )
    first = pl.col("offset_ns", "host_ns", "residual_ns", "host").sort_by("rank").first().over("component")
    linked = linked.with_columns(first.name.prefix("first_"))
    between_hosts, within_host = pl.col("host_ns") - pl.col("first_host_ns"), pl.col("offset_ns") - pl.col("host_ns")
    noise = pl.max_horizontal(REPORTED_OFFSET_NS, pl.col("residual_ns") + pl.col("first_residual_ns"))
    findings = []
    far = linked.filter(between_hosts.abs() > noise).sort(between_hosts.abs(), "rank", descending=[True, False])
    if far.height:
        greatest = far.row(0, named=True)
        known = far["host"].null_count() == 0 and far["first_host"].null_count() == 0
        clocks = "The hosts' wall clocks differ" if known else "The times in the ranks' traces differ"
        findings.append(
            Finding(
                id="clocks-differ",
                severity="info",
                title=f"{clocks}; comparisons between ranks correct for it",
                ranks=tuple(far["rank"].sort()),
                evidence=(
                    Evidence(f"largest offset (rank {greatest['rank']})", greatest["offset_ns"], "ns"),
                    Evidence("residual after correction", greatest["residual_ns"], "ns"),
                ),
                advice="In other tools, add offset_ns before comparing times of these ranks.",
            )
        )
    on_host = linked.filter(within_host.abs() > noise).sort(within_host.abs(), "rank", descending=[True, False])
    if on_host.height:
        greatest = on_host.row(0, named=True)
        findings.append(
            Finding(
                id="times-differ-on-host",
                severity="info",
                title="As matched, collectives of ranks on one host end at different times, but it has one clock",
                ranks=tuple(on_host["rank"].sort()),
                evidence=(
                    Evidence(
                        f"largest difference from the host's median (rank {greatest['rank']})",
                        greatest["offset_ns"] - greatest["host_ns"],
                        "ns",
                    ),
                    Evidence("residual after correction", greatest["residual_ns"], "ns"),
                ),
                advice="The base time of a trace may be missing or wrong, or its collectives were matched with others "
                "than their own: call the profiler's step() in every iteration, so that steps anchor the match.",
            )
        )
    return findings


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    known, offsets = frame["residual_ns"].drop_nulls().to_list(), frame["offset_ns"].drop_nulls().to_list()
    if not known or not offsets:
        return None
    values: dict[str, tuple[int | float | str, str]] = {}
    text, end = "The ranks’ clocks agree exactly", "; no rank has an offset."
    if any(known):
        text, values["residual"] = "The ranks’ clocks are aligned to within {residual}", (max(known), "ns")
    if any(offsets):
        end, values["offset"] = "; the largest offset is {offset}.", (max(map(abs, offsets)), "ns")
    return Headline.of(text + end, **values)


analysis = Analysis(
    name="clock",
    doc=__doc__,
    columns=COLUMNS,
    across_ranks=across_ranks,
    headline=headline,
    requires=("collectives",),
    has_findings=True,
    shown_empty=True,
)
