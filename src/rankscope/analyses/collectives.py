"""Every collective of every rank, in order.

One row per collective and rank. On a device a collective is a communication kernel. Its group, size and type come
from the kernel's own metadata, else from the `record_param_comms` that shares its External id; a kernel without any
takes the only group seen on its stream, else the stream stands for a communicator that is not known (`stream 7`).
Without a device the collectives are Gloo's host ranges, whose sizes are those of their inputs.

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
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import polars as pl

from rankscope.primitives.activity import gloo_ranges, with_category
from rankscope.primitives.collectives import collective_kind, element_bytes
from rankscope.primitives.communicators import COLUMNS as MATCHED_BY
from rankscope.primitives.communicators import POINT_TO_POINT
from rankscope.primitives.kernels import COMMUNICATION
from rankscope.primitives.matching import METHODS, Matching, match_collectives
from rankscope.primitives.steps import host_steps
from rankscope.primitives.waiting import with_waits
from rankscope.results import Analysis, Column, Evidence, Finding, Inputs, Tables, by_window, concat_ranks
from rankscope.store.info import TraceInfo

COLUMNS = (
    Column("rank", "", "the rank"),
    Column("window", "", "which of the rank's files, from 0"),
    Column("step", "", "the step whose range its launch starts in; null between steps and for launchless ones"),
    Column("group", "", "the process group: name and description; `stream N` where none is known, else `unknown`"),
    Column("group_size", "ranks", "ranks in the group"),
    Column("group_ranks", "", "global ranks of the group, as written"),
    Column("sequence", "", "its number within group and stream, in device order; a recorded `Seq` wins"),
    Column("collective", "", "which collective"),
    Column("dtype", "", "type of the elements, as written"),
    Column("in_elements", "elements", "elements in"),
    Column("out_elements", "elements", "elements out"),
    Column("bytes", "bytes", "full size of the operation"),
    Column("stream", "", "device stream; thread for Gloo"),
    Column("launch_ns", "ns", "when its launch starts; null without one in the file"),
    Column("start_ns", "ns", "when it starts on this rank, on its own clock"),
    Column("end_ns", "ns", "when it ends on this rank, on its own clock"),
    Column("duration_ns", "ns", "from start to end on this rank: waiting for the others and transfer"),
    Column("match", "", "one number for the same collective on all ranks; null without a partner"),
    Column("matched_ranks", "count", "ranks on which it was found, this one among them"),
    Column("match_method", "", "`sequence`, `step`, `clock` (as another group's collectives say), `votes`, or `none`"),
    Column("transfer_ns", "ns", "the least duration over the group's ranks; null where one is missing"),
    Column("wait_ns", "ns", "duration less transfer: waiting for later ranks"),
    Column("algorithm_bandwidth", "GB/s", "bytes over transfer"),
    Column("bus_bandwidth", "GB/s", "what the busiest link carried, as nccl-tests define it"),
    Column("peers", "", "sender and receiver of a point-to-point operation, `0 → 1`"),
    Column("estimate", "", "whether transfer and wait are only a hint"),
    Column("name", "", "the kernel or range, as written"),
)
_OF_ALL_RANKS = (
    "match", "matched_ranks", "match_method", "transfer_ns", "wait_ns", "algorithm_bandwidth", "bus_bandwidth",
    "estimate",
)  # fmt: skip
# What the reduce needs beside the columns.
_BESIDE = (
    Column("recorded", "", "`Seq`, as written"),
    Column("source_rank", "", "sender"),
    Column("destination_rank", "", "receiver"),
    Column("on_device", "", "whether it is a kernel"),
    Column("base_ns", "ns", "what makes its time the wall clock's"),
)
# Types of the columns that are no integers, for a result without any row.
_TYPES: dict[str, pl.DataType] = {
    **dict.fromkeys(("group", "group_ranks", "collective", "dtype", "match_method", "peers", "name"), pl.String()),
    **dict.fromkeys(("algorithm_bandwidth", "bus_bandwidth"), pl.Float64()),
    "estimate": pl.Boolean(),
}
_MAPPED = (*(column for column in COLUMNS if column.name not in _OF_ALL_RANKS), *_BESIDE)

_META = ("collective", "dtype", "in_elements", "out_elements", "group_name", "group_description", "group_ranks")
_METADATA_COLUMNS = (*_META, "group_size", "sequence", "source_rank", "destination_rank")


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The collectives of a rank, window by window."""
    parts = [_of_window(window, inputs, number) for number, window in enumerate(by_window(tables, inputs))]
    return concat_ranks(parts, _MAPPED)


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """Match the ranks' collectives, and tell waiting from transfer."""
    rows = concat_ranks(parts, _MAPPED)
    if not rows.height:
        return pl.DataFrame(schema={column.name: _TYPES.get(column.name, pl.Int64()) for column in COLUMNS}), []
    wall = rows.with_columns(pl.col("start_ns") + pl.col("base_ns"), pl.col("end_ns") + pl.col("base_ns"))
    found = match_collectives(wall.select(MATCHED_BY))
    match = pl.Series("match", found.match)
    ranks = max(len({info.rank for info in inputs.traces}), inputs.world_size or 0)
    matched = with_waits(
        rows.with_columns(
            pl.select(pl.when(match >= 0).then(match)).to_series(),
            pl.Series("match_method", found.method).replace_strict(dict(enumerate(METHODS)), return_dtype=pl.String),
        ),
        ranks,
    )
    return matched.select(column.name for column in COLUMNS), _findings(matched, found)


def _findings(rows: pl.DataFrame, found: Matching) -> list[Finding]:
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
                title="some collectives have the number of another on other ranks, but not its kind or size",
                evidence=(Evidence("collectives", found.disagreeing, "count"),),
                advice="Look whether the ranks run different code.",
            )
        )
    alone = rows.filter(pl.col("match").is_null())
    if alone.height and rows["rank"].n_unique() > 1:
        by_rank = alone.group_by("rank").len().sort("rank")
        findings.append(
            Finding(
                id="unmatched-collectives",
                severity="info",
                title="some collectives were found on one rank only: at the edges of what was recorded, or lost",
                ranks=tuple(by_rank["rank"]),
                evidence=(
                    Evidence("without a partner", alone.height, "count"),
                    Evidence("collectives of all ranks", rows.height, "count"),
                ),
            )
        )
    return findings


def _of_window(window: Tables, inputs: Inputs, number: int) -> pl.DataFrame:
    device = window["device_events"].with_row_index("row")
    if device.height:
        found = _kernels(device, window["collectives"], inputs)
    else:
        found = _gloo(window, inputs.traces[number])
    found = _with_step(found, window["annotations"])
    if inputs.options.steps is not None:
        found = found.filter(inputs.options.keeps(pl.col("step")))
    kinds = {name: collective_kind(name) for name in found["label"].unique().drop_nulls()}
    widths = {dtype: element_bytes(dtype) for dtype in found["dtype"].unique().drop_nulls()}
    kind = pl.col("label").replace_strict(kinds, default=None, return_dtype=pl.String)
    width = pl.col("dtype").replace_strict(widths, default=None, return_dtype=pl.Int64)
    elements = pl.when(pl.col("collective") == "all_gather").then("out_elements").otherwise("in_elements")
    return (
        found.sort("start_ns", "end_ns", "row")
        .with_columns(kind.fill_null("unknown").alias("collective"))
        .with_columns(
            pl.lit(inputs.rank, pl.Int64).alias("rank"),
            pl.lit(number, pl.Int64).alias("window"),
            (elements * width).alias("bytes"),
            (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns"),
            pl.col("sequence").alias("recorded"),
            pl.coalesce("sequence", pl.int_range(pl.len()).over("group", "stream")).alias("sequence"),
            pl.lit(bool(device.height)).alias("on_device"),
            pl.lit(inputs.traces[number].base_time_ns, pl.Int64).alias("base_ns"),
            _peers().alias("peers"),
        )
        .select(column.name for column in _MAPPED)
    )


def _kernels(device: pl.DataFrame, metadata: pl.DataFrame, inputs: Inputs) -> pl.DataFrame:
    kernels = with_category(device, inputs.options.communication).filter(pl.col("category") == COMMUNICATION)
    own = metadata.filter(pl.col("source") == "device_events").select(pl.col("row").cast(pl.UInt32), *_METADATA_COLUMNS)
    host = (
        metadata.filter((pl.col("source") == "host_ops") & (pl.col("external_id") > 0))
        .unique("external_id", keep="first", maintain_order=True)
        .select("external_id", *_METADATA_COLUMNS)
    )
    joined = kernels.join(own, on="row", how="left").join(host, on="external_id", how="left", suffix="_host")
    # A kernel's own words are taken whole: half of one and half of the other would be neither.
    has_own = pl.col("collective").is_not_null()
    told = joined.with_columns(
        pl.when(has_own).then(name).otherwise(f"{name}_host").alias(name) for name in _METADATA_COLUMNS
    )
    named = told.with_columns(_group_label().alias("group"))
    return _fill_groups(named).with_columns(pl.coalesce("collective", "name").alias("label"))


def _peers() -> pl.Expr:
    """Who sends to whom, where the trace says both."""
    known = (pl.col("source_rank") >= 0) & (pl.col("destination_rank") >= 0)
    return pl.when(pl.col("collective").is_in(POINT_TO_POINT) & known).then(
        pl.format("{} → {}", "source_rank", "destination_rank")
    )


def _group_label() -> pl.Expr:
    description = pl.col("group_description")
    plain = pl.col("group_name")
    return (
        pl.when(description.is_not_null() & (description != "") & (description != "undefined"))
        .then(pl.format("{} {}", plain, description))
        .otherwise(plain)
    )


def _fill_groups(kernels: pl.DataFrame) -> pl.DataFrame:
    """A kernel without metadata takes the only group of its stream; else the stream stands for it."""
    shared = ("group", "group_size", "group_ranks")
    known = kernels.filter(pl.col("group").is_not_null()).group_by("device", "stream")
    only = known.agg(
        pl.col("group").n_unique().alias("groups"), *(pl.col(name).first().alias(f"only_{name}") for name in shared)
    ).filter(pl.col("groups") == 1)
    joined = kernels.join(only, on=["device", "stream"], how="left")
    return joined.with_columns(
        pl.coalesce("group", "only_group", pl.format("stream {}", pl.col("stream")), pl.lit("unknown")).alias("group"),
        *(pl.when(pl.col("group").is_null()).then(f"only_{name}").otherwise(name).alias(name) for name in shared[1:]),
    )


def _gloo(window: Tables, info: TraceInfo) -> pl.DataFrame:
    """Gloo's ranges. They name no group; where the job has but one set of ranks it is that one."""
    annotations = window["annotations"]
    dims = annotations.filter(~pl.col("on_device")).select("start_ns", "end_ns", "tid", "input_dims", "input_types")
    ranges = gloo_ranges(window["host_ops"], annotations).join(
        dims.unique(["start_ns", "end_ns", "tid"]), on=["start_ns", "end_ns", "tid"], how="left"
    )
    sets = {tuple(sorted(group.get("ranks", ()))) for group in info.groups}
    ranks = next(iter(sets)) if len(sets) == 1 else None
    sizes = {text: _elements(text) for text in ranges["input_dims"].unique().drop_nulls()}
    types = {text: _first_type(text) for text in ranges["input_types"].unique().drop_nulls()}
    total = pl.col("input_dims").replace_strict(sizes, default=None, return_dtype=pl.Int64)
    return ranges.with_row_index("row").with_columns(
        pl.col("name").alias("label"),
        total.alias("in_elements"),
        # What comes out of an all_gather is every rank's part.
        pl.when(pl.col("name").str.contains("all_?gather"))
        .then(total * pl.lit(len(ranks) if ranks else None, pl.Int64))
        .otherwise(total)
        .alias("out_elements"),
        pl.col("input_types").replace_strict(types, default=None, return_dtype=pl.String).alias("dtype"),
        pl.lit("gloo").alias("group"),
        pl.lit(len(ranks) if ranks else None, pl.Int64).alias("group_size"),
        pl.lit(json.dumps(list(ranks)) if ranks else None, pl.String).alias("group_ranks"),
        *(pl.lit(None, pl.Int64).alias(name) for name in ("sequence", "source_rank", "destination_rank")),
        pl.col("tid").alias("stream"),
        pl.lit(None, pl.Int64).alias("launch_ns"),
    )


def _elements(dims: str) -> int | None:
    """The elements of all tensors in a list of shapes, which may hold lists of shapes."""
    try:
        shapes = json.loads(dims)
    except ValueError:
        return None

    def count(shape: object) -> int:
        if not isinstance(shape, list) or not shape:
            return 0
        if all(isinstance(size, int) for size in shape):
            return math.prod(shape)
        return sum(count(each) for each in shape)

    found = count(shapes)
    return found if 0 < found < 1 << 62 else None


def _first_type(types: str) -> str | None:
    try:
        listed = json.loads(types)
    except ValueError:
        return None
    first = (
        next((each for each in listed if isinstance(each, str) and each), None) if isinstance(listed, list) else None
    )
    return None if first is None or first == "TensorList" else first


def _with_step(found: pl.DataFrame, annotations: pl.DataFrame) -> pl.DataFrame:
    """The step whose range the launch starts in; for host ranges, the range's own start."""
    steps = host_steps(annotations).select(
        pl.col("start_ns").alias("step_start"), pl.col("end_ns").alias("step_end"), "step"
    )
    on_host = "device" not in found.columns
    at = found.with_columns((pl.col("start_ns") if on_host else pl.col("launch_ns")).alias("at")).sort(
        "at", nulls_last=True
    )
    joined = at.join_asof(steps, left_on="at", right_on="step_start", strategy="backward")
    return joined.with_columns(pl.when(pl.col("at") < pl.col("step_end")).then("step").alias("step"))


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
            "external_id",
        ),
        "collectives": ("source", "row", "external_id", *_METADATA_COLUMNS),
        "host_ops": ("start_ns", "end_ns", "name", "pid", "tid"),
        "annotations": (
            "start_ns",
            "end_ns",
            "name",
            "pid",
            "tid",
            "on_device",
            "step",
            "input_dims",
            "input_types",
        ),
    },
)
