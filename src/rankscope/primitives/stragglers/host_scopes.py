"""What the loop's thread was in, in each step: the job's own Python functions, its modules, and the ranges that it
named with `record_function`, each with all that happens inside it.

A module is in the trace as a Python frame (recorded stacks), or in the hierarchy of an operator (TorchScript). The
backward pass runs outside of all of these: the time of its nodes is added to the modules and ranges in which the
operator of the forward pass was, by the sequence number that both have.

In: the tables of one file. Out: step, label, ns, count (how many others enclose it).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

import numpy as np
import polars as pl

from rankscope.primitives.annotation_origin import USER, annotation_origins
from rankscope.primitives.call_stack import innermost, with_ancestors
from rankscope.primitives.modules import TOP, module_calls, operators_by_module
from rankscope.primitives.nesting import nest
from rankscope.rundir.code_places import is_library

BETWEEN = "\x1f"
"""Separates the two names of a label."""
NODE = "autograd::engine::evaluate_function: "
"""A node of the backward pass."""
_FRAME = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")
_PACKAGES = re.compile(
    r"^(numpy|pandas|PIL|cv2|scipy|sklearn|torchvision|torchaudio|torchdata|transformers|datasets|tokenizers|accelerate"
    r"|lightning|pytorch_lightning|lightning_fabric|deepspeed|triton|tqdm|wandb)[/.]"
)
_EVENT = ("start_ns", "end_ns", "pid", "tid")
_SCHEMA = pl.Schema({"step": pl.Int64, "label": pl.String, "ns": pl.Int64, "count": pl.Int64})


def functions(frames: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The job's own functions on the loop's thread, and the built-in ones that they call, named with the caller.

    Args:
        frames: python_frames: start_ns, end_ns, name, pid, tid, depth, parent_row.
        steps: of `host_steps`.
    """
    if frames.is_empty():
        return pl.DataFrame(schema=_SCHEMA)
    names = frames["name"].unique().drop_nulls().to_list()
    own, outside = ([name for name in names if is_own(name)] for is_own in (is_own_function, _is_own_script))
    caller = frames["name"].gather(frames["parent_row"])
    builtin = pl.col("name").str.starts_with("<built-in") & pl.col("caller").is_in([*own, *outside])
    chosen = (
        frames.with_columns(caller.alias("caller"))
        .filter((pl.col("name").is_in(own) | builtin) & pl.col("pid").is_in(steps["pid"].unique().implode()))
        .with_columns(
            pl.when(builtin).then(pl.col("name") + BETWEEN + pl.col("caller")).otherwise("name").alias("label")
        )
    )
    # The loop is on the thread with the most calls of the job.
    loop = chosen.group_by("pid", "tid").len().sort("len", "tid", descending=True).head(1)
    return _by_step(chosen.join(loop, on=["pid", "tid"], how="semi", nulls_equal=True), steps)


def modules(tables: Mapping[str, pl.DataFrame], steps: pl.DataFrame) -> pl.DataFrame:
    """The modules and the ranges of the user on the loop's thread.

    Args:
        tables: host_ops, annotations, python_frames.
        steps: of `host_steps`.
    """
    operators, annotations = tables["host_ops"], tables["annotations"]
    origins = annotation_origins(annotations["name"].unique().drop_nulls())
    ranges = annotations.filter(
        ~pl.col("on_device")
        & pl.col("step").is_null()
        & pl.col("name").is_in([name for name, origin in origins.items() if origin == USER])
    )
    calls = module_calls(tables["python_frames"]).frame
    of_operators = operators_by_module(operators)
    loop = steps.select("pid", "tid").unique()
    scopes = pl.concat(
        [
            calls.select(*_EVENT, pl.format("module {}", "name").alias("label")),
            ranges.select(*_EVENT, pl.col("name").alias("label")),
            operators[of_operators["row"]]
            .select(_EVENT)
            .with_columns(pl.format("module {}", of_operators["path"].str.split(TOP).list.last()).alias("label")),
        ]
    ).join(loop, on=["pid", "tid"], how="semi", nulls_equal=True)
    if scopes.is_empty():
        return pl.DataFrame(schema=_SCHEMA)
    thread = np.zeros(scopes.height, dtype=np.int32)
    nesting = nest(thread, scopes["start_ns"].to_numpy(), scopes["end_ns"].to_numpy())
    scopes = scopes.with_columns(pl.Series("depth", nesting.depth), pl.Series("parent_row", nesting.parent))
    return _by_step(pl.concat([scopes, _backward(scopes, operators, loop)]), steps)


def _backward(scopes: pl.DataFrame, operators: pl.DataFrame, loop: pl.DataFrame) -> pl.DataFrame:
    """The nodes of the backward pass with the label of each scope that their forward operator is in."""
    is_node = pl.col("name").str.starts_with(NODE) & pl.col("sequence").is_not_null()
    # Operators that make no node have the number of the next one.
    forward = (
        operators.join(loop, on=["pid", "tid"], how="semi", nulls_equal=True)
        .filter(pl.col("sequence").is_not_null() & pl.col("forward_thread").fill_null(0).eq(0))
        .sort("start_ns")
        .unique("sequence", keep="last")
        .select("sequence", pl.col("start_ns").alias("at_ns"), "pid", "tid")
    )
    nodes = operators.filter(is_node).select("start_ns", "end_ns", "sequence")
    nodes = nodes.join(forward, on="sequence", how="inner")
    node, scope = with_ancestors(
        scopes["parent_row"].to_numpy().astype(np.int64), innermost(scopes, nodes.select("at_ns", "pid", "tid"))
    )
    return nodes[node].select(_EVENT).hstack(scopes[scope].select("label", "depth", "parent_row"))


def _by_step(events: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The time of events in each step by label; one inside another of its label counts once."""
    parts = [pl.DataFrame(schema=_SCHEMA)]
    for step, first, last in steps.select("step", "start_ns", "end_ns").iter_rows() if events.height else ():
        inside = events.filter((pl.col("start_ns") < last) & (pl.col("end_ns") > first)).sort("start_ns")
        earlier = pl.col("end_ns").cum_max().shift(1).over("label")
        taken = pl.min_horizontal("end_ns", pl.lit(last)) - pl.max_horizontal("start_ns", pl.lit(first))
        sums = (
            inside.filter((pl.col("start_ns") >= earlier).fill_null(True))
            .group_by("label")
            .agg(taken.sum().alias("ns"), pl.col("depth").max().cast(pl.Int64).alias("count"))
        )
        parts.append(sums.with_columns(step=pl.lit(step, pl.Int64)).select(_SCHEMA.names()))
    return pl.concat(parts)


def _is_own_script(name: str) -> bool:
    return name.endswith(": <module>") and is_own_function(name.removesuffix("<module>") + "_")


def is_own_function(name: str) -> bool:
    """Whether a Python frame of a trace is a function of the job: not of Python, torch, or a well-known package.

    Traces have paths relative to where Python found the module.
    """
    match = _FRAME.match(name)
    if match is None or match["function"].startswith("<"):  # a module, or a comprehension, which is its function's
        return False
    file = match["file"].replace("\\", "/")
    if is_library(file) or _PACKAGES.match(file):
        return False
    return file.partition("/")[0].removesuffix(".py") not in sys.stdlib_module_names


def function_place(name: str) -> tuple[str, int, str] | None:
    """File, line and function of a Python frame's name."""
    match = _FRAME.match(name)
    return None if match is None else (match["file"], int(match["line"]), match["function"])
