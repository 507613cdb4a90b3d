"""Named ranges of each rank, the user's and PyTorch's: time on host and device.

One row per rank and name of a host range (`record_function`, and ranges that PyTorch creates: `Optimizer.step`, FSDP's
and DDP's, compiled graphs, collectives); `origin` says which of the two. Steps are left out: see `step_time`.
`--by step` has a row for each step in which a range starts.

    host total    = Σ duration; a range inside another of the same name is not counted twice
    host self     = Σ duration − ranges directly inside it
    device total  = |device events launched while the range was open|     |A|: the length of the union, all streams
    device idle   = |range| − |range ∩ device events|, no matter which range launched the events

What a thread launches belongs to the ranges that are open on it. What autograd's threads launch also belongs to the
ranges that are then open on the thread that runs the steps, because that thread waits for the backward: so a range
around `loss.backward()` has its kernels. (The profiler's own device-side copy of a range is not used: it spans the idle
time between kernels, and does not contain the backward.)

How to read it: device total far below host total means that the host is the bottleneck in this range; far above, that
the device is. A finding names ranges that exist in some steps of a rank and are missing from others with compiled
graphs: `torch.compile` traces through `record_function` and drops it. `--steps` keeps ranges that start in these steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from rankscope.primitives.activity import covered_time
from rankscope.primitives.annotation_origin import TORCH, USER, annotation_origins, compiled_ranges
from rankscope.primitives.call_stack import innermost, is_outermost, with_ancestors
from rankscope.primitives.hashed_names import with_shared_names
from rankscope.primitives.intervals import union_length_by
from rankscope.primitives.steps import host_steps, step_at
from rankscope.results import (
    Analysis,
    Column,
    Evidence,
    Finding,
    Inputs,
    Parameter,
    StoredFrame,
    Tables,
    by_window,
    chosen_starts,
    in_steps,
    stored_ranks,
    together,
)

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("step", pl.Int64, "", "the step in which it starts; null unless `--by step`, and outside steps"),
    Column("name", pl.String, "", "the range, `…` for a hash in its name"),
    Column("origin", pl.String, "", "`user`, or `torch` for ranges of PyTorch and its libraries"),
    Column("calls", pl.Int64, "count", "number of times it was entered"),
    Column("host_total_ns", pl.Int64, "ns", "host time in it"),
    Column("host_self_ns", pl.Int64, "ns", "host time in it, without ranges inside it"),
    Column("mean_ns", pl.Float64, "ns", "mean duration on the host"),
    Column("max_ns", pl.Int64, "ns", "longest duration on the host"),
    Column(
        "device_total_ns", pl.Int64, "ns", "device time of what was launched in it; null if the trace has no device"
    ),
    Column(
        "device_events", pl.Int64, "count", "kernels, copies and fills launched in it; null if the trace has no device"
    ),
    Column(
        "device_idle_ns", pl.Int64, "ns", "time in it in which the device was idle; null if the trace has no device"
    ),
    Column("host_in_steps_ns", pl.Int64, "ns", "host time in it, of ranges that start in complete steps"),
    Column("idle_in_steps_ns", pl.Int64, "ns", "device idle time in those; null if the trace has no device"),
    Column("steps", pl.Int64, "count", "number of steps that contain it"),
)
# Needed by the reduce: in how many steps compiled graphs ran, and how many of these lack the range.
_COMPILED, _LOST = "_compiled_steps", "_lost_steps"
_KEYS = ("step", "name")
_ON_DEVICE = ("device_total_ns", "device_events", "device_idle_ns", "idle_in_steps_ns")
_AUTOGRAD = r"^autograd::engine|^torch::autograd"


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The ranges of a rank: its windows' figures added."""
    parts = [_ranges_of(window, inputs) for window in by_window(tables, inputs)]
    added = (
        pl.concat(parts)
        .group_by(_KEYS, maintain_order=True)
        .agg(pl.col("max_ns").max(), pl.exclude("max_ns", *_KEYS).sum())
    )
    known = annotation_origins(added["name"].unique().drop_nulls())
    has_device = tables["device_events"].height > 0
    frame = added.with_columns(
        pl.lit(inputs.rank, pl.Int64).alias("rank"),
        pl.col("name").replace_strict(known, default=TORCH, return_dtype=pl.String).alias("origin"),
        (pl.col("duration_ns") / pl.col("calls")).alias("mean_ns"),
        *(pl.when(pl.lit(has_device)).then(pl.col(name)).alias(name) for name in _ON_DEVICE),
    )
    order = ("step", "origin", "host_total_ns", "name")
    return frame.sort(order, descending=[False, True, True, False], nulls_last=True).select(
        *(column.name for column in COLUMNS), _COMPILED, _LOST
    )


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[StoredFrame, list[Finding]]:
    """Concatenate the ranks; a finding names ranges that are missing in compiled graphs."""
    is_lost = (pl.col("origin") == USER) & (pl.col(_LOST) > 0)
    lost = [rows for part in together(parts) if part.height and (rows := part.filter(is_lost)).height]
    return stored_ranks(parts, COLUMNS), _dropped(pl.concat(lost)) if lost else []


def _dropped(lost: pl.DataFrame) -> list[Finding]:
    names = lost["name"].unique().sort().to_list()
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return [
        Finding(
            id="ranges-dropped-by-compile",
            severity="info",
            title=f"User ranges are missing from steps with compiled graphs: {shown}",
            ranks=tuple(lost["rank"].unique().sort()),
            evidence=(
                Evidence("ranges", len(names), "count"),
                Evidence(
                    "steps with compiled graphs but without the ranges, at most", int(lost[_LOST].to_numpy().max())
                ),
                Evidence("steps with compiled graphs", int(lost[_COMPILED].to_numpy().max())),
            ),
            advice="torch.compile drops record_function in compiled code. Put the range around the call of the "
            "compiled module, or use the times of `modules`.",
        )
    ]


def _ranges_of(window: Tables, inputs: Inputs) -> pl.DataFrame:
    """Figures of one window by key: sums that can be added to another window's."""
    annotations, device = window["annotations"], window["device_events"]
    host = with_shared_names(annotations.with_row_index("row").filter(~pl.col("on_device")))
    # Rows of the host's ranges alone, parents among them.
    host_row = np.full(annotations.height + 1, -1, dtype=np.int64)
    host_row[host["row"].to_numpy()] = np.arange(host.height)
    parent = host_row[host["parent_row"].fill_null(-1).to_numpy()]
    steps = host_steps(annotations)
    number = step_at(steps, host["start_ns"])
    by_step = inputs.parameters.get("by", "name") == "step"
    keyed = host.with_columns(
        number.alias("in_step"),
        (number if by_step else pl.lit(None, pl.Int64)).alias("step_key"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns"),
        pl.Series("busy_ns", covered_time(device).within(host["start_ns"].to_numpy(), host["end_ns"].to_numpy())),
    ).with_columns(pl.struct("step_key", "name").rank("dense").cast(pl.Int64).alias("group"))
    group = keyed["group"].to_numpy()
    is_step = host["step"].is_not_null() | host["incomplete_step"].is_not_null()
    kept = (chosen_starts(host, annotations, inputs) & ~is_step).to_numpy()
    outer = is_outermost(parent, group)
    compiled = pl.col("name").is_in(list(compiled_ranges(host["name"].unique().drop_nulls())))
    compiled_steps = keyed.filter(pl.Series(kept, dtype=pl.Boolean) & compiled)["in_step"].drop_nulls().unique()
    in_step = pl.col("in_step")
    with_name = in_step.filter(in_step.is_in(compiled_steps.to_list())).n_unique()
    # A range that is in no step at all (an evaluation between them) is missing from none.
    lost = pl.when(in_step.is_not_null().any()).then(compiled_steps.len() - with_name).otherwise(0).cast(pl.Int64)

    events, enclosing_ranges = _launched_in(host, device, window, parent, steps)
    pairs = pl.DataFrame(
        {
            "group": group[enclosing_ranges],
            "event": events,
            "start_ns": device["start_ns"].to_numpy()[events],
            "end_ns": device["end_ns"].to_numpy()[events],
        }
    ).filter(pl.Series(kept[enclosing_ranges], dtype=pl.Boolean))
    counted = pairs.group_by("group").agg(pl.col("event").n_unique().cast(pl.Int64).alias("device_events"))
    return (
        keyed.with_columns(pl.Series("outer", outer, dtype=pl.Boolean))
        .with_columns((pl.col("outer") & in_steps(keyed["start_ns"], annotations)).alias("counted"))
        .filter(pl.Series(kept, dtype=pl.Boolean))
        .with_columns(lost.over("name").alias(_LOST))
        .group_by("group", maintain_order=True)
        .agg(
            pl.col("step_key").first().alias("step"),
            pl.col("name").first(),
            pl.len().cast(pl.Int64).alias("calls"),
            pl.col("duration_ns").filter("outer").sum().alias("host_total_ns"),
            pl.col("self_ns").sum().alias("host_self_ns"),
            (pl.col("duration_ns") - pl.col("busy_ns")).filter("outer").sum().alias("device_idle_ns"),
            pl.col("duration_ns").filter("counted").sum().alias("host_in_steps_ns"),
            (pl.col("duration_ns") - pl.col("busy_ns")).filter("counted").sum().alias("idle_in_steps_ns"),
            pl.col("duration_ns").sum(),
            pl.col("duration_ns").max().alias("max_ns"),
            pl.col("in_step").drop_nulls().n_unique().cast(pl.Int64).alias("steps"),
            pl.lit(compiled_steps.len(), pl.Int64).alias(_COMPILED),
            pl.col(_LOST).first(),
        )
        .join(union_length_by(pairs, ["group"], "device_total_ns"), on="group", how="left")
        .join(counted, on="group", how="left")
        .with_columns(pl.col("device_total_ns", "device_events").fill_null(0))
        .drop("group")
    )


def _launched_in(
    host: pl.DataFrame, device: pl.DataFrame, window: Tables, parent: np.ndarray, steps: pl.DataFrame
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of a device event and a host range that was open when it was launched."""
    calls, operators = window["runtime_calls"], window["host_ops"]
    rows = np.flatnonzero(device["launch_row"].is_not_null().to_numpy())
    if not rows.size or not host.height:
        nothing = np.empty(0, dtype=np.int64)
        return nothing, nothing
    launched = pl.Series(rows)
    ranges = host.with_columns(pl.Series("parent_row", parent))
    instants = calls.select(pl.col("pid", "tid").gather(device["launch_row"].gather(launched))).with_columns(
        device["launch_ns"].gather(launched).alias("at_ns")
    )
    position, enclosing_ranges = with_ancestors(parent, innermost(ranges, instants))
    events, open_then = rows[position], enclosing_ranges
    # The thread that runs the steps waits while autograd's threads run the backward.
    runs = steps if steps.height else host.filter(pl.col("depth") == 0)
    main = runs.select("pid", "tid").head(1)
    autograd = operators.filter(pl.col("name").str.contains(_AUTOGRAD)).select("pid", "tid").unique()
    autograd = autograd.join(main, on=["pid", "tid"], how="anti", nulls_equal=True)
    if autograd.height and main.height:
        backward = instants.with_row_index("place").join(autograd, on=["pid", "tid"], how="semi", nulls_equal=True)
        there = pl.DataFrame({"at_ns": backward["at_ns"]}).with_columns(
            pl.lit(main["pid"][0], pl.Int64).alias("pid"), pl.lit(main["tid"][0], pl.Int64).alias("tid")
        )
        position, enclosing_ranges = with_ancestors(parent, innermost(ranges, there))
        events = np.concatenate([events, rows[backward["place"].to_numpy()[position]]])
        open_then = np.concatenate([open_then, enclosing_ranges])
    return events, open_then


analysis = Analysis(
    name="annotations",
    doc=__doc__, whole_recording=True,
    columns=COLUMNS,
    per_rank=per_rank,
    across_ranks=across_ranks,
    reads={
        "annotations": (
            "start_ns", "end_ns", "name", "pid", "tid", "on_device", "step", "incomplete_step", "depth",
            "parent_row", "self_ns",
        ),
        "device_events": ("start_ns", "end_ns", "launch_row", "launch_ns"),
        "runtime_calls": ("pid", "tid"),
        "host_ops": ("name", "pid", "tid"),
    },
    parameters=(Parameter("by", "what to group rows by", default="name", choices=("name", "step")),),
    has_findings=True,
)  # fmt: skip
