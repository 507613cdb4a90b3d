"""Read a Kineto trace into tables.

In: a path or URL. Out: `KinetoTrace`: tables (or rows passed to a sink), metadata, counts and losses.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from rankscope.errors import NotATraceError
from rankscope.ingest.categories import timed, unknown_categories
from rankscope.ingest.chunks import CHUNK_BYTES, EventStream
from rankscope.ingest.event_types import LAUNCH_ARROWS
from rankscope.ingest.imported import Imported
from rankscope.ingest.links import linked_columns
from rankscope.ingest.recorded_calls import recorded_calls
from rankscope.ingest.salvage import Losses
from rankscope.ingest.source import open_trace
from rankscope.ingest.table_builder import TableBuilder
from rankscope.primitives.columns import values_and_validity
from rankscope.primitives.incomplete_steps import FileWork, StepContents
from rankscope.primitives.lost_device_events import launches_without_events
from rankscope.rundir.fields import count
from rankscope.rundir.metadata import METADATA_KEY, TraceMetadata
from rankscope.rundir.plurals import counted
from rankscope.store.account import DAMAGED, MEMORY, NO_TIME, SHAPES, STACKS, UNPAIRED_END, Account
from rankscope.store.schema import TABLES
from rankscope.store.spool import Spool, conform


@dataclass
class Extent:
    """The first and last step and instant of a trace's ranges, None if it has none; and events by host thread.

    Attributes:
        host: operators and Python frames by process and thread.
        marked: annotations, for a trace that has nothing else.
        rows: rows of each table that events became; those of `collectives` are of events that another table has.
        has_shapes: whether operators have the shapes of their inputs.
        unlaunched: device events whose launch is not in the file.
        launches: calls that launch kernels or graphs.
        lost_launches: those of them whose device event is not in the file.
        step_work: what the steps hold.
    """

    first_step: int | None = None
    last_step: int | None = None
    step_work: FileWork = field(default_factory=FileWork)
    start_ns: int | None = None
    end_ns: int | None = None
    host: Counter[tuple[int, int]] = field(default_factory=Counter)
    marked: Counter[tuple[int, int]] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    has_shapes: bool = False
    unlaunched: int = 0
    launches: int = 0
    lost_launches: int = 0

    def add(self, name: str, rows: pl.DataFrame) -> None:
        """Extend it by the rows of a table."""
        if name != "collectives":
            self.rows[name] += rows.height
        if name == "host_ops" and not self.has_shapes:
            self.has_shapes = rows["input_dims"].null_count() < rows.height
        if name == "device_events":
            self.unlaunched += rows["launch_ns"].null_count()
        if name not in _RANGE_TABLES or not rows.height:
            return
        self.start_ns = _least(self.start_ns, rows["start_ns"].min())
        self.end_ns = _greatest(self.end_ns, rows["end_ns"].max())
        if name == "annotations":
            self.first_step = _least(self.first_step, rows["step"].min())
            self.last_step = _greatest(self.last_step, rows["step"].max())
            rows = rows[np.flatnonzero(~rows["on_device"].to_numpy())]
        if name in _HOST_TABLES:
            counts = self.marked if name == "annotations" else self.host
            for pid, tid, number in _by_thread(rows):
                if pid >= 0 and tid >= 0:
                    counts[pid, tid] += number

    @property
    def recorded(self) -> tuple[str, ...]:
        """What the profiler was asked to record, and events have."""
        has = {STACKS: self.rows["python_frames"] > 0, SHAPES: self.has_shapes, MEMORY: self.rows["memory_events"] > 0}
        return tuple(kind for kind, is_there in has.items() if is_there)

    @property
    def pid(self) -> int | None:
        """The process of most host events."""
        processes: Counter[int] = Counter()
        for (pid, _), number in (self.host or self.marked).items():
            processes[pid] += number
        return max(processes, key=lambda pid: processes[pid], default=None)

    @property
    def threads(self) -> tuple[int, ...]:
        """The threads of this process with most events, in order."""
        counts = Counter({tid: n for (pid, tid), n in (self.host or self.marked).items() if pid == self.pid})
        return tuple(sorted(tid for tid, _ in counts.most_common(_MAX_THREADS)))


@dataclass
class KinetoTrace:
    """One trace, read.

    Attributes:
        path: the file.
        tables: its tables by name (`store.schema`); empty if a sink took the rows.
        metadata: the top-level keys other than the events.
        counts: events in the file by phase and category, as written.
        losses: what could not be read.
        odd: counts of oddities that did not prevent reading.
        account: what became of its events.
        json_bytes: size of the decompressed file.
        extent: its first and last step and instant.
        others: further traces in the same archive, which are not read.
    """

    path: str
    tables: dict[str, pl.DataFrame]
    metadata: dict[str, object] = field(default_factory=dict)
    counts: Counter[tuple[str | None, str | None]] = field(default_factory=Counter)
    losses: Losses = field(default_factory=Losses)
    odd: Counter[str] = field(default_factory=Counter)
    account: Account = field(default_factory=Account)
    json_bytes: int = 0
    extent: Extent = field(default_factory=Extent)
    others: int = 0


_RANGE_TABLES = ("device_events", "host_ops", "runtime_calls", "python_frames", "annotations")
_HOST_TABLES = ("host_ops", "python_frames", "annotations")
_MAX_THREADS = 32
Sink = Callable[[str, pl.DataFrame], None]
"""Takes the rows of each table in slices, in order, one table after the other."""


def read_kineto(
    path: str,
    *,
    chunk_bytes: int = CHUNK_BYTES,
    spool_folder: Callable[[], Path] | None = None,
    sink: Sink | None = None,
) -> KinetoTrace:
    """Read one trace.

    Args:
        chunk_bytes: how much is decoded at once.
        spool_folder: makes a directory for pending rows, so that memory does not grow with the file.
        sink: takes the rows; if None, they are in `KinetoTrace.tables`.

    Of a file that is cut or damaged, what can be read is returned; `KinetoTrace.losses` counts the rest.

    Raises:
        TraceError: the file cannot be opened.
        NotATraceError: it is something else, or nothing in it can be read.
    """
    with open_trace(path) as opened:
        trace = opened.trace
        stream = trace if isinstance(trace, Imported) else EventStream(trace.read, path, chunk_bytes)
        spool = Spool(spool_folder)
        builder = TableBuilder(stream.losses, spool)
        for chunk in stream:
            builder.add(chunk)
            del chunk  # else it stays in memory while the next one is decoded
        others = opened.count_unread()
        if error := opened.checksum_error():
            stream.losses.fail_checksum(error)
    builder.odd += stream.odd
    if builder.counts and not any(phase for phase, _ in builder.counts):
        raise NotATraceError(
            "JSON, but not a trace: an array of something other than events (none has a `ph`)",
            path=path,
            hint="rankscope reads the traces that torch.profiler exports",
        )
    if not builder.counts and (stream.losses.truncated or stream.losses.events):
        raise NotATraceError(
            f"none of its events can be read ({stream.losses.reason})",
            path=path,
            hint="the file is damaged; copy it again, or leave it out",
        )
    builder.finish()
    _refuse_merged(path, spool.columns("tracks", ["field", "value"]))
    kept: dict[str, list[pl.DataFrame]] = {name: [] for name in TABLES}
    metadata = _parse_nested(stream.metadata)
    launches = sorted({category for _, category in builder.counts if category and LAUNCH_ARROWS.match(category)})
    extent = _deliver(spool, sink or (lambda name, rows: kept[name].append(rows)), metadata, launches)
    tables = {} if sink else {name: pl.concat([TABLES[name].empty(), *frames]) for name, frames in kept.items()}
    return KinetoTrace(
        path=path,
        tables=tables,
        metadata=metadata,
        counts=builder.counts,
        losses=stream.losses,
        odd=builder.odd,
        account=_account(builder, stream.losses, extent),
        json_bytes=stream.bytes_read,
        extent=extent,
        others=others,
    )


def _account(builder: TableBuilder, losses: Losses, extent: Extent) -> Account:
    """What became of the events of a file."""
    with_time = builder.counts - builder.no_time
    unknown = unknown_categories(with_time)
    no_time = builder.no_time.total()
    damaged = losses.events - no_time
    rows = Counter(extent.rows)
    rows["other_events"] -= sum(unknown.values())
    rows["tracks"] -= builder.named_tracks
    ends = sum(number for (phase, _), number in with_time.items() if phase == "E")
    unread = {DAMAGED: damaged, NO_TIME: no_time, UNPAIRED_END: builder.unpaired_ends}
    return Account(
        events=builder.counts.total() + damaged,
        timed=timed(builder.counts) + damaged,
        tables=dict(+rows),
        ends=ends - builder.unpaired_ends,
        unread={reason: number for reason, number in unread.items() if number},
        unknown=unknown,
        no_duration=builder.no_duration,
        device_events=extent.rows["device_events"],
        unlaunched=extent.unlaunched,
        launches=extent.launches,
        lost_launches=extent.lost_launches,
    )


def _refuse_merged(path: str, tracks: pl.DataFrame) -> None:
    """Refuse a trace that was made from several ranks': read as one rank's, its numbers would be wrong."""
    names = tracks.filter(pl.col("field") == "process_name")["value"].drop_nulls()
    ranks = names.str.extract(r"^rank (\d{1,9})(?: \(.*\))?$").drop_nulls().unique()
    if ranks.len() > 1 or (ranks.len() and names.str.starts_with("rankscope: ").any()):
        raise NotATraceError(
            f"a trace of {counted(ranks.len(), 'rank')} for a viewer, as `rankscope export perfetto --merged` writes",
            path=path,
            hint="give the ranks' own traces instead",
        )


def _deliver(spool: Spool, sink: Sink, metadata: Mapping[str, object], launches: Sequence[str]) -> Extent:
    """Pass every table to the sink, with its links."""
    extent = Extent()
    of_ranges = ["start_ns", "end_ns", "name", "pid", "tid", "on_device", "step"]
    annotations = spool.columns("annotations", of_ranges)
    contents = StepContents(annotations)
    calls = TraceMetadata.from_json(metadata.get(METADATA_KEY)).collectives
    recorded = recorded_calls(annotations, calls, count(metadata.get("baseTimeNanoseconds")) or 0) if calls else None
    del annotations
    links = {name: linked_columns(spool, name, launches) for name in ("device_events", "collectives")}
    runtime_calls = spool.columns("runtime_calls", ["name", "correlation", "start_ns"])
    events = links["device_events"]
    launched = pl.Series([], dtype=pl.Int32) if events is None else events["launch_row"].drop_nulls()
    extent.launches, extent.lost_launches = launches_without_events(runtime_calls, launched.to_numpy())
    del runtime_calls
    for name in TABLES:
        linked = links.pop(name, None) if name in links else linked_columns(spool, name)
        start = 0
        for rows in spool.slices(name):
            part = rows if linked is None else _with_columns(rows, linked.slice(start, rows.height))
            start += rows.height
            _count_work(contents, name, part)
            extent.add(name, part)
            sink(name, part)
        if name == "collectives" and recorded is not None:
            sink(name, conform(recorded, TABLES[name]))
        spool.forget(name)
    extent.step_work = contents.work()
    return extent


def _count_work(contents: StepContents, name: str, rows: pl.DataFrame) -> None:
    """Count a table's operators and device events by step."""
    if name == "host_ops":
        rows, instants = rows.filter(rows["depth"] == 0), "start_ns"
    elif name == "device_events":
        rows, instants = rows.filter(rows["launch_ns"].is_not_null()), "launch_ns"
    else:
        return
    durations = (rows["end_ns"] - rows["start_ns"]).to_numpy()
    contents.add(rows[instants].to_numpy(), durations, rows["name"], on_device=name == "device_events")


def _with_columns(rows: pl.DataFrame, columns: pl.DataFrame) -> pl.DataFrame:
    """Rows, with some of their columns replaced. Faster than Polars' own, which plans a query."""
    return pl.DataFrame([(columns if name in columns.columns else rows).get_column(name) for name in rows.columns])


def _by_thread(rows: pl.DataFrame) -> Iterator[tuple[int, int, int]]:
    """Process, thread and number of rows, −1 for null; a thread may come more than once.

    A thread's rows mostly follow each other, so these runs are few.
    """
    pid, tid = (values_and_validity(rows[name], -1)[0] for name in ("pid", "tid"))
    changes = np.flatnonzero((pid[1:] != pid[:-1]) | (tid[1:] != tid[:-1])) + 1
    starts = np.append(np.zeros(min(pid.size, 1), dtype=np.int64), changes)
    sizes = np.diff(starts, append=pid.size)
    return zip(pid[starts].tolist(), tid[starts].tolist(), sizes.tolist(), strict=True)


def _least(one: int | None, other: object) -> int | None:
    return one if not isinstance(other, int) else other if one is None else min(one, other)


def _greatest(one: int | None, other: object) -> int | None:
    return one if not isinstance(other, int) else other if one is None else max(one, other)


def _parse_nested(metadata: dict[str, object]) -> dict[str, object]:
    """The metadata with objects parsed that were written as text (`str(list)`, JSON in a string)."""
    parsed = dict(metadata)
    for key in ("deviceProperties", "distributedInfo", "rankscope"):
        value = parsed.get(key)
        if isinstance(value, str):
            for text in (value, value.replace("'", '"')):
                try:
                    parsed[key] = json.loads(text)
                    break
                except (ValueError, RecursionError):
                    continue
    return parsed
