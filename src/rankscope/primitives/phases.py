"""The phase of a training step that the host is in: forward, backward, optimizer, data loading.

In: a rank's tables. Out: one interval set per phase.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.activity import covered_time, data_loading_time
from rankscope.primitives.intervals import EMPTY, Int64, IntervalSet
from rankscope.primitives.steps import host_steps

FORWARD, BACKWARD, OPTIMIZER, LOADING = "forward", "backward", "optimizer", "data_loading"
PHASES = (OPTIMIZER, BACKWARD, LOADING, FORWARD)
"""In order of precedence: an instant belongs to the first of these phases that contains it."""

MODULE_FRAME = "nn.Module: "
_ENGINE = r"^autograd::engine::evaluate_function|^torch::autograd::|^torch\.distributed\.ddp\.reducer::"
_BACKWARD_RANGE = (
    r"^FSDP::(pre_backward|post_backward|root_post_backward|backward_prefetch)"
    r"|^FullyShardedDataParallel\._(pre|post)_backward"
)
_FORWARD_RANGE = (
    r"^(DistributedDataParallel|FullyShardedDataParallel)\.forward"
    r"|^FSDP::(root_)?(pre|post)_forward|^FSDP::forward_prefetch|^Torch-Compiled Region"
)
_OPTIMIZER_RANGE = r"^Optimizer\.step#"
# Not part of an enclosing forward or backward.
_BREAK = r"^Optimizer\.zero_grad#"


def backward_operators(operators: pl.DataFrame) -> pl.Series:
    """Whether an operator belongs to the backward: autograd's, one with a forward thread, or on a thread of autograd.

    Operators inside these belong to the backward, too, but on threads other than autograd's they are not marked. A
    thread is autograd's if it has operators of the backward and none with a forward's number at top level: on the CPU
    the backward runs on the calling thread.

    Args:
        operators: name, pid, tid, depth, sequence, forward_thread.
    """
    marked = pl.col("name").str.contains(_ENGINE).fill_null(False) | (pl.col("forward_thread").fill_null(0) > 0)
    top = pl.col("depth") == 0
    numbered = pl.col("sequence").is_not_null() & (pl.col("forward_thread").fill_null(0) == 0)
    forwards = top & numbered & ~marked
    thread = ["pid", "tid"]
    autograd = marked.any().over(thread) & ~forwards.any().over(thread)
    return operators.select(marked | autograd).to_series()


def forward_operators(operators: pl.DataFrame) -> pl.Series:
    """Whether an operator belongs to a forward: it has a sequence number and no forward thread, or a module.

    Args:
        operators: name, sequence, forward_thread, module_hierarchy.
    """
    numbered = pl.col("sequence").is_not_null() & (pl.col("forward_thread").fill_null(0) == 0)
    moduled = pl.col("module_hierarchy").fill_null("") != ""
    return operators.select(
        numbered | moduled | pl.col("name").str.contains(_FORWARD_RANGE).fill_null(False)
    ).to_series()


def phase_sets(operators: pl.DataFrame, annotations: pl.DataFrame, frames: pl.DataFrame) -> dict[str, IntervalSet]:
    """When the host was in each phase: mutually exclusive sets of time, by the precedence of `PHASES`.

    A phase is the union of its events, and for forward and backward also the time between two of them if no other
    phase, `zero_grad` or step begins in between: hooks and Python between two operators of a backward belong to the
    backward.

    Args:
        operators: host_ops: start_ns, end_ns, name, pid, tid, depth, sequence, forward_thread, module_hierarchy.
        annotations: start_ns, end_ns, name, pid, tid, on_device, step.
        frames: python_frames: start_ns, end_ns, name.
    """
    named = annotations.filter(~pl.col("on_device"))
    steps = host_steps(annotations)
    pieces = {
        OPTIMIZER: covered_time(_matching(named, _OPTIMIZER_RANGE)),
        BACKWARD: covered_time(operators.filter(backward_operators(operators)))
        | covered_time(_matching(named, _BACKWARD_RANGE)),
        LOADING: data_loading_time(annotations),
        FORWARD: covered_time(operators.filter(forward_operators(operators)))
        | covered_time(_matching(named, _FORWARD_RANGE))
        | covered_time(frames.filter(pl.col("name").str.starts_with(MODULE_FRAME))),
    }
    sets: dict[str, IntervalSet] = {}
    covered = EMPTY
    for phase in PHASES:
        sets[phase] = pieces[phase] - covered
        covered = covered | pieces[phase]
    breaks = [steps["start_ns"], steps["end_ns"], _matching(named, _BREAK)["start_ns"]]
    return _bridged(sets, np.sort(np.concatenate([column.to_numpy() for column in breaks])))


def phase_at(sets: dict[str, IntervalSet], times: Int64) -> pl.Series:
    """The phase at each instant, null outside all phases.

    Args:
        sets: the result of `phase_sets`.
        times: ns.
    """
    phases = pl.Series("phase", [None] * times.size, dtype=pl.String)
    for phase, when in sets.items():
        within = when.before(times + 1) > when.before(times)
        phases = phases.set(pl.Series(within), phase)
    return phases


def _matching(frame: pl.DataFrame, pattern: str) -> pl.DataFrame:
    return frame.filter(pl.col("name").str.contains(pattern).fill_null(False))


def _bridged(sets: dict[str, IntervalSet], breaks: Int64) -> dict[str, IntervalSet]:
    starts = np.concatenate([sets[phase].starts for phase in PHASES])
    ends = np.concatenate([sets[phase].ends for phase in PHASES])
    label = np.repeat(np.arange(len(PHASES)), [len(sets[phase]) for phase in PHASES])
    order = np.argsort(starts, kind="stable")
    starts, ends, label = starts[order], ends[order], label[order]
    unbroken = np.searchsorted(breaks, ends[:-1], side="left") == np.searchsorted(breaks, starts[1:], side="right")
    same = (label[1:] == label[:-1]) & unbroken & (starts[1:] > ends[:-1])
    bridged = dict(sets)
    for phase in (FORWARD, BACKWARD):
        fill = same & (label[1:] == PHASES.index(phase))
        bridged[phase] = sets[phase] | IntervalSet.of(ends[:-1][fill], starts[1:][fill])
    return bridged
