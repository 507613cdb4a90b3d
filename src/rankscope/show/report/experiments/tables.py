"""The results of `rankscope measure` in a run's directory, as tables like those of analyses.

Each `NAME.json` there (`scaling.json`, `overhead.json`, `buckets.json`, `binding.json`, `profiler.json`) is one table,
with one row per measured size or variant; the projection in `scaling.json` is a further table. Other files, and
files of another schema, are ignored.

In: a directory. Out: tables by name, as the report and the page take them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from rankscope.errors import RankscopeError
from rankscope.experiments.measure.files import KINDS, load, path_in
from rankscope.experiments.measure.results import (
    AnyResult,
    Overhead,
    Projection,
    Scaling,
    Setting,
    Size,
    TraceSummary,
)
from rankscope.experiments.measure.statistics import verdict_of
from rankscope.results import Analysis, Column, Result, schema_of
from rankscope.results.failures import FAILURES
from rankscope.rundir.plurals import counted, ranks_on
from rankscope.show.report.experiments.statements import statements

PREFIX = "measured_"
# The table whose rows are in another one's file.
_FILES = {"projection": "scaling"}
MAX_BYTES = 16 << 20
_INTERVAL = (("", ""), ("_low", ", lower end of its interval"), ("_high", ", upper end"))


@dataclass(frozen=True)
class Field:
    """A column, and its place in a row of the file: keys joined by dots."""

    column: Column
    path: str
    of: Callable[[Any, Setting], object] | None = None
    """How it follows from the row and the setting, where the file does not hold it."""


_TEXT = ("name", "state", "error", "wrapper", "run")
_NUMBERS = ("batch_per_rank", "traced_rank")
_FLAGS = ("base", "beyond_chance", "oversubscribed")


def _type(name: str, unit: str) -> type[pl.DataType]:
    if name in _TEXT:
        return pl.String
    if name in _FLAGS:
        return pl.Boolean
    return pl.Int64 if unit in ("ns", "bytes", "count", "ranks") or name in _NUMBERS else pl.Float64


def _plain(name: str, unit: str, doc: str, path: str | None = None) -> list[Field]:
    return [Field(Column(name, _type(name, unit), unit, doc), path or name)]


def _time(name: str, doc: str, path: str) -> list[Field]:
    """A duration with its interval: median_ns, low_ns, high_ns."""
    ends = ("median_ns", "low_ns", "high_ns")
    pairs = zip(_INTERVAL, ends, strict=True)
    return [
        Field(Column(f"{name}{suffix}_ns", pl.Int64, "ns", doc + more), f"{path}.{end}")
        for (suffix, more), end in pairs
    ]


def _share(name: str, doc: str, unit: str = "ratio") -> list[Field]:
    """A ratio with its interval: value, low, high."""
    pairs = zip(_INTERVAL, ("value", "low", "high"), strict=True)
    return [
        Field(Column(f"{name}{suffix}", pl.Float64, unit, doc + more), f"{name}.{end}") for (suffix, more), end in pairs
    ]


def _verdict(name: str) -> list[Field]:
    """The verdict on a difference, which follows from its interval."""

    def verdict(row: Any, setting: Setting) -> str | None:
        share, step = getattr(row, name), row.sync_cost if isinstance(row, Overhead) else row.step
        return None if share is None else str(verdict_of(share, 0 if step is None else step.blocks, setting.confidence))

    doc = "significant if the interval excludes 0, not significant, or too few steps to tell; with the number of blocks"
    return [Field(Column("verdict", pl.String, "", doc), name, verdict)]


def _difference(name: str, doc: str) -> list[Field]:
    """A difference with its interval and the verdict that follows from it."""
    beyond = f"whether the interval of the {name} excludes 0; null if there are too few steps to tell"
    value, *ends = _share(name, f"{doc}; null without an interval, as it may be noise")
    known = replace(
        value, of=lambda row, _: _found(row, value.path) if _found(row, f"{name}.low") is not None else None
    )
    return [known, *ends, *_plain("beyond_chance", "", beyond), *_verdict(name)]


_STATE = [*_plain("state", "", "done, failed, or pending"), *_plain("error", "", "why it failed")]
_RUN = _plain("run", "", "the folder of its traces, relative to this directory", "traced.run")
_TRACED = [
    *_plain(
        "traced_overhead",
        "ratio",
        "exposed communication / step window in a profiled window, of the worst rank",
        "traced.exposed_share",
    ),
    *_plain("traced_rank", "", "that rank: the one with the most exposed communication", "traced.rank"),
    *_plain("traced_exposed_ns", "ns", "its exposed communication per step", "traced.exposed_communication_ns"),
    *_plain(
        "traced_wait_ns",
        "ns",
        "the part of it that is waiting for other ranks; null if the trace does not tell",
        "traced.exposed_wait_ns",
    ),
]
_MEASURED = "(T sync − T no sync) / T sync of the whole step, with gradient synchronization off and on in turn"
_FORWARD_BACKWARD = (
    "the same of forward and backward alone, with the loss between them and without data loading and optimizer"
)


@dataclass(frozen=True)
class _Shape:
    """How a file becomes a table: where its rows are (keys joined by dots; None: the file itself), their columns, its
    words."""

    doc: str
    rows: str | None
    fields: list[Field]


_SHAPES = {
    "scaling": _Shape(
        "How the job's step time depends on the number of ranks, measured by `rankscope measure scaling`.",
        "sizes",
        [
            *_plain("name", "", "`plain` for one process without a wrapper, else its ranks, and its hosts if several"),
            *_plain("ranks", "count", "ranks"),
            *_plain("nodes", "count", "hosts"),
            *_STATE,
            *_plain("oversubscribed", "", "more ranks than cores or devices: does not show how the job scales"),
            *_plain("batch_per_rank", "", "first dimension of the model's input"),
            *_plain("repeats", "count", "jobs that were finished"),
            *_time("step", "a step on the slowest rank, not profiled, median", "step"),
            *_share("speed_up", "strong: T1 / Tn; weak: n T1 / Tn", ""),
            *_share("efficiency", "speed-up by ranks"),
            *_share("derived_overhead", "1 − efficiency"),
            *_share("measured_overhead", _MEASURED),
            *_TRACED,
            *_plain("lost_ns", "ns", "time lost per step against perfect scaling at this size", "lost.total_ns"),
            *_plain("lost_compute_ns", "ns", "lost in compute", "lost.compute_ns"),
            *_plain(
                "lost_communication_ns", "ns", "lost in exposed communication", "lost.exposed_communication_ns"
            ),
            *_plain("lost_wait_ns", "ns", "waiting for other ranks in it, on the worst rank", "lost.wait_ns"),
            *_plain("lost_data_loading_ns", "ns", "lost in data loading", "lost.data_loading_ns"),
            *_plain("lost_other_ns", "ns", "lost in anything else", "lost.other_ns"),
            *_RUN,
        ],
    ),
    "projection": _Shape(
        "Larger sizes, if the law fitted to the measured ones holds: a projection by `rankscope measure "
        "scaling`, not a measurement. Intervals cover measurement noise, not the error of the law.",
        "projection.points",
        [
            *_plain("ranks", "count", "ranks"),
            *_share("speed_up", "what the law gives", ""),
            *_share("efficiency", "speed-up by ranks"),
            *_plain("step_ns", "ns", "a step"),
        ],
    ),
    "overhead": _Shape(
        "What gradient synchronization costs, measured by `rankscope measure overhead`.",
        None,
        [
            *_plain("wrapper", "", "ddp, fsdp1 or fsdp2"),
            *_plain("world_size", "ranks", "ranks"),
            *_time("sync", "a step with synchronization, median", "sync.step"),
            *_time("no_sync", "a step without it", "no_sync.step"),
            *_time("sync_cost", "the difference", "sync_cost"),
            *_share("measured_overhead", _MEASURED),
            *_verdict("measured_overhead"),
            *_time("forward_backward", "forward and backward with synchronization", "sync.forward_backward"),
            *_time("forward_backward_no_sync", "forward and backward without it", "no_sync.forward_backward"),
            *_share("forward_backward_overhead", _FORWARD_BACKWARD),
            *_TRACED,
            *_RUN,
        ],
    ),
    "buckets": _Shape(
        "How the wrapper's settings change a step, measured by `rankscope measure buckets`.",
        "variants",
        [
            *_plain("name", "", "the variant"),
            *_plain("base", "", "whether the others are compared with it"),
            *_STATE,
            *_time("step", "a step on the slowest rank, median", "step"),
            *_difference("difference", "to the base: negative is faster"),
            *_TRACED,
            *_RUN,
        ],
    ),
    "binding": _Shape(
        "How binding ranks to CPUs changes a step, measured by `rankscope measure binding`.",
        "variants",
        [
            *_plain("name", "", "none, compact, spread, numa or list"),
            *_plain("base", "", "whether the others are compared with it"),
            *_STATE,
            *_time("step", "a step on the slowest rank, median", "step"),
            *_difference("difference", "to the base: negative is faster"),
            *_time("launch_latency", "from a kernel's launch to its start, with an empty queue", "launch_latency"),
        ],
    ),
    "profiler": _Shape(
        "What the profiler costs, measured by `rankscope measure profiler`.",
        "variants",
        [
            *_plain("name", "", "none, waiting, recording, one switch, or all"),
            *_plain("base", "", "the step without a profiler"),
            *_STATE,
            *_time("step", "a step, median", "step"),
            *_difference("cost", "to the base, of the steps that are recorded"),
            *_time("stop", "how long the training loop is blocked while recording stops", "stop"),
            *_time("save", "how long writing the trace takes", "save"),
            *_plain("bytes_per_step", "bytes", "of a rank's uncompressed trace"),
        ],
    ),
}  # fmt: skip


def measured(
    folder: str, on_failure: Callable[[str, BaseException], object] = lambda name, error: None
) -> dict[str, Result]:
    """The tables of a run's directory, by name (`measured_scaling`); none if it is not a directory of this machine.

    Args:
        folder: the directory.
        on_failure: called with the name of a table that cannot be made, and why.
    """
    found = {}
    for name, shape in _SHAPES.items():
        try:
            content = _read(Path(folder), name)
            rows = _rows(content, shape) if content is not None else []
            if content is not None and rows:
                found[PREFIX + name] = _result(name, shape, rows, content)
        except FAILURES as error:
            on_failure(PREFIX + name, error)
    return found


def jobs_of(folder: str) -> dict[str, str] | None:
    """What the jobs of an experiment are called, by their folders in its output directory (``jobs/2-0``: ``2 ranks``).

    Args:
        folder: a directory; None comes back where it is not what `rankscope measure` was given with ``-o``.
    """
    place = Path(folder)
    try:
        if not (place / "jobs").is_dir() or (place / "run.json").exists():
            return None
    except OSError:
        return None  # without permission to read; opening it reports that
    jobs: dict[str, str] = {}
    ours = False
    for name, shape in _SHAPES.items():
        content = _read(place, name)
        ours |= content is not None
        for row in _rows(content, shape) if content is not None else []:
            traced: TraceSummary | None = getattr(row, "traced", None)  # a projected size has none, nor has a binding
            if traced is not None:
                jobs[traced.run] = _label(row)
    return jobs if ours else None


def _label(row: Any) -> str:
    """What people call a size or a variant: ``plain process``, ``1 rank``, ``4 ranks``, ``bucket_cap_mb=5``."""
    if isinstance(row, Overhead):
        return counted(row.world_size, "rank")
    if isinstance(row, Size) and row.name != "plain":
        return ranks_on(row.ranks, row.nodes)
    return "plain process" if isinstance(row, Size) else str(row.name)


def _read(folder: Path, name: str) -> AnyResult | None:
    """The object with a table's rows; None if there is none, or if it is not ours."""
    measurement = _FILES.get(name, name)
    try:
        path = path_in(folder, measurement)
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return None
        return load(KINDS[measurement], folder)  # type: ignore[type-var]  # each of them is one of its kinds
    except (OSError, RankscopeError):
        return None


def _rows(content: AnyResult, shape: _Shape) -> list[Any]:
    return [content] if shape.rows is None else list(_found(content, shape.rows) or [])


def _result(name: str, shape: _Shape, rows: list[Any], content: AnyResult) -> Result:
    columns = tuple(field.column for field in shape.fields)
    frame = pl.DataFrame(
        {field.column.name: [_value(row, field, content.setting) for row in rows] for field in shape.fields},
        schema=schema_of(columns),
    )
    projection = content.projection if name == "projection" and isinstance(content, Scaling) else None
    said = statements(content) if projection is None else []
    headline = said[0] if said else None
    how = _setting(content.setting) if projection is None else _law(projection)
    analysis = Analysis(
        name=PREFIX + name, doc=f"{shape.doc}\n\n{how}", columns=columns, headline=lambda frame: headline
    )
    return Result(analysis, frame)


def _found(row: Any, path: str) -> Any:
    for name in path.split("."):
        row = getattr(row, name) if row is not None else None
    return row


def _value(row: Any, field: Field, setting: Setting) -> object:
    value = _found(row, field.path) if field.of is None else field.of(row, setting)
    # A file may hold any whole number; a table's have 64 bits.
    return value if not isinstance(value, int | float) or abs(value) < 1 << 62 else None


def _setting(setting: Setting) -> str:
    """How it was measured, in words."""
    words = [
        f"{key}: {value}"
        for key in ("created", "target", "device", "method", "confidence", "load")
        if (value := getattr(setting, key)) is not None
    ]
    return "\n\n".join([". ".join(words), *(note for note in setting.notes if note)])


def _law(law: Projection) -> str:
    """What was projected by, in words."""
    parts = [f"{law.formula}, sigma = {law.contention:.4g}, kappa = {law.coherence:.4g}"]
    if law.assumptions:
        parts.append("It holds if " + "; ".join(law.assumptions) + ".")
    return "\n\n".join(parts)
