"""What several rules ask of results: how long a step is, and how much of it something takes."""

from __future__ import annotations

import polars as pl

from rankscope.results import Inputs, Severity

WARNING_SHARE = 0.05
"""Of a step: what costs more is worth a person's evening."""
INFO_SHARE = 0.01
"""Of a step: what costs less is not worth a line."""


def step_ns(inputs: Inputs) -> int | None:
    """The median over steps of the slowest rank's window, ns; None where there is no step time."""
    frame = inputs.results.get("step_time")
    if frame is None or frame.is_empty():
        return None
    slowest = frame.group_by("step", "window").agg(pl.col("window_ns").max())["window_ns"].median()
    return round(slowest) if isinstance(slowest, int | float) and slowest > 0 else None


def severity_of(saving: int, step: int | None) -> Severity | None:
    """How weighty a saving is; None where it is not worth a finding."""
    if step is None or saving < INFO_SHARE * step:
        return None
    return "warning" if saving >= WARNING_SHARE * step else "info"


def mean_per_step(inputs: Inputs, column: str) -> dict[int, int]:
    """By rank the mean over its steps of a column of `step_time`, ns."""
    frame = inputs.results.get("step_time")
    if frame is None or frame.is_empty():
        return {}
    means = frame.group_by("rank").agg(pl.col(column).mean()).drop_nulls().sort("rank")
    return {int(rank): round(value) for rank, value in means.iter_rows()}


def steps_of(inputs: Inputs) -> tuple[int, ...]:
    """The steps that were looked at."""
    frame = inputs.results.get("step_time")
    return () if frame is None else tuple(frame["step"].drop_nulls().unique().sort().to_list())


def on_device(inputs: Inputs) -> bool:
    """Whether the run has device events: on the CPU alone there is nothing to launch, and compute is operators."""
    frame = inputs.results.get("device_time")
    kernels = inputs.results.get("kernels")
    if kernels is not None:
        return not kernels.is_empty()
    return frame is not None and bool((frame["compute_ns"] + frame["communication_ns"]).sum())
