"""All ranks in one trace, on the run's clock: a process per rank, a track per thread and stream, and one of findings.

Slices that cross are put on lanes. Arrows are those of the files (launches, autograd), and one per collective through
all ranks on which it was matched, in the order of arrival. A rank is written after the other: memory is that of the
times of one trace file, whatever the number of ranks.

In: a run. Out: a `.pftrace`, or JSON in Chrome's format.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl

from rankscope.engine.pipeline import Run
from rankscope.engine.pipeline.clock import RankClock, RunClock
from rankscope.errors import ConfigError, RankscopeError
from rankscope.primitives.intervals import Int64
from rankscope.results import Finding, with_symptoms
from rankscope.rundir.atomic import atomic_file
from rankscope.show.export.perfetto.lanes import lanes_of
from rankscope.show.export.perfetto.ranks import clock_from_zero, rank_name
from rankscope.show.export.perfetto.writers import Args, Flow, JsonWriter, PerfettoWriter, Value, Writer
from rankscope.show.timeline.finding_location import event_of
from rankscope.store.cache import CachedTrace
from rankscope.store.schema import TABLES

SUFFIXES = (".pftrace", ".pftrace.gz", ".json", ".json.gz")
_TABLES = ("python_frames", "annotations", "host_ops", "runtime_calls", "device_events", "other_events")
_KINDS = {"python_frames": "python", "annotations": "range", "host_ops": "operator", "runtime_calls": "runtime"}
_NOT_ARGUMENTS = {
    "start_ns", "end_ns", "name", "pid", "tid", "kind", "depth", "parent_row", "self_ns", "launch_row", "launch_ns",
    "op_row", "phase", "category", "is_collective",
}  # fmt: skip
_CHUNK = 1 << 16
_FINDINGS = 1
"""The process of the findings; 0 is special to Perfetto. Those of ranks come after it."""
_NO_ID = -(1 << 62)


@dataclass
class Merged:
    """What was written, in numbers.

    Attributes:
        lanes: further tracks for slices that cross those of their thread or stream.
        arrows: arrows of the files; `unbound` of them had no slice at one of their ends and are not written.
        collectives: arrows between the ranks of a collective.
    """

    slices: int = 0
    instants: int = 0
    lanes: int = 0
    arrows: int = 0
    unbound: int = 0
    collectives: int = 0
    findings: int = 0
    _tracks: int = field(default=0, repr=False)
    _arrow_ids: int = field(default=0, repr=False)

    def next_track(self) -> int:
        """A number for a track."""
        self._tracks += 1
        return self._tracks

    def next_arrow(self) -> int:
        """A number for an arrow."""
        self._arrow_ids += 1
        return self._arrow_ids


Matches = dict[tuple[int, int, str], Flow]
"""The arrows of a rank's collectives by file, begin on its clock and name."""


def write_merged(run: Run, output: Path) -> Merged:
    """Write all ranks into one trace, in the format that the file's name says.

    Raises:
        ConfigError: the name says none.
        RankscopeError: the file cannot be written.
    """
    name = output.name.lower()
    if not name.endswith(SUFFIXES):
        raise ConfigError(f"{output.name!r} names no format", hint=f"end it in {', '.join(SUFFIXES)}")
    clock, written = clock_from_zero(run), Merged()
    matches = _matches(run, clock, written)
    findings = run.diagnose()
    try:
        with ExitStack() as stack:
            file: Any = stack.enter_context(atomic_file(output))
            if name.endswith(".gz"):
                file = stack.enter_context(
                    gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6, filename="", mtime=0)
                )
            make = PerfettoWriter if ".pftrace" in name else JsonWriter
            writer: Writer = make(file.write)
            _write_findings(writer, findings, clock, written)
            for rank, traces in run.loaded.ranks.items():
                process = _FINDINGS + 1 + rank
                writer.process(process, rank_name(rank, traces[0].info.mesh))
                tracks = _Tracks(writer, process, written)
                for window, trace in enumerate(traces):
                    if not trace.info.is_snapshot:
                        own = _RankFile(trace, window, clock.ranks[rank], matches.get(rank, {}))
                        _write_file(writer, own, tracks, written)
            writer.close()
    except OSError as error:
        raise RankscopeError(f"cannot be written: {error.strerror}", path=output, hint="choose another -o") from error
    return written


def write_trace(trace: CachedTrace, name: str, write: Callable[[bytes], object]) -> None:
    """Write one file on its own clock, as JSON.

    Args:
        name: of its process.
        write: takes bytes.
    """
    writer, written = JsonWriter(write), Merged()
    writer.process(1, name)
    clock = RankClock(bases=(0,), drift=0.0, at=0, offset_ns=0, residual_ns=None)
    _write_file(writer, _RankFile(trace, 0, clock, {}), _Tracks(writer, 1, written), written)
    writer.close()


# -- one file -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _RankFile:
    trace: CachedTrace
    window: int
    clock: RankClock
    matches: Matches


class _Tracks:
    """The tracks of one rank: by process, thread and lane of its files."""

    def __init__(self, writer: Writer, process: int, written: Merged) -> None:
        self._writer, self._process, self._written = writer, process, written
        self._names: dict[tuple[int, int], str] = {}
        self._labels: dict[int, str] = {}
        self._texts: dict[int, str] = {}
        self._numbers: dict[tuple[int, int, int], int] = {}

    def learn(self, trace: CachedTrace) -> None:
        """Take the names of a file's threads."""
        for pid, tid, what, value in trace.load("tracks").iter_rows():
            if what == "text":
                self._texts[tid] = value
            elif what == "thread_name" and value:
                self._names.setdefault((pid, tid), value.strip())
            elif what == "process_labels" and value:
                self._labels.setdefault(pid, value.strip())

    def number(self, pid: int, tid: int, lane: int) -> int:
        """The track of a lane; it begins when it is first asked for."""
        key = pid, tid, lane
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = self._written.next_track()
            name = (
                self._names.get((pid, tid))
                or self._texts.get(tid)
                or ("no thread" if tid == _NO_ID else f"thread {tid}")
            )
            label = self._labels.get(pid) or self._texts.get(pid)
            self._writer.track(found, self._process, f"{name} · {label}" if label else name, found)
            self._written.lanes += lane > 0
        return found


class _Rows:
    """The rows of one table in the order of a few chunks, most of which are read once."""

    def __init__(self, trace: CachedTrace, table: str) -> None:
        self._trace, self.table = trace, table
        self._arguments = [name for name in TABLES[table].schema if name not in _NOT_ARGUMENTS]
        self._kept: dict[int, list[tuple[Any, ...]]] = {}

    def get(self, row: int) -> tuple[int, str, str, str, Args]:
        """Begin on the file's clock, name, category, phase and arguments of a row."""
        chunk, place = divmod(row, _CHUNK)
        rows = self._kept.get(chunk)
        if rows is None:
            if len(self._kept) > 1:
                del self._kept[min(self._kept)]
            rows = self._kept[chunk] = self._read(chunk)
        start, name, category, phase, *values = rows[place]
        args = [
            (key, cast("Value", value)) for key, value in zip(self._arguments, values, strict=True) if value is not None
        ]
        return start, name, category or self.table, phase, args

    def _read(self, chunk: int) -> list[tuple[Any, ...]]:
        schema = TABLES[self.table].schema
        kind = (
            pl.lit(_KINDS[self.table]) if self.table in _KINDS else pl.col("kind" if "kind" in schema else "category")
        )
        if self.table == "annotations":
            kind = pl.when("on_device").then(pl.lit("range on a device")).otherwise(kind)
        phase = pl.col("phase") if "phase" in schema else pl.lit("X")
        wanted = [
            pl.col("start_ns"),
            pl.col("name"),
            kind.alias("_kind"),
            phase.alias("_phase"),
            *map(pl.col, self._arguments),
        ]
        return self._trace.scan(self.table).slice(chunk * _CHUNK, _CHUNK).select(wanted).collect().rows()


def _write_file(writer: Writer, own: _RankFile, tracks: _Tracks, written: Merged) -> None:
    tracks.learn(own.trace)
    loaded = own.trace.load_all({table: ["start_ns", "end_ns", "pid", "tid"] for table in _TABLES})
    sizes = [loaded[table].height for table in _TABLES]
    frame = pl.concat([loaded.pop(table) for table in _TABLES])
    start, end = (own.clock.run_time(own.window, frame[name].to_numpy()) for name in ("start_ns", "end_ns"))
    end = np.maximum(start, end)
    table = np.repeat(np.arange(len(_TABLES)), sizes)
    row = np.concatenate([np.arange(size) for size in sizes])
    order = np.lexsort((row, table, -end, start))
    threads = frame.select(pl.col("pid", "tid").fill_null(_NO_ID))
    del frame
    # Threads as numbers, by the order of their keys; arrows on other threads have none.
    keys = threads.unique(maintain_order=True).with_row_index("track")
    track = (
        threads.join(keys, on=["pid", "tid"], how="left", maintain_order="left")["track"].to_numpy().astype(np.int64)
    )
    edges = _edges(own.trace, keys)
    times = own.clock.run_time(own.window, np.concatenate([edges["time_ns"].to_numpy(), edges["end_time"].to_numpy()]))
    places = np.concatenate([edges["track"].to_numpy(), edges["end_track"].to_numpy()]).astype(np.int64)
    lanes, slice_of = lanes_of(track[order], start[order], end[order], places, times)
    flows = _flows_of(edges, slice_of, written)
    threads_by_track = list(keys.select("pid", "tid").iter_rows())
    rows = [_Rows(own.trace, name) for name in _TABLES]
    columns = (order.tolist(), lanes, track[order].tolist(), table[order].tolist(), row[order].tolist())
    for number, (place, lane, which, of_table, of_row) in enumerate(zip(*columns, strict=True)):
        begin, name, category, phase, args = rows[of_table].get(of_row)
        pid, tid = threads_by_track[which]
        on = tracks.number(pid, tid, lane)
        span = int(start[place]), int(end[place])
        if phase in ("i", "I"):
            writer.instant(on, span[0], name, category, args)
            written.instants += 1
            continue
        match = own.matches.pop((own.window, begin, name), None)
        writer.slice(on, span, name, category, args, [*flows.get(number, ()), *([match] if match else ())])
        written.slices += 1


def _edges(trace: CachedTrace, keys: pl.DataFrame) -> pl.DataFrame:
    """The arrows of a file: each end with the start of its id.

    Returns:
        category, time_ns and track of the start, end_time and end_track of the end.
    """
    flows = trace.load("flows", ["time_ns", "category", "phase", "id", "pid", "tid"])
    on = flows.with_columns(pl.col("pid", "tid").fill_null(_NO_ID)).join(keys, on=["pid", "tid"], how="inner")
    starts = on.filter(pl.col("phase") == "s").unique(["category", "id"], keep="first", maintain_order=True)
    ends = on.filter(pl.col("phase") != "s").rename({"time_ns": "end_time", "track": "end_track"})
    return (
        ends.join(starts, on=["category", "id"], how="inner", nulls_equal=True)
        .select(pl.col("category").fill_null("flow"), "time_ns", "track", "end_time", "end_track")
        .sort("end_time")
    )


def _flows_of(edges: pl.DataFrame, slice_of: Sequence[int], written: Merged) -> dict[int, list[Flow]]:
    """The arrows by slice."""
    found: dict[int, list[Flow]] = {}
    size = edges.height
    for begins, ends, category in zip(slice_of[:size], slice_of[size:], edges["category"], strict=True):
        if begins < 0 or ends < 0 or begins == ends:
            written.unbound += 1
            continue
        number = written.next_arrow()
        found.setdefault(begins, []).append((number, "s", category))
        found.setdefault(ends, []).append((number, "f", category))
        written.arrows += 1
    return found


# -- across ranks ---------------------------------------------------------------------------------------------------


def _matches(run: Run, clock: RunClock, written: Merged) -> dict[int, Matches]:
    """The arrow of each collective that was matched, on each of its ranks."""
    rows = (
        run.analyze("collectives")["collectives"]
        .frame.filter(pl.col("match").is_not_null() & pl.col("start_ns").is_not_null() & (pl.col("source") != "launch"))
        .select("rank", "window", "match", "start_ns", "name")
    )
    if not rows.height:
        return {}
    times = np.empty(rows.height, dtype=np.int64)
    for (rank, window), part in rows.with_row_index("place").group_by("rank", "window"):
        place = part["place"].to_numpy()
        times[place] = clock.ranks[cast("int", rank)].run_time(cast("int", window), part["start_ns"].to_numpy())
    rows = rows.with_columns(time=times).sort("match", "time", "rank")
    rows = rows.filter(pl.len().over("match") > 1).with_columns(
        first=pl.int_range(pl.len()).over("match") == 0,
        last=pl.int_range(pl.len()).over("match") == pl.len().over("match") - 1,
    )
    found: dict[int, Matches] = {}
    match, number = None, 0
    for rank, window, this, start, name, _, first, last in rows.iter_rows():
        if this != match:
            match, number = this, written.next_arrow()
        phase: Any = "s" if first else "f" if last else "t"
        found.setdefault(rank, {})[window, start, name] = number, phase, "collective"
        written.collectives += not first
    return found


def _write_findings(writer: Writer, findings: Sequence[Finding], clock: RunClock, written: Merged) -> None:
    """A track with the findings, each where the event is that shows it best; those without one at the run's start."""
    placed = sorted(
        ((*_span(finding, clock), number, finding) for number, finding in enumerate(with_symptoms(findings))),
        key=lambda each: (each[0], -each[1], each[2]),
    )
    if not placed:
        return
    start, end = (np.array([each[at] for each in placed], dtype=np.int64) for at in (0, 1))
    none: Int64 = np.empty(0, dtype=np.int64)
    lanes, _ = lanes_of(np.zeros(start.size, dtype=np.int64), start, end, none, none)
    writer.process(_FINDINGS, "rankscope: findings")
    numbers = [written.next_track() for _ in range(max(lanes) + 1)]
    for number in numbers:
        writer.track(number, _FINDINGS, "findings", number)
    for lane, (begins, ends, _, finding) in zip(lanes, placed, strict=True):
        writer.slice(numbers[lane], (begins, ends), finding.title, finding.severity, list(_arguments(finding)), ())
        written.findings += 1


def _span(finding: Finding, clock: RunClock) -> tuple[int, int]:
    event = None if finding.anchor is None else event_of(finding.anchor, clock)
    return (0, 0) if event is None else (max(0, event["start_ns"]), max(0, event["start_ns"], event["end_ns"]))


def _arguments(finding: Finding) -> Iterator[tuple[str, Value]]:
    yield "id", finding.id
    if finding.ranks:
        yield "ranks", ", ".join(map(str, finding.ranks))
    if finding.steps:
        yield "steps", ", ".join(map(str, finding.steps))
    if finding.saving_ns is not None:
        yield "saving_ns per step, at most", finding.saving_ns
    for evidence in finding.evidence:
        yield f"{evidence.name} ({evidence.unit})" if evidence.unit else evidence.name, evidence.value
    if finding.advice:
        yield "advice", finding.advice
    if finding.because:
        yield "symptom", finding.because
