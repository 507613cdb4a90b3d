"""Memory by module: what each nn.Module's own code allocated, by category, at the peak and in total.

One row per rank, device and module with allocations in it (`profile_memory`, and `with_stack` or `with_modules`). An
allocation belongs to the innermost module that was running; one of a backward to the module of the forward operator
whose gradient it computes. The row without a module has what happens outside modules: loss, optimizer, data.

    peak_bytes = Σ sizes of this module's blocks that were live at the device's first peak = Σ of the category columns

Categories are those of `memory_categories`; what was allocated before the recording is in no module. With several trace
files of a rank, `peak_bytes` and the categories are of the file with the highest peak.

How to read it: the first rows hold the memory at the peak. Many activations in one kind of module: recompute these.
"""

from __future__ import annotations

import polars as pl

from rankscope.primitives.memory_by_place import RECORDED, memory_by_place
from rankscope.primitives.memory_categories import CATEGORIES, CATEGORY_TABLES
from rankscope.results import Analysis, Column, Headline, Inputs, Tables, by_window, over_ranks, top_group

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank"),
    Column("device", pl.String, "", "`cpu`, or kind and index: `cuda:0`, `hip:0`, `xpu:0`"),
    Column("module", pl.String, "", "the module and those enclosing it, outermost first; null outside modules"),
    Column("peak_bytes", pl.Int64, "bytes", "live at the device's peak: the sum of the next columns"),
    *(Column(name, pl.Int64, "bytes", CATEGORIES[name]) for name in RECORDED),
    Column("allocations", pl.Int64, "count", "allocations while recording"),
    Column("allocated_bytes", pl.Int64, "bytes", "bytes allocated while recording, summed over allocations"),
)


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """A rank's modules."""
    kept = None if inputs.options.steps is None else inputs.options.keeps(pl.col("step"))
    frame = memory_by_place(by_window(tables, inputs), "module", kept)
    return frame.with_columns(pl.lit(inputs.rank, pl.Int64).alias("rank")).select(each.name for each in COLUMNS)


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    named = frame.filter(pl.col("module").is_not_null())
    most = top_group(named, "module", "peak_bytes")
    if most is None or not most["peak_bytes"]:
        return None
    text = f"The module that holds the most at the peak: {{module}}, {{bytes}}{over_ranks(frame)}."
    return Headline.of(text, module=(most["module"], ""), bytes=(most["peak_bytes"], "bytes"))


analysis = Analysis(
    name="memory_modules",
    doc=__doc__,
    whole_recording=True,
    columns=COLUMNS,
    per_rank=per_rank,
    headline=headline,
    reads={**CATEGORY_TABLES, "python_frames": (*CATEGORY_TABLES["python_frames"], "python_module_id")},
)
