"""Steps of a training loop: the device events of each, and its window.

In: a rank's tables. Out: the steps' numbers and windows, and the step of each device event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.columns import values_and_validity
from rankscope.primitives.intervals import Int64, interval_at
from rankscope.primitives.streams import stream_numbers

Bool = npt.NDArray[np.bool_]
UNUSUAL = 2.0
"""Times the median step: longer ones are unlike the others."""
_COMPARED = 3
"""Of fewer steps, none is unlike the others."""


@dataclass(frozen=True)
class Windows:
    """The windows of a rank's steps, in the order of the steps' starts.

    Attributes:
        start: when each window begins, ns.
        end: when it ends, ns; never before it begins.
        owner: for each device event the index of the step in whose range its launch starts, −1 for none.
    """

    start: Int64
    end: Int64
    owner: Int64


def host_steps(annotations: pl.DataFrame) -> pl.DataFrame:
    """The host's `ProfilerStep#N` ranges, in the order of their starts; not their copies on the device.

    Args:
        annotations: columns start_ns, end_ns, on_device, step.
    """
    # Without a query, which costs more than the work in it.
    rows = np.flatnonzero(values_and_validity(annotations["step"])[1] & ~annotations["on_device"].to_numpy())
    starts = annotations["start_ns"].to_numpy()[rows]
    return annotations[rows[np.argsort(starts, kind="stable")]]


def step_rows(steps: pl.DataFrame, instants: pl.Series) -> Int64:
    """For each instant the row of the step whose host range contains it; −1 for none, and for null.

    Args:
        steps: the result of `host_steps`.
        instants: ns.
    """
    return owning_steps(steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy(), *values_and_validity(instants))


def step_at(steps: pl.DataFrame, instants: pl.Series) -> pl.Series:
    """The number of the step whose host range contains each instant; null for none. Arguments as for `step_rows`."""
    row = pl.Series(step_rows(steps, instants), dtype=pl.Int64)
    return steps["step"].gather(row.set(row < 0, None)).alias("step")


def with_step_row(events: pl.DataFrame, starts: Int64, ends: Int64) -> pl.DataFrame:
    """The events that start in the windows of steps, with the window's index as `step_row`."""
    step_row = interval_at(starts, ends, events["start_ns"].to_numpy())
    return events.with_columns(pl.Series("step_row", step_row, dtype=pl.Int64)).filter(pl.col("step_row") >= 0)


def events_launched_in(device: pl.DataFrame, steps: pl.DataFrame, keep: pl.Expr) -> pl.DataFrame:
    """The device events that belong to the steps selected by `keep`.

    Args:
        device: launch_ns and any others.
        steps: the result of `host_steps`.
        keep: a filter on the rows of steps.
    """
    return device.filter(pl.Series(starts_in(device["launch_ns"], steps, keep)))


def owning_steps(step_start: Int64, step_end: Int64, launch: Int64, launched: Bool) -> Int64:
    """For each event the step in whose range its launch starts; −1 without a launch and between steps.

    Args:
        step_start: starts of the steps' host ranges, ns, ascending.
        step_end: their ends, ns.
        launch: when each event's launch starts, ns; any number without a launch.
        launched: whether there is a launch.
    """
    return np.where(launched, interval_at(step_start, step_end, launch), -1).astype(np.int64)


def windows(
    step_start: Int64,
    step_end: Int64,
    event_end: Int64,
    event_start: Int64,
    launch: Int64,
    launched: Bool,
    stream: npt.NDArray[np.integer],
) -> Windows:
    """Windows from completion to completion: the time of each step's work on the device, not on its host.

    A step owns the device events whose launch starts inside its host range. Its window ends at the later of its own
    end and the end of its last owned event, and begins at the latest of its own start, the end of the previous window
    and, for the first step, the end of the last device event that was launched before it. An event without a launch
    counts as launched before if it precedes the first launched event of its stream.

    Args:
        step_start: starts of the steps' host ranges, ns, ascending.
        step_end: their ends, ns.
        event_end: ends of the device events, ns.
        event_start: starts of the device events, ns.
        launch: starts of their launches, ns; any number without a launch.
        launched: whether there is a launch.
        stream: integers that identify the streams of all devices.
    """
    owner = owning_steps(step_start, step_end, launch, launched)
    if not step_start.size:
        return Windows(step_start, step_end, owner)
    last_owned = np.full(step_start.size, np.iinfo(np.int64).min)
    owned = owner >= 0
    np.maximum.at(last_owned, owner[owned], event_end[owned])

    before = launched & (launch < step_start[0])
    if (~launched).any():
        streams, index = np.unique(stream, return_inverse=True)
        # On a stream without launches in the file, events that start before the first step count.
        bound = np.full(streams.size, np.iinfo(np.int64).max)
        np.minimum.at(bound, index[launched], event_start[launched])
        first = np.where(bound == np.iinfo(np.int64).max, step_start[0], bound)
        before |= ~launched & (event_start < first[index])
    backlog = event_end[before].max() if before.any() else np.iinfo(np.int64).min
    begin = max(int(step_start[0]), int(backlog))
    # A window is empty if the previous one, or for the first window the backlog, ends after it.
    end = np.maximum(np.maximum.accumulate(np.maximum(step_end, last_owned)), begin)
    start = np.maximum(step_start, np.concatenate([[begin], end[:-1]]))
    return Windows(start, end, owner)


def starts_in(start: pl.Series, steps: pl.DataFrame, keep: pl.Expr) -> Bool:
    """Whether each instant is in the host range of a step selected by `keep`.

    Args:
        start: instants, ns.
        steps: the result of `host_steps`.
        keep: a filter on the rows of steps.
    """
    inside: Bool = np.isin(step_rows(steps, start), np.flatnonzero(steps.select(keep).to_series().to_numpy()))
    return inside


def one_window(frames: Iterable[pl.DataFrame]) -> tuple[Int64, Int64]:
    """The time span of some tables, as starts and ends of one window; no window if they have no rows.

    Args:
        frames: start_ns, end_ns.
    """
    full = [frame for frame in frames if frame.height]
    first = [frame["start_ns"].to_numpy().min() for frame in full]
    last = [frame["end_ns"].to_numpy().max() for frame in full]
    return np.array(sorted(first)[:1], dtype=np.int64), np.array(sorted(last)[-1:], dtype=np.int64)


def recorded_span(tables: Mapping[str, pl.DataFrame]) -> tuple[Int64, Int64]:
    """The window that replaces the step in a file without steps, as starts and ends; no window if it has no events.

    It extends from the first to the last device event, because the host may have waited or loaded long before; without
    a device it is the entire file.

    Args:
        tables: the tables of one file with start_ns and end_ns, including ``device_events``.
    """
    device = tables["device_events"]
    return one_window([device] if device.height else tables.values())


def step_windows(annotations: pl.DataFrame, device: pl.DataFrame) -> tuple[pl.DataFrame, Windows]:
    """A trace's steps, in the order of their starts, and their windows.

    Args:
        annotations: start_ns, end_ns, on_device, step.
        device: start_ns, end_ns, launch_ns, device, stream.
    """
    steps = host_steps(annotations)
    return steps, windows(
        steps["start_ns"].to_numpy(),
        steps["end_ns"].to_numpy(),
        device["end_ns"].to_numpy(),
        device["start_ns"].to_numpy(),
        *values_and_validity(device["launch_ns"]),
        stream_numbers(device),
    )


def cold_steps(slowest: pl.DataFrame) -> pl.DataFrame:
    """The steps that are unlike all others, by chance or because a window begins with them: step, window.

    Args:
        slowest: step, window, window_ns: how long each step took on its slowest rank.
    """
    known = slowest.drop_nulls("step").sort("window", "step")
    is_long = pl.col("window_ns") > UNUSUAL * pl.col("window_ns").median()
    known = known.with_columns(is_long.alias("long"))
    # None of a window's long steps comes after another step.
    long = known.with_columns((~pl.col("long")).cum_sum().over("window").alias("before")).filter("long")
    is_cold = known.height >= _COMPARED and (long.height == 1 or not long["before"].sum())
    return (long if is_cold else long.clear()).select("step", "window")


def averaged_steps(steps: pl.DataFrame) -> pl.DataFrame:
    """The rows that means and shares of steps are of: where any step is marked those of steps, without cold ones.

    Args:
        steps: step, window, window_ns and any others: how long each rank took for each step.
    """
    marked = marked_steps(steps)
    slowest = marked.group_by("step", "window").agg(pl.col("window_ns").max())
    return marked.join(cold_steps(slowest), on=["step", "window"], how="anti", maintain_order="left")


def marked_steps(steps: pl.DataFrame) -> pl.DataFrame:
    """The rows of steps. A file without any is not one step where others have some; if none has, each is one.

    Args:
        steps: step (null for a file without steps) and any others.
    """
    marked = steps.filter(pl.col("step").is_not_null())
    return marked if marked.height else steps


def count_steps(frame: pl.DataFrame) -> int:
    """The number of recorded steps. Windows may repeat a number: it counts as often as one rank has it.

    Args:
        frame: rank, window and step (null for none).
    """
    steps = frame.select("rank", "window", "step").drop_nulls().unique()
    return int(steps.group_by("rank", "step").len().group_by("step").agg(pl.col("len").max())["len"].sum())


def distinct_steps(frames: Sequence[pl.DataFrame]) -> tuple[dict[int, int], list[pl.DataFrame]]:
    """Renumber steps if a rank has the same step number in several windows.

    A profiler per epoch numbers its steps from 0, and so does each attempt of an elastic job. Windows of different
    ranks correspond by index. Only consecutive steps of a window get consecutive numbers.

    Args:
        frames: rank, window and step (null for none). Only the first shows whether numbers repeat: others may name
            steps next to the recorded ones.

    Returns:
        the original number by new number, empty if none repeats; and the frames with the new numbers.
    """
    recorded = frames[0].select("rank", "window", "step").drop_nulls()
    if count_steps(recorded) == recorded["step"].n_unique():
        return {}, list(frames)
    steps = pl.concat([frame.select("window", "step") for frame in frames]).drop_nulls().unique().sort("window", "step")
    follows = (pl.col("step") == pl.col("step").shift(1) + 1) & (pl.col("window") == pl.col("window").shift(1))
    numbers = steps.with_columns((2 - follows.fill_null(False).cast(pl.Int64)).cum_sum().alias("number"))
    renumbered = [
        frame.join(numbers, on=["window", "step"], how="left", maintain_order="left")
        .with_columns(pl.col("number").alias("step"))
        .drop("number")
        for frame in frames
    ]
    return dict(numbers.select("number", "step").iter_rows()), renumbered
