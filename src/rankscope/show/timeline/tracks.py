"""Turns a rank's tables into events with a track each.

A rank's tracks, in order: a summary track (its device's work; without a device, top-level operators and Gloo ranges, as
in `device_time`), one per stream, one per stream for ranges and synchronization that the profiler draws there, one per
host thread (operators, runtime calls and named ranges, nested), one per thread for its Python frames, and those of
everything else in the file. Nothing is left out.

In: a rank's tables. Out: events with a track, and the tracks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from rankscope.primitives.activity import DATA_LOADING as LOADING
from rankscope.primitives.activity import GLOO, computing_operators, gloo_ranges, with_category
from rankscope.show.timeline.categories import (
    ANNOTATION,
    COMMUNICATION,
    COMPUTE,
    DATA_LOADING,
    HOST_OP,
    MEMORY,
    MEMSET,
    OTHER,
    PYTHON,
    RUNTIME,
)

TABLES = ("device_events", "host_ops", "runtime_calls", "annotations", "python_frames", "other_events")
"""Tables that events come from; an event's table is an index into this list."""

READS: dict[str, tuple[str, ...]] = {
    "device_events": (
        "start_ns", "end_ns", "name", "pid", "tid", "kind", "is_collective", "device", "stream", "launch_ns",
    ),
    "host_ops": ("start_ns", "end_ns", "name", "pid", "tid", "depth"),
    "runtime_calls": ("start_ns", "end_ns", "name", "pid", "tid"),
    "annotations": ("start_ns", "end_ns", "name", "pid", "tid", "on_device", "step"),
    "python_frames": ("start_ns", "end_ns", "name", "pid", "tid"),
    "other_events": ("start_ns", "end_ns", "name", "pid", "tid"),
    "tracks": ("pid", "tid", "field", "value"),
}  # fmt: skip

_KINDS = ("rank", "stream", "annotation", "thread", "python", "other")
# Ids that the file does not give.
_NO_ID = -(1 << 62)


@dataclass(frozen=True)
class Track:
    """A track of a rank: its kind, its title, and whether it is folded at first."""

    kind: str
    title: str
    folded: bool


@dataclass(frozen=True)
class Events:
    """The events of one rank's files, by track.

    Attributes:
        frame: columns track, window, table, row, start_ns, end_ns (on the file's clock), name, category.
        tracks: what the numbers of `track` mean.
    """

    frame: pl.DataFrame
    tracks: Sequence[Track] = field(default_factory=tuple)


@dataclass(frozen=True)
class _Titles:
    """Names of threads by process and thread, and texts that are recorded instead of ids."""

    names: dict[tuple[int, int], str]
    texts: dict[int, str]


def read_events(windows: Sequence[Mapping[str, pl.DataFrame]], communication: str | None = None) -> Events:
    """The events of a rank.

    Args:
        windows: the tables of each of its files, with the columns of `READS`.
        communication: a regular expression of further kernel names that are communication.
    """
    parts = [
        _events_of(tables, communication).with_columns(pl.lit(number, pl.UInt16).alias("window"))
        for number, tables in enumerate(windows)
    ]
    frame = pl.concat(parts)
    titles = _titles([tables["tracks"] for tables in windows])
    first = pl.col("start_ns").min().alias("first")
    keys = frame.group_by("kind", "a", "b").agg(first)
    # Device tracks by number; threads in the order of their first event, a thread's Python frames after it.
    host = pl.col("kind") == _KINDS.index("thread")
    keys = keys.join(keys.filter(host).select("a", "b", began="first"), on=["a", "b"], how="left")
    on_device = pl.col("kind") <= _KINDS.index("annotation")
    rest = pl.when(pl.col("kind") == _KINDS.index("other")).then(2).otherwise(1)
    keys = keys.sort(
        pl.when(on_device).then(0).otherwise(rest),
        pl.when(on_device).then(pl.col("a")).otherwise(pl.coalesce("began", "first")),
        "b",
        "kind",
    )
    summary = pl.DataFrame({"kind": [0], "a": [0], "b": [0]}, schema={"kind": pl.Int8, "a": pl.Int64, "b": pl.Int64})
    keys = pl.concat([summary, keys.filter(pl.col("kind") > 0).select("kind", "a", "b")]).with_row_index("track")
    devices = keys.filter(pl.col("kind") == _KINDS.index("stream"))["a"].n_unique()
    tracks = [_track(_KINDS[kind], a, b, titles, devices > 1) for _, kind, a, b in keys.iter_rows()]
    frame = frame.join(keys, on=["kind", "a", "b"], how="left", maintain_order="left")
    return Events(frame.drop("kind", "a", "b"), tracks)


def _track(kind: str, a: int, b: int, titles: _Titles, several: bool) -> Track:
    where = f"device {a}, stream {b}" if several else f"stream {b}"
    thread = titles.names.get((a, b)) or titles.texts.get(b) or (f"thread {b}" if b != _NO_ID else "no thread")
    if kind == "rank":
        return Track(kind, "rank", False)
    if kind == "stream":
        return Track(kind, where, False)
    if kind == "annotation":
        return Track(kind, f"ranges on {where}", True)
    if kind == "python":
        return Track(kind, f"Python, {thread}", True)
    return Track("annotation" if kind == "other" else kind, thread, kind == "other")


def _titles(tables: Sequence[pl.DataFrame]) -> _Titles:
    """Names of threads. If a thread is named twice, the first name is its own and the last one the process's."""
    rows = pl.concat(tables)
    texts = {row[0]: row[1] for row in rows.filter(pl.col("field") == "text").select("tid", "value").iter_rows()}
    found = _Titles({}, texts)
    for pid, tid, value in rows.filter(pl.col("field") == "thread_name").select("pid", "tid", "value").iter_rows():
        if value:
            found.names.setdefault((pid, tid), value)
    return found


def _events_of(tables: Mapping[str, pl.DataFrame], communication: str | None) -> pl.DataFrame:
    device, operators, calls, ranges, frames, others = (
        tables[name].with_row_index("row").with_columns(pl.lit(number, pl.UInt8).alias("table"))
        for number, name in enumerate(TABLES)
    )
    device = with_category(device, communication).with_columns(
        category=pl.when(pl.col("kind") == "memset")
        .then(MEMSET)
        .when(pl.col("category") == "memory")
        .then(MEMORY)
        .when(pl.col("category") == "communication")
        .then(COMMUNICATION)
        .otherwise(COMPUTE)
    )
    gloo = pl.col("name").str.starts_with(GLOO)
    operators = operators.with_columns(category=pl.when(gloo).then(COMMUNICATION).otherwise(HOST_OP))
    loading = [name for name in ranges["name"].unique().drop_nulls() if LOADING.search(name)]
    ranges = ranges.with_columns(
        category=pl.when(~pl.col("on_device") & gloo)
        .then(COMMUNICATION)
        .when(~pl.col("on_device") & pl.col("name").is_in(loading))
        .then(DATA_LOADING)
        .otherwise(ANNOTATION)
    )
    echoes = ranges.filter(pl.col("on_device"))
    host_ranges = ranges.filter(~pl.col("on_device"))
    streams = device.select("pid", "tid", "device", "stream").unique(["pid", "tid"], keep="first", maintain_order=True)
    threads = pl.concat([part.select("pid", "tid") for part in (operators, calls, host_ranges)]).unique()
    on_stream = ["pid", "tid"]
    others = others.with_columns(pl.lit(OTHER).alias("category"))
    echoes = pl.concat(
        [
            echoes.select("row", "table", "pid", "tid", "start_ns", "end_ns", "name", "category"),
            others.join(streams, on=on_stream, how="semi", nulls_equal=True).select(
                "row", "table", "pid", "tid", "start_ns", "end_ns", "name", "category"
            ),
        ]
    ).join(streams, on=on_stream, how="left", nulls_equal=True)
    others = others.join(streams, on=on_stream, how="anti", nulls_equal=True)
    on_threads = others.join(threads, on=on_stream, how="semi", nulls_equal=True)
    apart = others.join(threads, on=on_stream, how="anti", nulls_equal=True)
    parts = [
        _summary(device, operators, host_ranges),
        _on("stream", device, "device", "stream"),
        _on("annotation", echoes.with_columns(pl.coalesce("device", "pid"), pl.coalesce("stream", "tid")), "device",
            "stream"),
        _on("thread", operators, "pid", "tid"),
        _on("thread", calls.with_columns(pl.lit(RUNTIME).alias("category")), "pid", "tid"),
        _on("thread", host_ranges, "pid", "tid"),
        _on("thread", on_threads, "pid", "tid"),
        _on("python", frames.with_columns(pl.lit(PYTHON).alias("category")), "pid", "tid"),
        _on("other", apart, "pid", "tid"),
    ]  # fmt: skip
    return pl.concat(parts)


def _summary(device: pl.DataFrame, operators: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """The events of the summary track, as in `device_time`."""
    if device.height:
        return _on("rank", device.with_columns(a=pl.lit(0), b=pl.lit(0)), "a", "b")
    computing = computing_operators(operators, gloo_ranges(operators, ranges))
    gloo = pl.col("name").str.starts_with(GLOO)
    columns = ["row", "table", "start_ns", "end_ns", "name"]
    summary = pl.concat(
        [
            computing.select(columns).with_columns(category=pl.lit(COMPUTE)),
            *(part.filter(gloo).select(columns).with_columns(category=pl.lit(COMMUNICATION))
              for part in (ranges, operators)),
        ]
    )  # fmt: skip
    return _on("rank", summary.with_columns(a=pl.lit(0), b=pl.lit(0)), "a", "b")


def _on(kind: str, frame: pl.DataFrame, a: str, b: str) -> pl.DataFrame:
    return frame.select(
        pl.lit(_KINDS.index(kind), pl.Int8).alias("kind"),
        pl.col(a).cast(pl.Int64).fill_null(_NO_ID).alias("a"),
        pl.col(b).cast(pl.Int64).fill_null(_NO_ID).alias("b"),
        "table",
        "row",
        "start_ns",
        # An event that ends before it starts has lost its end: its duration is 0.
        pl.max_horizontal("start_ns", "end_ns").alias("end_ns"),
        pl.col("name").fill_null(""),
        pl.col("category").cast(pl.UInt8),
    )
