"""Memory by category: parameters, gradients, optimizer state, activations, temporary.

One row per rank, trace file, device and category, from a trace recorded with `profile_memory`. A trace names no
tensors: a block's category follows from the phase (see `phases`) that allocated it, and from whether it outlives it:

    parameters       in a constructor or `_apply` (`to`, `cuda`) of an nn.Module, and kept
    gradients        in the backward, and kept beyond it
    optimizer_state  in `Optimizer.step`, and kept beyond it
    activations      in the forward, and kept beyond it, at most until the next step ends
    temporary        released in its phase, or in its outermost operator
    inputs           while loading data, or in a step before its forward, and kept until then
    earlier          allocated before the recording (not counted on the host: see `memory`)
    unknown          all else: outside phases, on other threads, kept in the forward for longer than a step

`peak_bytes` are live at the first peak of the device (`memory`): over the categories they sum to the peak.
`most_bytes` is the most that was live at once, at any time; `last_bytes` what was live after the last event. Parameters
and optimizer state of a job that was running before the recording are `earlier`: record from before the model is
created, with Python stacks, to separate them. Without Python frames (`with_stack`) parameters are unknown, and copies
of the batch that autograd could follow count as activations, as do FSDP's gathered parameters that outlive the forward.

How to read it: recomputing (activation checkpointing) lowers activations; sharding (FSDP, ZeRO) parameters, gradients
and optimizer state; a peak that is mostly temporary belongs to one operator (`memory_sites`).
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.memory_categories import CATEGORIES, CATEGORY_TABLES, categorized_samples, live_bytes
from rankscope.results import RANK_AND_WINDOW, Analysis, Column, Headline, Inputs, Tables, greatest, rows_by_window

COLUMNS = (
    *RANK_AND_WINDOW,
    Column("device", pl.String, "", "`cpu`, or kind and index: `cuda:0`, `hip:0`, `xpu:0`"),
    Column("category", pl.String, "", "what the memory is for"),
    Column("peak_bytes", pl.Int64, "bytes", "live at the peak of the device"),
    Column("share", pl.Float64, "ratio", "share of the peak of the device"),
    Column("most_bytes", pl.Int64, "bytes", "most that was live at once, at any time"),
    Column("last_bytes", pl.Int64, "bytes", "live after the last event"),
    Column("allocations", pl.Int64, "count", "allocations while recording"),
    Column("allocated_bytes", pl.Int64, "bytes", "bytes allocated while recording, summed over allocations"),
)
_KEY = ["memory", "category"]


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """A rank's devices and categories."""
    return rows_by_window(tables, inputs, COLUMNS, _of_window)


def _of_window(window: Tables, inputs: Inputs) -> pl.DataFrame:
    if not window["memory_events"].height:
        return pl.DataFrame(schema={"device": pl.String})
    found = categorized_samples(window)
    live = live_bytes(found).with_columns(found["at_peak"], found["step"])
    found, live = inputs.options.chosen(found), inputs.options.chosen(live)
    values = live.unpivot(list(CATEGORIES), index=["memory", "at_peak"], variable_name="category", value_name="bytes")
    size = pl.col("bytes")
    sums = values.group_by(_KEY, maintain_order=True).agg(
        # With `--steps`, the peak may be in another step.
        pl.when(pl.col("at_peak").any()).then(size.filter("at_peak").first()).alias("peak_bytes"),
        size.max().alias("most_bytes"),
        size.last().alias("last_bytes"),
    )
    counts = (
        found.filter(size > 0)
        .group_by(_KEY)
        .agg(pl.len().cast(pl.Int64).alias("allocations"), size.sum().alias("allocated_bytes"))
    )
    peak = pl.col("peak_bytes")
    return (
        sums.join(counts, on=_KEY, how="left", maintain_order="left")
        .with_columns(pl.col("allocations", "allocated_bytes").fill_null(0))
        .filter((pl.col("most_bytes") > 0) | (pl.col("allocations") > 0))
        .with_columns((peak / peak.sum().over("memory")).fill_nan(None).alias("share"))
        .rename({"memory": "device"})
        .sort("device", maintain_order=True)
    )


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    of_device = frame.filter(pl.col("device") != "cpu")
    # With a device, the host's memory is not the limit.
    rows = of_device if of_device.height else frame
    total = rows.group_by("rank", "window", "device", maintain_order=True).agg(pl.col("peak_bytes").sum())
    peak = greatest(total, "peak_bytes")
    if peak is None:
        return None
    mine = rows.filter(*(pl.col(key) == peak[key] for key in ("rank", "window", "device")))
    most = greatest(mine, "peak_bytes")
    if most is None or not most["share"]:
        return None
    names = {"earlier": "allocated before the recording", "unknown": "of unknown purpose"}
    text = "At the peak on rank {rank}, {device}, {share} of the memory is {category} ({bytes})."
    values = {"share": (most["share"], "ratio"), "bytes": (most["peak_bytes"], "bytes")}
    return Headline.of(
        text,
        rank=(peak["rank"], ""),
        device=(peak["device"], ""),
        category=(names.get(most["category"], most["category"].replace("_", " ")), ""),
        **values,
    )


analysis = Analysis(
    name="memory_categories",
    doc=__doc__,
    whole_recording=True,
    columns=COLUMNS,
    per_rank=per_rank,
    headline=headline,
    reads=CATEGORY_TABLES,
)
