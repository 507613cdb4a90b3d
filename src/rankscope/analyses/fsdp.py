"""FSDP's all-gathers and reduce-scatters by module: what was prefetched, and what is exposed.

One row per collective that FSDP issued: rank, step and module. FSDP2 (`fully_shard`) names its modules in its ranges
(`FSDP::all_gather (layers.3)`; the root has no name and is ``(root)``). FSDP1 (`FullyShardedDataParallel`) does not
name them: its modules are null, and `order` numbers them.

    issued     when the host called the collective (`c10d::…` inside one of FSDP's ranges)
    exposed    = |collective| − |collective ∩ compute of the rank|, as everywhere
    used       when its result is first needed: FSDP2's copy-out of the module, on the device if there is one
    prefetched = something else was computed between issued and used

An all-gather that is issued only when its module is reached cannot overlap, whatever its size. FSDP2 prefetches the
next module of the backward, and on a device also of the forward, as far as the host runs ahead; `asked` is true for
calls inside an explicit prefetch of FSDP. FSDP1 has no range where a result is first used, so only explicit prefetches
are known. FSDP's copies into and out of its buffers do not count as other compute. The hidden share is
Σ hidden / Σ duration. Without a device compute is operators, and an autograd operator in whose hooks the host waits
counts as overlap: use `prefetched`, and `sync` of `phases`, instead.

How to read it: an all-gather that is exposed and not prefetched should be issued earlier: FSDP2's
`set_modules_to_forward_prefetch` and `set_modules_to_backward_prefetch`, FSDP1's `forward_prefetch` and
`backward_prefetch`. One that is prefetched and still exposed is longer than the compute that could overlap with it.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.activity import activity, computing_operators, covered_time, gloo_ranges, with_category
from rankscope.primitives.call_stack import enclosing, launch_instants, parent_rows, with_ancestors
from rankscope.primitives.collective_launches import READS, collective_launches, exposed_times
from rankscope.primitives.columns import values_and_validity
from rankscope.primitives.intervals import Int64, IntervalSet
from rankscope.primitives.kernels import COMPUTE
from rankscope.primitives.steps import host_steps, step_at
from rankscope.results import (
    RANK_AND_WINDOW,
    Analysis,
    Column,
    Headline,
    Inputs,
    Tables,
    over_ranks,
    steps_by_window,
    total_of,
)

COLUMNS = (
    *RANK_AND_WINDOW,
    Column("step", pl.Int64, "", "the step in which it was issued; null outside steps"),
    Column("version", pl.Int64, "", "1 for `FullyShardedDataParallel`, 2 for `fully_shard`"),
    Column("module", pl.String, "", "the module's name; `(root)` for the root module, null with FSDP1"),
    Column("phase", pl.String, "", "`forward` or `backward`"),
    Column("collective", pl.String, "", "`all_gather`, `reduce_scatter`; `all_reduce` if modules are also replicated"),
    Column("order", pl.Int64, "", "index among its kind in the step's forward or backward, from 0"),
    Column("bytes", pl.Int64, "bytes", "size of the full array; null if not recorded"),
    Column("issued_ns", pl.Int64, "ns", "when the host called it", instant=True),
    Column("start_ns", pl.Int64, "ns", "start of the collective; null if not in the trace", instant=True),
    Column("duration_ns", pl.Int64, "ns", "duration, including waiting; null if not in the trace"),
    Column("exposed_ns", pl.Int64, "ns", "exposed part of the duration (no compute at the same time)"),
    Column("hidden_ns", pl.Int64, "ns", "part of the duration that overlaps with compute"),
    Column(
        "used_ns",
        pl.Int64,
        "ns",
        "when its result was first needed; null if not recorded",
        instant=True,
    ),
    Column("asked", pl.Boolean, "", "whether it was issued by one of FSDP's prefetches"),
    Column(
        "prefetched",
        pl.Boolean,
        "",
        "whether something else was computed between issued and used; null if not recorded",
    ),
)
_RANGE = r"^FSDP::|^FullyShardedDataParallel\."
_MODULE = r"^FSDP::\S+ (?:for )?\(?(.*?)\)?$"
_BACKWARD = r"^FSDP::(pre_backward|post_backward|root_post_backward|backward_prefetch)|_(pre|post)_backward"
_PREFETCH = r"_prefetch"
ROOT = "(root)"


def _window_collectives(window: Tables, inputs: Inputs) -> pl.DataFrame:
    calls = collective_launches(window, inputs.options.communication)
    annotations = window["annotations"]
    ranges = annotations.with_columns(
        (pl.col("name").str.contains(_RANGE) & ~pl.col("on_device")).fill_null(False).alias("fsdp")
    )
    call_ranges = _ranges_around(ranges, calls)
    calls = calls.with_columns(call_ranges).filter(pl.col("innermost").is_not_null())
    sets = activity(window["device_events"], window["host_ops"], annotations, inputs.options.communication)
    first_use = _first_use(window, ranges, calls)
    calls = calls.with_columns(
        step_at(host_steps(annotations), calls["issued_ns"]),
        pl.when(pl.col("innermost").str.starts_with("FSDP::")).then(2).otherwise(1).alias("version"),
        _module(pl.col("innermost")).alias("module"),
        pl.when("backward").then(pl.lit("backward")).otherwise(pl.lit("forward")).alias("phase"),
        pl.col("kind").alias("collective"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns"),
        exposed_times(calls, sets).alias("exposed_ns"),
        first_use.alias("used_ns"),
    )
    model_compute = _model_compute(window, ranges, inputs)
    return calls.with_columns(
        (pl.col("duration_ns") - pl.col("exposed_ns")).alias("hidden_ns"),
        pl.int_range(pl.len()).over("step", "phase", "collective").alias("order"),
        _prefetched(calls, model_compute).alias("prefetched"),
    )


def _module(name: pl.Expr) -> pl.Expr:
    module = name.str.extract(_MODULE)
    version2 = name.str.starts_with("FSDP::")
    return pl.when(version2).then(pl.when(module.fill_null("") == "").then(pl.lit(ROOT)).otherwise(module))


def _ranges_around(ranges: pl.DataFrame, calls: pl.DataFrame) -> list[pl.Series]:
    """For each call the innermost FSDP range around it, and whether any is of the backward or of a prefetch."""
    times = calls.select(pl.col("issued_ns").alias("time_ns"), "pid", "tid")
    host = ranges.with_row_index("row").filter(~pl.col("on_device"))
    innermost = enclosing(host, times)
    rows = (
        np.where(innermost >= 0, host["row"].cast(pl.Int64).to_numpy()[np.maximum(innermost, 0)], -1)
        if host.height
        else innermost
    )
    call, ancestor = with_ancestors(parent_rows(ranges), rows)
    pairs = pl.DataFrame(
        {"call": call, "name": ranges["name"].gather(ancestor), "fsdp": ranges["fsdp"].gather(ancestor)}
    )
    # `with_ancestors` lists the innermost range first.
    ranges_of_call = (
        pairs.filter(pl.col("fsdp"))
        .group_by("call", maintain_order=True)
        .agg(
            pl.col("name").first().alias("innermost"),
            pl.col("name").str.contains(_BACKWARD).any().alias("backward"),
            pl.col("name").str.contains(_PREFETCH).any().alias("asked"),
        )
    )
    all_calls = pl.DataFrame({"call": np.arange(calls.height, dtype=np.int64)})
    joined = all_calls.join(ranges_of_call, on="call", how="left", maintain_order="left").with_columns(
        pl.col("backward", "asked").fill_null(False)
    )
    return [joined["innermost"], joined["backward"], joined["asked"]]


def _first_use(window: Tables, ranges: pl.DataFrame, calls: pl.DataFrame) -> pl.Series:
    """When FSDP2 first uses an all-gather's result: the first copy-out of the module after it was issued."""
    copies = ranges.filter(pl.col("fsdp") & pl.col("name").str.starts_with("FSDP::all_gather_copy_out")).select(
        "start_ns", "end_ns", "pid", "tid", _module(pl.col("name")).alias("module")
    )
    device = window["device_events"].filter(pl.col("launch_row").is_not_null())
    if device.height and copies.height:
        threads = launch_instants(device, window["runtime_calls"])
        began = (
            pl.DataFrame({"copy": enclosing(copies, threads), "began": device["start_ns"]})
            .filter(pl.col("copy") >= 0)
            .group_by("copy")
            .agg(pl.col("began").min())
        )
        copies = (
            copies.with_row_index("copy")
            .with_columns(pl.col("copy").cast(pl.Int64))
            .join(began, on="copy", how="left", maintain_order="left")
            .with_columns(pl.coalesce("began", "start_ns").alias("used"))
        )
    else:
        copies = copies.with_columns(pl.col("start_ns").alias("used"))
    gathers = calls.select(
        pl.when(pl.col("kind") == "all_gather").then(_module(pl.col("innermost"))).alias("module"),
        pl.col("issued_ns").alias("at_ns"),
    ).with_row_index("call")
    first_copies = gathers.sort("at_ns").join_asof(
        copies.select("module", pl.col("start_ns").alias("at_ns"), "used").sort("at_ns"),
        on="at_ns",
        by="module",
        strategy="forward",
        check_sortedness=False,
    )
    return first_copies.sort("call")["used"]


def _model_compute(window: Tables, ranges: pl.DataFrame, inputs: Inputs) -> IntervalSet:
    """Compute of the rank, without FSDP's copies of parameters."""
    moving = ranges.filter(pl.col("fsdp") & ~pl.col("name").str.ends_with(".forward"))
    device, operators = window["device_events"], window["host_ops"]
    if device.height:
        kernels = with_category(device, inputs.options.communication).filter(pl.col("category") == COMPUTE)
        launched = kernels.filter(pl.col("launch_row").is_not_null())
        threads = launch_instants(launched, window["runtime_calls"])
        # A kernel without a launch was launched before recording began, so by no range of the file.
        return covered_time(kernels.filter(pl.col("launch_row").is_null())) | covered_time(
            launched.filter(_outside(moving, threads))
        )
    compute = computing_operators(operators, gloo_ranges(operators, window["annotations"]))
    instants = compute.select(pl.col("start_ns").alias("time_ns"), "pid", "tid")
    moved = covered_time(moving)
    return covered_time(compute.filter(_outside(moving, instants))) - moved


def _outside(ranges: pl.DataFrame, threads: pl.DataFrame) -> pl.Series:
    return pl.Series(enclosing(ranges, threads) < 0)


def _prefetched(calls: pl.DataFrame, compute: IntervalSet) -> pl.Series:
    """Whether anything was computed between issue and use; if the use is unknown, true inside a prefetch, else null."""
    issued_at: Int64 = calls["issued_ns"].to_numpy()
    used, known = values_and_validity(calls["used_ns"])
    computed = pl.Series("prefetched", compute.within(issued_at, np.maximum(used, issued_at)) > 0)
    requested = calls["asked"].set(~calls["asked"], None)
    gathers = calls["kind"] == "all_gather"
    prefetched: pl.Series = computed.zip_with(pl.Series(known), requested).set(~gathers, None)
    return prefetched


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    total, exposed = total_of(frame, "duration_ns"), total_of(frame, "exposed_ns")
    if not total:
        return None
    text, values = f"FSDP’s collectives: {{total}}{over_ranks(frame)}", {"total": (total, "ns")}
    if not exposed:
        return Headline.of(f"{text}; all of it overlaps with compute.", **values)
    text += ", of which {exposed} ({share}) is exposed."
    return Headline.of(text, exposed=(exposed, "ns"), share=(exposed / total, "ratio"), **values)


analysis = Analysis(
    name="fsdp",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=steps_by_window(COLUMNS, _window_collectives),
    headline=headline,
    reads=READS,
)
