"""What kind of job it is: training or inference, and how it is parallelized.

One row for the run; a value is null if nothing in the traces shows it. Rules choose their advice by it.

- `mode`: training if any rank shows autograd's operators, a backward's kernels, or an optimizer; else inference if it
  shows a serving engine (vLLM, SGLang, …), a paged key-value cache, or, on every rank, matrix products and no
  autograd
- `wrapper`: `ddp` or `fsdp`, by their own ranges and operators
- `parallel`: dimensions of more than one rank, from the job's metadata or the descriptions of its process groups
  (`mesh`): tensor, context, pipeline, expert; expert also by DeepEP's kernels. The list can be incomplete: Gloo, and
  older files of NCCL, describe no groups
- `experts`: whether the model has experts (MoE), by its operators, modules and kernels
- `embeddings`: whether it exchanges embeddings of sharded tables (TorchRec)

`evidence` has the first name that shows each value. How to read it: if a value is wrong or missing, so is the advice
that depends on it. `rankscope.Profiler` records the mesh; `with_stack=True` records the modules.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from rankscope.primitives.job_kind import forward_only, job_kind, marks_of
from rankscope.primitives.mesh import dimension_name, infer_mesh
from rankscope.results import Analysis, Column, Finding, Headline, Inputs, Tables, by_window, schema_of

COLUMNS = (
    Column("mode", pl.String, "", "`training` or `inference`; null if unknown"),
    Column("wrapper", pl.String, "", "`ddp` or `fsdp`; null if neither is in the traces"),
    Column(
        "parallel",
        pl.String,
        "",
        "dimensions of more than one rank: tensor, context, pipeline, expert, joined by commas; null if none is known",
    ),
    Column("experts", pl.Boolean, "", "whether the model has experts (MoE); null if nothing shows it"),
    Column("embeddings", pl.Boolean, "", "whether it exchanges embeddings of sharded tables; null if unknown"),
    Column("evidence", pl.String, "", "the names in the traces that show these values"),
)
_PART = pl.Schema({"rank": pl.Int64, "mark": pl.String, "name": pl.String})
_FORWARD_ONLY, _DIMENSION = "forward_only", "dimension"
_SHOWN = 80


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The marks of a rank's names: rank, mark, name. A rank without marks has one row, of nulls."""
    marks: dict[str, str] = {}
    dimensions: set[str] = set()
    forward_only_windows: list[bool] = []
    for window in by_window(tables, inputs):
        names = [window[table]["name"] for table in ("host_ops", "device_events", "annotations")]
        marks = marks_of(pl.concat(names), window["python_frames"]["name"]) | marks
        groups = window["collectives"].filter(pl.col("group_size") > 1)["group_description"].drop_nulls().unique()
        dimensions |= {name for text in groups if (name := dimension_name(text)) is not None}
        forward_only_windows.append(forward_only(window["host_ops"]))
    if forward_only_windows and all(forward_only_windows):
        marks[_FORWARD_ONLY] = "matrix products without gradients"
    rows: list[tuple[int, str | None, str | None]] = [(inputs.rank, mark, name) for mark, name in marks.items()]
    rows += [(inputs.rank, _DIMENSION, name) for name in sorted(dimensions)]
    return pl.DataFrame(rows or [(inputs.rank, None, None)], schema=_PART, orient="row")


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """One row, from the marks of all ranks and the mesh."""
    marks = pl.concat([pl.DataFrame(schema=_PART), *parts])
    without_gradients = marks.filter(pl.col("mark") == _FORWARD_ONLY)["rank"].n_unique() == marks["rank"].n_unique() > 0
    mesh = infer_mesh(inputs.traces)
    sizes = mesh.frame.group_by("dimension").agg(pl.col("coordinate").max().alias("most"))
    dimensions = set(sizes.filter(pl.col("most") > 0)["dimension"])
    # If other ranks' traces are missing, a trace's process groups still show which dimensions have several ranks.
    listed_groups = (group for info in inputs.traces for group in info.groups if len(group.get("ranks") or ()) > 1)
    dimensions |= {dimension_name(str(group.get("description") or "")) for group in listed_groups} - {None}
    is_dimension = pl.col("mark") == _DIMENSION
    dimensions |= set(marks.filter(is_dimension)["name"])
    marks = marks.filter(~is_dimension.fill_null(False))
    first = marks.drop_nulls().sort("rank", maintain_order=True).unique("mark", keep="first", maintain_order=True)
    names = dict(first.select("mark", "name").iter_rows())
    kind = job_kind(set(names) - {_FORWARD_ONLY}, without_gradients, dimensions)
    if not without_gradients or kind.trains:
        names.pop(_FORWARD_ONLY, None)
    evidence = [f"{mark}: {names[mark][:_SHOWN]}" for mark in sorted(names)]
    row = {
        "mode": kind.mode,
        "wrapper": kind.wrapper,
        "parallel": ", ".join(sorted(kind.parallel)) or None,
        "experts": kind.experts,
        "embeddings": kind.embeddings,
        "evidence": "; ".join(evidence) or None,
    }
    return pl.DataFrame([row], schema=schema_of(COLUMNS)), []


def headline(frame: pl.DataFrame) -> Headline | None:
    """The main result in one sentence."""
    row = frame.row(0, named=True)
    if row["mode"] is None:
        return Headline.of("It is unknown whether this is training or inference.")
    text, values = "This is {mode}", {"mode": (row["mode"], "")}
    if row["wrapper"]:
        text, values = f"{text} with {{wrapper}}", {**values, "wrapper": (row["wrapper"].upper(), "")}
    if row["parallel"]:
        text, values = f"{text}; {{parallel}} parallel", {**values, "parallel": (row["parallel"], "")}
    if row["experts"]:
        text += "; the model has experts"
    return Headline.of(f"{text}.", **values)


analysis = Analysis(
    name="job_kind",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    across_ranks=across_ranks,
    reads={
        "host_ops": ("name", "sequence"),
        "device_events": ("name",),
        "annotations": ("name",),
        "python_frames": ("name",),
        "collectives": ("group_description", "group_size"),
    },
    headline=headline,
)
