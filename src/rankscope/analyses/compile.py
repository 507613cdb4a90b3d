"""torch.compile: regions, graphs, Triton kernels, graph breaks, and the cost of the first call.

One row per rank, kind and name:

    region      `Torch-Compiled Region: F/V`: frame F, compiled for the V-th time (V > 0: recompiled, for other shapes
                or values); every graph break ends one and starts another, with its own frame
    function    `CompiledFunction` and its backward, as autograd runs a compiled graph
    graph       a call of a graph that Inductor compiled (`CompiledFxGraph`), by its hash
    break       a function that Dynamo resumes after a graph break, and the line of the break (needs `with_stack`)
    kernel      a compiled kernel (Triton, or another kind that the trace names), by its name
    overhead    what precedes each call: Dynamo's cache lookup and guards, AOTAutograd's prologue
    compiling   Dynamo, AOTAutograd and Inductor at work, by part; `entire_…_compile` is the total of a frame
    step        the steps themselves, if the trace has compiled code

    host   = Σ durations of the calls         device = |union of kernels, copies and fills launched inside them|
    device idle = Σ |call| − |call ∩ device events|, no matter which call launched the events
    first_extra = first call − median of the others, if longer: for `step` the extra cost of the first step, which is
                  the cost of compiling if the trace begins with the training's first step

A kernel without host events is counted by its name on the device (`triton_…`). Kinds nest (a kernel is in a graph, in a
function, in a region), and so do the parts of compiling: do not add them up. Without compiled code there is no row.
`--steps` keeps calls that start in the selected steps.

How to read it: breaks name the lines that split the model into several graphs. Versions above 0 in steps after the
first are recompilations for other shapes: pad, or compile with `dynamic=True`. A `first_extra_ns` is paid once and does
not matter in a long job.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import polars as pl

from rankscope.primitives.activity import covered_time
from rankscope.primitives.call_stack import enclosing, launch_instants, range_at
from rankscope.primitives.intervals import union_length_by
from rankscope.primitives.steps import host_steps, step_at
from rankscope.results import Analysis, Column, Inputs, Tables, by_window, in_steps, schema_of

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column(
        "kind", pl.String, "", "`region`, `function`, `graph`, `break`, `kernel`, `overhead`, `compiling` or `step`"
    ),
    Column("name", pl.String, "", "its name; for a graph the hash, for a break the function and line"),
    Column("frame", pl.Int64, "", "for a region: the frame that Dynamo compiled"),
    Column("version", pl.Int64, "", "for a region: how often it had been compiled before"),
    Column("calls", pl.Int64, "count", "number of calls"),
    Column("steps", pl.Int64, "count", "steps with such a call; 0 if the trace has no steps"),
    Column("host_ns", pl.Int64, "ns", "host time in its calls; null for a kernel without host events"),
    Column("median_ns", pl.Float64, "ns", "median duration of a call; null for a kernel without host events"),
    Column(
        "first_extra_ns",
        pl.Int64,
        "ns",
        "how much longer the first call was than the median of the others; null for a single call",
    ),
    Column("device_ns", pl.Int64, "ns", "time in which anything launched in its calls ran; null without a device"),
    Column("kernels", pl.Int64, "count", "kernels, copies and fills launched in its calls; null without a device"),
    Column(
        "device_idle_ns",
        pl.Int64,
        "ns",
        "time in its calls in which the device was idle; null without a device or host events",
    ),
    Column(
        "host_in_steps_ns", pl.Int64, "ns", "host time in its calls that start in complete steps; null like host_ns"
    ),
    Column("idle_in_steps_ns", pl.Int64, "ns", "device idle time in those; null like device_idle_ns"),
    Column("source", pl.String, "", "path of the kernel's source"),
)
_KEY = ["kind", "name"]
_HOST_COLUMNS = ("host_ns", "device_idle_ns", "host_in_steps_ns", "idle_in_steps_ns")
_REGION, _GRAPH = r"^Torch-Compiled Region: (\d+)/(\d+)", r"^## Call CompiledFxGraph (\w+)"
_FUNCTION = r"^CompiledFunction(Backward)?$"
_OVERHEAD = r"^(TorchDynamo Cache Lookup|AOTDispatcher Runtime Wrapper Prologue|Pregraph bytecode)"
_COMPILING = r" \(dynamo_timed\)$|^entire_(frame|backward)_compile$|^inductor_compile$"
_STEP = r"^ProfilerStep#"
_BREAK = r"torch_dynamo_resume_in_(\w+?)_at_(\d+)"
_TRITON = "triton_"
_COMPILED = re.compile("|".join((_REGION, _GRAPH, _FUNCTION, _OVERHEAD, _COMPILING, _BREAK, f"^{_TRITON}")))


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """A rank's compiled code in all its files."""
    if not _is_compiled(tables):
        return pl.DataFrame(schema=schema_of(COLUMNS))
    parts = [
        _window_calls(window, inputs).with_columns(pl.lit(n).alias("window"))
        for n, window in enumerate(by_window(tables, inputs))
    ]
    frame = pl.concat(parts)
    sums = (
        "calls",
        "steps",
        "host_ns",
        "device_ns",
        "kernels",
        "device_idle_ns",
        "host_in_steps_ns",
        "idle_in_steps_ns",
    )
    spent = pl.col("spent").explode()
    others = pl.col("spent").list.slice(1).explode()
    merged = frame.group_by(_KEY, maintain_order=True).agg(
        *(pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum()).alias(name) for name in sums),
        spent.median().alias("median_ns"),
        # The first call in time: the files are in order.
        (pl.col("spent").first().list.first() - others.median()).clip(lower_bound=0).alias("first_extra_ns"),
        pl.col("source").drop_nulls().first(),
    )
    region = pl.col("kind") == "region"
    numbers = [pl.col("name").str.extract(_REGION, group).cast(pl.Int64) for group in (1, 2)]
    return (
        merged.with_columns(
            pl.lit(inputs.rank, pl.Int64).alias("rank"),
            pl.when(region).then(numbers[0]).alias("frame"),
            pl.when(region).then(numbers[1]).alias("version"),
        )
        .sort("kind", "host_ns", "device_ns", "name", descending=[False, True, True, False], nulls_last=True)
        .select(column.name for column in COLUMNS)
    )


def _is_compiled(tables: Tables) -> bool:
    """Whether anything shows compiled code: a look at distinct names, which spares most jobs everything else."""
    operators = tables["host_ops"]
    if any(operators[name].null_count() < operators.height for name in ("kernel_backend", "kernel_file")):
        return True
    names = (tables[name]["name"].unique() for name in ("host_ops", "annotations", "python_frames", "device_events"))
    return any(_COMPILED.search(name) for each in names for name in each if name is not None)


def _calls(window: Tables) -> pl.DataFrame:
    """Every range that is compiled code: kind, name, source, start_ns, end_ns, pid, tid."""
    location = ["start_ns", "end_ns", "pid", "tid"]
    name = pl.col("name")
    operators, named = window["host_ops"], window["annotations"].filter(~pl.col("on_device"))
    compiled = operators.filter(pl.col("kernel_backend").is_not_null() | pl.col("kernel_file").is_not_null())
    no_source = pl.lit(None, pl.String).alias("source")

    def ranges_of(frame: pl.DataFrame, kind: str, pattern: str, shown: pl.Expr = name) -> pl.DataFrame:
        matched = frame.filter(name.str.contains(pattern).fill_null(False))
        return matched.select(pl.lit(kind).alias("kind"), shown.alias("name"), no_source, *location)

    break_line = pl.format("{} line {}", name.str.extract(_BREAK, 1), name.str.extract(_BREAK, 2))
    parts = [
        ranges_of(frame, kind, pattern, shown)
        for frame in (operators, named)
        for kind, pattern, shown in (
            ("region", _REGION, name),
            ("function", _FUNCTION, name),
            ("graph", _GRAPH, name.str.extract(_GRAPH, 1)),
            ("overhead", _OVERHEAD, name),
            ("compiling", _COMPILING, name.str.strip_suffix(" (dynamo_timed)")),
        )
    ]
    kernels = compiled.select(pl.lit("kernel").alias("kind"), name, pl.col("kernel_file").alias("source"), *location)
    matched = pl.concat([*parts, ranges_of(window["python_frames"], "break", _BREAK, break_line), kernels])
    steps = ranges_of(named.filter(pl.col("step").is_not_null()), "step", _STEP, pl.lit("ProfilerStep"))
    return pl.concat([matched, steps[: steps.height if matched.height else 0]]).sort("start_ns", maintain_order=True)


def _window_calls(window: Tables, inputs: Inputs) -> pl.DataFrame:
    calls = _calls(window)
    device = window["device_events"]
    without_host_events = device.filter(
        (pl.col("kind") == "kernel") & pl.col("name").str.starts_with(_TRITON).fill_null(False)
    )
    launched = device.filter(pl.col("launch_row").is_not_null())
    threads = launch_instants(launched, window["runtime_calls"])
    recorded = set(calls.filter(pl.col("kind") == "kernel")["name"].to_list())
    without_host_events = without_host_events.filter(~pl.col("name").is_in(list(recorded)))
    if inputs.options.steps is not None:
        steps = host_steps(window["annotations"]).filter(inputs.options.keeps(pl.col("step")))
        calls = calls.filter(pl.Series(range_at(steps, calls["start_ns"].to_numpy()) >= 0))
        without_host_events = without_host_events.filter(
            pl.Series(range_at(steps, without_host_events["launch_ns"].fill_null(-1).to_numpy()) >= 0)
        )
    spent = pl.col("end_ns") - pl.col("start_ns")
    busy = covered_time(device).within(calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy())
    idle = (spent - pl.Series("busy_ns", busy)) if device.height else pl.lit(None, pl.Int64)
    host = (
        calls.with_columns(
            idle.alias("idle_ns"),
            in_steps(calls["start_ns"], window["annotations"]).alias("counted"),
            step_at(host_steps(window["annotations"]), calls["start_ns"]),
        )
        .group_by(_KEY, maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            pl.col("step").drop_nulls().n_unique().cast(pl.Int64).alias("steps"),
            pl.when(pl.lit(bool(device.height))).then(pl.col("idle_ns").sum()).alias("device_idle_ns"),
            spent.sum().alias("host_ns"),
            spent.filter("counted").sum().alias("host_in_steps_ns"),
            pl.when(pl.lit(bool(device.height)))
            .then(pl.col("idle_ns").filter("counted").sum())
            .alias("idle_in_steps_ns"),
            spent.alias("spent"),
            pl.col("source").first(),
        )
    )
    launched_by_call = pl.concat(
        [_launched_in(calls, kind, launched, threads) for kind in _kinds(calls)] or [_with_call(launched[:0], [], [])]
    )
    total = union_length_by(launched_by_call, _KEY, "device_ns").join(
        launched_by_call.group_by(_KEY).agg(pl.len().cast(pl.Int64).alias("kernels")), on=_KEY, how="left"
    )
    known = pl.lit(bool(device.height))
    with_device = host.join(total, on=_KEY, how="left", maintain_order="left").with_columns(
        pl.when(known).then(pl.col(name).fill_null(0)).alias(name) for name in ("device_ns", "kernels")
    )
    kernels = without_host_events.with_columns(pl.lit("kernel").alias("kind"))
    from_device = (
        union_length_by(kernels, _KEY, "device_ns")
        .join(kernels.group_by(_KEY).agg(pl.len().cast(pl.Int64).alias("calls")), on=_KEY, how="left")
        .with_columns(
            pl.lit(0, pl.Int64).alias("steps"),
            *(pl.lit(None, pl.Int64).alias(name) for name in _HOST_COLUMNS),
            pl.lit(None, pl.List(pl.Int64)).alias("spent"),
            pl.lit(None, pl.String).alias("source"),
            pl.col("calls").alias("kernels"),
        )
    )
    return pl.concat([with_device, from_device.select(with_device.columns)])


def _kinds(calls: pl.DataFrame) -> list[str]:
    return sorted(calls["kind"].unique().to_list())


def _launched_in(calls: pl.DataFrame, kind: str, launched: pl.DataFrame, threads: pl.DataFrame) -> pl.DataFrame:
    """Device events launched inside calls of a kind; for nested calls of that kind the inner one counts."""
    of_kind = calls.filter(pl.col("kind") == kind)
    owner = enclosing(of_kind, threads)
    rows = np.flatnonzero(owner >= 0)
    names = of_kind["name"].gather(owner[rows])
    return _with_call(launched[rows], [kind] * rows.size, names)


def _with_call(events: pl.DataFrame, kinds: Sequence[str], names: Sequence[str] | pl.Series) -> pl.DataFrame:
    return events.select("start_ns", "end_ns").with_columns(
        pl.Series("kind", kinds, dtype=pl.String), pl.Series("name", names, dtype=pl.String)
    )


analysis = Analysis(
    name="compile",
    doc=__doc__,
    whole_recording=True,
    columns=COLUMNS,
    per_rank=per_rank,
    reads={
        "host_ops": ("start_ns", "end_ns", "name", "pid", "tid", "kernel_backend", "kernel_file"),
        "annotations": ("start_ns", "end_ns", "name", "pid", "tid", "on_device", "step"),
        "python_frames": ("start_ns", "end_ns", "name", "pid", "tid"),
        "device_events": ("start_ns", "end_ns", "name", "kind", "launch_row", "launch_ns"),
        "runtime_calls": ("pid", "tid"),
    },
)
