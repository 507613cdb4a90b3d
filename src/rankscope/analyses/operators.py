"""Operators of each rank: time on host and device, tensor cores, FLOPs.

One row per rank and operator name; `--by shape` also groups by the shapes of its inputs, `--by stack` by the Python
lines that called it. `--match 'fsdp|all_?gather'` keeps the names that match a regular expression, ignoring case.
`--sort self_cpu` (or `cpu`, `self_device`, `device`, `count`, `memory`) sorts by that column, the largest first.
`--include annotations` adds ranges of `record_function` and steps, `frames` Python frames, `torch` annotations, runtime
calls and the profiler's own work (`overhead`), as torch's `key_averages()` has them: host self times and shares are
then the same; `all` adds all of these.

    host self     = Σ duration − operators directly inside it        self times of a thread sum to its operators' union;
                                                                     0 for the ranges of collectives (`gloo:all_reduce`)
    host total    = Σ duration, not counting calls inside another call of the same row
    device self   = |device events that it launched itself|          |A|: the length of the union, all streams
    device total  = |device events that it, or an operator inside it, launched|
    tensor cores  = |device events among these that ran on tensor cores| / device total
    rate          = FLOPs / device total (host total where the trace has no device)
    MFU           = Σ FLOPs / peak of the device for the data type / device total

The ranges in which a backend does its collectives (`gloo:`, `nccl:`, `mpi:`, `ucc:`, `xccl:`) may end on another thread
than they begin, and are counted as torch does: calls and a total, but no self time, and nothing is inside them.

A device event belongs to the operator with its External id; without one, to the innermost operator open on the
launching thread. FLOPs follow torch.utils.flop_counter: matrix products, convolutions and attention, from the recorded
shapes (`record_shapes=True`), and for an enclosing operator their sum; null where none is known. Causal masks are not
taken into account. Peaks are vendors' dense figures (`primitives/device_peaks.json`), TF32's where 32-bit numbers ran
on tensor cores. Tensor cores are detected by kernel name, as in the TensorBoard plugin; names of Triton kernels do not
show it.

How to read it: a high device self time names the kernel to look at; a host self time far above the device's means that
the host launches many small kernels; tensor cores near 0 on an eligible operator mean that its data type or shape
prevents their use. `--format table` prints the table of torch's `key_averages()`, with FLOPs only where torch has them
(`mm`, `addmm`, `bmm`, `baddbmm`, `conv2d`; not `mul` and `add`). `--steps` keeps the calls that start in these steps.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.activity import ASYNCHRONOUS
from rankscope.primitives.allocations import MEMORY_COLUMNS, memory_samples
from rankscope.primitives.call_stack import (
    add_to_parents,
    innermost,
    is_outermost,
    launching_operators,
    nested_with,
    with_ancestors,
)
from rankscope.primitives.device_peaks import device_model, peak_flops
from rankscope.primitives.flops import operator_flops
from rankscope.primitives.hashed_names import with_shared_names
from rankscope.primitives.intervals import union_length_by
from rankscope.primitives.profiler_overhead import profiler_overhead
from rankscope.primitives.shapes import floating_point_type
from rankscope.primitives.tensor_cores import eligible_operators, tensor_core_use
from rankscope.results import (
    Analysis,
    Column,
    Headline,
    Inputs,
    Parameter,
    Parameters,
    Tables,
    by_window,
    chosen_starts,
    over_ranks,
    top_group,
    total_of,
)
from rankscope.rundir.plurals import plural

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("kind", pl.String, "", "operator; with `--include` also annotation, runtime, overhead or python"),
    Column("name", pl.String, "", "the operator; steps are one: `ProfilerStep*`, `…` is a hash"),
    Column("input_shapes", pl.String, "", "shapes of its inputs, as compact JSON; null unless `--by shape`"),
    Column(
        "stack", pl.String, "", "its callers, innermost first; null unless `--by stack`, or where nothing was recorded"
    ),
    Column("calls", pl.Int64, "count", "number of calls; calls inside another call of the same row are not counted"),
    Column("host_self_ns", pl.Int64, "ns", "host time in it, without operators inside it"),
    Column("host_self_share", pl.Float64, "ratio", "share of the host self time of all the rank's operators"),
    Column("host_total_ns", pl.Int64, "ns", "host time in it, with operators inside it"),
    Column("device_self_ns", pl.Int64, "ns", "device time of what it launched itself; null if the trace has no device"),
    Column("device_self_share", pl.Float64, "ratio", "share of the device self time of all the rank's operators"),
    Column(
        "device_total_ns",
        pl.Int64,
        "ns",
        "device time of what it or operators inside it launched; null if the trace has no device",
    ),
    Column(
        "device_events",
        pl.Int64,
        "count",
        "kernels, copies and fills that it launched itself; null if the trace has no device",
    ),
    Column(
        "memory_self_bytes",
        pl.Int64,
        "bytes",
        "bytes allocated minus bytes released by itself, on the device (or else the host); null without memory events",
    ),
    Column("tensor_core_eligible", pl.Boolean, "", "whether tensor cores can run it"),
    Column(
        "tensor_core_share",
        pl.Float64,
        "ratio",
        "share of the device total time that is on tensor cores for certain; null without device time",
    ),
    Column(
        "tensor_core_unknown_share",
        pl.Float64,
        "ratio",
        "share of it in kernels whose names do not show whether they run on tensor cores; null without device time",
    ),
    Column("flops", pl.Float64, "FLOP", "floating-point operations; null if shapes or a formula are missing"),
    Column("tflops_per_s", pl.Float64, "TFLOP/s", "FLOP rate, per second of device time (host time without a device)"),
    Column(
        "mfu", pl.Float64, "ratio", "model FLOPs utilization: share of the device's peak; null if the peak is not known"
    ),
)
# Stacks are distinguished by this many callers.
_CALLERS = 6
_KEYS = ("kind", "name", "input_shapes", "stack")
_SORT_NAMES = ("name", "kind", "input_shapes", "stack")
_SORT_COLUMNS = {
    "self_cpu": "host_self_ns",
    "cpu": "host_total_ns",
    "self_device": "device_self_ns",
    "device": "device_total_ns",
    "count": "calls",
    "memory": "memory_self_bytes",
}
_INCLUDED_TABLES = {
    "operators": (),
    "annotations": ("annotations",),
    "frames": ("python_frames",),
    "torch": ("annotations", "runtime_calls", "other_events"),
    "all": ("annotations", "runtime_calls", "python_frames", "other_events"),
}
_KINDS = {
    "annotations": "annotation", "runtime_calls": "runtime", "python_frames": "python", "other_events": "overhead"
}  # fmt: skip


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The operators of a rank, added up over its windows."""
    parts = [_window_operators(window, inputs) for window in by_window(tables, inputs)]
    added = pl.concat(parts).group_by(_KEYS, maintain_order=True).agg(pl.all().sum())
    device = tables["device_events"].height > 0
    total = pl.col("device_total_ns")
    seconds = (total if device else pl.col("host_total_ns")) / 1e9
    has_flops = pl.col("formulas") > 0
    frame = added.with_columns(
        pl.lit(inputs.rank, pl.Int64).alias("rank"),
        _share("host_self_ns"),
        _share("device_self_ns"),
        pl.col("name").is_in(list(eligible_operators(added["name"].drop_nulls()))).alias("tensor_core_eligible"),
        pl.when(total > 0).then(pl.col("tensor_ns") / total).alias("tensor_core_share"),
        pl.when(total > 0).then(pl.col("unknown_ns") / total).alias("tensor_core_unknown_share"),
        pl.when(has_flops).then("flops").alias("flops"),
        pl.when(has_flops & (seconds > 0)).then(pl.col("flops") / seconds / 1e12).alias("tflops_per_s"),
        pl.when(has_flops & (total > 0) & (pl.col("unrated") == 0)).then(pl.col("ideal_ns") / total).alias("mfu"),
    )
    if not device:
        names = ("device_self_ns", "device_self_share", "device_total_ns", "device_events")
        frame = frame.with_columns(pl.lit(None, frame.schema[name]).alias(name) for name in names)
    if inputs.parameters.get("match") is not None:
        frame = frame.filter(pl.col("name").str.contains(f"(?i){inputs.parameters['match']}"))
    if all(window["memory_events"].is_empty() for window in by_window(tables, inputs)):
        frame = frame.with_columns(pl.lit(None, pl.Int64).alias("memory_self_bytes"))
    first = _SORT_COLUMNS[str(inputs.parameters.get("sort_by", "self_device"))]
    order = list(dict.fromkeys([first, "device_self_ns", "host_self_ns"]))
    return frame.sort(
        *order, *_SORT_NAMES, descending=[True] * len(order) + [False] * len(_SORT_NAMES), nulls_last=True
    ).select(column.name for column in COLUMNS)


def _share(name: str) -> pl.Expr:
    total = pl.col(name).sum()
    return pl.when(total > 0).then(pl.col(name) / total).alias(name.replace("_ns", "_share"))


def _window_operators(window: Tables, inputs: Inputs) -> pl.DataFrame:
    """Sums of one window by key, which can be added over windows."""
    operators, device = _included(window, inputs)
    by = inputs.parameters.get("by", "name")
    no_text = pl.lit(None, pl.String)
    keyed = operators.with_columns(
        (pl.col("input_dims") if by == "shape" else no_text).alias("input_shapes"),
        (_stacks(operators, window["python_frames"]) if by == "stack" else no_text).alias("stack"),
    ).with_columns(pl.struct(_KEYS).rank("dense").cast(pl.Int64).alias("group"))
    group = keyed["group"].to_numpy()
    parent = operators["parent_row"].fill_null(-1).to_numpy()
    kept = chosen_starts(operators, window["annotations"], inputs).to_numpy()

    # Pair each device event with each operator around its launch.
    owner = launching_operators(device, window["runtime_calls"], operators)
    event, around = with_ancestors(parent, owner)
    use = tensor_core_use(device.filter(pl.col("kind") == "kernel")["name"].unique().drop_nulls())
    tensor = device["name"].is_in([name for name, used in use.items() if used]).fill_null(False).to_numpy()
    unknown = device["name"].is_in([name for name, used in use.items() if used is None]).fill_null(False).to_numpy()
    pairs = pl.DataFrame(
        {
            "group": group[around],
            "start_ns": device["start_ns"].to_numpy()[event],
            "end_ns": device["end_ns"].to_numpy()[event],
            "tensor": tensor[event],
            "unknown": unknown[event],
            "own": owner[event] == around,
        }
    ).filter(pl.Series(kept[around]))

    used_devices = device["device"].drop_nulls().unique()
    model = device_model((known for info in inputs.traces for known in info.devices), used_devices)
    on_tensor, maybe_on_tensor = np.zeros((2, operators.height), dtype=np.bool_)
    on_tensor[around[tensor[event]]] = True
    maybe_on_tensor[around[(tensor | unknown)[event]]] = True
    keyed = keyed.with_columns(
        *_flops(operators, parent, (on_tensor, maybe_on_tensor), model),
        pl.Series("outer", is_outermost(parent, group)),
        (pl.col("end_ns") - pl.col("start_ns")).alias("duration"),
    ).filter(pl.Series(kept))
    outer = pl.col("outer")
    return (
        keyed.group_by("group", maintain_order=True)
        .agg(
            pl.col(*_KEYS).first(),
            outer.sum().cast(pl.Int64).alias("calls"),
            pl.col("self_ns").sum().alias("host_self_ns"),
            pl.col("duration").filter(outer).sum().alias("host_total_ns"),
            *(pl.col(name).filter(outer).sum() for name in ("flops", "ideal_ns", "formulas", "unrated")),
        )
        .join(union_length_by(pairs.filter("own"), ["group"], "device_self_ns"), on="group", how="left")
        .join(union_length_by(pairs, ["group"], "device_total_ns"), on="group", how="left")
        .join(union_length_by(pairs.filter("tensor"), ["group"], "tensor_ns"), on="group", how="left")
        .join(union_length_by(pairs.filter("unknown"), ["group"], "unknown_ns"), on="group", how="left")
        .join(
            pairs.filter("own").group_by("group").agg(pl.len().cast(pl.Int64).alias("device_events")),
            on="group",
            how="left",
        )
        .with_columns(
            pl.col("device_self_ns", "device_total_ns", "tensor_ns", "unknown_ns", "device_events").fill_null(0)
        )
        .join(_memory(window, operators, group, kept), on="group", how="left")
        .with_columns(pl.col("memory_self_bytes").fill_null(0))
        .drop("group")
    )


def _included(window: Tables, inputs: Inputs) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The operators, nested with other host events if requested; and the device events with their rows in it."""
    operators = with_shared_names(window["host_ops"]).with_columns(pl.lit("operator").alias("kind"))
    device, ranges = window["device_events"], [operators]
    tables = _INCLUDED_TABLES[str(inputs.parameters.get("include", "operators"))]
    asynchronous = pl.col("name").str.contains(ASYNCHRONOUS)
    if not tables and not operators.select(asynchronous.any()).item():
        return operators, device
    for table in tables:
        rows = with_shared_names(window[table])
        if table == "annotations":
            name = pl.col("name").str.replace(r"^ProfilerStep#\d+$", "ProfilerStep*")
            rows = rows.filter(~pl.col("on_device")).with_columns(name)
        elif table == "other_events":
            rows = profiler_overhead(rows, window["annotations"], pl.concat(ranges, how="diagonal_relaxed"))
        ranges.append(rows.select("start_ns", "end_ns", "name", "pid", "tid", pl.lit(_KINDS[table]).alias("kind")))
    # Each on a thread of its own: nothing is nested with it.
    alone = pl.when(asynchronous).then(-1 - pl.int_range(pl.len())).otherwise("tid").alias("tid")
    all_ranges, new_rows = nested_with(operators.with_columns(alone), [rows.with_columns(alone) for rows in ranges[1:]])
    all_ranges = all_ranges.with_columns(pl.when(~asynchronous).then("self_ns").otherwise(0).alias("self_ns"))
    return all_ranges, device.with_columns(new_rows.gather(device["op_row"].cast(pl.Int64)).alias("op_row"))


def _memory(window: Tables, operators: pl.DataFrame, group: np.ndarray, kept: np.ndarray) -> pl.DataFrame:
    """Bytes that the calls of each group allocated minus those that they released themselves."""
    events = memory_samples(window["memory_events"], operators, window["annotations"])
    on_device = events.filter(pl.col("memory") != "cpu")
    events = (on_device if on_device.height else events).filter(pl.col("operator_row") >= 0)
    row = events["operator_row"].to_numpy()
    allocated = pl.DataFrame({"group": group[row], "memory_self_bytes": events["bytes"]}).filter(pl.Series(kept[row]))
    return allocated.group_by("group").agg(pl.col("memory_self_bytes").sum())


def _flops(
    operators: pl.DataFrame, parent: np.ndarray, tensor: tuple[np.ndarray, np.ndarray], device: str | None
) -> list[pl.Series]:
    """FLOPs of each call, their time at peak rate, the number of formulas, and of those without a known peak.

    Args:
        tensor: whether each call ran on tensor cores for certain, and whether it may have.
    """
    operator_flops_ = operator_flops(operators)
    counted = operator_flops_.is_not_null().to_numpy()
    # A formula inside an operator with a formula is the same work: count it once.
    outermost = counted & is_outermost(parent, np.where(counted, -1, np.arange(counted.size)))
    flops = operator_flops_.fill_null(0.0).to_numpy().copy()
    types = {text: floating_point_type(text) for text in operators["input_types"].unique()}
    peaks = {
        (text, used): peak_flops(device, number, tensor_cores=used) or 0.0
        for text, number in types.items()
        for used in (False, True)
    }
    ordinary_peak, tensor_peak = (
        operators["input_types"].replace_strict(
            list(types), [peaks[text, used] for text in types], return_dtype=pl.Float64, default=0.0
        ).to_numpy()
        for used in (False, True)
    )  # fmt: skip
    certain, possible = tensor
    peak = np.where(certain, tensor_peak, ordinary_peak)
    # If it may have run on either, and the peaks differ, the peak is unknown.
    peak[possible & ~certain & (ordinary_peak != tensor_peak)] = 0.0
    ideal = np.divide(flops * 1e9, peak, out=np.zeros_like(flops), where=peak > 0)
    depth = operators["depth"].to_numpy()
    sums: list[pl.Series] = []
    for name, value in (
        ("flops", flops),
        ("ideal_ns", ideal),
        ("formulas", counted.astype(np.float64)),
        ("unrated", (counted & (peak <= 0)).astype(np.float64)),
    ):
        summed = np.where(outermost, value, 0.0)
        add_to_parents(parent, depth, summed)
        sums.append(pl.Series(name, np.where(counted, value, summed)))
    return sums


def _stacks(operators: pl.DataFrame, frames: pl.DataFrame) -> pl.Series:
    """The callers of each operator: the recorded call stack, else the Python frames open on its thread."""
    recorded = operators["call_stack"].alias("stack")
    if frames.is_empty() or operators.is_empty():
        return recorded
    instants = operators.select("pid", "tid", pl.col("start_ns").alias("at_ns"))
    row = pl.Series(innermost(frames, instants))
    lines: list[pl.Series] = []
    for _ in range(_CALLERS):
        row = row.set(row < 0, None)
        lines.append(frames["name"].gather(row).alias(f"line{len(lines)}"))
        row = frames["parent_row"].gather(row).cast(pl.Int64)
    # `<built-in method add of Tensor object at 0x7f…>`: without addresses, or every object is a different caller.
    text = pl.concat_str(pl.all(), separator="; ", ignore_nulls=True).str.replace_all(r" at 0x[0-9a-fA-F]+", "")
    joined = pl.DataFrame(lines).select(text).to_series()
    stacks: pl.Series = recorded.zip_with(recorded.is_not_null(), joined.set(joined == "", None))
    return stacks


def extra_columns(parameters: Parameters) -> dict[str, tuple[str, ...]]:
    """Python frames, the largest table of a trace, and other host events only if they are requested."""
    ranges = ("start_ns", "end_ns", "name", "pid", "tid")
    tables = _INCLUDED_TABLES[str(parameters.get("include", "operators"))]
    columns: dict[str, tuple[str, ...]] = dict.fromkeys(tables, ranges)
    if "other_events" in columns:
        columns["other_events"] = (*ranges, "category")
    if parameters.get("by") != "stack":
        return columns
    return {**columns, "host_ops": ("call_stack",), "python_frames": (*ranges, "parent_row")}


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    column = "device_self_ns" if total_of(frame, "device_self_ns") else "host_self_ns"
    total = total_of(frame, column)
    top = top_group(frame, "name", column, "calls")
    if top is None:
        return None
    calls = f"{{calls}} {plural('call', top['calls'])}{over_ranks(frame)}"
    return Headline.of(
        f"Top operator by {{where}} self time: {{name}}, {{share}} of all operators ({{total}} in {calls}).",
        name=(top["name"], ""),
        share=(top[column] / total, "ratio"),
        where=("device" if column.startswith("device") else "host", ""),
        total=(top[column], "ns"),
        calls=(top["calls"], "count"),
    )


analysis = Analysis(
    name="operators",
    doc=__doc__, whole_recording=True,
    columns=COLUMNS,
    per_rank=per_rank,
    headline=headline,
    reads={
        "host_ops": (
            "start_ns", "end_ns", "name", "pid", "tid", "depth", "parent_row", "self_ns", "input_dims", "input_types",
            "concrete_inputs",
        ),
        "device_events": ("start_ns", "end_ns", "name", "kind", "device", "op_row", "launch_row", "launch_ns"),
        "runtime_calls": ("pid", "tid"),
        "annotations": ("start_ns", "end_ns", "on_device", "step"),
        "memory_events": MEMORY_COLUMNS,
    },
    parameters=(
        Parameter("match", "only operators whose name matches, ignoring case", kind="regex"),
        Parameter("by", "what to group rows by", default="name", choices=("name", "shape", "stack")),
        Parameter(
            "sort_by", "the column to sort by, the largest first", default="self_device", choices=tuple(_SORT_COLUMNS)
        ),
        Parameter("include", "further host events as rows", default="operators", choices=tuple(_INCLUDED_TABLES)),
    ),
    reads_more=extra_columns,
)  # fmt: skip
