"""The calls of nn.Modules in a trace, and the module tree.

In: Python frames or operators of a rank. Out: calls of modules, with their parents.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from rankscope.primitives.call_stack import enclosing, launch_instants, with_ancestors
from rankscope.primitives.intervals import Int64
from rankscope.primitives.nesting import nest
from rankscope.primitives.phases import MODULE_FRAME

TOP = "/"


@dataclass(frozen=True)
class ModuleCalls:
    """Calls of modules, in the order of their starts.

    Attributes:
        frame: start_ns, end_ns, pid, tid, self_ns, depth, name (``Linear_3``) and path (``GPT_0/Block_1/Linear_3``).
        parent: the row of each call's enclosing module call, −1 for none.
    """

    frame: pl.DataFrame
    parent: Int64


def module_calls(frames: pl.DataFrame) -> ModuleCalls:
    """The calls of modules among Python frames.

    A module's name is its class and the profiler's number of the instance; its path consists of the enclosing ones.

    Args:
        frames: python_frames: start_ns, end_ns, name, pid, tid, python_module_id.
    """
    # The number of the instance is part of the name, or (older traces) in a separate field.
    short = pl.col("name").str.strip_prefix(MODULE_FRAME)
    numbered = pl.when(short.str.contains(r"_\d+$") | pl.col("python_module_id").is_null()).then(short)
    calls = frames.filter(pl.col("name").str.starts_with(MODULE_FRAME)).with_columns(
        numbered.otherwise(pl.format("{}_{}", short, "python_module_id")).alias("name")
    )
    thread = calls.select(pl.struct("pid", "tid").rank("dense")).to_series().cast(pl.Int32).to_numpy()
    nesting = nest(thread, calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy())
    parent = nesting.parent.astype(np.int64)
    path = calls["name"]
    for level in range(1, int(nesting.depth.max(initial=0)) + 1):
        rows = np.flatnonzero(nesting.depth == level)
        pairs = pl.DataFrame({"above": path.gather(parent[rows]), "own": path.gather(rows)})
        path = path.scatter(rows, pairs.select(pl.concat_str("above", "own", separator=TOP)).to_series())
    named = calls.with_columns(
        path.alias("path"), pl.Series("self_ns", nesting.self_ns), pl.Series("depth", nesting.depth.astype(np.int64))
    )
    return ModuleCalls(named, parent)


def operators_by_module(operators: pl.DataFrame) -> pl.DataFrame:
    """Operators with the modules that their hierarchy names (``top(Net)::forward.fc(Linear)::forward``, as TorchScript
    records it): a row for each operator and module, outermost modules first.

    Args:
        operators: host_ops: module_hierarchy.

    Returns:
        row (of `operators`), path, and ``innermost``: whether it is the innermost module.
    """
    path = pl.col("module_hierarchy").str.replace_all(r"::\w+", "").str.replace_all(r"\)\.", f"){TOP}")
    parts = (
        operators.select("module_hierarchy", pl.int_range(pl.len(), dtype=pl.Int64).alias("row"))
        .filter(pl.col("module_hierarchy") != "")
        .select("row", path.str.split(TOP).alias("parts"))
        .with_columns(pl.int_ranges(1, pl.col("parts").list.len() + 1).alias("levels"))
        .explode("levels")
    )
    return parts.sort("levels", maintain_order=True).select(
        "row",
        pl.col("parts").list.head("levels").list.join(TOP).alias("path"),
        (pl.col("levels") == pl.col("parts").list.len()).alias("innermost"),
    )


def launched_by_modules(calls: ModuleCalls, device: pl.DataFrame, runtime: pl.DataFrame) -> pl.DataFrame:
    """Device events with the module calls that they were launched in: a row for each event and enclosing call.

    Args:
        calls: the result of `module_calls`.
        device: device_events: start_ns, end_ns, launch_row, launch_ns.
        runtime: runtime_calls: pid, tid.

    Returns:
        start_ns, end_ns, path, and ``innermost``: whether it is the innermost enclosing call.
    """
    launched = device.filter(pl.col("launch_row").is_not_null())
    instants = launch_instants(launched, runtime)
    innermost = enclosing(calls.frame, instants)
    event, module_rows = with_ancestors(calls.parent, innermost)
    return launched.select("start_ns", "end_ns")[event].with_columns(
        calls.frame["path"].gather(module_rows).alias("path"), pl.Series("innermost", innermost[event] == module_rows)
    )
