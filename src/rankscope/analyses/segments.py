"""Segments: what each rank's host and device did between their launches, waits and collectives.

One row per moment of a rank's host: a launch of work, a launch of a collective, a wait, or the end of a step, in the
order of the host. The columns up to `nothing_ns` divide the host's time since the moment before; time in which it waits
for its device or for a collective belongs to none. `shift_ns` moves an instant to a clock that all ranks share.
`whatif` and the savings of findings replay these rows.

Ranks whose clocks no collective links to those of most ranks are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from rankscope.primitives.clocks import base_times
from rankscope.primitives.communicators import NAMED_BY, named_group_ranks
from rankscope.primitives.mesh import infer_mesh
from rankscope.primitives.stragglers.timeline import programs_of
from rankscope.results import (
    RANK_AND_WINDOW,
    Analysis,
    Column,
    Finding,
    Inputs,
    Tables,
    by_window,
    concat_ranks,
)
from rankscope.whatif.moments import INSTANTS, SCHEMA, moments

_MEANINGS = {
    "kind": ("", "0: a launch of work, 1: of a collective, 2: the host waits, 3: the end of a step"),
    "at_ns": ("ns", "when, on the host"),
    "data_loading_ns": ("ns", "the host loaded data"),
    "allocation_ns": ("ns", "the host made calls for device memory"),
    "runtime_ns": ("ns", "the host was in other calls of the runtime"),
    "operators_ns": ("ns", "the host ran operators"),
    "nothing_ns": ("ns", "nothing is recorded of the host: Python, or a thread without a core"),
    "device_ns": ("ns", "work: how long it keeps the device busy"),
    "is_copy": ("", "work: whether it is a copy"),
    "latency_ns": ("ns", "from the launch to the start on an idle device; null if the launch is not known"),
    "start_ns": ("ns", "work and collectives: start on the device; a wait: on the host"),
    "end_ns": ("ns", "work and collectives: end on the device; a wait: on the host; a step: on both"),
    "match": ("", "collectives: ranks have this number in common, see `collectives`"),
    "step": ("", "the number of the step; null where none is marked"),
    "stream": ("", "the stream"),
    "program": ("", "collectives: kind and size"),
    "woken": ("count", "collectives: so many launches later something waited for it; null if nothing was seen to"),
    "awaits": ("", "waits: for which collective, as a number in the order of the host; null: for the device"),
    "all_streams": ("", "waits: whether for all streams"),
    "allocates": ("", "waits: whether in a call for device memory"),
}
_OF_FILE = (
    *RANK_AND_WINDOW,
    *(Column(name, dtype, *_MEANINGS[name], instant=name in INSTANTS) for name, dtype in SCHEMA.items()),
)
COLUMNS = (
    *_OF_FILE,
    Column("shift_ns", pl.Int64, "ns", "from the clock of the rank's trace file to one of all ranks"),
    Column("role", pl.Int64, "", "ranks with the same number run the same program"),
)


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """The moments of the rank's files."""
    own = inputs.results["collectives"].filter(pl.col("rank") == inputs.rank)
    parts = [
        moments(window, own.filter(pl.col("window") == number), inputs.options.communication).with_columns(
            pl.lit(inputs.rank, pl.Int64).alias("rank"), pl.lit(number, pl.Int64).alias("window")
        )
        for number, window in enumerate(by_window(tables, inputs))
    ]
    return concat_ranks(parts, _OF_FILE)


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """The moments of ranks whose clocks are linked, with the program of each rank."""
    rows = _with_shift(concat_ranks(parts, _OF_FILE), inputs)
    mesh = infer_mesh(inputs.traces, named_group_ranks(inputs.distinct("collectives", *NAMED_BY)))
    roles = programs_of(mesh, inputs.distinct("collectives", "rank", "collective", "peers"))
    role = pl.col("rank").replace_strict(roles, default=-1, return_dtype=pl.Int64).alias("role")
    return rows.with_columns(role), []


def _with_shift(rows: pl.DataFrame, inputs: Inputs) -> pl.DataFrame:
    """The moments of ranks whose clocks are linked, and what moves them to one clock, which begins with the first."""
    clock = inputs.results["clock"].select(
        "rank", "offset_ns", "drift_ppm", pl.col("at_ns").alias("clock_ns"), "component"
    )
    base = base_times(inputs.traces)
    rows = rows.join(base, on=["rank", "window"], how="left").join(clock, on="rank", how="left", maintain_order="left")
    ranks = rows.select("rank", "component").unique()
    largest = ranks["component"].drop_nulls().value_counts(sort=True, name="ranks")
    if largest.height:
        rows = rows.filter(
            pl.col("component") == largest.sort("ranks", "component", descending=[True, False])["component"][0]
        )
    wall = pl.col("base_ns").fill_null(0)
    middle = pl.col("at_ns").median().over("rank", "window").cast(pl.Int64) + wall
    drift = ((middle - pl.col("clock_ns")) * pl.col("drift_ppm").fill_null(0.0) * 1e-6).round().cast(pl.Int64)
    rows = rows.with_columns((wall + pl.col("offset_ns").fill_null(0) + drift.fill_null(0)).alias("shift_ns"))
    origin = (pl.col("at_ns") + pl.col("shift_ns")).min()
    return rows.select(*(column.name for column in _OF_FILE), pl.col("shift_ns") - origin)


analysis = Analysis(
    name="segments",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    across_ranks=across_ranks,
    reads={
        "device_events": ("start_ns", "end_ns", "name", "kind", "is_collective", "launch_ns"),
        "host_ops": ("start_ns", "end_ns", "name", "pid", "tid", "depth"),
        "runtime_calls": ("start_ns", "end_ns", "name", "pid", "tid"),
        "annotations": ("start_ns", "end_ns", "name", "pid", "tid", "on_device", "step"),
    },
    requires=("collectives", "clock"),
    in_report=False,
    on_page=False,
)
