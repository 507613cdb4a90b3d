"""Every collective of every rank, in order.

One row per collective and rank. On a device a collective is a communication kernel. Its kind, group, size and type
come from the kernel's own metadata; else from the call that launched it: `record_param_comms`, else the shapes on
`nccl:*` and `c10d::*` ranges; else from its name (`source` says which). A kernel that knows no group takes the only
group seen on its stream, else the stream stands for a communicator that is not known (`stream 7`). Calls that were
coalesced into one kernel, and kernels of one call, are one row with their summed sizes (`calls`, `kernels`). On the
host the collectives are Gloo's ranges, whose sizes are those of their inputs. Where a file holds calls but no kernel
or Gloo range at all, the calls stand here (`source` `launch`), without duration.

`bytes` is the full size S of the operation: elements out for all_gather, in for the others, times the width of the
type; S is the total array for reduce_scatter and all_gather (as nccl-tests define it). `sequence` counts the
collectives of a group and stream in device order; a recorded `Seq` wins. Times are on each trace's own clock.

Rows with one number in `match` are the same collective on different ranks: found by equal recorded `Seq`, else by
where the ends lie, with step numbers as anchor where they are known (`match_method`).

    transfer = least duration over the group's ranks        wait = duration − transfer
    algorithm bandwidth = S / transfer                      bus bandwidth = algorithm bandwidth × f

with f = 2(n−1)/n for all_reduce, (n−1)/n for all_gather, reduce_scatter and all_to_all, 1 for broadcast, reduce, send
and recv (nccl-tests). They are null where a rank of the group is missing, for without it waiting would pass for
transfer, and for ranges on the host that overlap. `estimate` marks operations whose ranks need not start and end
together: there they are only a hint.

How to read it: a long `wait_ns` is other ranks' lateness, not the network (`stragglers`, `arrivals`); a large transfer
at a low bus bandwidth is. Small sizes are bound by latency: their bandwidth says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from rankscope.primitives.bandwidth import with_waits_and_bandwidth
from rankscope.primitives.communicators import COLUMNS as MATCHED_BY
from rankscope.primitives.host_collectives import RECORDED
from rankscope.primitives.matching import METHODS, Matching, match_collectives
from rankscope.primitives.rank_collectives import rank_collectives
from rankscope.results import Analysis, Column, Evidence, Finding, Inputs, Tables, by_window, concat_ranks, schema_of

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("window", pl.Int64, "", "which of the rank's files, from 0"),
    Column(
        "step", pl.Int64, "", "the step whose range its launch starts in; null between steps and for launchless ones"
    ),
    Column(
        "group",
        pl.String,
        "",
        "the process group: name and description; `stream N` where none is known, else `unknown`",
    ),
    Column("group_size", pl.Int64, "ranks", "ranks in the group"),
    Column("group_ranks", pl.Categorical(), "", "global ranks of the group, as written"),
    Column("sequence", pl.Int64, "", "its number within group and stream, in device order; a recorded `Seq` wins"),
    Column("collective", pl.String, "", "which collective"),
    Column("dtype", pl.String, "", "type of the elements, as written"),
    Column("in_elements", pl.Int64, "elements", "elements in"),
    Column("out_elements", pl.Int64, "elements", "elements out"),
    Column("bytes", pl.Int64, "bytes", "full size of the operation"),
    Column("stream", pl.Int64, "", "device stream; thread for Gloo"),
    Column("launch_ns", pl.Int64, "ns", "when its launch starts; null without one in the file", instant=True),
    Column("start_ns", pl.Int64, "ns", "when it starts on this rank, on its own clock", instant=True),
    Column("end_ns", pl.Int64, "ns", "when it ends on this rank, on its own clock", instant=True),
    Column("duration_ns", pl.Int64, "ns", "from start to end on this rank: waiting for the others and transfer"),
    Column("match", pl.Int64, "", "one number for the same collective on all ranks; null without a partner"),
    Column("matched_ranks", pl.Int64, "count", "ranks on which it was found, this one among them"),
    Column(
        "match_method",
        pl.String,
        "",
        "`sequence`, `step`, `clock` (as another group's collectives say), `votes`, or `none`",
    ),
    Column("transfer_ns", pl.Int64, "ns", "the least duration over the group's ranks; null where one is missing"),
    Column("wait_ns", pl.Int64, "ns", "duration less transfer: waiting for later ranks"),
    Column("algorithm_bandwidth", pl.Float64, "GB/s", "bytes over transfer"),
    Column("bus_bandwidth", pl.Float64, "GB/s", "what the busiest link carried, as nccl-tests define it"),
    Column("peers", pl.String, "", "sender and receiver of a point-to-point operation, `0 → 1`"),
    Column("estimate", pl.Boolean, "", "whether transfer and wait are only a hint"),
    Column(
        "source",
        pl.String,
        "",
        "what tells what it is: `kernel` (its own metadata), `record` (`record_param_comms`), `range` "
        "(`nccl:…`, `c10d::…`), `coalesced` (calls before its launch), `name` (the kernel's), `gloo`, `launch`",
    ),
    Column("calls", pl.Int64, "count", "calls that it does together: more than one if they were coalesced"),
    Column("kernels", pl.Int64, "count", "kernels that it ran as"),
    Column("name", pl.String, "", "the kernel or range, as written"),
)
_OF_ALL_RANKS = (
    "match", "matched_ranks", "match_method", "transfer_ns", "wait_ns", "algorithm_bandwidth", "bus_bandwidth",
    "estimate",
)  # fmt: skip
# What the reduce needs beside the columns.
_BESIDE = (
    Column("recorded", pl.Int64, "", "`Seq`, as written"),
    Column("source_rank", pl.Int64, "", "sender"),
    Column("destination_rank", pl.Int64, "", "receiver"),
    Column("on_device", pl.Boolean, "", "whether it is a kernel"),
    Column("unlaunched", pl.Int64, "count", "calls in its file of which no kernel was recorded"),
    Column("base_ns", pl.Int64, "ns", "what makes its time the wall clock's"),
)
_MAPPED = (
    *(
        replace(column, dtype=pl.String) if column.name == "group_ranks" else column
        for column in COLUMNS
        if column.name not in _OF_ALL_RANKS
    ),
    *_BESIDE,
)


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The collectives of a rank, window by window."""
    parts = [_of_window(window, inputs, number) for number, window in enumerate(by_window(tables, inputs))]
    return concat_ranks(parts, _MAPPED)


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """Match the ranks' collectives, and tell waiting from transfer."""
    rows = concat_ranks(parts, _MAPPED)
    if not rows.height:
        return pl.DataFrame(schema=schema_of(COLUMNS)), []
    # A list of a thousand ranks is 5 kB of text in every row: as numbers, grouping by it costs as little as the others.
    rows = rows.with_columns(pl.col("group_ranks").cast(pl.Categorical))
    found = _matched(rows)
    match = pl.Series("match", found.match)
    ranks = max(len({info.rank for info in inputs.traces}), inputs.world_size or 0)
    matched = with_waits_and_bandwidth(
        rows.with_columns(
            pl.select(pl.when(match >= 0).then(match)).to_series(),
            pl.Series("match_method", found.method).replace_strict(dict(enumerate(METHODS)), return_dtype=pl.String),
        ),
        ranks,
    )
    return matched.select(column.name for column in COLUMNS), _findings(matched, found)


def _matched(rows: pl.DataFrame) -> Matching:
    """Kernels and Gloo's ranges by all that there is; calls without a kernel by their recorded number alone."""
    wall = rows.with_columns(pl.col("start_ns") + pl.col("base_ns"), pl.col("end_ns") + pl.col("base_ns"))
    called = (rows["source"] == "launch").to_numpy()
    if not called.any():
        return match_collectives(wall.select(MATCHED_BY))
    found = match_collectives(wall.filter(~pl.Series(called)).select(MATCHED_BY))
    # When they were called says nothing of when they ran: no clock, no end.
    numbered = called & rows["recorded"].is_not_null().to_numpy()
    by_number = match_collectives(wall.filter(pl.Series(numbered)).select(MATCHED_BY))
    sure = by_number.method == METHODS.index("sequence")
    match, method = np.full(rows.height, -1, dtype=np.int64), np.zeros(rows.height, dtype=np.int64)
    group = match.copy()
    match[~called], method[~called], group[~called] = found.match, found.method, found.group
    beyond = int(found.match.max(initial=-1)) + 1
    match[numbered] = np.where(sure, by_number.match + beyond, -1)
    method[numbered] = np.where(sure, by_number.method, 0)
    return replace(
        found, match=match, method=method, group=group, disagreeing=found.disagreeing + by_number.disagreeing
    )


def _findings(rows: pl.DataFrame, found: Matching) -> list[Finding]:
    if rows["rank"].n_unique() < 2:
        return _unlaunched(rows)
    return [*_doubtful(found), *_unmatched(rows, found), *_incomplete(rows), *_unlaunched(rows)]


def _doubtful(found: Matching) -> list[Finding]:
    findings = [
        Finding(
            id="ambiguous-match",
            severity="warning",
            title=f"{doubt.group}: the collectives of some ranks fit the others' at two places nearly as well",
            ranks=doubt.ranks,
            evidence=(
                Evidence("evidence for the place taken", round(doubt.evidence), "nats"),
                Evidence("evidence for the other", round(doubt.rival), "nats"),
                Evidence("the two lie apart by", doubt.apart_ns, "ns"),
            ),
            advice="Call the profiler's step() in every iteration: the steps' numbers tell repetitions apart.",
        )
        for doubt in found.doubts
    ]
    findings += [
        Finding(
            id="unmatched-ranks",
            severity="warning",
            title=f"{group}: the collectives of some ranks fit nobody's",
            ranks=ranks,
            evidence=(Evidence("ranks", len(ranks), "count"),),
            advice="Record the same steps on all ranks.",
        )
        for group, ranks in found.unplaced
    ]
    if found.disagreeing:
        findings.append(
            Finding(
                id="collectives-disagree",
                severity="warning",
                title="Some collectives have the number of another on other ranks, but not its kind or size",
                evidence=(Evidence("collectives", found.disagreeing, "count"),),
                advice="Look whether the ranks run different code.",
            )
        )
    return findings


def _unmatched(rows: pl.DataFrame, found: Matching) -> list[Finding]:
    """How many were found on other ranks, and why the others were not."""
    alone = rows.with_columns(pl.Series("communicator", found.group)).with_row_index("at")
    matched, communicator = pl.col("match").is_not_null(), pl.col("communicator") >= 0
    of_rank = ["rank", "window", "communicator"]
    shared = pl.col("rank").n_unique().over("communicator") > 1
    inside = (pl.col("start_ns") > pl.col("start_ns").filter(matched).min().over(of_rank)) & (
        pl.col("start_ns") < pl.col("start_ns").filter(matched).max().over(of_rank)
    )
    reason = (
        pl.when(pl.col("source") == "launch").then(pl.lit("no kernel of them was recorded"))
        .when(~communicator).then(pl.lit("the other end of their channel is not told"))
        .when(~shared).then(pl.lit("no other rank of their group was recorded"))
        .when(inside.fill_null(False)).then(pl.lit("lost on other ranks, between those that were found"))
        .otherwise(pl.lit("at the edges of what was recorded"))
    )  # fmt: skip
    alone = alone.with_columns(reason.alias("reason")).filter(~matched)
    count = rows.height - alone.height
    by_method = rows.filter(matched)["match_method"].value_counts().sort("count", "match_method", descending=True)
    evidence = [
        Evidence("collectives of all ranks", rows.height, "count"),
        Evidence("found on other ranks as well", count, "count"),
        *(Evidence(f"of them by {method}", number, "count") for method, number in by_method.iter_rows()),
    ]
    if not alone.height:
        title = "Every collective was found on other ranks of its group as well"
        return [Finding(id="collectives-matched", severity="info", title=title, evidence=tuple(evidence), well=True)]
    reasons = alone["reason"].value_counts().sort("count", "reason", descending=True)
    return [
        Finding(
            id="unmatched-collectives",
            severity="info",
            title="Some collectives were found on one rank only",
            ranks=tuple(alone["rank"].unique().sort()),
            evidence=(*evidence, *(Evidence(why, number, "count") for why, number in reasons.iter_rows())),
        )
    ]


def _incomplete(rows: pl.DataFrame) -> list[Finding]:
    """Groups of which some ranks were not recorded: without them waiting cannot be told from transfer."""
    groups = (
        rows.filter(pl.col("group_size").is_not_null())
        .group_by("group", "group_ranks", "group_size")
        .agg(pl.col("rank").unique().sort(), pl.len())
    )
    partly = groups.filter(pl.col("rank").list.len() < pl.col("group_size")).sort("len", "group", descending=True)
    if not partly.height:
        return []
    first = partly.row(0, named=True)
    return [
        Finding(
            id="incomplete-groups",
            severity="info",
            title="Of some groups not all ranks were recorded: their waiting cannot be told from their transfer",
            ranks=tuple(partly["rank"].explode().unique().sort()),
            evidence=(
                Evidence("groups", partly.height, "count"),
                Evidence("collectives in them, over all ranks", int(partly["len"].sum()), "count"),
                Evidence(f"ranks of group {first['group']}", first["group_size"], "count"),
                Evidence("of them recorded", len(first["rank"]), "count"),
            ),
            advice="Record all ranks of the groups that matter: ranks= of the profiler, or the traces' folder.",
        )
    ]


def _unlaunched(rows: pl.DataFrame) -> list[Finding]:
    by_rank = rows.filter(pl.col("unlaunched") > 0).unique(["rank", "window"]).group_by("rank").agg(
        pl.col("unlaunched").sum()
    )  # fmt: skip
    if not by_rank.height:
        return []
    return [
        Finding(
            id="collectives-without-kernel",
            severity="info",
            title="Of some collective calls no kernel was recorded: it ran after the recording ended, in a graph that "
            "was being captured, or was lost",
            ranks=tuple(by_rank["rank"].sort()),
            evidence=(Evidence("calls of all ranks", int(by_rank["unlaunched"].sum()), "count"),),
        )
    ]


def _of_window(window: Tables, inputs: Inputs, number: int) -> pl.DataFrame:
    info = inputs.traces[number]
    found = rank_collectives(window, info.groups, inputs.rank, inputs.options.communication)
    if inputs.options.steps is not None:
        found = found.filter(inputs.options.keeps(pl.col("step")))
    # How long a call is open on the host says nothing of how long the collective took.
    took = pl.when(pl.col("source") != "launch").then(pl.col("end_ns") - pl.col("start_ns"))
    return found.with_columns(
        pl.lit(inputs.rank, pl.Int64).alias("rank"),
        pl.lit(number, pl.Int64).alias("window"),
        took.alias("duration_ns"),
        pl.col("sequence").alias("recorded"),
        pl.coalesce("sequence", pl.int_range(pl.len()).over("group", "stream")).alias("sequence"),
        pl.lit(info.base_time_ns, pl.Int64).alias("base_ns"),
    ).select(column.name for column in _MAPPED)


analysis = Analysis(
    name="collectives",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    across_ranks=across_ranks,
    reads={
        "device_events": (
            "start_ns",
            "end_ns",
            "name",
            "kind",
            "is_collective",
            "device",
            "stream",
            "launch_ns",
            "launch_row",
            "correlation",
            "external_id",
            "graph_id",
        ),
        "runtime_calls": ("name", "pid", "tid"),
        "collectives": ("source", "row", *RECORDED),
        "host_ops": (
            "start_ns",
            "end_ns",
            "name",
            "pid",
            "tid",
            "external_id",
            "input_dims",
            "input_types",
            "concrete_inputs",
        ),
        "annotations": (
            "start_ns",
            "end_ns",
            "name",
            "pid",
            "tid",
            "on_device",
            "step",
            "external_id",
            "input_dims",
            "input_types",
        ),
    },
    has_findings=True,
    shown_empty=True,
)
