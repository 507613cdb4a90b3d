"""The place in the program where memory was allocated: the nn.Module, and the line of the user's code.

Allocations of the backward have no module and, on autograd's threads, no Python frames. They get those of the matching
forward operator, which has the same sequence number.

In: allocations, operators and Python frames of a trace. Out: module and call site of each allocation.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from rankscope.primitives.call_stack import enclosing, with_ancestors
from rankscope.primitives.intervals import Int64
from rankscope.primitives.modules import module_calls
from rankscope.primitives.nesting import nest

# A frame of a file (`train.py(12): step`), and frames of PyTorch, installed packages, the standard library and C.
_USER_FRAME = r"\.py\(\d+\): "
_LIBRARY_FRAME = (
    r"(^|/)(torch|torchvision|transformers|accelerate|lightning|pytorch_lightning|deepspeed|megatron|numpy|rankscope)/"
    r"|(site|dist)-packages/|lib/python\d|^<"
    r"|^(typing|threading|contextlib|functools|runpy|inspect|importlib/\S+|multiprocessing/\S+|concurrent/\S+)\.py\("
)


def allocation_sites(at: pl.DataFrame, operators: pl.DataFrame, frames: pl.DataFrame) -> pl.DataFrame:
    """module (its path; null outside modules) and call_site (null where no frame is recorded) of each allocation.

    Args:
        at: time_ns, pid, tid and operator_row (the innermost operator, −1 for none) of the allocations.
        operators: host_ops: start_ns, end_ns, pid, tid, sequence, forward_thread, module_hierarchy.
        frames: python_frames: start_ns, end_ns, name, pid, tid, python_module_id.

    Returns:
        A row per allocation.
    """
    forward = _forward_operators(at["operator_row"].to_numpy(), operators)
    instants = at.select("time_ns", "pid", "tid")
    linked = np.flatnonzero(forward >= 0)
    if linked.size:
        rows = pl.Series(forward[linked])
        starts = operators.select(pl.col("start_ns").alias("time_ns"), "pid", "tid")[rows]
        order = np.arange(at.height)
        order[linked] = at.height + np.arange(linked.size)
        instants = pl.concat([instants, starts])[pl.Series(order)]
    calls = module_calls(frames)
    module = _gathered(calls.frame["path"], enclosing(calls.frame, instants))
    if not calls.frame.height:
        hierarchy = operators["module_hierarchy"].set(operators["module_hierarchy"] == "", None)
        module = _gathered(hierarchy, np.where(forward >= 0, forward, at["operator_row"].to_numpy()))
    name = pl.col("name")
    user_frames = frames.filter(name.str.contains(_USER_FRAME) & ~name.str.contains(_LIBRARY_FRAME))
    return pl.DataFrame(
        {
            "module": module.alias("module"),
            "call_site": _gathered(user_frames["name"], enclosing(user_frames, instants)),
        },
        schema={"module": pl.String, "call_site": pl.String},
    )


def _gathered(names: pl.Series, rows: Int64) -> pl.Series:
    """The name of each row; null where the row is −1."""
    index = pl.Series(rows, dtype=pl.Int64)
    return names.gather(index.set(index < 0, None))


def _forward_operators(rows: Int64, operators: pl.DataFrame) -> Int64:
    """The forward operator of each backward one: by the sequence number of the innermost enclosing operator with one.

    −1 outside the backward, and if operators of several threads have the number, which makes it ambiguous.
    """
    forward_rows = np.full(rows.size, -1, dtype=np.int64)
    numbered = operators.with_row_index("row").filter(pl.col("sequence").is_not_null())
    backward = pl.col("forward_thread").fill_null(0) > 0
    firsts = (
        numbered.filter(~backward)
        .sort("start_ns")
        .group_by("sequence")
        .agg(pl.col("row").first().cast(pl.Int64), pl.struct("pid", "tid").n_unique().alias("threads"))
        .filter(pl.col("threads") == 1)
    )
    ends = numbered.filter(backward).join(firsts.rename({"row": "forward"}), on="sequence", how="inner")
    if not ends.height or not rows.size:
        return forward_rows
    target = np.full(operators.height, -1, dtype=np.int64)
    target[ends["row"].to_numpy()] = ends["forward"].to_numpy()
    thread = operators.select(pl.struct("pid", "tid").rank("dense")).to_series().cast(pl.Int32).to_numpy()
    parent = nest(thread, operators["start_ns"].to_numpy(), operators["end_ns"].to_numpy()).parent.astype(np.int64)
    # Ancestors come innermost first: the first with a target is kept.
    position, enclosing_rows = with_ancestors(parent, rows)
    has_target = target[enclosing_rows] >= 0
    position, enclosing_rows = position[has_target], enclosing_rows[has_target]
    innermost, index = np.unique(position, return_index=True)
    forward_rows[innermost] = target[enclosing_rows[index]]
    return forward_rows
