"""What a rank did when, from its trace: the parts of its time, its local time by step, and the work that steps launch.

Collectives make a step equally long on all ranks, whichever is slow; the ranks differ in how they spend the time. While
a rank waits, its device runs a communication kernel and nothing else. So

    local time = elapsed − exposed communication

and the rank that makes the others wait is the one whose local time exceeds that of ranks with the same program. A rank
that is late because it waited in another group has no excess: its wait is exposed communication.

In: one rank's tables. Out: the parts of its time, its local time and its work, by step.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import numpy as np
import polars as pl

from rankscope.primitives.activity import (
    computing_operators,
    covered_time,
    data_loading_time,
    gloo_ranges,
    with_category,
)
from rankscope.primitives.columns import values_and_validity
from rankscope.primitives.communicators import POINT_TO_POINT
from rankscope.primitives.hashed_names import names_without_hashes
from rankscope.primitives.intervals import EMPTY, Int64, IntervalSet
from rankscope.primitives.kernels import COMMUNICATION, COMPUTE
from rankscope.primitives.mesh import Mesh
from rankscope.primitives.steps import Bool, host_steps, owning_steps

# Exclusive, in this precedence on a device; on a host without one, loading and operators come before communication.
PARTS = ("compute", "copies", "communication", "data_loading", "allocation", "runtime", "operators", "nothing")
WAITING = "communication"
LOCAL_PARTS = tuple(part for part in PARTS if part != WAITING)
ENDED = tuple(f"{name}_by_end" for name in PARTS)
"""Columns with the time that each part had taken by the end of a collective."""
ALLOCATION = re.compile(
    r"malloc|free(?!ze)|hostalloc|usm\w*alloc|memalloc|mem(create|map|unmap|release|addressreserve)", re.IGNORECASE
)


def cumulative_parts(tables: Mapping[str, pl.DataFrame], instants: Int64, extra: str | None) -> dict[str, Int64]:
    """How long each part of `PARTS` had taken by each instant, ns; differences of them add up to the time between.

    Args:
        tables: device_events, host_ops, runtime_calls, annotations of one file.
        instants: ns.
        extra: a regular expression of further kernel names that are communication.
    """
    device, operators, annotations = tables["device_events"], tables["host_ops"], tables["annotations"]
    runtime = tables["runtime_calls"]
    loading = data_loading_time(annotations)
    names = [name for name in runtime["name"].unique().drop_nulls() if ALLOCATION.search(name)]
    layers: dict[str, IntervalSet] = dict.fromkeys(PARTS[:-1], EMPTY)
    if device.height:
        kernels = with_category(device, extra)
        layers["compute"] = covered_time(kernels.filter(pl.col("category") == COMPUTE))
        layers["copies"] = covered_time(device.filter(pl.col("kind") != "kernel"))
        layers["communication"] = covered_time(kernels.filter(pl.col("category") == COMMUNICATION))
        layers["data_loading"] = loading
        layers["allocation"] = covered_time(runtime.filter(pl.col("name").is_in(names)))
        layers["runtime"] = covered_time(runtime)
        layers["operators"] = covered_time(operators)
    else:
        gloo = gloo_ranges(operators, annotations)
        computing = covered_time(computing_operators(operators, gloo, without_waits=True))
        layers["data_loading"] = loading
        layers["operators"] = computing - loading
        layers["communication"] = covered_time(gloo) - computing - loading
    covered, reached = EMPTY, np.zeros(instants.size, dtype=np.int64)
    found: dict[str, Int64] = {}
    for name, layer in layers.items():
        covered = covered | layer
        now = covered.before(instants)
        found[name] = now - reached
        reached = now
    found["nothing"] = instants - reached
    return found


def cut_at_steps(own: pl.DataFrame, annotations: pl.DataFrame) -> pl.DataFrame:
    """The collectives of a host without a device, with ``cut_ns``, where they cut its time: the end of their step.

    Not their own end: Gloo's threads end a range when they get a core, which may be in the next step. The
    first of several in a step cuts at its beginning.

    Args:
        own: step (null where not known, then the own end counts), end_ns; in the order of starts.
        annotations: start_ns, end_ns, name, on_device, step.
    """
    steps = host_steps(annotations).unique("step", keep="last")
    begin_and_end = steps.select("step", pl.col("start_ns").alias("begin_ns"), pl.col("end_ns").alias("cut_ns"))
    found = own.join(begin_and_end, on="step", how="left", maintain_order="left")
    first = (pl.int_range(pl.len()).over("step") == 0) & (pl.len().over("step") > 1)
    cut = pl.when(first).then("begin_ns").otherwise("cut_ns")
    return found.with_columns(pl.coalesce(cut, "end_ns").alias("cut_ns")).drop("begin_ns")


def local_times(rows: pl.DataFrame) -> pl.DataFrame:
    """What each rank did in each step.

    A step runs from the last collective that all of its group's ranks have recorded in the step before to the last
    such one in it; the first step of a file begins with its first collective.

    Args:
        rows: of collectives of the ranks: rank, window, step, whole (whether all ranks of the group have it), end_ns,
            count (how many of the rank's collectives had ended by then), and for each of `PARTS` how long it had taken
            by then, ns.

    Returns:
        rank, step, elapsed_ns, count (of the collectives that ended in it), collectives (of the step itself, that all
        have), own_ns, first (whether the step is cut at its beginning), and each of `PARTS`.
    """
    by = ["rank", "window", "step"]
    values = ["end_ns", "count", *PARTS]
    # Of each step two rows are needed: the others' parts are not copied.
    row = pl.int_range(pl.len(), dtype=pl.UInt32)
    whole = rows.select(*by, "end_ns", "whole", row.alias("row")).filter(pl.col("whole") & pl.col("step").is_not_null())
    ends = (
        whole.sort("end_ns")
        .group_by(by)
        .agg(pl.col("row").first().alias("first"), pl.col("row").last(), pl.len().alias("collectives"))
        .sort(by)
    )
    last, first = (rows.select(values)[ends[name]].hstack(ends.select(by)) for name in ("row", "first"))
    last = last.with_columns(ends["collectives"])
    before = pl.col("step").shift(1).over("rank", "window") == pl.col("step") - 1
    joined = last.join(first, on=by, suffix="_first").sort(by).with_columns(before.fill_null(False).alias("follows"))

    def since(name: str) -> pl.Expr:
        earlier = pl.col(name).shift(1).over("rank", "window")
        return pl.col(name) - pl.when("follows").then(earlier).otherwise(f"{name}_first")

    found = joined.with_columns(
        since("end_ns").alias("elapsed_ns"),
        since("count").alias("between"),
        *(since(part).alias(f"{part}_ns") for part in PARTS),
        (~pl.col("follows")).alias("first"),
    ).filter(pl.col("between") > 0)
    return found.select(
        "rank",
        "step",
        "elapsed_ns",
        pl.col("between").alias("count"),
        "collectives",
        pl.sum_horizontal(f"{part}_ns" for part in LOCAL_PARTS).alias("own_ns"),
        "first",
        *(pl.col(f"{part}_ns").alias(part) for part in PARTS),
    )


def programs_by_rank(collectives: pl.DataFrame, stage: Mapping[int, int]) -> dict[int, int]:
    """Which ranks run the same program, by rank: those of one pipeline stage.

    If the mesh does not give the stage, ranks that take part in the same kinds of collectives count as one program;
    send and recv are distinguished by direction.

    Args:
        collectives: rank, collective, peers.
        stage: of each rank, as far as the mesh gives it.
    """
    ranks = collectives["rank"].unique().sort().to_list()
    if stage and all(rank in stage for rank in ranks):
        return {rank: stage[rank] for rank in ranks}
    ends = pl.col("peers").str.extract_all(r"\d+").cast(pl.List(pl.Int64))
    toward = (ends.list.sum() - 2 * pl.col("rank")).sign()
    kinds = (
        collectives.filter(pl.col("collective").is_in(POINT_TO_POINT))
        .select("rank", pl.format("{} {}", "collective", toward.fill_null(0)).alias("kind"))
        .unique()
        .sort("rank", "kind")
        .group_by("rank", maintain_order=True)
        .agg(pl.col("kind").str.join(","))
    )
    texts = dict(kinds.iter_rows())
    codes = {text: code for code, text in enumerate(sorted(set(texts.values())))}
    return {rank: codes[texts[rank]] if rank in texts else -1 for rank in ranks}


def programs_of(mesh: Mesh, operations: pl.DataFrame) -> dict[int, int]:
    """The same with the stages of a mesh.

    Args:
        operations: rank, collective, peers.
    """
    stage = mesh.frame.filter(pl.col("dimension") == mesh.pipeline) if mesh.pipeline else mesh.frame.clear()
    return programs_by_rank(operations, dict(stage.select("rank", "coordinate").iter_rows()))


def step_work(tables: Mapping[str, pl.DataFrame], extra: str | None) -> pl.DataFrame:
    """What each step launched, by piece of work: step, work, pieces (how many), work_ns (their summed durations).

    A piece is a compute kernel with its launch grid; without a device a top-level operator with its inputs' shapes (or
    those of the first operator inside that has any). `work` is a number that is the same for the same piece on every
    rank. Work of no step counts for none; that of a step whose range was lost, or is cut by an edge of the recording,
    has `ranged` 0: not all of it may be there.
    """
    device, annotations = tables["device_events"], tables["annotations"]
    steps = host_steps(annotations)
    if device.height:
        done = with_category(device, extra).filter(pl.col("category") == COMPUTE)
        at, text = done["launch_ns"], done["grid"]
    else:
        done = computing_operators(tables["host_ops"], gloo_ranges(tables["host_ops"], annotations), without_waits=True)
        done = with_shapes(done, tables["host_ops"])
        at, text = done["start_ns"], done["input_dims"]
    launched = values_and_validity(at)
    owner = owning_steps(steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy(), *launched)
    number, owned = _numbers(steps, owner, *launched)
    pieces = pl.DataFrame(
        {
            "step": number[owned],
            "ranged": (owner >= 0)[owned].astype(np.int64),
            "name": names_without_hashes(done["name"].filter(pl.Series(owned))),
            "text": text.filter(pl.Series(owned)),
            "work_ns": (done["end_ns"] - done["start_ns"]).filter(pl.Series(owned)),
        }
    )
    sums = pieces.group_by("step", "ranged", "name", "text").agg(
        pl.len().cast(pl.Int64).alias("pieces"), pl.col("work_ns").sum()
    )
    # Not `hash`, which differs from process to process.
    labels = [_code(name, text) for name, text in sums.select("name", "text").iter_rows()]
    return sums.select(
        pl.col("step").cast(pl.Int64), "ranged", pl.Series("work", labels, pl.Int64), "pieces", "work_ns"
    )


def _numbers(steps: pl.DataFrame, owner: Int64, at: Int64, known: Bool) -> tuple[Int64, Bool]:
    """By event the number of its step, and whether it has one: outside all ranges the step between, before or after.

    Args:
        steps: as `host_steps` gives them.
        owner: by event the range it lies in; −1 for none.
        at: by event, when it was launched.
        known: whether it was.
    """
    if not steps.height:
        return np.zeros(owner.size, dtype=np.int64), np.zeros(owner.size, dtype=np.bool_)
    start, number = steps["start_ns"].to_numpy(), steps["step"].to_numpy()
    before = np.searchsorted(start, at, side="right") - 1
    last = before == number.size - 1
    skipped = number[np.minimum(before + 1, number.size - 1)] == number[before] + 2
    guess = np.where(before < 0, number[0] - 1, number[before] + 1)
    found = np.where(owner >= 0, number[owner], guess)
    return found, (owner >= 0) | (known & ((before < 0) | last | skipped))


def with_shapes(top: pl.DataFrame, operators: pl.DataFrame) -> pl.DataFrame:
    """Top-level operators, those without shapes of their own (a backward node) with those of the first one inside.

    Args:
        top: start_ns, end_ns, pid, tid, input_dims.
        operators: all, with the same columns.
    """
    has_shapes = pl.col("input_dims").is_not_null() & pl.col("input_dims").str.contains(r"\d")
    inside = operators.filter(has_shapes).select(
        "pid", "tid", "start_ns", pl.col("end_ns").alias("inner_end"), pl.col("input_dims").alias("inner")
    )
    joined = top.sort("start_ns").join_asof(
        inside.sort("start_ns"), on="start_ns", by=["pid", "tid"], strategy="forward", check_sortedness=False
    )
    # If nothing is inside, the join finds what comes after.
    within = (pl.col("inner_end") <= pl.col("end_ns")).fill_null(False)
    shapes = pl.when(has_shapes.fill_null(False)).then("input_dims").when(within).then("inner")
    return joined.with_columns(shapes.otherwise("input_dims").alias("input_dims")).drop("inner", "inner_end")


def _code(name: str | None, text: str | None) -> int:
    digest = hashlib.blake2b(f"{name}\0{text}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
