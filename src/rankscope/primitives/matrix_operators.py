"""Operators that tensor cores can run, and the kernels that they launched.

In: a file's operators and device events. Out: both with the data type, and whether kernels ran on tensor cores.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from rankscope.primitives.activity import with_category
from rankscope.primitives.call_stack import is_outermost, launching_operators
from rankscope.primitives.kernels import COMPUTE
from rankscope.primitives.shapes import floating_point_type
from rankscope.primitives.tensor_cores import eligible_operators, ordinary_products, tensor_core_use


def matrix_operators(
    window: Mapping[str, pl.DataFrame],
    kept: npt.NDArray[np.bool_] | None,
    device: pl.DataFrame,
    communication: str | None,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The operators that tensor cores can run, and their kernels.

    Args:
        window: host_ops (start_ns, end_ns, name, pid, tid, parent_row, input_types) and runtime_calls (pid, tid).
        kept: which operators count, None for all; shape ``(operators,)``.
        device: the device events that count: start_ns, end_ns, name, kind, is_collective, op_row, launch_row,
            launch_ns.
        communication: a regular expression of further kernel names that are communication.

    Returns:
        the innermost of nested operators: all columns, number (the type of the first floating-point input), duration;
        and the compute kernels: start_ns, end_ns, name, launch_ns, duration, number, tensor (null if unknown), and off:
        a product on ordinary cores in a call that launched no other.
    """
    operators = window["host_ops"]
    eligible = operators["name"].is_in(list(eligible_operators(operators["name"].unique().drop_nulls()))).to_numpy()
    parent = operators["parent_row"].fill_null(-1).to_numpy()
    inner = eligible.copy()
    ancestors = parent[eligible & (parent >= 0)]
    while ancestors.size:
        # An ancestor of an eligible operator is only its wrapper.
        inner[ancestors] = False
        ancestors = np.unique(parent[ancestors])
        ancestors = ancestors[ancestors >= 0]
    chosen = inner & is_outermost(parent, np.where(inner, 0, np.arange(inner.size) + 1))
    calls = operators.filter(pl.Series(chosen if kept is None else chosen & kept))
    calls = calls.with_columns(
        _number_types(calls["input_types"]), (pl.col("end_ns") - pl.col("start_ns")).alias("duration")
    )
    device = with_category(device, communication).filter(pl.col("category") == COMPUTE)
    owner = launching_operators(device, window["runtime_calls"], operators)
    # Work that an eligible operator launches through a nested operator belongs to it, too.
    level = owner.copy()
    unresolved = np.flatnonzero(level >= 0)
    unresolved = unresolved[~eligible[level[unresolved]]]
    while unresolved.size:
        level[unresolved] = parent[level[unresolved]]
        unresolved = unresolved[level[unresolved] >= 0]
        unresolved = unresolved[~eligible[level[unresolved]]]
    belongs = level >= 0
    device, level = device.filter(pl.Series(belongs)), level[belongs]
    names = device["name"].unique().drop_nulls().to_list()
    use = tensor_core_use(names)
    launched = (
        device.select(
            "start_ns", "end_ns", "name", "launch_ns", (pl.col("end_ns") - pl.col("start_ns")).alias("duration")
        )
        .with_columns(
            device["name"].replace_strict(use, return_dtype=pl.Boolean, default=None).alias("tensor"),
            device["name"].is_in(list(ordinary_products(names))).fill_null(False).alias("ordinary"),
            _number_types(operators["input_types"].gather(level)),
            pl.Series("call", level),
        )
        .with_columns((pl.col("ordinary") & ~pl.col("tensor").fill_null(True).any().over("call")).alias("off"))
    )
    return calls, launched.drop("ordinary", "call")


def _number_types(input_types: pl.Series) -> pl.Series:
    """The type that each operator computes in, by its recorded input types, as `number`."""
    types = {text: floating_point_type(text) for text in input_types.unique()}
    number: pl.Series = input_types.replace_strict(
        list(types), list(types.values()), return_dtype=pl.String, default=None
    )
    return number.alias("number")
