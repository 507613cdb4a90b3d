"""Every collective of every rank, in order.

One row per collective and rank. On a device a collective is a communication kernel. Its group, size and type come
from the kernel's own metadata, else from the `record_param_comms` that shares its External id; a kernel without any
takes the only group seen on its stream, else the stream stands for a communicator that is not known (`stream 7`).
Without a device the collectives are Gloo's host ranges, whose sizes are those of their inputs.

`bytes` is the full size S of the operation: elements out for all_gather, in for the others, times the width of the
type; S is the total array for reduce_scatter and all_gather (as nccl-tests define it). `sequence` counts the
collectives of a group and stream in device order; a recorded `Seq` wins. Times are on each trace's own clock.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import polars as pl

from rankscope.primitives.activity import gloo_ranges, with_category
from rankscope.primitives.collectives import collective_kind, element_bytes
from rankscope.primitives.kernels import COMMUNICATION
from rankscope.primitives.steps import host_steps
from rankscope.results import Analysis, Column, Finding, Inputs, Tables, by_window, concat_ranks
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
    Column("name", "", "the kernel or range, as written"),
)

_META = ("collective", "dtype", "in_elements", "out_elements", "group_name", "group_description", "group_ranks")
_METADATA_COLUMNS = (*_META, "group_size", "sequence")


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The collectives of a rank, window by window."""
    parts = [_of_window(window, inputs, number) for number, window in enumerate(by_window(tables, inputs))]
    return concat_ranks(parts, COLUMNS)


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """The ranks below one another."""
    return concat_ranks(parts, COLUMNS), []


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
            pl.coalesce("sequence", pl.int_range(pl.len()).over("group", "stream")).alias("sequence"),
        )
        .select(column.name for column in COLUMNS)
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
        pl.lit(None, pl.Int64).alias("sequence"),
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
