"""Training phases per step: forward, backward, optimizer, data loading, waiting, on host and device.

One row per rank and step (`ProfilerStep#N` on the host; one row with step null for a trace without steps). The host's
columns are mutually exclusive and sum to `wall_ns`, the step's range, exactly. Each instant counts for the first that
applies:

    sync          the host is in a call that waits for the device (…Synchronize, a blocking copy); without a
                  device, Gloo communicates and no operator computes
    optimizer     inside `Optimizer.step#…`
    backward      on an autograd thread, or inside its `evaluate_function`, an operator with a forward thread, DDP's
                  reducer, or the ranges of FSDP's backward hooks
    data_loading  inside a DataLoader's `__next__`, or a user range named for data loading, on the thread of the steps
    forward       inside an operator with a sequence number, an nn.Module, or the ranges of DDP's and FSDP's forward
    other         none of these: Python, logging, the loop itself

The time between two pieces of a forward or backward counts as that phase if no other phase starts in between. A
sequence number marks everything that autograd could follow, so copies of the batch to the device count as forward.

The device's columns sum to `device_ns`: the time in which any kernel, copy or fill launched in the step was running. A
kernel belongs to the phase in which it was launched; where kernels of two phases run at the same time, the instant
counts for the first in the order above, and communication only where nothing else runs: exposed communication at most.
They are null if the trace has no device. A host that runs ahead of its device waits for it in `sync`, or in the first
blocking call of the next step; the device's columns show what a phase's work cost on the device.

How to read it: much `sync` with a device that is always busy: the device is the bottleneck, as it should be. Much
`other` or `data_loading`: the training loop is. A backward far above twice the forward contains exposed communication,
or recomputed forwards (`recompute`).
"""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.activity import activity, covered_time, with_category
from rankscope.primitives.columns import values_and_validity
from rankscope.primitives.intervals import EMPTY, Int64, IntervalSet
from rankscope.primitives.kernels import COMMUNICATION
from rankscope.primitives.phases import PHASES, phase_at, phase_sets
from rankscope.primitives.steps import host_steps, one_window, owning_steps
from rankscope.primitives.synchronization import host_waits
from rankscope.results import RANK_AND_WINDOW, Analysis, Column, Headline, Inputs, Tables, steps_by_window, total_of
from rankscope.rundir.plurals import listed

_OTHER = "other"
COLUMNS = (
    *RANK_AND_WINDOW,
    Column("step", pl.Int64, "", "N of `ProfilerStep#N`; null for a trace without steps"),
    Column("start_ns", pl.Int64, "ns", "start of the step's range", instant=True),
    Column("wall_ns", pl.Int64, "ns", "duration on the host: the sum of the next six"),
    Column("forward_ns", pl.Int64, "ns", "the host in the forward"),
    Column("backward_ns", pl.Int64, "ns", "the host in the backward"),
    Column("optimizer_ns", pl.Int64, "ns", "the host in the optimizer's step"),
    Column("in_loader_ns", pl.Int64, "ns", "the host waiting for data"),
    Column("sync_ns", pl.Int64, "ns", "the host waiting for the device; with Gloo, exposed communication"),
    Column("no_phase_ns", pl.Int64, "ns", "the host in none of these"),
    Column(
        "device_ns",
        pl.Int64,
        "ns",
        "time with anything launched in the step running: the sum of the next six; null without a device",
    ),
    Column("forward_device_ns", pl.Int64, "ns", "part of it launched in the forward"),
    Column("backward_device_ns", pl.Int64, "ns", "launched in the backward"),
    Column("optimizer_device_ns", pl.Int64, "ns", "launched in the optimizer's step"),
    Column("data_loading_device_ns", pl.Int64, "ns", "launched while loading data"),
    Column("communication_device_ns", pl.Int64, "ns", "communication with nothing else running"),
    Column("other_device_ns", pl.Int64, "ns", "launched in no phase"),
)

_HOST = ("host_ops", "annotations", "runtime_calls", "python_frames")


def _window_phases(window: Tables, inputs: Inputs) -> pl.DataFrame:
    steps = host_steps(window["annotations"])
    start, end = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    step = steps["step"]
    if not steps.height:
        start, end = one_window(window[name] for name in _HOST)
        step = pl.Series("step", [None] * start.size, dtype=pl.Int64)
    sets = phase_sets(window["host_ops"], window["annotations"], window["python_frames"])
    return pl.DataFrame(
        {
            "step": step,
            "start_ns": start,
            "wall_ns": end - start,
            **_host(window, sets, start, end),
            **_device(window, sets, start, end, inputs),
        }
    )


def _host(window: Tables, sets: dict[str, IntervalSet], start: Int64, end: Int64) -> dict[str, Int64]:
    waiting = covered_time(host_waits(window["runtime_calls"]))
    if not window["device_events"].height:
        host = activity(window["device_events"], window["host_ops"], window["annotations"])
        waiting = waiting | (host.communication - host.compute)
    times = {"sync": waiting.within(start, end)}
    for phase in PHASES:
        times[phase] = (sets[phase] - waiting).within(start, end)
    rest = (end - start) - sum(times.values(), np.zeros(start.size, dtype=np.int64))
    # In `step_time`, data loading is the device's: the host may load while the device works.
    times["in_loader"] = times.pop("data_loading")
    return {f"{name}_ns": value for name, value in times.items()} | {"no_phase_ns": rest}


def _device(
    window: Tables, sets: dict[str, IntervalSet], start: Int64, end: Int64, inputs: Inputs
) -> dict[str, Int64 | pl.Series]:
    names = ("device", *(f"{name}_device" for name in (*PHASES, "communication", _OTHER)))
    if not window["device_events"].height:
        no_times = pl.Series([None] * start.size, dtype=pl.Int64)
        return {f"{name}_ns": no_times for name in names}
    events = with_category(window["device_events"], inputs.options.communication)
    launch_at, launched = values_and_validity(events["launch_ns"])
    with_phase = events.with_columns(
        pl.when(pl.col("category") == COMMUNICATION)
        .then(pl.lit("communication"))
        .otherwise(phase_at(sets, launch_at).fill_null(_OTHER))
        .alias("phase"),
        pl.Series("owner", owning_steps(start, end, launch_at, launched)),
    ).filter(pl.col("owner") >= 0)
    times = {name: np.zeros(start.size, dtype=np.int64) for name in names}
    for (owner,), events_of_step in with_phase.partition_by("owner", as_dict=True).items():
        covered = EMPTY
        for phase in (*PHASES, _OTHER, "communication"):
            before = covered.length
            covered = covered | covered_time(events_of_step.filter(pl.col("phase") == phase))
            times[f"{phase}_device"][int(owner)] = covered.length - before
        times["device"][int(owner)] = covered.length
    return {f"{name}_ns": value for name, value in times.items()}


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    wall = total_of(frame, "wall_ns")
    if not wall:
        return None
    parts = {name: total_of(frame, f"{name}_ns") for name in ("forward", "backward", "optimizer")}
    shares = {name: (amount / wall, "ratio") for name, amount in parts.items() if amount}
    if not shares:
        return Headline.of("These traces do not record forward, backward or optimizer.")
    subject = "Step time" if frame["step"].drop_nulls().len() else "Time"
    return Headline.of(f"{subject} on the host: {listed([f'{name} {{{name}}}' for name in shares])}.", **shares)


analysis = Analysis(
    name="phases",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=steps_by_window(COLUMNS, _window_phases),
    headline=headline,
    reads={
        "device_events": ("start_ns", "end_ns", "name", "kind", "is_collective", "launch_ns"),
        "host_ops": (
            "start_ns", "end_ns", "name", "pid", "tid", "depth", "sequence", "forward_thread", "module_hierarchy",
        ),
        "runtime_calls": ("start_ns", "end_ns", "name"),
        "annotations": ("start_ns", "end_ns", "name", "pid", "tid", "on_device", "step"),
        "python_frames": ("start_ns", "end_ns", "name"),
    },
)  # fmt: skip
