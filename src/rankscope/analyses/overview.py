"""The run in one row: step time, overlap, exposed communication, and the rank that works longest.

Step time is the median over steps of the slowest rank's window. Overlap and exposed communication are taken over all
ranks together: Σ overlap / Σ communication of whole files, and of the steps' windows exposed communication per rank and
step, with its share.
The slowest rank is the one with the most time of its own, window less exposed communication: in a synchronous job the
others spend the difference waiting inside their collectives. The margin is to the median of the other ranks. It is an
indication: a rank can also be early in one collective and late in the next. Ranks whose files break off or are damaged
are left out of everything here but their count; where no rank's file is whole, all are counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from rankscope.results import Analysis, Column, Finding, Headline, Inputs, Tables

COLUMNS = (
    Column("world_size", "ranks", "ranks in the job, as the traces say; null where none does"),
    Column("ranks", "count", "ranks that were read"),
    Column("steps", "count", "different steps in them; 0 where the traces have none and whole files stand for a step"),
    Column("step_ns", "ns", "median over steps of the slowest rank's window"),
    Column("communication_ns", "ns", "time in communication in whole files, per rank and step"),
    Column("overlap_ratio", "ratio", "share of communication that was hidden by compute; null without communication"),
    Column("exposed_communication_ns", "ns", "communication that nothing hid, per rank and step"),
    Column("exposed_share", "ratio", "its share of the steps' windows"),
    Column("busy_share", "ratio", "share of the devices' spans in which they did anything"),
    Column("data_loading_ns", "ns", "time in which the device waited for data, per rank and step"),
    Column("slowest_rank", "", "the rank with the most time of its own; null with a single rank"),
    Column("slowest_own_ns", "ns", "its window less its exposed communication, per step"),
    Column("slowest_margin_ns", "ns", "how much more that is than the median of the other ranks"),
)


def per_rank(tables: Tables, inputs: Inputs) -> pl.DataFrame:
    """Nothing: it reads other results alone."""
    return pl.DataFrame()


def across_ranks(parts: Sequence[pl.DataFrame], inputs: Inputs) -> tuple[pl.DataFrame, list[Finding]]:
    """One row, from the ranks' steps and device times."""
    steps, device = (_whole_ranks(inputs.results[name], inputs) for name in ("step_time", "device_time"))
    slowest = steps.group_by("step", "window").agg(pl.col("window_ns").max())["window_ns"].median()
    rows = max(steps.height, 1)
    communication = int(device["communication_ns"].sum())
    window = int(steps["window_ns"].sum())
    exposed = int(steps["exposed_communication_ns"].sum())
    span = int(device["span_ns"].sum())
    row = {
        "world_size": inputs.world_size,
        "ranks": inputs.results["device_time"].height,
        "steps": steps["step"].drop_nulls().n_unique(),
        "step_ns": _whole(slowest),
        "communication_ns": communication // rows,
        "overlap_ratio": int(device["overlap_ns"].sum()) / communication if communication else None,
        "exposed_communication_ns": exposed // rows,
        "exposed_share": exposed / window if window else None,
        "busy_share": int(device["busy_ns"].sum()) / span if span else None,
        "data_loading_ns": int(steps["data_loading_ns"].sum()) // rows,
        **_slowest(steps),
    }
    schema = {column.name: pl.Float64 if column.unit == "ratio" else pl.Int64 for column in COLUMNS}
    return pl.DataFrame([row], schema=schema), []


def _whole_ranks(frame: pl.DataFrame, inputs: Inputs) -> pl.DataFrame:
    """The rows of ranks whose files are whole: half a file's steps look like a rank that waits for nobody."""
    cut = [info.rank for info in inputs.traces if info.truncated or info.lost_events]
    whole = frame.filter(~pl.col("rank").is_in(cut))
    return whole if whole.height else frame


def _slowest(steps: pl.DataFrame) -> dict[str, int | None]:
    own = (
        steps.group_by("rank")
        .agg((pl.col("window_ns") - pl.col("exposed_communication_ns")).mean().alias("own"))
        .sort("own", "rank", descending=[True, False])
    )
    if own.height < 2:
        return {"slowest_rank": None, "slowest_own_ns": None, "slowest_margin_ns": None}
    others = _whole(own["own"][1:].median())
    first = round(own["own"][0])
    return {
        "slowest_rank": int(own["rank"][0]),
        "slowest_own_ns": first,
        "slowest_margin_ns": None if others is None else first - others,
    }


def _whole(value: object) -> int | None:
    return round(value) if isinstance(value, int | float) else None


def headline(frame: pl.DataFrame) -> Headline | None:
    """The answer in one sentence."""
    row = frame.row(0, named=True)
    if row["step_ns"] is None:
        return None
    step = (row["step_ns"], "ns")
    if row["exposed_share"] is not None and row["communication_ns"]:
        share = (row["exposed_share"], "ratio")
        return Headline.of(
            "A step takes {step}; {share} of it is communication that nothing hides.", step=step, share=share
        )
    if row["busy_share"] is not None:
        return Headline.of(
            "A step takes {step}; the devices are busy {busy} of their time.",
            step=step,
            busy=(row["busy_share"], "ratio"),
        )
    return Headline.of("A step takes {step}.", step=step)


analysis = Analysis(
    name="overview",
    doc=__doc__,
    columns=COLUMNS,
    per_rank=per_rank,
    across_ranks=across_ranks,
    requires=("device_time", "step_time"),
    headline=headline,
)
