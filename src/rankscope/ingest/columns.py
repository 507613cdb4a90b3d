"""Decoded events to columns: one small frame per table and chunk, joined at the end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import polars as pl
from msgspec import Raw, Struct
from msgspec.json import Decoder

from rankscope.ingest import events as ev
from rankscope.ingest.chunks import Chunk, Losses
from rankscope.ingest.kinds import (
    ANNOTATION_2020,
    DEVICE_KINDS,
    DRIVER_CATEGORIES,
    MEMORY_NAME,
    PROFILER_STEP,
    table_of,
)
from rankscope.ingest.repair import repair
from rankscope.ingest.times import event_times
from rankscope.primitives.intervals import Int64
from rankscope.store.schema import TABLES, Table

S = TypeVar("S", bound=Struct)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_MEMO_LIMIT = 200_000
_INTEGER = re.compile(r"-?\d{1,20}")


class ColumnBuilder:
    """Takes chunks, gives tables.

    Attributes:
        counts: events seen, by phase and category as written.
        odd: counts of oddities that were read all the same (events without a duration, unfinished ranges, …).
    """

    def __init__(self, losses: Losses) -> None:
        self.counts: Counter[tuple[str | None, str | None]] = Counter()
        self.odd: Counter[str] = Counter()
        self._losses = losses
        self._frames: dict[str, list[pl.DataFrame]] = {name: [] for name in TABLES}
        self._text_tracks: dict[str, int] = {}
        self._json_memo: dict[bytes, str] = {}
        self._open: dict[tuple[object, object], list[tuple[ev.Event, int]]] = {}

    def add(self, chunk: Chunk) -> None:
        """Put a chunk's events into columns."""
        events = chunk.events
        start, duration = event_times(chunk)
        groups: dict[tuple[str | None, str | None], list[int]] = {}
        for index, event in enumerate(events):
            key = (event.ph, event.cat)
            group = groups.get(key)
            if group is None:
                groups[key] = [index]
            else:
                group.append(index)
        halves: list[int] = []
        for (phase, category), rows in groups.items():
            self.counts[phase, category] += len(rows)
            table = table_of(phase, category)
            if table == "half":
                halves += rows
                continue
            at = np.asarray(rows)
            since, spent = start[at], duration[at]
            absent = spent < 0
            if phase == "X" and absent.any():
                self.odd["events without a duration"] += int(absent.sum())
            chosen = events if len(rows) == len(events) else [events[row] for row in rows]
            self._add_group(table, category, chosen, since, since + np.where(absent, 0, spent))
        if halves:
            self._pair(events, sorted(halves), start)

    def finish(self) -> dict[str, pl.DataFrame]:
        """The tables, sorted by start, with every column of the schema; links and nesting are still to be made."""
        for opened in self._open.values():
            if opened:
                self.odd["ranges that begin and never end"] += len(opened)
                for event, instant in opened:
                    self._add_pairs([(event, instant, instant)])
        for text, number in self._text_tracks.items():
            self.append("tracks", {"pid": [number], "tid": [number], "field": ["text"], "value": [text]})
        tables: dict[str, pl.DataFrame] = {}
        moved: dict[str, Int64] = {}
        for name, table in TABLES.items():
            frames = self._frames[name]
            frame = conform(pl.concat(frames, how="diagonal") if frames else table.empty(), table)
            frames.clear()
            tables[name], moved[name] = _sorted(frame)
        tables["collectives"] = _with_rows(tables["collectives"], moved)
        return tables

    # -- groups -------------------------------------------------------------------------------------------------

    def _add_group(self, table: str, category: str | None, events: list[ev.Event], start: Int64, end: Int64) -> None:
        if table == "operator_2020":
            named = [bool(ANNOTATION_2020.match(event.name or "")) for event in events]
            self._split(named, ("annotations", "host_ops"), category, events, start, end)
        elif table == "instant":
            memory = [event.name == MEMORY_NAME for event in events]
            self._split(memory, ("memory_events", "other_events"), category, events, start, end)
        else:
            _GROUPS[table](self, category, events, start, end)

    def _split(
        self,
        chosen: list[bool],
        tables: tuple[str, str],
        category: str | None,
        events: list[ev.Event],
        start: Int64,
        end: Int64,
    ) -> None:
        mask = np.asarray(chosen)
        for table, rows in zip(tables, (np.flatnonzero(mask), np.flatnonzero(~mask)), strict=True):
            if rows.size:
                _GROUPS[table](self, category, [events[row] for row in rows], start[rows], end[rows])

    def _pair(self, events: list[ev.Event], rows: list[int], start: Int64) -> None:
        """Begin and end events become ranges: the innermost open one of the thread ends."""
        pairs: list[tuple[ev.Event, int, int]] = []
        for row in rows:
            event, instant = events[row], int(start[row])
            opened = self._open.setdefault((event.pid, event.tid), [])
            if event.ph == "B":
                opened.append((event, instant))
            elif opened:
                begun, since = opened.pop()
                pairs.append((begun, since, max(instant, since)))
            else:
                self.odd["ends without a begin"] += 1
        if pairs:
            self._add_pairs(pairs)

    def _add_pairs(self, pairs: list[tuple[ev.Event, int, int]]) -> None:
        by_category: dict[str | None, list[tuple[ev.Event, int, int]]] = {}
        for pair in pairs:
            by_category.setdefault(pair[0].cat, []).append(pair)
        for category, group in by_category.items():
            events = [event for event, _, _ in group]
            start = np.array([since for _, since, _ in group], dtype=np.int64)
            end = np.array([until for _, _, until in group], dtype=np.int64)
            self._add_group(table_of("X", category), category, events, start, end)

    def rows_before_last(self, table: str) -> int:
        """How many rows a table had before the frame that was appended last."""
        return sum(frame.height for frame in self._frames[table][:-1])

    # -- columns ------------------------------------------------------------------------------------------------

    def append(self, table: str, columns: dict[str, Any]) -> None:
        """Put a frame of some of a table's columns behind what the table has."""
        schema = TABLES[table].schema
        self._frames[table].append(
            pl.DataFrame([self._series(name, values, schema[name]) for name, values in columns.items()])
        )

    def _series(self, name: str, values: Any, dtype: pl.DataType) -> pl.Series:
        if isinstance(values, np.ndarray | pl.Series):
            series: pl.Series = pl.Series(name, values).cast(dtype)
            return series
        try:
            return pl.Series(name, values, dtype=dtype)
        except (OverflowError, TypeError, pl.exceptions.PolarsError):
            self.odd[f"values of {name} that do not fit"] += 1
            return pl.Series(name, [_fitting(value, dtype) for value in values], dtype=dtype)

    def tracks(self, values: list[ev.Number]) -> Int64 | list[int | None]:
        """Process or thread ids as integers; texts get negative ones of their own, told in `tracks`."""
        try:
            return np.array(values, dtype=np.int64)
        except (TypeError, ValueError, OverflowError):
            return [self._track(value) for value in values]

    def _track(self, value: ev.Number) -> int | None:
        if value is None:
            return None
        if isinstance(value, str):
            if not _INTEGER.fullmatch(value):
                return self._text_tracks.setdefault(value, -1 - len(self._text_tracks))
            value = int(value)
        if abs(value) < 2**63:  # not NaN, which JSON has not, nor beyond int64
            return int(value)
        return self._text_tracks.setdefault(str(value), -1 - len(self._text_tracks))

    def json(self, values: Sequence[Raw]) -> list[str | None]:
        """Raw JSON as compact text; a JSON string as its content; null where there is none."""
        memo = self._json_memo
        if len(memo) > _MEMO_LIMIT:
            memo.clear()
        out: list[str | None] = []
        for raw in values:
            key = bytes(raw)
            if not key:
                out.append(None)
                continue
            text = memo.get(key)
            if text is None:
                text = memo[key] = _compact(key)
            out.append(text)
        return out

    def args(self, decoder: Decoder[list[S]], kind: type[S], events: list[ev.Event]) -> list[S]:
        """The arguments of events of one kind, decoded together; one by one where some are odd."""
        text = b"[" + b",".join([event.args for event in events]) + b"]"
        try:
            return decoder.decode(text)
        except _UNREADABLE:
            return [self._odd_args(kind, bytes(event.args)) for event in events]

    def _odd_args(self, kind: type[S], text: bytes) -> S:
        for candidate in (text, repair(text)):
            if candidate is None:
                continue
            try:
                found = msgspec.json.decode(candidate)
            except _UNREADABLE:
                continue
            if not isinstance(found, dict):
                break
            try:
                return msgspec.json.decode(candidate, type=kind, strict=False)
            except _UNREADABLE:
                pass
            # Some argument is of another type than any producer writes: keep the ones that are as expected.
            good = {}
            for key, value in found.items():
                single = msgspec.json.encode({key: value})
                try:
                    msgspec.json.decode(single, type=kind, strict=False)
                except _UNREADABLE:
                    self.odd["arguments of an unexpected type"] += 1
                else:
                    good[key] = value
            return msgspec.json.decode(msgspec.json.encode(good), type=kind, strict=False)
        if text != b"null":
            self.odd["arguments that cannot be read"] += 1
        return kind()


Group = Callable[[ColumnBuilder, "str | None", list[ev.Event], Int64, Int64], None]


def _place(builder: ColumnBuilder, events: list[ev.Event]) -> dict[str, Any]:
    return {
        "pid": builder.tracks([event.pid for event in events]),
        "tid": builder.tracks([event.tid for event in events]),
    }


def _span(builder: ColumnBuilder, events: list[ev.Event], start: Int64, end: Int64) -> dict[str, Any]:
    names = [event.name for event in events]
    return {"start_ns": start, "end_ns": end, "name": names, **_place(builder, events)}


def _device(b: ColumnBuilder, category: str | None, events: list[ev.Event], start: Int64, end: Int64) -> None:
    args = b.args(_DEVICE, ev.DeviceArgs, events)
    columns = _span(b, events, start, end)
    kind = DEVICE_KINDS.get((category or "").lower(), "kernel")
    external = [a.external_id if a.external_id is not None else a.external_id_2020 for a in args]
    b.append(
        "device_events",
        columns
        | {
            "kind": pl.Series([kind], dtype=pl.String).new_from_index(0, len(events)),
            "device": [a.device for a in args],
            "context": b.json([a.context for a in args]),
            "stream": [a.stream for a in args],
            "correlation": [a.correlation for a in args],
            "external_id": external,
            "graph_id": [a.graph_id for a in args],
            "graph_node_id": [a.graph_node_id for a in args],
            "grid": b.json([a.grid for a in args]),
            "block": b.json([a.block for a in args]),
            "registers": [a.registers for a in args],
            "shared_memory": [a.shared_memory for a in args],
            "blocks_per_sm": [a.blocks_per_sm for a in args],
            "warps_per_sm": [a.warps_per_sm for a in args],
            "occupancy": [a.occupancy for a in args],
            "queued": [a.queued for a in args],
            "bytes": [a.bytes for a in args],
            "is_collective": [a.collective is not None for a in args],
        },
    )
    rows = [row for row, a in enumerate(args) if a.collective is not None]
    if rows:
        _collectives(b, "device_events", [events[row] for row in rows], rows)


def _collectives(b: ColumnBuilder, source: str, events: list[ev.Event], rows: list[int]) -> None:
    """Collective metadata of events just appended to their own table, as its rows `rows` of the last frame."""
    args = b.args(_COLLECTIVE, ev.CollectiveArgs, events)
    groups = [a.group_name if a.group_name is not None else a.group_id for a in args]
    b.append(
        "collectives",
        {
            "source": [source] * len(events),
            "row": np.asarray(rows) + b.rows_before_last(source),
            "external_id": [a.external_id for a in args],
            "collective": [a.collective for a in args],
            "dtype": [a.dtype for a in args],
            "in_elements": [a.in_elements for a in args],
            "out_elements": [a.out_elements for a in args],
            "in_split": b.json([a.in_split for a in args]),
            "out_split": b.json([a.out_split for a in args]),
            "group_name": [None if group is None else str(group) for group in groups],
            "group_description": [a.group_description for a in args],
            "group_ranks": b.json([a.group_ranks for a in args]),
            "group_size": [a.group_size for a in args],
            "group_rank": [a.group_rank for a in args],
            "sequence": [a.sequence for a in args],
            "source_rank": [a.source_rank for a in args],
            "destination_rank": [a.destination_rank for a in args],
        },
    )


def _operators(b: ColumnBuilder, category: str | None, events: list[ev.Event], start: Int64, end: Int64) -> None:
    args = b.args(_OPERATOR, ev.OperatorArgs, events)
    b.append(
        "host_ops",
        _span(b, events, start, end)
        | {
            "external_id": [a.external_id for a in args],
            "sequence": [a.sequence for a in args],
            "forward_thread": [a.forward_thread for a in args],
            "record_function_id": [a.record_function_id for a in args],
            "input_dims": b.json([a.input_dims for a in args]),
            "input_types": b.json([a.input_types for a in args]),
            "input_strides": b.json([a.input_strides for a in args]),
            "concrete_inputs": b.json([a.concrete_inputs for a in args]),
            "call_stack": [a.call_stack for a in args],
            "module_hierarchy": [a.module_hierarchy for a in args],
            "kernel_name": [a.kernel_name for a in args],
            "kernel_backend": [a.kernel_backend for a in args],
            "kernel_file": [a.kernel_file for a in args],
            "kernel_hash": [a.kernel_hash for a in args],
            "kernel_kwargs": [a.kernel_kwargs for a in args],
        },
    )
    rows = [row for row, event in enumerate(events) if event.name == "record_param_comms"]
    if rows:
        _collectives(b, "host_ops", [events[row] for row in rows], rows)


def _runtime(b: ColumnBuilder, category: str | None, events: list[ev.Event], start: Int64, end: Int64) -> None:
    args = b.args(_RUNTIME, ev.RuntimeArgs, events)
    driver = (category or "").lower() in DRIVER_CATEGORIES
    b.append(
        "runtime_calls",
        _span(b, events, start, end)
        | {
            "correlation": [a.correlation for a in args],
            "external_id": [a.external_id if a.external_id is not None else a.external_id_2020 for a in args],
            "driver": [driver] * len(events),
            "cbid": [a.cbid for a in args],
            "bytes": [a.bytes if a.bytes is not None else a.size for a in args],
            "stream": b.tracks([a.stream for a in args]),
            "kind": [None if a.kind is None else str(a.kind) for a in args],
            "kernel": [a.kernel for a in args],
        },
    )


def _frames(b: ColumnBuilder, category: str | None, events: list[ev.Event], start: Int64, end: Int64) -> None:
    args = b.args(_FRAME, ev.FrameArgs, events)
    b.append(
        "python_frames",
        _span(b, events, start, end)
        | {
            "python_id": [a.python_id for a in args],
            "python_parent_id": [a.python_parent_id for a in args],
            "python_module_id": [a.python_module_id for a in args],
            "python_thread": [a.python_thread for a in args],
            "finished": [a.finished for a in args],
        },
    )


def _annotations(b: ColumnBuilder, category: str | None, events: list[ev.Event], start: Int64, end: Int64) -> None:
    args = b.args(_ANNOTATION, ev.AnnotationArgs, events)
    on_device = (category or "").lower().startswith("gpu_")
    steps = [None if on_device else PROFILER_STEP.match(event.name or "") for event in events]
    b.append(
        "annotations",
        _span(b, events, start, end)
        | {
            "on_device": [on_device] * len(events),
            "step": [None if step is None else int(step.group(1)) for step in steps],
            "external_id": [a.external_id for a in args],
            "input_dims": b.json([a.input_dims for a in args]),
            "input_types": b.json([a.input_types for a in args]),
            "concrete_inputs": b.json([a.concrete_inputs for a in args]),
        },
    )


def _memory(b: ColumnBuilder, category: str | None, events: list[ev.Event], start: Int64, end: Int64) -> None:
    args = b.args(_MEMORY, ev.MemoryArgs, events)
    b.append(
        "memory_events",
        {
            "time_ns": start,
            **_place(b, events),
            "address": [a.address for a in args],
            "bytes": [a.bytes for a in args],
            "device_type": [a.device_type for a in args],
            "device": [a.device for a in args],
            "total_allocated": [a.total_allocated for a in args],
            "total_reserved": [a.total_reserved for a in args],
        },
    )


def _counters(b: ColumnBuilder, category: str | None, events: list[ev.Event], start: Int64, end: Int64) -> None:
    names = [event.name for event in events]
    values = b.json([event.args for event in events])
    b.append("counters", {"time_ns": start, "name": names, **_place(b, events), "values": values})


def _flows(b: ColumnBuilder, category: str | None, events: list[ev.Event], start: Int64, end: Int64) -> None:
    b.append(
        "flows",
        {
            "time_ns": start,
            "category": [event.cat for event in events],
            "phase": [event.ph for event in events],
            "id": b.tracks([event.id for event in events]),
            **_place(b, events),
        },
    )


def _tracks(b: ColumnBuilder, category: str | None, events: list[ev.Event], start: Int64, end: Int64) -> None:
    args = b.args(_TRACK, ev.TrackArgs, events)
    values = [next((v for v in (a.name, a.labels, a.sort_index) if v is not None), None) for a in args]
    b.append(
        "tracks",
        {
            **_place(b, events),
            "field": [event.name for event in events],
            "value": [None if value is None else str(value) for value in values],
        },
    )


def _other(b: ColumnBuilder, category: str | None, events: list[ev.Event], start: Int64, end: Int64) -> None:
    args = b.json([event.args for event in events])
    b.append(
        "other_events",
        _span(b, events, start, end)
        | {
            "phase": [event.ph for event in events],
            "category": [event.cat for event in events],
            "id": b.tracks([event.id for event in events]),
            "args": [None if text == "{}" else text for text in args],
        },
    )


_DEVICE = Decoder(list[ev.DeviceArgs], strict=False)
_COLLECTIVE = Decoder(list[ev.CollectiveArgs], strict=False)
_OPERATOR = Decoder(list[ev.OperatorArgs], strict=False)
_RUNTIME = Decoder(list[ev.RuntimeArgs], strict=False)
_FRAME = Decoder(list[ev.FrameArgs], strict=False)
_ANNOTATION = Decoder(list[ev.AnnotationArgs], strict=False)
_MEMORY = Decoder(list[ev.MemoryArgs], strict=False)
_TRACK = Decoder(list[ev.TrackArgs], strict=False)

_GROUPS: dict[str, Group] = {
    "device_events": _device,
    "host_ops": _operators,
    "runtime_calls": _runtime,
    "python_frames": _frames,
    "annotations": _annotations,
    "memory_events": _memory,
    "counters": _counters,
    "flows": _flows,
    "tracks": _tracks,
    "other_events": _other,
}


def conform(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """The frame with exactly the table's columns, in order; those that no event had are null."""
    return frame.select(
        pl.col(column.name).cast(column.dtype)
        if column.name in frame.columns
        else pl.lit(None, column.dtype).alias(column.name)
        for column in table.columns
    )


def _sorted(frame: pl.DataFrame) -> tuple[pl.DataFrame, Int64]:
    """Rows by start, longest first; and where each row went."""
    if "start_ns" in frame.columns:
        order = np.lexsort((-frame["end_ns"].to_numpy(), frame["start_ns"].to_numpy()))
    elif "time_ns" in frame.columns:
        order = np.argsort(frame["time_ns"].to_numpy(), kind="stable")
    else:
        return frame, np.arange(frame.height)
    moved = np.empty(frame.height, dtype=np.int64)
    moved[order] = np.arange(frame.height)
    return frame[order], moved


def _with_rows(collectives: pl.DataFrame, moved: dict[str, Int64]) -> pl.DataFrame:
    """Point collectives at where their events' rows went."""
    rows = collectives["row"].to_numpy().copy()
    sources = collectives["source"]
    for source in ("device_events", "host_ops"):
        mask = (sources == source).to_numpy()
        rows[mask] = moved[source][rows[mask]]
    return collectives.with_columns(pl.Series("row", rows, dtype=pl.Int32)).sort("source", "row")


def _fitting(value: Any, dtype: pl.DataType) -> Any:
    if dtype == pl.String:
        return None if value is None else str(value)
    if isinstance(value, int | float) and value == value and abs(value) < 2 ** (31 if dtype == pl.Int32 else 63):
        return value
    return None


def _compact(text: bytes) -> str:
    try:
        value = msgspec.json.decode(text)
    except _UNREADABLE:
        return text.decode("utf-8", "replace")
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
