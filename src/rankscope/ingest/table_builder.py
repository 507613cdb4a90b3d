"""Turn decoded events into rows of tables.

In: chunks of events. Out: one small frame per table and chunk, appended to the spool; counts and oddities.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import numpy as np
import polars as pl
from msgspec import Raw, Struct
from msgspec.json import Decoder

from rankscope.ingest import event_types as ev
from rankscope.ingest.categories import categorized, known_processes
from rankscope.ingest.chunks import Chunk
from rankscope.ingest.event_columns import DecodedEvents, Events, is_absent
from rankscope.ingest.event_types import ANNOTATION_2020, MEMORY_NAME, PROFILER_STEP, PYTHON_GC, table_of
from rankscope.ingest.native import ARROW, INSTANT, MEMORY, OTHER, RANGE, Piece
from rankscope.ingest.native_columns import NativeEvents, NativePiece
from rankscope.ingest.salvage import UNREADABLE, Losses, text_then_repaired
from rankscope.ingest.table_columns import GROUPS
from rankscope.ingest.timestamps import FAR_NS, NO_TIME, event_times, median_start
from rankscope.primitives.columns import constant
from rankscope.primitives.intervals import Int64
from rankscope.store import account
from rankscope.store.schema import TABLES
from rankscope.store.spool import Spool

_MEMO_LIMIT = 200_000
_SEPARATOR = b"\0"
_INTEGER = re.compile(r"-?\d{1,20}")
# Longer texts (names, stacks) are cut: every analysis would copy and compare them.
_MAX_TEXT = 1 << 16
# Sizes beyond 4 PB are damage: the sum of a few would not fit into 64 bits.
_MAX_AMOUNT = 1 << 52
_AMOUNTS = {
    name: {column.name for column in table.columns if column.unit in ("bytes", "elements", "ranks")}
    for name, table in TABLES.items()
}

# Results of `table_of` that are not tables: the table of events whose name fits, and that of the others.
_SPLIT: dict[str, tuple[Callable[[str], bool], tuple[str, str]]] = {
    "host_ops": (lambda name: PROFILER_STEP.match(name) is not None, ("annotations", "host_ops")),
    "operator_2020": (lambda name: ANNOTATION_2020.match(name) is not None, ("annotations", "host_ops")),
    "python_frames": (PYTHON_GC.__eq__, ("collections", "python_frames")),
    "instant": (MEMORY_NAME.__eq__, ("memory_events", "other_events")),
}
_TABLE_OF_KIND = {ARROW: "flows", OTHER: "other_events", INSTANT: "other_events", MEMORY: "memory_events"}


class TableBuilder:
    """Takes chunks and appends their rows to a spool.

    Attributes:
        counts: events seen, by phase and category as written; of known processes, as `categories` has it.
        odd: counts of oddities that did not prevent reading (unfinished ranges, values that do not fit, …).
        no_time: events that are in no table, as their time is not known, by phase and category.
        no_duration: ranges that end when they begin, as their duration is not known.
        unpaired_ends: ends of ranges that do not begin.
    """

    def __init__(self, losses: Losses, spool: Spool) -> None:
        self.counts: Counter[tuple[str | None, str | None]] = Counter()
        self.odd: Counter[str] = Counter()
        self.no_time: Counter[tuple[str | None, str | None]] = Counter()
        self.no_duration = self.unpaired_ends = 0
        self._losses = losses
        self._spool = spool
        self._rows_before: dict[str, int] = {}
        self._text_tracks: dict[str, int] = {}
        self._compacted = _Compacted()
        self._median: int | None = None
        self._open: dict[tuple[object, object], list[tuple[ev.Event, int]]] = {}

    def add(self, chunk: Chunk) -> None:
        """Append a chunk's events to their tables."""
        if chunk.piece is not None:
            if not self._add_piece(chunk.piece):
                self.add(chunk.decoded())
            return
        events = chunk.events
        groups = _grouped(events)
        start, duration = event_times(chunk)
        self._clear_far_starts(start, groups)
        tables: dict[tuple[str, str | None], list[Int64]] = {}
        for (phase, category), rows in groups.items():
            self.counts[phase, category] += rows.size
            table = table_of(phase, category)
            at = rows
            if table != "tracks" and (timeless := start[at] == NO_TIME).any():
                # Its time is not known, and time zero would extend every span.
                lost = (events[row].args for row in at[timeless])
                size = sum(len(args) for args in lost if isinstance(args, Raw))
                self._losses.lose(size, f"events {account.NO_TIME}", int(timeless.sum()))
                self.no_time[phase, category] += int(timeless.sum())
                at = at[~timeless]
            if phase == "X" and (absent := duration[at] < 0).any():
                self.no_duration += int(absent.sum())
            # These tables have columns for phase and category, so their groups are added together.
            in_columns = table in ("other_events", "flows", "tracks", "counters", "half")
            tables.setdefault((table, None if in_columns else category), []).append(at)
        for (table, category), parts in tables.items():
            at = parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))
            if not at.size:
                continue
            chosen = events if at.size == len(events) else [events[row] for row in at.tolist()]
            if table == "half":
                self._pair(chosen, start[at])
                continue
            chosen_events = DecodedEvents(self, chosen)
            self._add_group(table, category, chosen_events, start[at], start[at] + np.maximum(duration[at], 0))

    def _add_piece(self, piece: Piece) -> bool:
        """Append what the compiled reader has read. False if an event's time is far from the others."""
        shared = NativePiece(piece, self, _MAX_TEXT)
        tables = [NativeEvents(shared, table) for table in piece.tables]
        times = [events.times() for events in tables]
        if self._median is None:
            ranges = [
                start for events, (start, _) in zip(tables, times, strict=True) if events.table.kind in (RANGE, OTHER)
            ]
            self._median = median_start(np.concatenate(ranges)) if ranges else None
        if self._median is not None and any((np.abs(start - self._median) > FAR_NS).any() for start, _ in times):
            return False
        for phase, category, count in piece.groups:
            self.counts[phase, category] += count
        for events, (start, duration) in zip(tables, times, strict=True):
            kind, category = events.table.kind, events.table.category
            if kind in (RANGE, OTHER) and (absent := duration < 0).any():
                self.no_duration += int(absent.sum())
            end = start + np.maximum(duration, 0)
            if kind == RANGE:
                self._add_group(table_of("X", category), category, events, start, end)
            else:
                GROUPS[_TABLE_OF_KIND[kind]](self, None, events, start, end)
        return True

    def _clear_far_starts(self, start: Int64, groups: dict[tuple[str | None, str | None], Int64]) -> None:
        """Set starts to `NO_TIME` that are far from those of the file's first ranges."""
        if self._median is None:
            ranges = [rows for (phase, _), rows in groups.items() if phase == "X"]
            self._median = median_start(start[np.concatenate(ranges)]) if ranges else None
        if self._median is not None:
            start[np.abs(start - self._median) > FAR_NS] = NO_TIME

    def finish(self) -> None:
        """After the last chunk: add the ranges that are still open."""
        for opened in self._open.values():
            if opened:
                self.no_duration += len(opened)
                for event, instant in opened:
                    self._add_pairs([(event, instant, instant)])
        if self._text_tracks:
            texts, numbers = list(self._text_tracks), list(self._text_tracks.values())
            self.append("tracks", {"pid": numbers, "tid": numbers, "field": ["text"] * len(texts), "value": texts})
        self._spool.finish()
        if self.counts["X", None] and (processes := self._known_processes()):
            self._categorize(processes)
            self._spool.finish()

    def _known_processes(self) -> dict[int, str]:
        """The processes whose events without a category have one by the process."""
        tracks = self._spool.columns("tracks", ["pid", "field", "value"])
        named = tracks.filter(pl.col("field").is_in(["process_name", "text"])).drop_nulls()
        return known_processes(dict(zip(named["pid"].to_list(), named["value"].to_list(), strict=True)))

    def _categorize(self, processes: dict[int, str]) -> None:
        """Move the events of known processes that have no category to the tables of the category that they have."""
        without = (
            (pl.col("phase") == "X") & pl.col("category").is_null() & pl.col("pid").is_in(list(processes))
        ).fill_null(False)
        for rows in self._spool.take("other_events"):
            self._spool.append("other_events", rows.filter(~without))
            chosen = rows.filter(without)
            events: dict[str | None, list[tuple[ev.Event, int, int]]] = {}
            for name, pid, tid, args, start, end in chosen.select(
                "name", "pid", "tid", "args", "start_ns", "end_ns"
            ).iter_rows():
                event = ev.Event("X", None, name, pid=pid, tid=tid, args=Raw((args or "{}").encode()))
                event = categorized(event, processes[pid])
                events.setdefault(event.cat, []).append((event, start, end))
            for category, found in events.items():
                self.counts["X", None] -= len(found)
                self.counts["X", category] += len(found)
                self._add_timed(category, found)
        self.counts = +self.counts

    # -- groups -------------------------------------------------------------------------------------------------

    def _add_group(self, table: str, category: str | None, events: Events, start: Int64, end: Int64) -> None:
        split = _SPLIT.get(table)
        if split is None:
            GROUPS[table](self, category, events, start, end)
            return
        belongs, tables = split
        mask = np.asarray(events.by_name(belongs, pl.Boolean()))
        for name, rows in zip(tables, (np.flatnonzero(mask), np.flatnonzero(~mask)), strict=True):
            if rows.size:
                GROUPS[name](self, category, events.take(rows), start[rows], end[rows])

    def _pair(self, events: list[ev.Event], start: Int64) -> None:
        """Turn begin and end events into ranges: an end closes the innermost open range of its thread."""
        pairs: list[tuple[ev.Event, int, int]] = []
        for event, instant in zip(events, start.tolist(), strict=True):
            opened = self._open.setdefault((event.pid, event.tid), [])
            if event.ph == "B":
                # A view of its arguments would keep the chunk's complete text in memory.
                event.args = event.args.copy()
                opened.append((event, instant))
            elif opened:
                begun, since = opened.pop()
                pairs.append((begun, since, max(instant, since)))
            else:
                self.unpaired_ends += 1
        if pairs:
            self._add_pairs(pairs)

    def _add_pairs(self, pairs: list[tuple[ev.Event, int, int]]) -> None:
        by_category: dict[str | None, list[tuple[ev.Event, int, int]]] = {}
        for pair in pairs:
            by_category.setdefault(pair[0].cat, []).append(pair)
        for category, group in by_category.items():
            self._add_timed(category, group)

    def _add_timed(self, category: str | None, group: list[tuple[ev.Event, int, int]]) -> None:
        """Append ranges of a category: events with their starts and ends."""
        events = [event for event, _, _ in group]
        start = np.array([since for _, since, _ in group], dtype=np.int64)
        end = np.array([until for _, _, until in group], dtype=np.int64)
        self._add_group(table_of("X", category), category, DecodedEvents(self, events), start, end)

    @property
    def named_tracks(self) -> int:
        """Rows of `tracks` that are no events: names of processes and threads that are not numbers."""
        return len(self._text_tracks)

    def rows_before_last(self, table: str) -> int:
        """How many rows a table had before its last frame."""
        return self._rows_before[table]

    # -- columns ------------------------------------------------------------------------------------------------

    def append(self, table: str, columns: dict[str, Any]) -> None:
        """Append a frame with some of a table's columns to the table; None is a column of nulls."""
        schema = TABLES[table].schema
        given = {name: values for name, values in columns.items() if not is_absent(values)}
        if "name" in columns:  # so that no analysis has to handle events without a name
            given.setdefault("name", constant("", "", pl.String(), len(columns["name"])))
        if not given:  # the frame still needs its number of rows
            given = dict([next(iter(columns.items()))])
        amounts = _AMOUNTS[table]
        series = [self._series(name, values, schema[name]) for name, values in given.items()]
        frame = pl.DataFrame([self._drop_oversized(s) if s.name in amounts else s for s in series])
        self._rows_before[table] = self._spool.rows(table)
        self._spool.append(table, frame)

    def _series(self, name: str, values: Any, dtype: pl.DataType) -> pl.Series:
        if isinstance(values, np.ndarray | pl.Series):
            series: pl.Series = values.alias(name) if isinstance(values, pl.Series) else pl.Series(name, values)
            return series if series.dtype == dtype else series.cast(dtype)
        try:
            series = pl.Series(name, values, dtype=dtype)
        except (OverflowError, TypeError, pl.exceptions.PolarsError):
            self.odd[f"values of {name} that do not fit"] += 1
            series = pl.Series(name, [_fitting(value, dtype) for value in values], dtype=dtype)
        return self.bounded(series)

    def bounded(self, series: pl.Series) -> pl.Series:
        """The values with long texts cut, NaN and infinity as null, and null names as empty."""
        if series.dtype == pl.String:
            if series.name == "name" and series.null_count():
                series = series.fill_null("")
            # A column without a long text is mostly as short: its size is known, and counting takes a query.
            if series.estimated_size() > _MAX_TEXT and (series.str.len_bytes() > _MAX_TEXT).any():
                self.odd["texts that were cut after 65,536 characters"] += int(
                    (series.str.len_chars() > _MAX_TEXT).sum()
                )
                series = series.str.head(_MAX_TEXT)
        # A sum is finite only if all are; asking each takes a query.
        elif series.dtype.is_float() and not math.isfinite(series.sum()) and (invalid := ~series.is_finite()).any():
            self.odd[f"values of {series.name} that are not numbers"] += int(invalid.sum())
            series = series.set(invalid, None)
        return series

    def _drop_oversized(self, series: pl.Series) -> pl.Series:
        least, most = cast("int", series.min() or 0), cast("int", series.max() or 0)
        if least >= -_MAX_AMOUNT and most <= _MAX_AMOUNT:
            return series
        if (oversized := series.abs() > _MAX_AMOUNT).any():
            self.odd[f"values of {series.name} that are too large"] += int(oversized.sum())
            series = series.set(oversized, None)
        return series

    def tracks(self, values: list[ev.Number]) -> pl.Series | list[int | None]:
        """Process or thread ids as integers; texts get negative numbers, which are listed in `tracks`."""
        if isinstance(values[0], int):
            try:
                found: pl.Series = pl.Series(values, dtype=pl.Int64)
                return found
            except (TypeError, OverflowError):
                pass  # not all are integers
        known = {value: self.track(value) for value in dict.fromkeys(values)}
        return list(map(known.__getitem__, values))

    def track(self, value: ev.Number) -> int | None:
        """A process or thread id as an integer."""
        if value is None:
            return None
        if isinstance(value, str):
            if not _INTEGER.fullmatch(value):
                return self._text_tracks.setdefault(value, -1 - len(self._text_tracks))
            value = int(value)
        if abs(value) < 2**63 and value == int(value):
            return int(value)
        return self._text_tracks.setdefault(str(value), -1 - len(self._text_tracks))

    def json(self, values: Sequence[Raw]) -> pl.Series | None:
        """Raw JSON as compact text; a JSON string as its content; null where there is none.

        JSON cannot contain the separator, so all values are split at once, and each distinct one is compacted once.
        """
        if not values or (values[0] is values[-1] and not values[0] and values.count(values[0]) == len(values)):
            return None  # the default, which all share
        joined = _SEPARATOR.join(values)
        if len(joined) == len(values) - 1:
            return None  # all are empty
        texts = joined.decode("utf-8", "replace").split(_SEPARATOR.decode())
        return pl.Series(self.compact(texts), dtype=pl.String)

    def compact(self, texts: list[str]) -> list[str | None]:
        """JSON values as compact text; None for an empty text."""
        if len(self._compacted) > _MEMO_LIMIT:
            self._compacted.clear()
        return list(map(self._compacted.__getitem__, texts))

    def args(self, decoder: Decoder[list[Any]], kind: type[Struct], events: list[ev.Event]) -> list[Any]:
        """The arguments of events of one kind, decoded together; separately if some are invalid."""
        if isinstance(events[0], ev.StructEvent):
            return [event.args for event in events]
        text = b"[" + b",".join([event.args for event in events]) + b"]"
        try:
            return decoder.decode(text)
        except UNREADABLE:
            return [self._invalid_args(kind, bytes(event.args)) for event in events]

    def _invalid_args(self, kind: type[Struct], text: bytes) -> Any:
        for candidate in text_then_repaired(text):
            try:
                fields = msgspec.json.decode(candidate)
            except UNREADABLE:
                continue
            if not isinstance(fields, dict):
                break
            try:
                return msgspec.json.decode(candidate, type=kind, strict=False)
            except UNREADABLE:
                pass
            # Some argument has an unexpected type: keep the others.
            good = {}
            for key, value in fields.items():
                try:
                    msgspec.json.decode(msgspec.json.encode({key: value}), type=kind, strict=False)
                except (*UNREADABLE, OverflowError, ValueError):
                    self.odd["arguments of an unexpected type"] += 1
                else:
                    good[key] = value
            return msgspec.json.decode(msgspec.json.encode(good), type=kind, strict=False)
        if text != b"null":
            self.odd["arguments that cannot be read"] += 1
        return kind()


def _grouped(events: list[ev.Event]) -> dict[tuple[str | None, str | None], Int64]:
    """The rows of the events of each phase and category, by first appearance of its category, then of its phase."""
    rows: dict[tuple[str | None, str | None], list[int]] = {}
    for row, event in enumerate(events):
        key = event.ph, event.cat
        if key in rows:
            rows[key].append(row)
        else:
            rows[key] = [row]
    phases = dict.fromkeys(phase for phase, _ in rows)
    keys = ((phase, category) for category in dict.fromkeys(category for _, category in rows) for phase in phases)
    return {key: np.array(rows[key], dtype=np.int64) for key in keys if key in rows}


class _Compacted(dict[str, str | None]):
    """Compact JSON by the JSON as it was written."""

    def __missing__(self, text: str) -> str | None:
        self[text] = compact = _compact(text) if text else None
        return compact


def _fitting(value: Any, dtype: pl.DataType) -> Any:
    if dtype == pl.String:
        return None if value is None else str(value)
    if isinstance(value, int | float) and value == value and abs(value) < 2 ** (31 if dtype == pl.Int32 else 63):
        return value
    return None


def _compact(text: str) -> str:
    try:
        value = msgspec.json.decode(text)
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()
    except (*UNREADABLE, OverflowError, ValueError):
        return text
