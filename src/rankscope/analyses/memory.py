"""Peak memory of each rank: how much, when, and in which operator.

One row per rank, trace file and device (the host is ``cpu``), from a trace recorded with `profile_memory`. The profiler
records what is allocated and reserved on a device after each allocation and release, so every sample is exact:

    peak_allocated   = max over samples of allocated; peak_at_ns, peak_step, peak_operator: of the first such sample
    unused_reserved  = (reserved − allocated) / reserved, at the last sample with the most reserved
    growth           = median over steps of allocated at the end of a step less at the end of the previous one
    growing_steps    = number of steps that ended with more allocated than the previous one

Memory that is reserved but not allocated is cache and fragmentation; a snapshot separates the two (`memory_snapshot`).
`change_peak` counts from the first event of the trace and exists even if the trace has no totals (2020–21).

On the host (``cpu``) allocated memory is what was allocated since the recording of this file began and is not released,
added up from the events; a model created earlier is not included. The total in the trace is not used: it continues
where the profiler's previous window ended, whatever was released in between, and is 0 where a DataLoader's worker hands
over a batch. Releases by Gloo's threads are not seen, so under FSDP on the CPU the figure drifts upwards.

`device_allocations` and `device_frees` are calls of the driver's own malloc and free while recording: a warm allocator
makes none, and one that frees and allocates in every step is retrying at the limit. `--steps` keeps samples of the
selected steps.

How to read it: a peak near the device's memory leaves no headroom; `peak_operator` and `peak_step` show what needed it,
`memory_operators` what keeps most. Growth over all steps is a leak, or data kept on purpose: `memory_steps` shows it
step by step.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.allocations import (
    DEVICE_FREE,
    DEVICE_MALLOC,
    HOST,
    MEMORY_COLUMNS,
    counted_from,
    memory_by_step,
    memory_samples,
)
from rankscope.results import RANK_AND_WINDOW, Analysis, Column, Headline, Inputs, Tables, greatest, rows_by_window

COLUMNS = (
    *RANK_AND_WINDOW,
    Column("device", pl.String, "", "`cpu`, or kind and index: `cuda:0`, `hip:0`, `xpu:0`"),
    Column("allocations", pl.Int64, "count", "allocations"),
    Column("releases", pl.Int64, "count", "releases"),
    Column("allocated_bytes", pl.Int64, "bytes", "bytes allocated, summed over allocations"),
    Column("released_bytes", pl.Int64, "bytes", "bytes released, summed over releases"),
    Column(
        "first_allocated",
        pl.Int64,
        "bytes",
        "allocated before the first event, 0 for the host; null if the trace has no totals",
    ),
    Column("last_allocated", pl.Int64, "bytes", "allocated after the last event; null if the trace has no totals"),
    Column("peak_allocated", pl.Int64, "bytes", "peak of allocated memory; null if the trace has no totals"),
    Column(
        "peak_at_ns",
        pl.Int64,
        "ns",
        "time of the peak; without totals, of the largest change",
        instant=True,
    ),
    Column("peak_step", pl.Int64, "", "step of the peak; null outside steps"),
    Column("peak_operator", pl.String, "", "innermost operator at the peak; null outside operators"),
    Column("change_peak", pl.Int64, "bytes", "peak of allocated memory relative to the first event of the trace"),
    Column("peak_reserved", pl.Int64, "bytes", "peak of memory reserved by the allocator; null for the host"),
    Column(
        "unused_reserved", pl.Float64, "ratio", "share of reserved memory that was not allocated when most was reserved"
    ),
    Column("total_memory", pl.Int64, "bytes", "memory of the device; null if the trace does not record it"),
    Column(
        "growth",
        pl.Int64,
        "bytes",
        "growth from the end of a step to the end of the next, median; null with fewer than two steps",
    ),
    Column("growing_steps", pl.Int64, "count", "steps that ended with more allocated than the previous one"),
    Column("steps", pl.Int64, "count", "steps with samples"),
    Column("device_allocations", pl.Int32, "count", "calls of the driver's malloc; null for the host"),
    Column("device_frees", pl.Int32, "count", "calls of the driver's free; null for the host"),
)
# Here a pool's calls count, too; not cudaMallocHost, which takes the host's memory.
_MALLOC = rf"{DEVICE_MALLOC}|^(cuda|hip)Malloc(FromPool)?Async$|^cuMemAlloc"
_FREE = rf"{DEVICE_FREE}|^(cuda|hip)FreeAsync$|^cuMemFree"


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """A rank's devices."""
    return rows_by_window(tables, inputs, COLUMNS, _of_window)


def _of_window(window: Tables, inputs: Inputs) -> pl.DataFrame:
    found = memory_samples(window["memory_events"], window["host_ops"], window["annotations"])
    found = inputs.options.chosen(found)
    names = window["host_ops"]["name"]
    grew = pl.col("bytes") > 0
    # Without totals, the running change peaks at the same sample.
    height = pl.coalesce("allocated", "change")
    peak, held = height.arg_max(), pl.col("reserved").reverse().arg_max()
    spare = pl.col("reserved") - pl.col("allocated")
    calls = window["runtime_calls"]["name"]
    rows = found.group_by("memory", maintain_order=True).agg(
        (pl.col("device_type").first() == HOST).alias("is_host"),
        grew.sum().cast(pl.Int64).alias("allocations"),
        (pl.col("bytes") < 0).sum().cast(pl.Int64).alias("releases"),
        pl.col("bytes").filter(grew).sum().alias("allocated_bytes"),
        (-pl.col("bytes").filter(pl.col("bytes") < 0).sum()).alias("released_bytes"),
        (pl.col("allocated") - pl.col("counted")).first().alias("first_allocated"),
        pl.col("allocated").last().alias("last_allocated"),
        pl.col("allocated").max().alias("peak_allocated"),
        pl.col("time_ns").get(peak).alias("peak_at_ns"),
        pl.col("step").get(peak).alias("peak_step"),
        pl.col("operator_row").get(peak).alias("operator"),
        # At least 0: the start counts too.
        pl.max_horizontal(pl.col("change").max(), 0).alias("change_peak"),
        pl.col("reserved").max().alias("peak_reserved"),
        pl.when(pl.col("reserved") > 0).then(spare / pl.col("reserved")).reverse().get(held).alias("unused_reserved"),
    )
    operator = rows["operator"].set(rows["operator"] < 0, None)
    growth = (
        memory_by_step(found)
        .group_by("memory")
        .agg(
            pl.col("growth").median().round().cast(pl.Int64),
            (pl.col("growth") > 0).sum().cast(pl.Int64).alias("growing_steps"),
            pl.len().cast(pl.Int64).alias("steps"),
        )
    )
    counted = [(_MALLOC, "device_allocations"), (_FREE, "device_frees")]
    return (
        rows.with_columns(names.gather(operator).alias("peak_operator"))
        .join(growth, on="memory", how="left", maintain_order="left")
        .with_columns(
            pl.col("growing_steps", "steps").fill_null(0),
            *(
                pl.when(~pl.col("is_host")).then(pl.lit(int(calls.str.contains(pattern).sum()))).alias(name)
                for pattern, name in counted
            ),
        )
        .rename({"memory": "device"})
        .with_columns(_capacity(inputs).alias("total_memory"))
        .sort("device")
    )


def _capacity(inputs: Inputs) -> pl.Expr:
    """The memory of a device by its index, as listed in the trace."""
    listed = [device for info in inputs.traces for device in info.devices]
    known = {device.get("id"): device.get("total_memory") for device in listed if device.get("total_memory")}
    number = pl.col("device").str.extract(r":(\d+)$").cast(pl.Int64)
    return number.replace_strict(known, default=None, return_dtype=pl.Int64)


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    of_device = frame.filter(pl.col("device") != "cpu")
    # With a device, the host's memory is not the limit.
    rows = of_device if of_device.height else frame
    peak = greatest(rows, "peak_allocated") or greatest(rows, "change_peak")
    if peak is None:
        return None
    known = peak["peak_allocated"] is not None
    amount = peak["peak_allocated"] if known else peak["change_peak"]
    values = {"rank": (peak["rank"], ""), "device": (peak["device"], ""), "peak": (amount, "bytes")}
    highest = "Highest peak memory" if rows["rank"].n_unique() > 1 else "Peak memory"
    text = f"{highest}: {{peak}}{counted_from(peak['device'], known)}"
    if peak["total_memory"] and known:
        text, values["share"] = text + " ({share} of its memory)", (amount / peak["total_memory"], "ratio")
    text += " on rank {rank}, {device}"
    if peak["peak_step"] is not None:
        text, values["step"] = text + ", in step {step}", (peak["peak_step"], "")
    return Headline.of(f"{text}.", **values)


analysis = Analysis(
    name="memory",
    doc=__doc__,
    whole_recording=True,
    columns=COLUMNS,
    per_rank=per_rank,
    headline=headline,
    needs_rows_of=("memory_events",),
    reads={
        "memory_events": MEMORY_COLUMNS,
        "host_ops": ("start_ns", "end_ns", "name", "pid", "tid"),
        "annotations": ("start_ns", "end_ns", "on_device", "step"),
        "runtime_calls": ("name",),
    },
)
