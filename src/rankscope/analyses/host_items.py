"""Host items: what the host does in each step, by name.

`stragglers` compares these items of a late rank and its peers. One row per rank, step, kind and name:

- `operator`: operators and calls into the runtime, each nanosecond of the host once: what runs inside another one, or
  at the same time as one on another thread, adds nothing
- `operators`: all of these together, with `with shapes` as name if the shapes of inputs are recorded
- `gap`: stretches in which nothing is recorded, by what is before and after them
- `collection`: Python's garbage collections
- `function`: the job's own Python functions with what they call, where stacks are recorded
- `module`: modules (recorded stacks, TorchScript) and `record_function` ranges, with what is inside, and with the nodes
  of the backward pass that belong to their operators

Shorter items than 0.2 % of a step are left out, and so are all but the 64 longest of a kind in a step.

How to read it: compare a rank's times with another one's. Functions and modules contain operators and gaps, so that
the kinds do not add up to a step.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.stragglers.host_items import host_items
from rankscope.results import Analysis, Column, Inputs, Tables, by_window

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("window", pl.Int64, "", "index of the rank's trace file, from 0"),
    Column("step", pl.Int64, "", "N of `ProfilerStep#N`"),
    Column("kind", pl.String, "", "operator, operators, gap, collection, function or module"),
    Column("label", pl.String, "", "the name; of a gap the two names around it"),
    Column("ns", pl.Int64, "ns", "its time in the step"),
    Column("count", pl.Int64, "count", "how many there are; of a function or module how many others enclose it"),
)


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The items of a rank in all its files."""
    items = pl.concat(
        host_items(window)
        .with_columns(rank=pl.lit(inputs.rank, pl.Int64), window=pl.lit(number, pl.Int64))
        .filter(inputs.options.keeps(pl.col("step")))
        .select(column.name for column in COLUMNS)
        for number, window in enumerate(by_window(tables, inputs))
    )
    return items.sort("window", "step", "kind", "ns", "label", descending=[False, False, False, True, False])


analysis = Analysis(
    name="host_items",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    in_report=False,
    on_page=False,
    reads={
        "host_ops": (
            "start_ns", "end_ns", "name", "pid", "tid", "depth", "input_dims",
            "sequence", "forward_thread", "module_hierarchy",
        ),
        "runtime_calls": ("start_ns", "end_ns", "name"),
        "annotations": ("start_ns", "end_ns", "name", "pid", "tid", "on_device", "step"),
        "python_frames": ("start_ns", "end_ns", "name", "pid", "tid", "depth", "parent_row", "python_module_id"),
    },
)  # fmt: skip
