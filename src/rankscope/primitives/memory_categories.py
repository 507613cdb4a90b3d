"""What allocated memory is for: parameters, gradients, optimizer state, activations, from where and how long it lived.

A trace names no tensors. What a block is for follows from the phase in which it was allocated (`primitives/phases.py`)
and from whether it outlives that phase:

    parameters       outside the phases, in a constructor or `_apply` (`to`, `cuda`) of an nn.Module, and kept by it
    inputs           while loading data, or in a step before its first nn.Module or forward, and kept until then
    activations      in the forward, and kept beyond it, at most until the next step ends
    gradients        in the backward, and kept beyond it
    optimizer_state  in `Optimizer.step`, and kept beyond it
    temporary        released in the same phase, or in the same outermost operator
    earlier          allocated before the recording: what it is for is not known
    unknown          all else

In: a trace's memory events, operators, ranges and Python frames. Out: each allocation and release with its category.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.allocations import MEMORY_COLUMNS, memory_blocks, memory_samples
from rankscope.primitives.call_stack import enclosing
from rankscope.primitives.intervals import Int64, IntervalSet
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
CATEGORIES = (PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, TEMPORARY, INPUTS, EARLIER, UNKNOWN)
CATEGORY_TABLES: Mapping[str, tuple[str, ...]] = {
    "memory_events": MEMORY_COLUMNS,
    "host_ops": ("start_ns", "end_ns", "name", "pid", "tid", "depth", "sequence", "forward_thread", "module_hierarchy"),
    "annotations": ("start_ns", "end_ns", "name", "pid", "tid", "on_device", "step"),
    "python_frames": ("start_ns", "end_ns", "name", "pid", "tid"),
}
"""The tables that categories follow from, with the columns that are read."""
_KEPT = {FORWARD: ACTIVATIONS, BACKWARD: GRADIENTS, OPTIMIZER: OPTIMIZER_STATE, LOADING: INPUTS}

# `torch/nn/modules/linear.py(96): __init__`, `…/module.py(900): _apply`: what makes parameters, or moves them.
_MAKES_PARAMETERS = r"(^|/)torch/nn/modules/\w+\.py\(\d+\): (__init__|_apply|to_empty|reset_parameters)$"
_MODULE_CONSTRUCTOR = r"(^|/)torch/nn/modules/module\.py\(\d+\): __init__$"
_CONSTRUCTOR = r"\.py\(\d+\): __init__$"
_NEVER = (1 << 63) - 1


def categorized_samples(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """The allocations and releases of one trace, in order of time, each with the category of its block.

    Adds to `memory_samples`: ``category``; ``held``, bytes that are live on the device after the event: its total, or
    the sum of what was recorded; ``at_peak``, whether the event is the first with the most of it on its device; and
    ``live``, whether it is the allocation of a block that is live then.

    Args:
        tables: memory_events, all of `MEMORY_COLUMNS`; host_ops: start_ns, end_ns, name, pid, tid, depth, sequence,
            forward_thread, module_hierarchy; annotations: start_ns, end_ns, name, pid, tid, on_device, step;
            python_frames: start_ns, end_ns, name, pid, tid.
    """
    operators, annotations, frames = (tables[name] for name in ("host_ops", "annotations", "python_frames"))
    found = memory_samples(tables["memory_events"], operators, annotations)
    addressed = np.flatnonzero(found["address"].is_not_null().to_numpy())
    blocks = memory_blocks(found[addressed])
    category = np.full(found.height, UNKNOWN, dtype=object)
    made, orphan = blocks.filter(pl.col("event").is_not_null()), blocks.filter(pl.col("event").is_null())
    category[addressed[orphan["releasing_event"].to_numpy()]] = EARLIER
    event = addressed[made["event"].to_numpy()]
    of_block = _categories(found[event].select("time_ns", "pid", "tid"), made, operators, annotations, frames)
    category[event] = of_block
    released = made["releasing_event"].is_not_null().to_numpy()
    until = np.full(made.height, found.height, dtype=np.int64)
    until[released] = addressed[made["releasing_event"].drop_nulls().to_numpy()]
    category[until[released]] = of_block[released]
    height = pl.coalesce("allocated", "change")
    found = found.with_columns(pl.Series("category", category, dtype=pl.String), height.alias("held")).with_columns(
        (pl.int_range(pl.len()) == pl.col("held").arg_max()).over("memory").alias("at_peak")
    )
    peaks = {row["memory"]: row["row"] for row in found.with_row_index("row").filter("at_peak").iter_rows(named=True)}
    peak = made["memory"].replace_strict(peaks, default=-1, return_dtype=pl.Int64).to_numpy()
    live = np.zeros(found.height, dtype=np.bool_)
    live[event] = (event <= peak) & (until > peak)
    return found.with_columns(pl.Series("live", live))


def live_bytes(found: pl.DataFrame) -> pl.DataFrame:
    """Live bytes of each category on the event's device after each event: a column per category, shape of `found`.

    What was live before the first event is `EARLIER`: the device's total where the trace has one, else what was
    released without having been allocated. The columns sum to ``held`` where the trace's totals agree with its events.

    Args:
        found: as `categorized_samples` gives it.
    """
    before = (pl.col("allocated") - pl.col("bytes")).first()
    orphans = -pl.col("bytes").filter(pl.col("category") == EARLIER).sum()
    base = pl.max_horizontal(before.fill_null(0), orphans).over("memory")
    sums = {
        name: pl.when(pl.col("category") == name).then(pl.col("bytes")).otherwise(0).cum_sum().over("memory")
        for name in CATEGORIES
    }
    sums[EARLIER] = sums[EARLIER] + base
    return found.select("memory", *(sums[name].alias(name) for name in CATEGORIES))


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
    mine = trains["trains"].fill_null(False).to_numpy()
    steps = host_steps(annotations)
    calls = np.sort(frames.filter(pl.col("name").str.starts_with(MODULE_FRAME))["start_ns"].to_numpy())
    sets = phase_sets(operators, annotations, frames)
    limit = _next_step_end(steps, times)
    before = mine & _before_forward(sets, steps, times, released) & (released <= limit)
    category[before] = INPUTS
    for phase, when in sets.items():
        since, until = _interval(when, times)
        inside = mine & (times < until)
        kept = released > until
        category[inside] = np.where(kept[inside], _KEPT[phase], TEMPORARY)
        if phase == FORWARD:
            category[inside & kept & (released > limit)] = UNKNOWN
            # Within this forward, what was there before the model was called.
            first = _next(calls, since)
            category[inside & kept & (times < first) & (first < until)] = INPUTS
    making = _making_parameters(frames)
    ends = _ends(making, at)
    within = ends > times
    category[within] = np.where(released[within] > ends[within], PARAMETERS, TEMPORARY)
    return category


def _ends(ranges: pl.DataFrame, at: pl.DataFrame) -> Int64:
    """The end of the innermost range around each instant on its thread; −1 for none."""
    row = enclosing(ranges, at)
    if not ranges.height:
        return row
    ends: Int64 = np.where(row >= 0, ranges["end_ns"].to_numpy()[np.maximum(row, 0)], -1)
    return ends


def _interval(when: IntervalSet, times: Int64) -> tuple[Int64, Int64]:
    """Start and end of the interval that each instant is in; the end is −1 where it is in none."""
    if not when.starts.size:
        return np.full(times.size, -1), np.full(times.size, -1)
    last = np.searchsorted(when.starts, times, side="right") - 1
    row = np.maximum(last, 0)
    inside = (last >= 0) & (times < when.ends[row])
    return np.where(inside, when.starts[row], -1), np.where(inside, when.ends[row], -1)


def _next(instants: Int64, times: Int64) -> Int64:
    """The first of some sorted instants that is not before each time; `_NEVER` for none."""
    return np.append(instants, _NEVER)[np.searchsorted(instants, times, side="left")]


def _next_step_end(steps: pl.DataFrame, times: Int64) -> Int64:
    """The end of the step after the one that each instant is in or before; `_NEVER` if there is none."""
    ends = np.append(steps["end_ns"].to_numpy(), (_NEVER, _NEVER))
    found: Int64 = ends[np.searchsorted(ends, times, side="right").clip(max=ends.size - 2) + 1]
    return found


def _before_forward(
    sets: dict[str, IntervalSet], steps: pl.DataFrame, times: Int64, released: Int64
) -> npt.NDArray[np.bool_]:
    """Whether a block was allocated in a step before its first forward, and not released before that."""
    starts, ends = (np.append(steps[name].to_numpy(), _NEVER) for name in ("start_ns", "end_ns"))
    step = np.searchsorted(starts[:-1], times, side="right") - 1
    start, end = starts[step], ends[step]
    forward = _next(sets[FORWARD].starts, start)
    others = np.sort(np.concatenate([sets[BACKWARD].starts, sets[OPTIMIZER].starts]))
    return (step >= 0) & (times < forward) & (forward < end) & (released > forward) & (forward < _next(others, start))


def _training_threads(operators: pl.DataFrame, annotations: pl.DataFrame) -> pl.DataFrame:
    """pid, tid and ``trains``: the threads of steps, forwards and backwards. Loaders and Gloo have others."""
    trains = backward_operators(operators) | forward_operators(operators)
    parts = [host_steps(annotations).select("pid", "tid"), operators.filter(trains).select("pid", "tid")]
    return pl.concat(parts).unique().with_columns(pl.lit(True).alias("trains"))


def _making_parameters(frames: pl.DataFrame) -> pl.DataFrame:
    """The calls that make a module's parameters or move them: start_ns, end_ns, pid, tid.

    A constructor of another package is one if it calls nn.Module's.
    """
    wanted = ["start_ns", "end_ns", "pid", "tid"]
    name = pl.col("name")
    constructors = frames.filter(name.str.contains(_CONSTRUCTOR) & ~name.str.contains(_MODULE_CONSTRUCTOR))
    inner = frames.filter(name.str.contains(_MODULE_CONSTRUCTOR)).rename({"start_ns": "time_ns"})
    around = np.unique(enclosing(constructors, inner.select("time_ns", "pid", "tid")))
    own = frames.filter(name.str.contains(_MAKES_PARAMETERS))
    return pl.concat([own.select(wanted), constructors[around[around >= 0]].select(wanted)]).unique().sort("start_ns")
