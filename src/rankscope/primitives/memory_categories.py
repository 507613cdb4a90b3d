"""The purpose of allocated memory: parameters, gradients, optimizer state, activations, by its place and lifetime.

A trace names no tensors. The category of a block follows from the phase in which it was allocated
(`primitives/phases.py`) and from whether it outlives that phase:

    parameters       outside the phases, in a constructor or `_apply` (`to`, `cuda`) of an nn.Module, and kept by it
    inputs           while loading data, or in a step before its first nn.Module or forward, and kept until then
    activations      in the forward, and kept beyond it, at most until the next step ends
    gradients        in the backward, and kept beyond it
    optimizer_state  in `Optimizer.step`, and kept beyond it
    temporary        released in the same phase, or in the same outermost operator
    earlier          allocated before the recording, so its purpose is unknown
    unknown          everything else

In: a trace's memory events, operators, ranges and Python frames. Out: each allocation and release with its category.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.allocations import MEMORY_COLUMNS, memory_blocks, memory_samples, with_peak
from rankscope.primitives.call_stack import enclosing
from rankscope.primitives.intervals import Int64, IntervalSet, interval_at
from rankscope.primitives.phases import (
    BACKWARD,
    FORWARD,
    LOADING,
    MODULE_FRAME,
    OPTIMIZER,
    backward_operators,
    forward_operators,
    phase_sets,
)
from rankscope.primitives.steps import host_steps

PARAMETERS, INPUTS, ACTIVATIONS, GRADIENTS = "parameters", "inputs", "activations", "gradients"
OPTIMIZER_STATE, TEMPORARY, EARLIER, UNKNOWN = "optimizer_state", "temporary", "earlier", "unknown"
CATEGORIES: Mapping[str, str] = {
    PARAMETERS: "made by constructors of nn.Modules",
    GRADIENTS: "made in a backward and kept beyond it",
    OPTIMIZER_STATE: "made in an optimizer's step and kept beyond it",
    ACTIVATIONS: "made in a forward and kept beyond it",
    TEMPORARY: "released in the phase or operator that allocated it",
    INPUTS: "made while loading data, or before the step's forward",
    EARLIER: "allocated before the recording",
    UNKNOWN: "all else",
}
"""What each category of memory is."""
CATEGORY_TABLES: Mapping[str, tuple[str, ...]] = {
    "memory_events": MEMORY_COLUMNS,
    "host_ops": ("start_ns", "end_ns", "name", "pid", "tid", "depth", "sequence", "forward_thread", "module_hierarchy"),
    "annotations": ("start_ns", "end_ns", "name", "pid", "tid", "on_device", "step"),
    "python_frames": ("start_ns", "end_ns", "name", "pid", "tid"),
}
"""The tables and columns that categories are derived from."""
_KEPT = {FORWARD: ACTIVATIONS, BACKWARD: GRADIENTS, OPTIMIZER: OPTIMIZER_STATE, LOADING: INPUTS}

# `torch/nn/modules/linear.py(96): __init__`, `…/module.py(900): _apply`: calls that make or move parameters.
_MAKES_PARAMETERS = r"(^|/)torch/nn/modules/\w+\.py\(\d+\): (__init__|_apply|to_empty|reset_parameters)$"
_MODULE_CONSTRUCTOR = r"(^|/)torch/nn/modules/module\.py\(\d+\): __init__$"
_CONSTRUCTOR = r"\.py\(\d+\): __init__$"
_NEVER = (1 << 63) - 1


def categorized_samples(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """The allocations and releases of one trace, in time order, each with the category of its block.

    Adds ``category`` to `with_peak`.

    Args:
        tables: memory_events, all of `MEMORY_COLUMNS`; host_ops: start_ns, end_ns, name, pid, tid, depth, sequence,
            forward_thread, module_hierarchy; annotations: start_ns, end_ns, name, pid, tid, on_device, step;
            python_frames: start_ns, end_ns, name, pid, tid.
    """
    operators, annotations, frames = (tables[name] for name in ("host_ops", "annotations", "python_frames"))
    samples = memory_samples(tables["memory_events"], operators, annotations)
    blocks = memory_blocks(samples)
    category = np.full(samples.height, UNKNOWN, dtype=object)
    allocated, orphan = blocks.filter(pl.col("event").is_not_null()), blocks.filter(pl.col("event").is_null())
    category[orphan["releasing_event"].to_numpy()] = EARLIER
    event = allocated["event"].to_numpy()
    block_category = _categories(
        samples[event].select("time_ns", "pid", "tid"), allocated, operators, annotations, frames
    )
    category[event] = block_category
    released = allocated["releasing_event"].is_not_null().to_numpy()
    category[allocated["releasing_event"].drop_nulls().to_numpy()] = block_category[released]
    return with_peak(samples, blocks).with_columns(pl.Series("category", category, dtype=pl.String))


def live_bytes(samples: pl.DataFrame) -> pl.DataFrame:
    """Live bytes of each category on the event's device after each event: a column per category, a row per event.

    Memory that was live before the first event is `EARLIER`: the device's total if the trace has one, else the blocks
    released without a recorded allocation; none on the host, where ``allocated`` counts from the recording's start.
    The columns sum to ``held`` if the trace's totals agree with its events.

    Args:
        samples: the result of `categorized_samples`.
    """
    size = pl.col("counted")
    before = (pl.col("allocated") - size).first()
    orphans = -size.filter(pl.col("category") == EARLIER).sum()
    base = pl.max_horizontal(before.fill_null(0), orphans).over("memory")
    sums = {
        name: pl.when(pl.col("category") == name).then(size).otherwise(0).cum_sum().over("memory")
        for name in CATEGORIES
    }
    sums[EARLIER] = sums[EARLIER] + base
    return samples.select("memory", *(sums[name].alias(name) for name in CATEGORIES))


def _categories(
    at: pl.DataFrame, blocks: pl.DataFrame, operators: pl.DataFrame, annotations: pl.DataFrame, frames: pl.DataFrame
) -> npt.NDArray[np.object_]:
    """The category of each block.

    Args:
        at: time_ns, pid, tid of the blocks' allocations.
        blocks: released_ns.
    """
    times = at["time_ns"].to_numpy()
    released = blocks["released_ns"].fill_null(_NEVER).to_numpy()
    category = np.full(times.size, UNKNOWN, dtype=object)
    top = operators.filter(pl.col("depth") == 0)
    category[released <= _ends(top, at)] = TEMPORARY
    trains = at.join(_training_threads(operators, annotations), on=["pid", "tid"], how="left", nulls_equal=True)
    on_training_thread = trains["trains"].fill_null(False).to_numpy()
    steps = host_steps(annotations)
    calls = np.sort(frames.filter(pl.col("name").str.starts_with(MODULE_FRAME))["start_ns"].to_numpy())
    sets = phase_sets(operators, annotations, frames)
    limit = _next_step_end(steps, times)
    before = on_training_thread & _before_forward(sets, steps, times, released) & (released <= limit)
    category[before] = INPUTS
    for phase, when in sets.items():
        since, until = _interval(when, times)
        inside = on_training_thread & (times < until)
        kept = released > until
        category[inside] = np.where(kept[inside], _KEPT[phase], TEMPORARY)
        if phase == FORWARD:
            category[inside & kept & (released > limit)] = UNKNOWN
            # Allocated within this forward range, before the model was called.
            first = _next(calls, since)
            category[inside & kept & (times < first) & (first < until)] = INPUTS
    module_setup = _making_parameters(frames)
    ends = _ends(module_setup, at)
    within = ends > times
    category[within] = np.where(released[within] > ends[within], PARAMETERS, TEMPORARY)
    return category


def _ends(ranges: pl.DataFrame, at: pl.DataFrame) -> Int64:
    """The end of the innermost range open on each instant's thread; −1 for none."""
    return np.append(ranges["end_ns"].to_numpy(), -1)[enclosing(ranges, at)]


def _interval(when: IntervalSet, times: Int64) -> tuple[Int64, Int64]:
    """Start and end of the interval that contains each instant; −1 for none."""
    row = interval_at(when.starts, when.ends, times)
    return np.append(when.starts, -1)[row], np.append(when.ends, -1)[row]


def _next(instants: Int64, times: Int64) -> Int64:
    """The first of the sorted instants that is not before each time; `_NEVER` for none."""
    return np.append(instants, _NEVER)[np.searchsorted(instants, times, side="left")]


def _next_step_end(steps: pl.DataFrame, times: Int64) -> Int64:
    """The end of the step after the current or next one at each instant; `_NEVER` if there is none."""
    ends = np.append(steps["end_ns"].to_numpy(), (_NEVER, _NEVER))
    found: Int64 = ends[np.searchsorted(ends, times, side="right").clip(max=ends.size - 2) + 1]
    return found


def _before_forward(
    sets: dict[str, IntervalSet], steps: pl.DataFrame, times: Int64, released: Int64
) -> npt.NDArray[np.bool_]:
    """Whether a block was allocated in a step before its first forward, and released after the forward began."""
    starts, ends = (np.append(steps[name].to_numpy(), _NEVER) for name in ("start_ns", "end_ns"))
    step = np.searchsorted(starts[:-1], times, side="right") - 1
    start, end = starts[step], ends[step]
    forward = _next(sets[FORWARD].starts, start)
    others = np.sort(np.concatenate([sets[BACKWARD].starts, sets[OPTIMIZER].starts]))
    return (step >= 0) & (times < forward) & (forward < end) & (released > forward) & (forward < _next(others, start))


def _training_threads(operators: pl.DataFrame, annotations: pl.DataFrame) -> pl.DataFrame:
    """pid, tid and ``trains``: the threads of steps, forwards and backwards, not those of loaders and Gloo."""
    trains = backward_operators(operators) | forward_operators(operators)
    parts = [host_steps(annotations).select("pid", "tid"), operators.filter(trains).select("pid", "tid")]
    return pl.concat(parts).unique().with_columns(pl.lit(True).alias("trains"))


def _making_parameters(frames: pl.DataFrame) -> pl.DataFrame:
    """The calls that make or move a module's parameters: start_ns, end_ns, pid, tid.

    They include constructors of other packages that call nn.Module's.
    """
    columns = ["start_ns", "end_ns", "pid", "tid"]
    name = pl.col("name")
    constructors = frames.filter(name.str.contains(_CONSTRUCTOR) & ~name.str.contains(_MODULE_CONSTRUCTOR))
    inner = frames.filter(name.str.contains(_MODULE_CONSTRUCTOR)).rename({"start_ns": "time_ns"})
    calling = np.unique(enclosing(constructors, inner.select("time_ns", "pid", "tid")))
    torch_calls = frames.filter(name.str.contains(_MAKES_PARAMETERS))
    return (
        pl.concat([torch_calls.select(columns), constructors[calling[calling >= 0]].select(columns)])
        .unique()
        .sort("start_ns")
    )
