"""Copies between host and device: size, bandwidth, and kind of memory.

One row per rank and kind of copy, as the device names it: `Memcpy HtoD (Pageable -> Device)`. `pageable` says whether
the host's side is pageable memory: the driver then first copies it into a staging buffer, so it is slower and keeps
the host in the call (CUDA's API synchronization behavior). `host_ns` is the time that the host spent in the calls that
launched them; `exposed_ns` the time in which nothing else ran on the device. Bandwidth is bytes over the summed
durations, null if no sizes are recorded. If the trace has steps, copies launched outside them do not count.

    exposed = Σ |copy − everything on the device that is not a copy|
    bandwidth = Σ bytes / Σ durations                 per step = exposed / steps of the trace

How to read it: exposed time is the potential saving of overlapping copies with compute (`non_blocking=True`, from
pinned memory). Much `host_ns` on a pageable kind: use `pin_memory=True` in the data loader.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.activity import covered_time
from rankscope.primitives.copies import NOT_PAGEABLE, ON_DEVICE, PAGEABLE, TO_DEVICE, TO_HOST
from rankscope.primitives.steps import events_launched_in, host_steps
from rankscope.results import Analysis, Column, Headline, Inputs, Tables, by_window, greatest, over_ranks, total_of

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("name", pl.String, "", "the kind of copy, as recorded"),
    Column(
        "direction",
        pl.String,
        "",
        "`host to device`, `device to host`, `device to device`, `peer to peer`; null if not recorded",
    ),
    Column("pageable", pl.Boolean, "", "whether the host's side is pageable memory; null if not recorded"),
    Column("calls", pl.Int64, "count", "number of copies"),
    Column("bytes", pl.Int64, "bytes", "bytes copied; null if no size is recorded"),
    Column("total_ns", pl.Int64, "ns", "sum of durations"),
    Column("host_ns", pl.Int64, "ns", "host time in the calls that launched them; null if none is in the trace"),
    Column("exposed_ns", pl.Int64, "ns", "exposed time: the device did nothing else"),
    Column("bandwidth", pl.Float64, "GB/s", "bytes divided by the sum of durations"),
    Column("steps", pl.Int64, "count", "steps that launched such copies; 0 if the trace has no steps"),
    Column("per_step_ns", pl.Int64, "ns", "exposed time per step of the trace"),
)


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The copies of a rank."""
    parts, count = [], 0
    for number, window in enumerate(by_window(tables, inputs)):
        part, steps = _window_copies(window, inputs)
        parts.append(part.with_columns(window=pl.lit(number)))
        count += steps
    copies = pl.concat(parts)
    name = pl.col("name")
    sized = pl.col("bytes").is_not_null().any()
    return (
        copies.group_by("name")
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            pl.when(sized).then(pl.col("bytes").sum()).alias("bytes"),
            pl.col("total_ns").sum(),
            pl.when(pl.col("host_ns").is_not_null().any()).then(pl.col("host_ns").sum()).alias("host_ns"),
            pl.col("exposed_ns").sum(),
            pl.struct("window", "step").filter(pl.col("step").is_not_null()).n_unique().cast(pl.Int64).alias("steps"),
        )
        .with_columns(
            pl.lit(inputs.rank, pl.Int64).alias("rank"),
            pl.when(name.str.contains(TO_DEVICE)).then(pl.lit("host to device"))
            .when(name.str.contains(TO_HOST)).then(pl.lit("device to host"))
            .when(name.str.contains("(?i)PtoP|P2P|peer")).then(pl.lit("peer to peer"))
            .when(name.str.contains(ON_DEVICE)).then(pl.lit("device to device")).alias("direction"),
            pl.when(name.str.contains(PAGEABLE)).then(True)
            .when(name.str.contains(NOT_PAGEABLE)).then(False).alias("pageable"),
            pl.when(pl.col("total_ns") > 0).then(pl.col("bytes") / pl.col("total_ns")).alias("bandwidth"),
            (pl.col("exposed_ns") // max(count, 1)).alias("per_step_ns"),
        )
        .sort("total_ns", "name", descending=[True, False])
        .select(column.name for column in COLUMNS)
    )  # fmt: skip


def _window_copies(window: Tables, inputs: Inputs) -> tuple[pl.DataFrame, int]:
    device, runtime = window["device_events"], window["runtime_calls"]
    steps = inputs.options.chosen(host_steps(window["annotations"]))
    selected = device
    if steps.height or inputs.options.steps is not None:
        selected = events_launched_in(device, steps, pl.col("step").is_not_null())
    copies = selected.filter(pl.col("kind") == "memcpy")
    others = covered_time(device.filter(pl.col("kind") != "memcpy"))
    start, end = copies["start_ns"].to_numpy(), copies["end_ns"].to_numpy()
    alone = pl.Series("exposed_ns", (end - start) - others.within(start, end), dtype=pl.Int64)
    calls = runtime.select((pl.col("end_ns") - pl.col("start_ns")).alias("host_ns"))
    calls = calls.with_columns(pl.int_range(pl.len(), dtype=pl.Int32).alias("launch_row"))
    timed = copies.with_columns(alone, (pl.col("end_ns") - pl.col("start_ns")).alias("total_ns"))
    if steps.height:
        step = steps["start_ns"].search_sorted(timed["launch_ns"], side="right").cast(pl.Int64)
    else:
        step = pl.Series([None] * timed.height, dtype=pl.Int64)
    return (
        timed.with_columns(step.alias("step"))
        .join(calls, on="launch_row", how="left", maintain_order="left")
        .select("name", "bytes", "total_ns", "host_ns", "exposed_ns", "step"),
        steps.height,
    )


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    kinds = frame.group_by("name", maintain_order=True).agg(pl.col("total_ns").sum())
    most, total, exposed = greatest(kinds, "total_ns"), total_of(frame, "total_ns"), total_of(frame, "exposed_ns")
    if most is None:
        return None
    values = {"total": (total, "ns")}
    text = f"Copies: {{total}}{over_ranks(frame)}"
    if exposed == total:
        text += ", all of it exposed"
    elif exposed:
        text, values["exposed"] = f"{text}, of which {{exposed}} is exposed", (exposed, "ns")
    if kinds.height == 1:
        return Headline.of(f"{text}.", **values)
    amount = (most["total_ns"], "ns")
    return Headline.of(f"{text}; most time in {{name}}: {{amount}}.", name=(most["name"], ""), amount=amount, **values)


analysis = Analysis(
    name="copies",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    headline=headline,
    reads={
        "device_events": ("start_ns", "end_ns", "name", "kind", "bytes", "launch_row", "launch_ns"),
        "runtime_calls": ("start_ns", "end_ns"),
        "annotations": ("start_ns", "end_ns", "on_device", "step"),
    },
)
