"""A rank's files apart, the steps that were chosen, and the ranks together: what most analyses do around their own.

In: tables with a `window` column, and the options. Out: frames by file, filtered by steps, and joined again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import polars as pl

from rankscope.primitives.columns import constant, values_and_validity
from rankscope.primitives.steps import events_launched_in, host_steps, owning_steps, starts_in
from rankscope.results.analysis import Inputs, Tables
from rankscope.results.frames import concat_ranks
from rankscope.store.schema import Column


def by_window(tables: Tables, inputs: Inputs) -> list[Tables]:
    """A rank's tables apart for each of its files, in the order of the files: their clocks may differ.

    A file without any row has its place in the list, so that the place says which file it is.
    """
    if len(inputs.traces) == 1:
        return [tables]
    windows = range(len(inputs.traces))
    return [{name: frame.filter(pl.col("window") == window) for name, frame in tables.items()} for window in windows]


def chosen_starts(frame: pl.DataFrame, annotations: pl.DataFrame, inputs: Inputs) -> pl.Series:
    """Whether each row starts in the chosen steps (`--steps`); all do where none were chosen.

    Args:
        frame: start_ns.
        annotations: start_ns, end_ns, on_device, step.
    """
    if inputs.options.steps is None:
        return constant("", True, pl.Boolean, frame.height)
    keep = inputs.options.keeps(pl.col("step"))
    return pl.Series(starts_in(frame["start_ns"].to_numpy(), host_steps(annotations), keep))


def chosen_launches(device: pl.DataFrame, annotations: pl.DataFrame, inputs: Inputs) -> pl.DataFrame:
    """The device events that the chosen steps (`--steps`) launched; all where none were chosen.

    Args:
        device: launch_ns and any others.
        annotations: start_ns, end_ns, on_device, step.
    """
    if inputs.options.steps is None:
        return device
    return events_launched_in(device, host_steps(annotations), inputs.options.keeps(pl.col("step")))


def in_steps(instants: pl.Series, annotations: pl.DataFrame) -> pl.Series:
    """Whether each instant is in the host range of a complete step; all are where no step is marked.

    Costs per step are totals of these, divided by the number of steps.

    Args:
        instants: ns; null, as of launchless events, is in no step.
        annotations: start_ns, end_ns, on_device, step.
    """
    steps = host_steps(annotations)
    if steps.is_empty():
        return constant("", True, pl.Boolean, instants.len())
    owner = owning_steps(steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy(), *values_and_validity(instants))
    return pl.Series(owner >= 0, dtype=pl.Boolean)


def steps_by_window(
    tables: Tables, inputs: Inputs, columns: Sequence[Column], of_window: Callable[[Tables, Inputs], pl.DataFrame]
) -> pl.DataFrame:
    """A rank's rows of the chosen steps, window by window: the map of an analysis whose rows are of a step.

    Args:
        columns: the result's, ``rank`` and ``window`` among them.
        of_window: as for `rows_by_window`; its rows have a ``step``.
    """

    def of_chosen(window: Tables, own: Inputs) -> pl.DataFrame:
        made = of_window(window, own)
        return made if own.options.steps is None else made.filter(own.options.keeps(pl.col("step")))

    return rows_by_window(tables, inputs, columns, of_chosen)


def rows_by_window(
    tables: Tables, inputs: Inputs, columns: Sequence[Column], of_window: Callable[[Tables, Inputs], pl.DataFrame]
) -> pl.DataFrame:
    """A rank's rows, window by window: the map of an analysis that looks at each of a rank's files by itself.

    Args:
        columns: the result's, ``rank`` and ``window`` among them.
        of_window: one window's tables, and the inputs with that file alone, to its rows, without rank and window.
    """
    parts = []
    for number, window in enumerate(by_window(tables, inputs)):
        own = replace(inputs, traces=inputs.traces[number : number + 1])
        parts.append(
            of_window(window, own).with_columns(
                pl.lit(inputs.rank, pl.Int64).alias("rank"), pl.lit(number, pl.Int64).alias("window")
            )
        )
    return concat_ranks(parts, columns)
