"""Split a rank's tables by file, filter them by the chosen steps, and join the results again, as most analyses must.

In: tables with a `window` column, and the options. Out: frames by file, filtered by steps, or joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps

import polars as pl

from rankscope.primitives.columns import constant
from rankscope.primitives.steps import events_launched_in, host_steps, starts_in, step_rows
from rankscope.results.analysis import Inputs, Tables
from rankscope.results.frames import concat_ranks
from rankscope.store.schema import Column

PerRank = Callable[[Tables, Inputs], pl.DataFrame]


def by_window(tables: Tables, inputs: Inputs) -> list[Tables]:
    """A rank's tables, split by file, as the files' clocks may differ.

    The list has an entry for every file, even without rows, so that an index in it identifies the file.
    """
    if len(inputs.traces) == 1:
        return [tables]
    windows = range(len(inputs.traces))
    return [{name: frame.filter(pl.col("window") == window) for name, frame in tables.items()} for window in windows]


def chosen_starts(frame: pl.DataFrame, annotations: pl.DataFrame, inputs: Inputs) -> pl.Series:
    """Whether each row starts in the chosen steps (`--steps`); true for all rows if none were chosen.

    Args:
        frame: start_ns.
        annotations: start_ns, end_ns, on_device, step.
    """
    if inputs.options.steps is None:
        return constant("", True, pl.Boolean, frame.height)
    keep = inputs.options.keeps(pl.col("step"))
    return pl.Series(starts_in(frame["start_ns"], host_steps(annotations), keep))


def chosen_launches(device: pl.DataFrame, annotations: pl.DataFrame, inputs: Inputs) -> pl.DataFrame:
    """The device events launched in the chosen steps (`--steps`); all if none were chosen.

    Args:
        device: launch_ns and any other columns.
        annotations: start_ns, end_ns, on_device, step.
    """
    if inputs.options.steps is None:
        return device
    return events_launched_in(device, host_steps(annotations), inputs.options.keeps(pl.col("step")))


def in_steps(instants: pl.Series, annotations: pl.DataFrame) -> pl.Series:
    """Whether each instant is in the host range of a complete step; true for all if there are no step markers.

    A cost per step is the total over these, divided by the number of steps.

    Args:
        instants: ns; null (events without a launch) is in no step.
        annotations: start_ns, end_ns, on_device, step.
    """
    steps = host_steps(annotations)
    if steps.is_empty():
        return constant("", True, pl.Boolean, instants.len())
    return pl.Series(step_rows(steps, instants) >= 0, dtype=pl.Boolean)


def step_keys(instants: pl.Series, annotations: pl.DataFrame, number: int) -> pl.Series:
    """For each instant a number that identifies its step among those of all windows; null for none. As `in_steps`.

    Args:
        instants: ns.
        annotations: start_ns, end_ns, on_device, step.
        number: the window's.
    """
    row = pl.Series(step_rows(host_steps(annotations), instants), dtype=pl.Int64)
    keys: pl.Series = (row + (number << 32)).set(row < 0, None)
    return keys


def steps_by_window(columns: Sequence[Column], rows: PerRank) -> PerRank:
    """`per_rank` of an analysis with rows per step: those of the chosen steps, window by window.

    Args:
        columns: the result's columns, with ``rank`` and ``window``.
        rows: as for `rows_by_window`; its rows have a ``step``.
    """
    every = rows_by_window(columns, rows)
    return wraps(rows)(lambda tables, inputs: inputs.options.chosen(every(tables, inputs)))


def rows_by_window(columns: Sequence[Column], rows: PerRank) -> PerRank:
    """`per_rank` of an analysis that treats each of a rank's files separately: its rows, window by window.

    Args:
        columns: the result's columns, with ``rank`` and ``window``.
        rows: maps one window's tables, and the inputs with its file only, to rows without ``rank`` and ``window``.
    """

    @wraps(rows)
    def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
        parts = [
            rows(window, replace(inputs, traces=inputs.traces[number : number + 1])).with_columns(
                pl.lit(inputs.rank, pl.Int64).alias("rank"), pl.lit(number, pl.Int64).alias("window")
            )
            for number, window in enumerate(by_window(tables, inputs))
        ]
        return concat_ranks(parts, columns)

    return per_rank
