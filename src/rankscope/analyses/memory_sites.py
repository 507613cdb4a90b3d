"""Memory by call site: which line of the user's code allocated it, by category, at the peak and in total.

One row per rank, device and call site with allocations (`profile_memory` and `with_stack`). The call site is the
innermost Python frame of the job's own code; frames of PyTorch, of installed packages and of the standard library are
skipped. An allocation of a backward has the call site of the forward operator whose gradient it computes. The row
without a call site has what no such frame encloses: threads of autograd and of loaders, or all if stacks were not
recorded.

    peak_bytes = Σ sizes of its blocks that were live at the device's first peak = Σ of the category columns

Categories are those of `memory_categories`; what was allocated before the recording has no call site: a memory
snapshot has its stack (`memory_stacks`). With several trace files of a rank, `peak_bytes` and the categories are of the
file with the highest peak.

How to read it: the first rows hold the memory at the peak: lines to recompute, to release earlier, or to shard.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.memory_by_place import RECORDED, memory_by_place
from rankscope.primitives.memory_categories import CATEGORIES, CATEGORY_TABLES
from rankscope.results import Analysis, Column, Headline, Inputs, Tables, by_window, over_ranks, top_group

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("device", pl.String, "", "`cpu`, or kind and index: `cuda:0`, `hip:0`, `xpu:0`"),
    Column("call_site", pl.String, "", "file, line and function of the job's own code; null if not recorded"),
    Column("peak_bytes", pl.Int64, "bytes", "live at the device's peak: the sum of the next columns"),
    *(Column(name, pl.Int64, "bytes", CATEGORIES[name]) for name in RECORDED),
    Column("allocations", pl.Int64, "count", "allocations while recording"),
    Column("allocated_bytes", pl.Int64, "bytes", "bytes allocated while recording, summed over allocations"),
)


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """A rank's call sites."""
    kept = None if inputs.options.steps is None else inputs.options.keeps(pl.col("step"))
    frame = memory_by_place(by_window(tables, inputs), "call_site", kept)
    return frame.with_columns(pl.lit(inputs.rank, pl.Int64).alias("rank")).select(each.name for each in COLUMNS)


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    named = frame.filter(pl.col("call_site").is_not_null())
    most = top_group(named, "call_site", "peak_bytes")
    if most is None or not most["peak_bytes"]:
        return None
    text = f"The call site that holds the most at the peak: {{call_site}}, {{bytes}}{over_ranks(frame)}."
    return Headline.of(text, call_site=(most["call_site"], ""), bytes=(most["peak_bytes"], "bytes"))


analysis = Analysis(
    name="memory_sites",
    doc=__doc__,
    whole_recording=True,
    columns=COLUMNS,
    per_rank=per_rank,
    headline=headline,
    reads={**CATEGORY_TABLES, "python_frames": (*CATEGORY_TABLES["python_frames"], "python_module_id")},
)
