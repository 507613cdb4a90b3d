"""Every collective of every rank, in order.

One row per collective and rank. On a device a collective is a communication kernel. Its kind, group, size and type
come from the kernel's metadata; else from the call that launched it: `record_param_comms`, else the shapes on
`nccl:*` and `c10d::*` ranges; else from its name (`source` says which). A kernel without a group is assigned to the
only group on its stream, unless its library has communicators of its own (DeepEP, NVSHMEM, custom all_reduces). Calls
that were coalesced into one kernel, and several kernels of one call, are one row with their summed sizes (`calls`,
`kernels`). On the host the collectives are Gloo's ranges, with the sizes of their inputs; without `record_shapes` only
a trace that rankscope recorded has them, in its list of calls. In other traces sizes are then unknown: record shapes.
The size of an all_gather also needs that list if the rank is in groups of different ranks: Gloo names none. If a trace
contains calls but no kernel or Gloo range at all, the calls are listed (`source` `launch`), without duration.

`bytes` is the full size S of the operation: elements out for all_gather, elements in for the others, times the width of
the type; S is the total array for reduce_scatter and all_gather (as nccl-tests define it). `sequence` counts the
collectives of a group and stream in device order; a recorded `Seq` takes precedence.

Rows with the same `match` are the same collective on different ranks: matched by equal recorded `Seq`, else by
their end times, anchored by step numbers where they are known (`match_method`). Pairs follow the order of launches:
kernels end in it, but Gloo's collectives run at the same time and end in any order, so there it is the order of their
starts.

Kernels without a group in the trace are matched by their sequence and ends. Stream numbers differ between ranks, so
streams are used only if the ends show which belong together. A communicator found like this is `unnamed 1`,
`unnamed 2`, …; without any partner it keeps the name of its stream (`stream 7`). Its ranks are inferred if the traces
show that there can be no others: as many match as the kernels' names contain, or all ranks of the job are recorded and
match throughout.

    transfer = shortest duration over the group's ranks     wait = duration − transfer
    algorithm bandwidth = S / transfer                      bus bandwidth = algorithm bandwidth × f

with f = 2(n−1)/n for all_reduce, (n−1)/n for all_gather, reduce_scatter and all_to_all, 1 for broadcast, reduce, send
and recv (nccl-tests). They are null where a rank of the group is missing, because waiting would count as transfer, and
for ranges on the host that overlap. `estimate` marks operations whose ranks need not start and end together: for these
transfer and wait are only estimates.

How to read it: a long `wait_ns` is due to late ranks, not to the network (`stragglers`, `collective_summary --by
rank`); a long transfer at a low bus bandwidth is due to the network. Small sizes are limited by latency: ignore their
bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from rankscope.primitives.bandwidth import with_waits_and_bandwidth
from rankscope.primitives.host_collectives import RECORDED
from rankscope.primitives.labeled_collectives import for_findings, label_rows, match_labeled, matched_blocks
from rankscope.primitives.matching import METHODS, Matching, match_with_calls
from rankscope.primitives.rank_collectives import rank_collectives
from rankscope.primitives.unmatched_collectives import ENDS_DISAGREE, with_unmatched_reasons
from rankscope.primitives.unnamed_communicators import label_unnamed
from rankscope.results import (
    RANK_AND_WINDOW,
    Analysis,
    Column,
    Evidence,
    Finding,
    Inputs,
    StoredFrame,
    Tables,
    by_window,
    concat_ranks,
    schema_of,
    stored_blocks,
    together,
)
from rankscope.rundir.left_out import LeftOut

COLUMNS = (
    *RANK_AND_WINDOW,
    Column("step", pl.Int64, "", "the step whose range its launch starts in; null between steps and without a launch"),
    Column(
        "group",
        pl.String,
        "",
        "the process group: name and description; `unnamed N` if not named but matched across ranks, `stream N` if not "
        "matched, else `unknown`",
    ),
    Column("group_size", pl.Int64, "ranks", "ranks in the group"),
    Column("group_ranks", pl.Categorical(), "", "global ranks of the group, as recorded or inferred"),
    Column(
        "sequence",
        pl.Int64,
        "",
        "sequence number within group and stream, in device order; a recorded `Seq` takes precedence",
    ),
    Column("collective", pl.String, "", "the kind of collective"),
    Column("dtype", pl.String, "", "element type, as recorded"),
    Column("in_elements", pl.Int64, "elements", "number of input elements"),
    Column("out_elements", pl.Int64, "elements", "number of output elements"),
    Column("bytes", pl.Int64, "bytes", "full size of the operation"),
    Column("stream", pl.Int64, "", "device stream; for Gloo the thread"),
    Column("launch_ns", pl.Int64, "ns", "start of its launch; null if the launch is not in the trace", instant=True),
    Column("start_ns", pl.Int64, "ns", "arrival: start on this rank", instant=True),
    Column("end_ns", pl.Int64, "ns", "end on this rank", instant=True),
    Column("duration_ns", pl.Int64, "ns", "from start to end on this rank: wait and transfer"),
    Column(
        "match", pl.Int64, "", "number shared by the same collective on all ranks; null if not found on another rank"
    ),
    Column("matched_ranks", pl.Int64, "count", "ranks on which it was found, including this one"),
    Column(
        "match_method",
        pl.String,
        "",
        "`sequence`, `step`, `clock` (aligned by another group's collectives, or one host's clock), `order` (as many "
        "of each kernel on both ranks), `votes`, or `none`",
    ),
    Column("transfer_ns", pl.Int64, "ns", "shortest duration over the group's ranks; null if one is missing"),
    Column("wait_ns", pl.Int64, "ns", "duration minus transfer: waiting for later ranks"),
    Column("algorithm_bandwidth", pl.Float64, "GB/s", "bytes divided by transfer"),
    Column("bus_bandwidth", pl.Float64, "GB/s", "bandwidth of the busiest link, as nccl-tests define it"),
    Column("peers", pl.String, "", "sender and receiver of a point-to-point operation, `0 → 1`"),
    Column("estimate", pl.Boolean, "", "whether transfer and wait are only estimates"),
    Column(
        "source",
        pl.String,
        "",
        "where kind, group and size come from: `kernel` (its metadata), `record` (`record_param_comms`), `range` "
        "(`nccl:…`, `c10d::…`), `coalesced` (calls before its launch), `name` (the kernel's), `gloo`, `launch`",
    ),
    Column("calls", pl.Int64, "count", "calls that it combines: more than one if they were coalesced"),
    Column("kernels", pl.Int64, "count", "number of its kernels"),
    Column("name", pl.String, "", "the kernel or range, as recorded"),
)
_ADDED_ACROSS_RANKS = (
    "match", "matched_ranks", "match_method", "transfer_ns", "wait_ns", "algorithm_bandwidth", "bus_bandwidth",
    "estimate",
)  # fmt: skip
# Needed by the reduce in addition to the columns.
_REDUCE_ONLY = (
    Column("recorded", pl.Int64, "", "`Seq`, as recorded"),
    Column("source_rank", pl.Int64, "", "sender"),
    Column("destination_rank", pl.Int64, "", "receiver"),
    Column("on_device", pl.Boolean, "", "whether it is a kernel"),
    Column("unlaunched", pl.Int64, "count", "calls in its trace without a recorded kernel"),
    Column("base_ns", pl.Int64, "ns", "offset of its times from the wall clock"),
)
_MAPPED = (
    *(
        replace(column, dtype=pl.String) if column.name == "group_ranks" else column
        for column in COLUMNS
        if column.name not in _ADDED_ACROSS_RANKS
    ),
    *_REDUCE_ONLY,
)


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The collectives of a rank, window by window."""
    parts = [_window_collectives(window, inputs, number) for number, window in enumerate(by_window(tables, inputs))]
    return concat_ranks(parts, _MAPPED)


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[StoredFrame, list[Finding]]:
    """Match the ranks' collectives, and separate waiting from transfer."""
    hosts = {info.rank: info.machine for info in inputs.traces if info.rank is not None and info.machine}
    recorded = len({info.rank for info in inputs.traces})
    ranks = max(recorded, inputs.world_size or 0)
    if (labeled := label_rows(together(parts))) is not None:
        matching = match_labeled(labeled, hosts)
        blocks = matched_blocks(together(parts), labeled, matching, ranks)
        names = [column.name for column in COLUMNS]
        frame = stored_blocks(block.select(names) for block in blocks)
        found = for_findings(labeled, matching)
        del labeled, blocks
        return frame, _findings(found, matching, None, inputs.left_out)
    rows = concat_ranks(parts, _MAPPED)
    if not rows.height:
        return pl.DataFrame(schema=schema_of(COLUMNS)), []
    # A list of a thousand ranks is 5 kB of text in every row: grouping by category is cheaper than by text.
    rows = rows.with_columns(pl.col("group_ranks").cast(pl.Categorical))
    matching = match_with_calls(rows, hosts)
    match = pl.Series("match", matching.match)
    matched = rows.with_columns(
        pl.select(pl.when(match >= 0).then(match)).to_series(),
        pl.Series("match_method", matching.method).replace_strict(dict(enumerate(METHODS)), return_dtype=pl.String),
        pl.Series("communicator", matching.group),
    )
    matched, inferred = label_unnamed(matched, recorded, inputs.world_size, matching.doubtful)
    timed = with_waits_and_bandwidth(matched, ranks)
    return timed.select(column.name for column in COLUMNS), _findings(timed, matching, inferred, inputs.left_out)


def _findings(
    rows: pl.DataFrame, matching: Matching, inferred: pl.DataFrame | None, on_purpose: LeftOut | None
) -> list[Finding]:
    if rows["rank"].n_unique() < 2:
        return _unlaunched(rows)
    return [
        *_doubtful(matching),
        *_unmatched(rows),
        *([] if inferred is None else _unknown_groups(rows, inferred)),
        *_incomplete(rows, on_purpose),
        *_unlaunched(rows),
    ]


def _doubtful(matching: Matching) -> list[Finding]:
    findings = [
        Finding(
            id="ambiguous-match",
            severity="warning",
            title=f"{doubt.group}: collectives of some ranks match the other ranks' equally well at two positions",
            ranks=doubt.ranks,
            evidence=(
                Evidence("evidence for the chosen position", round(doubt.evidence), "nats"),
                Evidence("evidence for the other position", round(doubt.rival), "nats"),
                Evidence("distance between the two", doubt.apart_ns, "ns"),
            ),
            advice="Call the profiler's step() in every iteration: step numbers make the match unambiguous.",
        )
        for doubt in matching.doubts
    ]
    findings += [
        Finding(
            id="unmatched-ranks",
            severity="warning",
            title=f"{group}: collectives of some ranks match those of no other rank",
            ranks=ranks,
            evidence=(Evidence("ranks", len(ranks), "count"),),
            advice="Record the same steps on all ranks.",
        )
        for group, ranks in matching.unplaced
    ]
    if matching.disagreeing:
        findings.append(
            Finding(
                id="collectives-disagree",
                severity="warning",
                title="Some collectives have the same sequence number on several ranks but differ in kind or size",
                evidence=(Evidence("collectives", matching.disagreeing, "count"),),
                advice="Check whether the ranks run different code.",
            )
        )
    return findings


def _unmatched(rows: pl.DataFrame) -> list[Finding]:
    """The finding on how many collectives were matched, and why the others were not."""
    matched = pl.col("match").is_not_null()
    alone = with_unmatched_reasons(rows).filter(~matched) if rows["match"].has_nulls() else rows.clear()
    count = rows.height - alone.height
    methods = rows["match_method"].filter(rows["match"].is_not_null()).value_counts()
    by_method = methods.cast({"match_method": pl.String}).sort("count", "match_method", descending=True)
    evidence = [
        Evidence("collectives of all ranks", rows.height, "count"),
        Evidence("matched across ranks", count, "count"),
        *(Evidence(f"matched by {method}", number, "count") for method, number in by_method.iter_rows()),
    ]
    if not alone.height:
        title = "Every collective was matched across ranks"
        return [
            Finding(id="collectives-matched", severity="info", title=title, evidence=tuple(evidence), all_clear=True)
        ]
    reasons = alone["reason"].value_counts().sort("count", "reason", descending=True)
    evidence += [Evidence(why, number, "count") for why, number in reasons.iter_rows()]
    disagreeing = alone.filter(pl.col("reason") == ENDS_DISAGREE)
    kinds = (
        disagreeing["collective"].cast(pl.String).value_counts().sort("count", "collective", descending=[True, False])
    )
    for kind in kinds["collective"].head(3):
        by_rank = rows.group_by("rank").agg((pl.col("collective") == kind).sum().alias("count"))
        least, most = by_rank.select(pl.col("count").min(), pl.col("count").max().alias("most")).row(0)
        evidence.append(Evidence(f"{kind} recorded per rank", f"{least}–{most}" if least < most else least, "count"))
    return [
        Finding(
            id="unmatched-collectives",
            severity="info",
            title="Some collectives were not matched across ranks",
            ranks=tuple(alone["rank"].unique().sort()),
            evidence=tuple(evidence),
            advice="Record the same steps on all ranks and call the profiler's step() in every iteration: step numbers "
            "show which collectives belong together."
            if disagreeing.height
            else "",
        )
    ]


def _unknown_groups(rows: pl.DataFrame, inferred: pl.DataFrame) -> list[Finding]:
    """The finding on unnamed communicators whose ranks are unknown."""
    unknown = inferred.filter(pl.col("reason").is_not_null())
    if not unknown.height:
        return []
    affected = rows.join(unknown, on="communicator", how="semi")
    reasons = unknown["reason"].value_counts().sort("count", "reason", descending=True)
    return [
        Finding(
            id="unknown-groups",
            severity="info",
            title="The ranks of some communicators are not known: their kernels name no group",
            ranks=tuple(affected["rank"].unique().sort()),
            evidence=(
                Evidence("communicators", unknown.height, "count"),
                Evidence("their collectives, over all ranks", affected.height, "count"),
                *(Evidence(f"communicators, because {why}", number, "count") for why, number in reasons.iter_rows()),
            ),
            advice="Record all ranks of the job, with rankscope.Profiler (it records the number of ranks) and torch "
            "2.3 or newer (NCCL's kernels then name their group).",
        )
    ]


def _incomplete(rows: pl.DataFrame, on_purpose: LeftOut | None) -> list[Finding]:
    """Groups with unrecorded ranks: without them, waiting cannot be separated from transfer.

    Args:
        on_purpose: ranks that were not to be recorded, which another finding says.
    """
    groups = (
        rows.filter(pl.col("group_size").is_not_null())
        .group_by("group", "group_ranks", "group_size")
        .agg(pl.col("rank").unique().sort(), pl.len())
        .cast({"group": pl.String})
    )
    partly = groups.filter(pl.col("rank").list.len() < pl.col("group_size")).sort("len", "group", descending=True)
    without_trace = 0 if on_purpose is None else len(on_purpose.ranks)
    lacking = pl.col("group_size") - pl.col("rank").list.len()
    if not partly.height or partly.select((lacking <= without_trace).all()).item():
        return []
    first = partly.row(0, named=True)
    return [
        Finding(
            id="incomplete-groups",
            severity="info",
            title="Some groups have unrecorded ranks: wait and transfer cannot be separated for them",
            ranks=tuple(partly["rank"].explode().unique().sort()),
            evidence=(
                Evidence("groups", partly.height, "count"),
                Evidence("their collectives, over all ranks", int(partly["len"].sum()), "count"),
                Evidence(f"ranks of group {first['group']}", first["group_size"], "count"),
                Evidence("recorded ranks of that group", len(first["rank"]), "count"),
            ),
            advice="Record all ranks of the groups that matter (ranks= of the profiler), or add their traces.",
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
            title="Some collective calls have no recorded kernel: it ran after the recording ended, in a graph that "
            "was being captured, or was lost",
            ranks=tuple(by_rank["rank"].sort()),
            evidence=(Evidence("calls of all ranks", int(by_rank["unlaunched"].sum()), "count"),),
        )
    ]


def _window_collectives(window: Tables, inputs: Inputs, number: int) -> pl.DataFrame:
    info = inputs.traces[number]
    collectives = rank_collectives(window, info.groups, inputs.rank, inputs.options.communication)
    collectives = inputs.options.chosen(collectives)
    # The duration of a call on the host is not the duration of the collective.
    duration = pl.when(pl.col("source") != "launch").then(pl.col("end_ns") - pl.col("start_ns"))
    return collectives.with_columns(
        pl.lit(inputs.rank, pl.Int64).alias("rank"),
        pl.lit(number, pl.Int64).alias("window"),
        duration.alias("duration_ns"),
        pl.col("sequence").alias("recorded"),
        pl.coalesce("sequence", pl.int_range(pl.len()).over("group", "stream")).alias("sequence"),
        pl.lit(info.base_time_ns, pl.Int64).alias("base_ns"),
    ).select(column.name for column in _MAPPED)


_HOST_EVENT = ("start_ns", "end_ns", "name", "pid", "tid")

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
        "host_ops": (*_HOST_EVENT, "external_id", "input_dims", "input_types", "concrete_inputs"),
        "annotations": (*_HOST_EVENT, "on_device", "step", "external_id", "input_dims", "input_types"),
    },
    has_findings=True,
    shown_empty=True,
)
