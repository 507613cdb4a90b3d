"""Peak memory of each rank: how much, when, and in which operator.

One row per rank, trace file and device (the host is ``cpu``), from a trace recorded with `profile_memory`; `--by step`
shows each step, `--by operator`, `--by module` and `--by site` (line of code) what allocated it, `--by category` what
for. The profiler records what is allocated and reserved on a device after each allocation and release, so every sample
is exact:

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
`--by operator` what keeps most. Growth over all steps is a leak, or data kept on purpose: `--by step` shows it step by
step.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.allocations import (
    DEVICE_FREE,
    DEVICE_MALLOC,
    HOST,
    MEMORY_COLUMNS,
    counted_from,
    memory_blocks,
    memory_by_step,
    memory_samples,
    with_peak,
)
from rankscope.primitives.call_stack import parent_rows, with_ancestors
from rankscope.primitives.memory_by_place import RECORDED, memory_by_place
from rankscope.primitives.memory_categories import CATEGORIES, CATEGORY_TABLES, categorized_samples, live_bytes
from rankscope.results import (
    RANK_AND_WINDOW,
    Analysis,
    Column,
    Headline,
    Inputs,
    Parameter,
    Tables,
    by_window,
    greatest,
    over_ranks,
    rows_by_window,
    steps_by_window,
    top_group,
)

_RANK, _WINDOW = RANK_AND_WINDOW
_DEVICE = Column("device", pl.String, "", "`cpu`, or kind and index: `cuda:0`, `hip:0`, `xpu:0`")
_ALLOCATIONS = Column("allocations", pl.Int64, "count", "allocations while recording")
_ALLOCATED = Column("allocated_bytes", pl.Int64, "bytes", "bytes allocated while recording, summed over allocations")
COLUMNS = (
    *RANK_AND_WINDOW,
    _DEVICE,
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


def _samples(window: Tables) -> pl.DataFrame:
    return memory_samples(window["memory_events"], window["host_ops"], window["annotations"])


def _names(names: pl.Series, rows: pl.Series) -> pl.Series:
    """The names of rows of operators; null for −1."""
    return names.gather(rows.set(rows < 0, None))


def _of_window(window: Tables, inputs: Inputs) -> pl.DataFrame:
    found = inputs.options.chosen(_samples(window))
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
        rows.with_columns(_names(names, rows["operator"]).alias("peak_operator"))
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


def _limiting(frame: pl.DataFrame) -> pl.DataFrame:
    """The devices' rows; with a device, the host's memory is not the limit."""
    of_device = frame.filter(pl.col("device") != "cpu")
    return of_device if of_device.height else frame


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    rows = _limiting(frame)
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


_READS = {"memory_events": MEMORY_COLUMNS, "annotations": ("start_ns", "end_ns", "on_device", "step")}
STEP_COLUMNS = (
    *RANK_AND_WINDOW,
    _DEVICE,
    Column("step", pl.Int64, "", "N of `ProfilerStep#N`"),
    Column("allocations", pl.Int64, "count", "allocations in the step"),
    Column("allocated_bytes", pl.Int64, "bytes", "bytes allocated in the step"),
    Column("released_bytes", pl.Int64, "bytes", "bytes released in the step"),
    Column("peak_allocated", pl.Int64, "bytes", "peak of allocated memory; null if the trace has no totals"),
    Column(
        "end_allocated", pl.Int64, "bytes", "allocated after the step's last event; null if the trace has no totals"
    ),
    Column(
        "peak_reserved",
        pl.Int64,
        "bytes",
        "peak of memory reserved by the allocator; null if the trace has no totals, and for the host",
    ),
    Column("change_peak", pl.Int64, "bytes", "peak of allocated memory relative to the trace's first event"),
    Column(
        "end_change", pl.Int64, "bytes", "allocated after the step's last event, relative to the trace's first event"
    ),
    Column(
        "growth",
        pl.Int64,
        "bytes",
        "increase from the end of the previous step to the end of this one; null for the first",
    ),
)

_BY_STEP = Analysis(
    name="memory_by_step",
    doc="""Memory by step: peak, memory at the end of the step, growth.

One row per rank, trace file, device and step with at least one allocation or release. A step is a host `ProfilerStep#N`
range; a sample belongs to the step in which it occurs:

    peak    = max over the step's samples of allocated
    end     = allocated at the step's last sample
    growth  = end less the end of the previous step (on the same device); null for the first

On the host allocated memory counts from the start of the recording; growth counts all releases. If the trace has no
totals (2020–21), peak and end are null; `change_peak`, `end_change` and growth are still valid.

How to read it: growth in the first steps is normal: gradients, optimizer state, the allocator's cache. Growth in every
later step is memory that the loop keeps: a list of losses with their graphs, an unbounded cache.
""",
    columns=STEP_COLUMNS,
    per_rank=steps_by_window(
        STEP_COLUMNS, lambda window, _: memory_by_step(_samples(window)).rename({"memory": "device"})
    ),
    needs_rows_of=("memory_events",),
    reads={**_READS, "host_ops": ("start_ns", "end_ns", "pid", "tid")},
)

OPERATOR_COLUMNS = (
    _RANK,
    _DEVICE,
    Column("name", pl.String, "", "the operator; null outside operators"),
    Column("calls", pl.Int64, "count", "calls that allocated or released memory, themselves or in nested operators"),
    Column("allocations", pl.Int64, "count", "allocations by itself"),
    Column("releases", pl.Int64, "count", "releases by itself"),
    Column("self_allocated", pl.Int64, "bytes", "bytes allocated by itself"),
    Column("self_increase", pl.Int64, "bytes", "allocated less released by itself"),
    Column("total_increase", pl.Int64, "bytes", "allocated less released by itself and nested operators"),
    Column(
        "peak_bytes", pl.Int64, "bytes", "allocated by itself and live at the device's peak; null without addresses"
    ),
)
_OPERATOR = ("memory", "name")


def _by_operator(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """A rank's operators, its files taken together."""
    parts = [_operators_of(window, inputs) for window in by_window(tables, inputs)]
    sums = pl.exclude(*_OPERATOR, "rank", "peak_bytes").sum()
    # With several traces, the largest of their peaks is the rank's.
    frame = pl.concat(parts).group_by(_OPERATOR).agg(sums, pl.col("peak_bytes").max())
    return (
        frame.with_columns(pl.lit(inputs.rank, pl.Int64).alias("rank"), pl.col("memory").alias("device"))
        .sort("device", "self_allocated", "total_increase", "name", descending=[False, True, True, False])
        .select(column.name for column in OPERATOR_COLUMNS)
    )


def _operators_of(window: Tables, inputs: Inputs) -> pl.DataFrame:
    operators = window["host_ops"]
    found = _samples(window)
    live = _live_at_peak(found)
    if inputs.options.steps is not None:
        kept = found.with_row_index("event").filter(inputs.options.keeps(pl.col("step")))
        found, live = kept.drop("event"), live[kept["event"]]
    row = found["operator_row"].to_numpy()
    names = operators["name"]
    own = found.with_columns(_names(names, found["operator_row"]).alias("name"), live.alias("live"))
    selves = own.group_by(_OPERATOR).agg(
        (pl.col("bytes") > 0).sum().cast(pl.Int64).alias("allocations"),
        (pl.col("bytes") < 0).sum().cast(pl.Int64).alias("releases"),
        pl.col("bytes").filter(pl.col("bytes") > 0).sum().alias("self_allocated"),
        pl.col("bytes").sum().alias("self_increase"),
        pl.when(pl.col("live").is_not_null().any()).then(pl.col("live").sum()).alias("peak_bytes"),
    )
    event, rows = with_ancestors(parent_rows(operators), row)
    outside = np.flatnonzero(row < 0)
    everyone = pl.DataFrame(
        {
            "event": np.concatenate([event, outside]),
            "call": np.concatenate([rows, np.full(outside.size, -1)]),
            "name": pl.concat([names.gather(rows), pl.Series([None] * outside.size, dtype=pl.String)]),
        },
        schema={"event": pl.Int64, "call": pl.Int64, "name": pl.String},
    ).with_columns(found["memory"].gather(pl.Series(np.concatenate([event, outside]))))
    calls = everyone.group_by(_OPERATOR).agg(
        pl.col("call").filter(pl.col("call") >= 0).n_unique().cast(pl.Int64).alias("calls")
    )
    # An operator inside another of its name counts an event once.
    totals = everyone.unique(["event", "name"], maintain_order=True)
    totals = totals.with_columns(found["bytes"].gather(totals["event"]).alias("bytes"))
    increase = totals.group_by(_OPERATOR).agg(pl.col("bytes").sum().alias("total_increase"))
    return (
        calls.join(increase, on=_OPERATOR, how="left", nulls_equal=True)
        .join(selves, on=_OPERATOR, how="left", nulls_equal=True)
        .with_columns(
            pl.col("allocations", "releases", "self_allocated", "self_increase").fill_null(0),
            pl.when(pl.lit(bool(live.is_not_null().any()))).then(pl.col("peak_bytes").fill_null(0)).alias("peak_bytes"),
        )
        .select(
            *_OPERATOR,
            "calls",
            "allocations",
            "releases",
            "self_allocated",
            "self_increase",
            "total_increase",
            "peak_bytes",
        )
    )


def _live_at_peak(samples: pl.DataFrame) -> pl.Series:
    """For each event the bytes that it allocated and that were live at its device's peak; null without addresses."""
    if samples["address"].null_count():
        return pl.Series("live", [None] * samples.height, dtype=pl.Int64)
    live: pl.Series = with_peak(samples, memory_blocks(samples))["live"] * samples["bytes"]
    return live


def _operator_headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    named = frame.filter(pl.col("name").is_not_null())
    most = top_group(named, "name", "self_increase")
    if most is None:
        return None
    text = f"Largest net allocation: {{name}}, {{increase}}{over_ranks(frame)}."
    return Headline.of(text, name=(most["name"], ""), increase=(most["self_increase"], "bytes"))


_BY_OPERATOR = Analysis(
    name="memory_by_operator",
    doc="""Memory by operator: what each allocates and releases, itself and in total.

One row per rank, device and operator name with memory events in it. An allocation or release belongs to the innermost
operator that is open on its thread, and to every operator around that one:

    self_increase  = Σ bytes of events whose innermost operator has this name
    total_increase = Σ bytes of events with an operator of this name around them, each event once

Both are allocations less releases: positive for an operator whose result is kept, negative for one that releases the
memory of others. The row without a name has what happens outside operators: Python that drops its last reference, the
optimizer's own state, threads without operators. `peak_bytes` is what operators of this name had allocated themselves
and was live at the device's peak; null if the trace has no addresses, because releases cannot be paired then.

How to read it: a large `peak_bytes` is what to recompute (activation checkpointing), shard or store in a narrower type;
a `total_increase` that continues from window to window is kept by some code.
""",
    whole_recording=True,
    columns=OPERATOR_COLUMNS,
    per_rank=_by_operator,
    headline=_operator_headline,
    reads={**_READS, "host_ops": ("start_ns", "end_ns", "name", "pid", "tid", "parent_row")},
)

CATEGORY_COLUMNS = (
    *RANK_AND_WINDOW,
    _DEVICE,
    Column("category", pl.String, "", "what the memory is for"),
    Column("peak_bytes", pl.Int64, "bytes", "live at the peak of the device"),
    Column("share", pl.Float64, "ratio", "share of the peak of the device"),
    Column("most_bytes", pl.Int64, "bytes", "most that was live at once, at any time"),
    Column("last_bytes", pl.Int64, "bytes", "live after the last event"),
    _ALLOCATIONS,
    _ALLOCATED,
)
_CATEGORY = ["memory", "category"]


def _categories(window: Tables, inputs: Inputs) -> pl.DataFrame:
    if not window["memory_events"].height:
        return pl.DataFrame(schema={"device": pl.String})
    found = categorized_samples(window)
    live = live_bytes(found).with_columns(found["at_peak"], found["step"])
    found, live = inputs.options.chosen(found), inputs.options.chosen(live)
    values = live.unpivot(list(CATEGORIES), index=["memory", "at_peak"], variable_name="category", value_name="bytes")
    size = pl.col("bytes")
    sums = values.group_by(_CATEGORY, maintain_order=True).agg(
        # With `--steps`, the peak may be in another step.
        pl.when(pl.col("at_peak").any()).then(size.filter("at_peak").first()).alias("peak_bytes"),
        size.max().alias("most_bytes"),
        size.last().alias("last_bytes"),
    )
    counts = (
        found.filter(size > 0)
        .group_by(_CATEGORY)
        .agg(pl.len().cast(pl.Int64).alias("allocations"), size.sum().alias("allocated_bytes"))
    )
    peak = pl.col("peak_bytes")
    return (
        sums.join(counts, on=_CATEGORY, how="left", maintain_order="left")
        .with_columns(pl.col("allocations", "allocated_bytes").fill_null(0))
        .filter((pl.col("most_bytes") > 0) | (pl.col("allocations") > 0))
        .with_columns((peak / peak.sum().over("memory")).fill_nan(None).alias("share"))
        .rename({"memory": "device"})
        .sort("device", maintain_order=True)
    )


def _category_headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    rows = _limiting(frame)
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


_BY_CATEGORY = Analysis(
    name="memory_by_category",
    doc="""Memory by category: parameters, gradients, optimizer state, activations, temporary.

One row per rank, trace file, device and category. A trace names no tensors: a block's category follows from the phase
(see `phases`) that allocated it, and from whether it outlives it:

    parameters       in a constructor or `_apply` (`to`, `cuda`) of an nn.Module, and kept
    gradients        in the backward, and kept beyond it
    optimizer_state  in `Optimizer.step`, and kept beyond it
    activations      in the forward, and kept beyond it, at most until the next step ends
    temporary        released in its phase, or in its outermost operator
    inputs           while loading data, or in a step before its forward, and kept until then
    earlier          allocated before the recording (not counted on the host)
    unknown          all else: outside phases, on other threads, kept in the forward for longer than a step

`peak_bytes` are live at the first peak of the device: over the categories they sum to the peak.
`most_bytes` is the most that was live at once, at any time; `last_bytes` what was live after the last event. Parameters
and optimizer state of a job that was running before the recording are `earlier`: record from before the model is
created, with Python stacks, to separate them. Without Python frames (`with_stack`) parameters are unknown, and copies
of the batch that autograd could follow count as activations, as do FSDP's gathered parameters that outlive the forward.

How to read it: recomputing (activation checkpointing) lowers activations; sharding (FSDP, ZeRO) parameters, gradients
and optimizer state; a peak that is mostly temporary belongs to one operator (`--by site`).
""",
    whole_recording=True,
    columns=CATEGORY_COLUMNS,
    per_rank=rows_by_window(CATEGORY_COLUMNS, _categories),
    headline=_category_headline,
    reads=CATEGORY_TABLES,
)


_PLACE_DOC = """
An allocation of a backward belongs where the forward operator is whose gradient it computes. What was allocated before
the recording is nowhere: a memory snapshot has its stack (`memory_snapshot --by stack`). Categories are those of
`--by category`. With several trace files of a rank, `peak_bytes` and the categories are of the file with the highest
peak.

    peak_bytes = Σ sizes of its blocks that were live at the device's first peak = Σ of the category columns

How to read it: the first rows hold the memory at the peak: what to recompute, to release earlier, or to shard.
"""


def _by_place(by: str, place: Column, doc: str) -> Analysis:
    """The view of a place in the program: `module` or `call_site`."""
    columns = (
        _RANK, _DEVICE, place,
        Column("peak_bytes", pl.Int64, "bytes", "live at the device's peak: the sum of the next columns"),
        *(Column(name, pl.Int64, "bytes", CATEGORIES[name]) for name in RECORDED),
        _ALLOCATIONS, _ALLOCATED,
    )  # fmt: skip

    def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
        kept = None if inputs.options.steps is None else inputs.options.keeps(pl.col("step"))
        frame = memory_by_place(by_window(tables, inputs), place.name, kept)
        return frame.with_columns(pl.lit(inputs.rank, pl.Int64).alias("rank")).select(each.name for each in columns)

    def headline(frame: pl.DataFrame) -> Headline | None:
        most = top_group(frame.drop_nulls(place.name), place.name, "peak_bytes")
        if most is None or not most["peak_bytes"]:
            return None
        what = place.name.replace("_", " ")
        text = f"The {what} that holds the most at the peak: {{place}}, {{bytes}}{over_ranks(frame)}."
        return Headline.of(text, place=(most[place.name], ""), bytes=(most["peak_bytes"], "bytes"))

    return Analysis(
        name=f"memory_by_{by}",
        doc=doc + _PLACE_DOC,
        whole_recording=True,
        columns=columns,
        per_rank=per_rank,
        headline=headline,
        reads={**CATEGORY_TABLES, "python_frames": (*CATEGORY_TABLES["python_frames"], "python_module_id")},
    )


_BY_MODULE = _by_place(
    "module",
    Column("module", pl.String, "", "the module and those enclosing it, outermost first; null outside modules"),
    """Memory by module: what each nn.Module's own code allocated, by category, at the peak and in total.

One row per rank, device and module with allocations in it (`with_stack` or `with_modules`). An allocation belongs to
the innermost module that was running. The row without a module has what happens outside modules: loss, optimizer, data.
Many activations in one kind of module: recompute these.
""",
)
_BY_SITE = _by_place(
    "site",
    Column("call_site", pl.String, "", "file, line and function of the job's own code; null if not recorded"),
    """Memory by call site: which line of the user's code allocated it, by category, at the peak and in total.

One row per rank, device and call site with allocations (`with_stack`). The call site is the innermost Python frame of
the job's own code; frames of PyTorch, of installed packages and of the standard library are skipped. The row without a
call site has what no such frame encloses: threads of autograd and of loaders, or all if stacks were not recorded.
""",
)

analysis = Analysis(
    name="memory",
    doc=__doc__,
    whole_recording=True,
    columns=COLUMNS,
    per_rank=rows_by_window(COLUMNS, _of_window),
    headline=headline,
    needs_rows_of=("memory_events",),
    reads={
        **_READS,
        "host_ops": ("start_ns", "end_ns", "name", "pid", "tid"),
        "runtime_calls": ("name",),
    },
    parameters=(
        Parameter(
            "by",
            "what a row is",
            default="device",
            choices=("device", "step", "operator", "category", "module", "site"),
        ),
    ),
    views=(_BY_STEP, _BY_OPERATOR, _BY_CATEGORY, _BY_MODULE, _BY_SITE),
)
