"""The samples of a run that a diff compares: one value per rank and step.

In: the results of analyses. Out: `Samples`. Every section is a frame with the same columns: ``rank``, ``window``,
``step``, the key columns `KEYS`, ``calls`` and ``value``. All rank-steps are listed too, so that what did not run in a
step counts as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from rankscope.primitives.hashed_names import names_without_hashes
from rankscope.primitives.modules import TOP

PLACE = ("rank", "window", "step")
KEYS = ("section", "name", "shapes", "operator", "unit")
SCHEMA = {
    "rank": pl.Int64, "window": pl.Int64, "step": pl.Int64,
    "section": pl.String, "name": pl.String, "shapes": pl.String, "operator": pl.String, "unit": pl.String,
    "calls": pl.Int64, "value": pl.Float64,
}  # fmt: skip


@dataclass(frozen=True)
class Samples:
    """The samples of one side of a diff.

    Attributes:
        places: the rank-steps, by section: ``section`` and `PLACE`, one row each.
        values: `SCHEMA`.
    """

    places: pl.DataFrame
    values: pl.DataFrame

    def of_ranks(self, ranks: Sequence[int]) -> Samples:
        """The samples of some ranks."""
        return Samples(*(frame.filter(pl.col("rank").is_in(list(ranks))) for frame in (self.places, self.values)))


Frames = Mapping[str, pl.DataFrame]
Section = Callable[[pl.DataFrame], pl.DataFrame]


def samples_of(frames: Frames) -> Samples:
    """The samples of a run.

    If there are steps, what ran between them is left out, as it cannot be compared. A memory snapshot shows an instant
    and not steps: each is one sample.

    Args:
        frames: results by the name of their analysis; those in `NEEDED` that could not be made may be missing.
    """
    steps = frames["step_time"].select(pl.col(name).cast(pl.Int64) for name in PLACE).unique(maintain_order=True)
    parts = [pl.DataFrame(schema=SCHEMA)]
    for analysis, section in _SECTIONS.items():
        frame = frames.get(analysis)
        if frame is not None and frame.height:
            found = section(frame).select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())
            parts.append(found.join(steps, on=list(PLACE), how="semi", nulls_equal=True))
    sections = pl.concat(parts).select(pl.col("section").unique())
    places = [sections.join(steps, how="cross")]
    for analysis, section in _SNAPSHOTS.items():
        frame = frames.get(analysis)
        if frame is not None and frame.height:
            found = section(frame).select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())
            parts.append(found)
            # Each rank's snapshot is a place, with or without stacks.
            places.append(found.select("section", *PLACE).unique(maintain_order=True))
    values = pl.concat(parts)
    values = values.with_columns(names_without_hashes(values[name]) for name in ("name", "operator"))
    return Samples(pl.concat(places), values)


def _measures(frame: pl.DataFrame, section: str) -> pl.DataFrame:
    """Each column of nanoseconds as a separate sample."""
    columns = [name for name in frame.columns if name.endswith("_ns") and name not in ("start_ns", "end_ns")]
    return (
        frame.unpivot(columns, index=list(PLACE), variable_name="name", value_name="value")
        .filter(pl.col("value").is_not_null())
        .with_columns(
            pl.col("name").str.strip_suffix("_ns").replace({"window": "step_time"}),
            section=pl.lit(section),
            shapes=pl.lit(None, pl.String),
            operator=pl.lit(None, pl.String),
            unit=pl.lit("ns"),
            calls=pl.lit(1),
        )
    )


def _steps(frame: pl.DataFrame) -> pl.DataFrame:
    return _measures(frame, "steps")


def _phases(frame: pl.DataFrame) -> pl.DataFrame:
    return _measures(frame, "phases")


def _work(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(
        section=pl.when(pl.col("kind") == "kernel").then(pl.lit("kernels")).otherwise(pl.lit("operators")),
        unit=pl.lit("ns"),
        value=pl.col("total_ns"),
    )


OUTSIDE = "outside modules"
MODULES = {"modules_device": "device_ns", "modules_host": "host_self_ns"}
"""Sections of modules, and the column that each compares."""


def _modules(frame: pl.DataFrame) -> pl.DataFrame:
    """Each module with those inside it, and in each the operators that belong to no module inside it."""
    rows = frame.with_columns(pl.col("module").fill_null(OUTSIDE), pl.col("calls").cast(pl.Int64))
    parts = rows.with_columns(pl.col("module").str.split(TOP).alias("parts"))
    deepest = int(parts["parts"].list.len().to_numpy().max(initial=0))
    around = [
        parts.filter(pl.col("parts").list.len() > depth).with_columns(
            pl.col("parts").list.head(depth + 1).list.join(TOP).alias("name"), pl.lit(None, pl.String).alias("operator")
        )
        for depth in range(deepest)
    ]
    inside = parts.with_columns(pl.concat_str("module", pl.lit(TOP), "operator").alias("name"))
    each = pl.concat([*(part.drop("parts") for part in around), inside.drop("parts")])
    found = []
    for section, column in MODULES.items():
        known = each.filter(pl.col(column).is_not_null())
        found.append(
            known.group_by(*PLACE, "name", "operator")
            .agg(pl.col("calls").sum(), pl.col(column).sum().alias("value"))
            .with_columns(section=pl.lit(section), shapes=pl.lit(None, pl.String), unit=pl.lit("ns"))
            .select(list(SCHEMA))
        )
    return pl.concat(found)


_TIMES = ("wait", "transfer")


def _collectives(frame: pl.DataFrame) -> pl.DataFrame:
    keys = ["collective", "dtype", "bytes", "group_size"]
    name = pl.col("collective") + pl.concat_str(
        pl.lit(" of "), pl.col("group_size").cast(pl.String), pl.lit(" ranks")
    ).fill_null("")
    known = [pl.col(f"{what}_ns").is_not_null().all().over(keys).alias(f"{what}_known") for what in _TIMES]
    grouped = (
        frame.with_columns(known)
        .group_by(*PLACE, *keys)
        .agg(
            pl.len().alias("calls"),
            pl.col("duration_ns").sum().alias("duration"),
            # A sum over some of the calls cannot be compared with a sum over all of them.
            *(pl.when(pl.col(f"{what}_known").all()).then(pl.col(f"{what}_ns").sum()).alias(what) for what in _TIMES),
        )
    )
    return (
        grouped.unpivot(
            ["duration", "wait", "transfer"], index=[*PLACE, *keys, "calls"], variable_name="what", value_name="value"
        )
        .filter(pl.col("value").is_not_null())
        .with_columns(
            section=pl.lit("collectives"),
            name=pl.concat_str(name, pl.lit(": "), pl.col("what")),
            shapes=pl.concat_str(pl.col("bytes").cast(pl.String), pl.lit(" bytes "), pl.col("dtype")),
            operator=pl.lit(None, pl.String),
            unit=pl.lit("ns"),
        )
    )


def _memory(frame: pl.DataFrame) -> pl.DataFrame:
    """The peak of each step by kind of memory: each rank numbers its own devices."""
    first = pl.col("device").str.split(":").list.first()
    # Two vendors' devices (`cuda`, `hip`, `xpu`) are compared with each other.
    kind = pl.when(first == "cpu").then(pl.lit("host")).otherwise(pl.lit("device"))
    grouped = frame.group_by(*PLACE, kind.alias("kind")).agg(
        pl.len().alias("calls"),
        # If a file has no totals: the growth since its beginning.
        pl.coalesce("peak_allocated", "change_peak").max().alias("peak allocated"),
        pl.col("peak_reserved").max().alias("peak reserved"),
        pl.col("allocated_bytes").sum().alias("allocated in a step"),
    )
    return (
        grouped.unpivot(
            ["peak allocated", "peak reserved", "allocated in a step"], index=[*PLACE, "kind", "calls"],
            variable_name="what", value_name="value",
        )
        .filter(pl.col("value").is_not_null())
        .with_columns(
            section=pl.lit("memory"),
            name=pl.concat_str("kind", pl.lit(": "), "what"),
            shapes=pl.lit(None, pl.String),
            operator=pl.lit(None, pl.String),
            unit=pl.lit("bytes"),
        )
    )  # fmt: skip


_SECTIONS: dict[str, Section] = {
    "step_time": _steps,
    "phases": _phases,
    "work": _work,
    "work_by_module": _modules,
    "collectives": _collectives,
    "memory_by_step": _memory,
}


def _in_bytes(frame: pl.DataFrame, section: str, name: pl.Expr, value: pl.Expr, calls: pl.Expr) -> pl.DataFrame:
    nothing = pl.lit(None, pl.String)
    return frame.select(
        "rank", "window", pl.lit(None, pl.Int64).alias("step"), pl.lit(section).alias("section"), name.alias("name"),
        nothing.alias("shapes"), nothing.alias("operator"), pl.lit("bytes").alias("unit"), calls.alias("calls"),
        value.alias("value"),
    ).group_by("rank", "window", "step", *KEYS, maintain_order=True).agg(pl.col("calls", "value").sum())  # fmt: skip


_SNAPSHOT_NAMES = {
    "peak_allocated": "peak allocated", "allocated": "allocated", "reserved": "reserved", "free": "reserved and free",
    "largest_free": "largest free block", "private_pools": "private pools",
}  # fmt: skip


def _snapshot(frame: pl.DataFrame) -> pl.DataFrame:
    """A rank's devices, added up."""
    long = frame.unpivot(list(_SNAPSHOT_NAMES), index=["rank", "window", "segments"], variable_name="what").drop_nulls()
    name = pl.concat_str(pl.lit("snapshot: "), pl.col("what").replace_strict(_SNAPSHOT_NAMES))
    return _in_bytes(long, "snapshots", name, pl.col("value"), pl.col("segments"))


def _stacks(frame: pl.DataFrame) -> pl.DataFrame:
    """The memory of each stack, at the peak if the history is recorded; named by its frames, innermost first."""
    held, blocks = pl.coalesce("peak_bytes", "bytes"), pl.coalesce("peak_blocks", "blocks")
    return _in_bytes(frame, "stacks", pl.col("stack").fill_null("no stack recorded"), held, blocks)


_SNAPSHOTS: dict[str, Section] = {"memory_snapshot": _snapshot, "memory_snapshot_by_stack": _stacks}
NEEDED = (*_SECTIONS, *_SNAPSHOTS)
