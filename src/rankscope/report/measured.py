"""What `rankscope measure` wrote into a run's directory, as tables like those of analyses: scaling, overhead, the rest.

Each `NAME.json` there (`scaling.json`, `overhead.json`, `buckets.json`, `binding.json`, `profiler.json`) is one table,
a row for each size or variant that was measured; the projection in `scaling.json` is one of its own. Fields that are
not known are passed over, what a file lacks is null, and a file that is none of these, or of another schema, is left
alone: it was perhaps not ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from rankscope.measure import SCHEMA
from rankscope.results import Analysis, Column, Headline, Result
from rankscope.rundir.plurals import plural

PREFIX = "measured_"
# The table whose rows stand in another one's file.
_FILES = {"projection": "scaling"}
MAX_BYTES = 16 << 20
_INTERVAL = (("", ""), ("_low", ", lower end of its interval"), ("_high", ", upper end"))


@dataclass(frozen=True)
class Field:
    """A column, and where in a row of the file it stands: keys joined by dots."""

    column: Column
    path: str
    only_with: str | None = None
    """What has to be known, too: without an interval, a difference may be noise and is no figure."""


def _plain(name: str, unit: str, doc: str, path: str | None = None) -> list[Field]:
    return [Field(Column(name, unit, doc), path or name)]


def _time(name: str, doc: str, path: str) -> list[Field]:
    """A duration with its interval: median_ns, low_ns, high_ns."""
    ends = ("median_ns", "low_ns", "high_ns")
    pairs = zip(_INTERVAL, ends, strict=True)
    return [Field(Column(f"{name}{suffix}_ns", "ns", doc + more), f"{path}.{end}") for (suffix, more), end in pairs]


def _share(name: str, doc: str, unit: str = "ratio", only_with: str | None = None) -> list[Field]:
    """A ratio with its interval: value, low, high."""
    pairs = zip(_INTERVAL, ("value", "low", "high"), strict=True)
    return [
        Field(Column(f"{name}{suffix}", unit, doc + more), f"{name}.{end}", only_with) for (suffix, more), end in pairs
    ]


def _difference(name: str, doc: str) -> list[Field]:
    """A ratio that is nothing without its interval."""
    return _share(name, f"{doc}; null where blocks are too few for an interval", only_with=f"{name}.low")


_STATE = [*_plain("state", "", "done, failed, or pending"), *_plain("error", "", "why it failed")]
_RUN = _plain("run", "", "where its traces lie, from here", "traced.run")
_TRACED = _plain(
    "traced_overhead", "ratio", "exposed communication by the window, in a profiled window", "traced.exposed_share"
)
_MEASURED = "(T sync − T no sync) / T sync, with gradient synchronization off and on in turn"


@dataclass(frozen=True)
class _Shape:
    """How a file becomes a table: where its rows are (keys joined by dots; None: the file itself), their columns, its
    words."""

    doc: str
    rows: str | None
    fields: list[Field]


_SHAPES = {
    "scaling": _Shape(
        "How the job's step time goes with the number of ranks, measured by `rankscope measure scaling`.",
        "sizes",
        [
            *_plain("name", "", "`plain` for one process without a wrapper, else the number of ranks"),
            *_plain("ranks", "count", "ranks"),
            *_plain("nodes", "count", "hosts"),
            *_STATE,
            *_plain("oversubscribed", "", "more ranks than cores or devices: no statement on how the job scales"),
            *_plain("batch_per_rank", "", "first dimension of what the model was given"),
            *_plain("repeats", "count", "jobs that were finished"),
            *_time("step", "a step on the slowest rank, not profiled, median", "step"),
            *_share("speed_up", "strong: T1 / Tn; weak: n T1 / Tn", ""),
            *_share("efficiency", "speed-up by ranks"),
            *_share("derived_overhead", "1 − efficiency"),
            *_share("measured_overhead", _MEASURED),
            *_TRACED,
            *_plain("lost_ns", "ns", "what a step is longer than the perfect one of this size", "lost.total_ns"),
            *_plain("lost_compute_ns", "ns", "of it compute", "lost.compute_ns"),
            *_plain(
                "lost_communication_ns", "ns", "of it exposed communication", "lost.exposed_communication_ns"
            ),
            *_plain("lost_data_loading_ns", "ns", "of it data loading", "lost.data_loading_ns"),
            *_plain("lost_other_ns", "ns", "of it anything else", "lost.other_ns"),
            *_RUN,
        ],
    ),
    "projection": _Shape(
        "What larger sizes would do if the law that fits the measured ones held on: a projection by `rankscope measure "
        "scaling`, not a measurement. Intervals hold the noise of the measurement, not the error of the law.",
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
            *_TRACED,
            *_RUN,
        ],
    ),
    "buckets": _Shape(
        "How the wrapper's settings change a step, measured by `rankscope measure buckets`.",
        "variants",
        [
            *_plain("name", "", "the variant"),
            *_plain("base", "", "whether the others are held against it"),
            *_STATE,
            *_time("step", "a step on the slowest rank, median", "step"),
            *_difference("difference", "to the base: negative is faster"),
            *_plain("beyond_chance", "", "whether the interval of the difference excludes 0"),
            *_TRACED,
            *_RUN,
        ],
    ),
    "binding": _Shape(
        "How binding ranks to CPUs changes a step, measured by `rankscope measure binding`.",
        "variants",
        [
            *_plain("name", "", "none, compact, spread, numa or list"),
            *_plain("base", "", "whether the others are held against it"),
            *_STATE,
            *_time("step", "a step on the slowest rank, median", "step"),
            *_difference("difference", "to the base: negative is faster"),
            *_plain("beyond_chance", "", "whether the interval of the difference excludes 0"),
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
            *_plain("beyond_chance", "", "whether the interval of the cost excludes 0"),
            *_time("stop", "how long the loop stands still while recording is stopped", "stop"),
            *_time("save", "how long writing the trace takes", "save"),
            *_plain("bytes_per_step", "bytes", "of a rank's uncompressed trace"),
        ],
    ),
}  # fmt: skip


def measured(folder: str) -> dict[str, Result]:
    """The tables of a run's directory, by name (`measured_scaling`); none where it is no directory of this machine."""
    found = {}
    for name, shape in _SHAPES.items():
        content = _read(Path(folder), name)
        rows = _rows(content, shape) if content is not None else []
        if content is not None and rows:
            found[PREFIX + name] = _result(name, shape, rows, content)
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
        return None  # without the right to look in; whoever opens it says so
    jobs: dict[str, str] = {}
    ours = False
    for name, shape in _SHAPES.items():
        content = _read(place, name)
        ours |= content is not None
        for row in _rows(content, shape) if content is not None else []:
            traced, label = row.get("traced"), _label(row)
            if isinstance(traced, dict) and isinstance(traced.get("run"), str) and label is not None:
                jobs[traced["run"]] = label
    return jobs if ours else None


def _label(row: Mapping[str, Any]) -> str | None:
    """What people call a size or a variant: ``plain process``, ``1 rank``, ``4 ranks``, ``bucket_cap_mb=5``."""
    name, ranks = row.get("name"), row.get("ranks", row.get("world_size"))
    if not isinstance(name, str) or name == str(ranks):
        return f"{ranks} {plural('rank', ranks)}" if isinstance(ranks, int) else None
    return "plain process" if name == "plain" else name


def _read(folder: Path, name: str) -> Mapping[str, Any] | None:
    """The file that holds a table's rows; None where there is none, or none of ours."""
    measurement = _FILES.get(name, name)
    path = folder / f"{measurement}.json"
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return None
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    ours = isinstance(content, dict) and content.get("measurement") == measurement and content.get("schema") == SCHEMA
    return content if ours else None


def _rows(content: Mapping[str, Any], shape: _Shape) -> list[Any]:
    rows = [content] if shape.rows is None else _found(content, shape.rows)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _result(name: str, shape: _Shape, rows: list[Any], content: Mapping[str, Any]) -> Result:
    columns = tuple(field.column for field in shape.fields)
    frame = pl.DataFrame(
        {field.column.name: [_value(row, field) for row in rows] for field in shape.fields},
        schema={column.name: _type(column) for column in columns},
        strict=False,
    )
    said = _headline(name, content) if name != "projection" else None
    analysis = Analysis(
        name=PREFIX + name,
        doc=f"{shape.doc}\n\n{_setting(content) if name != 'projection' else _law(content['projection'])}",
        columns=columns,
        per_rank=lambda tables, inputs: pl.DataFrame(),
        across_ranks=lambda parts, inputs: (pl.DataFrame(), []),
        headline=lambda frame: said,
    )
    return Result(analysis, frame)


_TEXT = ("name", "state", "error", "wrapper", "run")
_FLAGS = ("base", "beyond_chance", "oversubscribed")


def _type(column: Column) -> pl.DataType:
    if column.name in _TEXT:
        return pl.String()
    if column.name in _FLAGS:
        return pl.Boolean()
    return (
        pl.Int64()
        if column.unit in ("ns", "bytes", "count", "ranks") or column.name == "batch_per_rank"
        else pl.Float64()
    )


def _found(row: Any, path: str) -> Any:
    for key in path.split("."):
        row = row.get(key) if isinstance(row, dict) else None
    return row


def _value(row: Any, field: Field) -> object:
    if field.only_with is not None and _found(row, field.only_with) is None:
        return None
    row = _found(row, field.path)
    kind = _type(field.column)
    if isinstance(row, bool):
        return row if kind == pl.Boolean() else None
    if isinstance(row, int | float):
        return row if kind in (pl.Int64(), pl.Float64()) and abs(row) < 1 << 62 else None
    return row if isinstance(row, str) and kind == pl.String() else None


def _setting(content: Mapping[str, Any]) -> str:
    """How it was measured, in words."""
    setting = content.get("setting")
    known = setting if isinstance(setting, dict) else {}
    words = [
        f"{key}: {known[key]}"
        for key in ("created", "target", "device", "method", "confidence", "load")
        if known.get(key) is not None
    ]
    notes = known.get("notes")
    return "\n\n".join(
        [". ".join(words), *(str(note) for note in notes if note)] if isinstance(notes, list) else [". ".join(words)]
    )


def _law(projection: Mapping[str, Any]) -> str:
    """What was projected by, in words."""
    numbers = ((sign, projection.get(key)) for sign, key in (("sigma", "contention"), ("kappa", "coherence")))
    fitted = [f"{sign} = {value:.4g}" for sign, value in numbers if isinstance(value, int | float)]
    assumed = projection.get("assumptions")
    said = [", ".join([str(projection.get("formula", "")), *fitted])]
    if isinstance(assumed, list) and assumed:
        said.append("It holds if " + "; ".join(str(each) for each in assumed) + ".")
    return "\n\n".join(said)


def _headline(name: str, content: Mapping[str, Any]) -> Headline | None:
    told = content.get("recommendation")
    if isinstance(told, dict) and isinstance(told.get("text"), str):
        return Headline.of("{text}", text=(told["text"], ""))
    share = content.get("measured_overhead")
    if isinstance(share, dict) and isinstance(share.get("value"), float | int):
        text = "Gradient synchronization takes {share} of a step, measured with and without it."
        return Headline.of(text, share=(share["value"], "ratio"))
    sizes = content.get("sizes")
    done = (
        [each for each in sizes if isinstance(each, dict) and _number(each, "efficiency")]
        if isinstance(sizes, list)
        else []
    )
    if not done:
        return None
    # More ranks than cores or devices say nothing on how the job scales, where there is another size.
    fair = [size for size in done if size.get("oversubscribed") is not True and _ranks(size) > 1]
    most = max(fair or done, key=_ranks)
    return Headline.of(
        f"On {{ranks}} {plural('rank', _ranks(most))} the efficiency is {{efficiency}} ({{mode}} scaling).",
        ranks=(_ranks(most), "count"),
        efficiency=(_number(most, "efficiency") or 0.0, "ratio"),
        mode=(str(content.get("mode", "")), ""),
    )


def _number(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    found = value.get("value") if isinstance(value, dict) else None
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def _ranks(row: Mapping[str, Any]) -> int:
    value = row.get("ranks")
    return value if isinstance(value, int) else 0
