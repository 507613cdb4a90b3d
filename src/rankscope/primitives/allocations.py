"""Allocations and releases recorded by the profiler, with their device, step and operator.

In: the table of memory events. Out: a frame with a row per allocation or release.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.call_stack import enclosing, range_at
from rankscope.primitives.steps import host_steps

# c10's DeviceType, as far as torch.profiler writes it.
DEVICE_TYPES = {0: "cpu", 1: "cuda", 6: "hip", 9: "xla", 12: "xpu", 13: "mps", 15: "hpu", 19: "mtia", 20: "privateuse1"}
HOST = 0

DEVICE_MALLOC = (
    r"(?i)^(cuda|hip)(Malloc|MallocManaged|ExtMallocWithFlags)$|^zeMemAlloc(Device|Shared)$"
    r"|^cuMemAlloc(Managed|Pitch)?(_v2)?$|^(cu|hip)MemCreate$|^(ur|piext)USM(Device|Shared)Alloc$"
)
DEVICE_FREE = r"(?i)^(cuda|hip)Free$|^zeMemFree$|^cuMemFree(_v2)?$|^(cu|hip)MemRelease$|^(ur|piext)USMFree$"
PINNED_MEMORY = (
    r"(?i)^(cuda|hip)(HostAlloc|HostMalloc|MallocHost|FreeHost|HostFree|Host(Unr|R)egister)$"
    r"|^zeMemAllocHost$|^(ur|piext)USMHostAlloc$"
)
"""CUDA, HIP, Level Zero, and SYCL's runtimes: Unified Runtime (ur…) and, before it, its plugin interface (pi…)."""
# What expandable segments call besides. Not the Async ones: they return at once, and a pool makes them for each tensor.
ALLOCATOR_CALLS = rf"{DEVICE_MALLOC}|{DEVICE_FREE}|{PINNED_MEMORY}|^(cu|hip)Mem(Map|Unmap|SetAccess)$"
"""Calls of the host into the driver for memory: they take up to milliseconds, and a free waits for the device."""

MEMORY_COLUMNS = (
    "time_ns", "pid", "tid", "address", "bytes", "device_type", "device", "total_allocated", "total_reserved",
)  # fmt: skip
TOTALS_COLUMNS = tuple(name for name in MEMORY_COLUMNS if name not in ("pid", "tid"))
PIECES = 240
"""Intervals of a curve that is downsampled for drawing."""


def device_name() -> pl.Expr:
    """``cuda:0``, ``cpu``: from device_type and device; an unknown type keeps its number."""
    kind = (
        pl.col("device_type")
        .replace_strict(DEVICE_TYPES, default=None, return_dtype=pl.String)
        .fill_null(pl.format("type{}", pl.col("device_type").fill_null(-1)))
    )
    return pl.when(pl.col("device") >= 0).then(pl.format("{}:{}", kind, "device")).otherwise(kind)


def counted_from(device: str, known: bool) -> str:
    """What follows an amount of allocated memory in a sentence.

    Args:
        device: its name.
        known: whether ``allocated`` is known; else it is a ``change``.
    """
    if not known:
        return " above the start of the recording"
    return " allocated since the recording began," if device == DEVICE_TYPES[HOST] else ""


def with_totals(events: pl.DataFrame) -> pl.DataFrame:
    """The allocations and releases of one trace, in time order, with what is allocated and reserved after each.

    Adds ``memory`` (the device's name), ``allocated`` and ``reserved`` on the device after this event, null if not
    recorded, and ``counted``, the part of ``bytes`` that ``allocated`` counts.

    On the host ``allocated`` counts from the start of the recording: what was allocated since and is not released. Its
    recorded total is no figure of the process: torch's counter only runs while a profiler does, so what one window
    allocates and the job releases after it stays in the total of all later ones; and it is 0 at events of shared memory
    (batches of a DataLoader's workers). Without addresses the total is all there is. ``reserved`` is null on the host,
    where files write 0.

    Args:
        events: memory_events, all of `TOTALS_COLUMNS`.
    """
    size, on_host = pl.col("bytes").fill_null(0), pl.col("device_type") == HOST
    since_start = on_host & pl.col("address").is_not_null()
    is_older = (size < 0) & ~(size.shift(1) > 0).fill_null(False).over("memory", "address")
    return (
        events.sort("time_ns", maintain_order=True)
        .with_columns(device_name().alias("memory"))
        .with_columns(pl.when(~(since_start & is_older)).then(size).otherwise(0).alias("counted"))
        .with_columns(
            pl.when(since_start)
            .then(pl.col("counted").cum_sum().over("memory"))
            .otherwise("total_allocated")
            .alias("allocated"),
            pl.when(~on_host).then("total_reserved").alias("reserved"),
        )
    )


def memory_samples(events: pl.DataFrame, operators: pl.DataFrame, annotations: pl.DataFrame) -> pl.DataFrame:
    """The allocations and releases of one trace, in time order, with the device, step and operator of each.

    Adds to `with_totals`: ``operator_row`` (the innermost operator open on the thread, −1 for none), ``step`` (null
    outside all steps), and ``change`` (bytes allocated minus bytes released on the device since the file's first event,
    including this one).

    Args:
        events: memory_events, all of `MEMORY_COLUMNS`.
        operators: host_ops: start_ns, end_ns, pid, tid.
        annotations: start_ns, end_ns, on_device, step.
    """
    ordered = with_totals(events)
    steps = host_steps(annotations)
    step = range_at(steps, ordered["time_ns"].to_numpy())
    number = steps["step"].gather(pl.Series(step).set(pl.Series(step < 0), None)) if steps.height else None
    return ordered.with_columns(
        pl.Series("operator_row", enclosing(operators, ordered), dtype=pl.Int64),
        pl.lit(None, pl.Int64).alias("step") if number is None else number.alias("step"),
        pl.col("bytes").fill_null(0).cum_sum().over("memory").alias("change"),
    )


def in_pieces(samples: pl.DataFrame) -> pl.DataFrame:
    """The samples with the one of 240 equal intervals between the first and the last that each is in.

    Adds ``piece`` (its number) and ``at_ns`` (its start, from the first sample).

    Args:
        samples: time_ns and any other columns.
    """
    since = pl.col("time_ns") - pl.col("time_ns").min()
    piece, span = pl.col("piece"), since.max() + 1
    return samples.with_columns((PIECES * since // span).alias("piece")).with_columns(
        (piece * span // PIECES).alias("at_ns")
    )


def memory_by_step(samples: pl.DataFrame) -> pl.DataFrame:
    """Memory of each device in each step: memory, step, allocations, sums, peaks, ends and growth, in time order.

    Args:
        samples: the result of `memory_samples`.
    """
    size = pl.col("bytes")
    return (
        samples.filter(pl.col("step").is_not_null())
        .group_by("memory", "step", maintain_order=True)
        .agg(
            (size > 0).sum().cast(pl.Int64).alias("allocations"),
            size.filter(size > 0).sum().alias("allocated_bytes"),
            (-size.filter(size < 0).sum()).alias("released_bytes"),
            pl.col("allocated").max().alias("peak_allocated"),
            pl.col("allocated").last().alias("end_allocated"),
            pl.col("reserved").max().alias("peak_reserved"),
            pl.col("change").max().alias("change_peak"),
            pl.col("change").last().alias("end_change"),
        )
        .sort("memory", maintain_order=True)
        .with_columns((pl.col("end_change") - pl.col("end_change").shift(1).over("memory")).alias("growth"))
    )


def memory_blocks(samples: pl.DataFrame) -> pl.DataFrame:
    """Allocations with the release that follows at their address, in order of allocation.

    If another allocation follows at the same address, the release was not recorded. A release without an allocation
    before it frees an older block.

    Args:
        samples: the result of `memory_samples`; without an address they are in no block.

    Returns:
        memory, address, bytes, allocated_ns, released_ns, step, released_step, operator_row, releasing_row, and
        ``event`` and ``releasing_event``: rows of `samples`; null where there is none.
    """
    block = ["memory", "address"]
    ordered = (
        samples.with_row_index("event")
        .with_columns(pl.col("event").cast(pl.Int64))
        .filter(pl.col("address").is_not_null())
        .sort(*block, "time_ns", "event")
    )
    releases, after, before = pl.col("bytes") < 0, pl.col("bytes").shift(-1), pl.col("bytes").shift(1)
    marked = ordered.with_columns(
        releases.alias("releases"),
        ((~releases) & (after < 0).fill_null(False)).over(block).alias("paired"),
        (releases & ~(before > 0).fill_null(False)).over(block).alias("orphan"),
        *(
            pl.col(column).shift(-1).over(block).alias(name)
            for column, name in (
                ("time_ns", "next_ns"),
                ("step", "next_step"),
                ("operator_row", "next_row"),
                ("event", "next_event"),
            )
        ),
    )
    paired, orphan = pl.col("paired"), pl.col("orphan")
    return (
        marked.filter(~pl.col("releases") | orphan)
        .sort("time_ns", maintain_order=True)
        .select(
            "memory",
            "address",
            pl.col("bytes").abs(),
            pl.when(~orphan).then("time_ns").alias("allocated_ns"),
            pl.when(orphan).then("time_ns").when(paired).then("next_ns").alias("released_ns"),
            pl.when(~orphan).then("step").alias("step"),
            pl.when(orphan).then("step").when(paired).then("next_step").alias("released_step"),
            pl.when(~orphan).then("operator_row").alias("operator_row"),
            pl.when(orphan).then("operator_row").when(paired).then("next_row").alias("releasing_row"),
            pl.when(~orphan).then("event").alias("event"),
            pl.when(orphan).then("event").when(paired).then("next_event").alias("releasing_event"),
        )
    )


def with_peak(samples: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """The samples with what is live at their device's peak.

    Adds ``held``, the live bytes on the device after the event: its total, or the sum of the recorded events;
    ``at_peak``, whether the event is the first at which ``held`` is highest on its device; and ``live``, whether it is
    the allocation of a block that is live at that peak.

    Args:
        samples: the result of `memory_samples`.
        blocks: their `memory_blocks`.
    """
    samples = samples.with_columns(pl.coalesce("allocated", "change").alias("held")).with_columns(
        (pl.int_range(pl.len()) == pl.col("held").arg_max()).over("memory").alias("at_peak")
    )
    peaks = samples.with_row_index("peak").filter("at_peak").select("memory", pl.col("peak").cast(pl.Int64))
    event, until, peak = pl.col("event"), pl.col("releasing_event"), pl.col("peak")
    live = blocks.join(peaks, on="memory", how="left").filter(event <= peak, until.is_null() | (until > peak))
    return samples.with_columns(pl.int_range(pl.len()).is_in(live["event"].implode()).alias("live"))
