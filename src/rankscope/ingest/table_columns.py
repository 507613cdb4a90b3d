"""The columns of each table, from its events and their arguments.

`GROUPS` has one function per table: it takes events of one category and appends a frame with their columns.

In: decoded events of one category. Out: columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import polars as pl
from msgspec import Raw, Struct
from msgspec.json import Decoder

from rankscope.ingest import event_types as ev
from rankscope.ingest.event_types import DEVICE_KINDS, DRIVER_CATEGORIES, PROFILER_STEP
from rankscope.primitives.columns import constant
from rankscope.primitives.intervals import Int64

S = TypeVar("S", bound=Struct)


class Builder(Protocol):
    """Receives the columns, and converts unusual values in them (`table_builder.TableBuilder`)."""

    def append(self, table: str, columns: dict[str, Any]) -> None:
        """Append a frame with some of a table's columns to the table."""
        ...

    def rows_before_last(self, table: str) -> int:
        """How many rows a table had before its last frame."""
        ...

    def tracks(self, values: list[ev.Number]) -> pl.Series | list[int | None]:
        """Process or thread ids as integers."""
        ...

    def json(self, values: Sequence[Raw]) -> pl.Series | None:
        """Raw JSON as compact text; None if all values are absent."""
        ...

    def args(self, decoder: Decoder[list[S]], kind: type[S], events: list[ev.Event]) -> list[S]:
        """The arguments of events of one kind."""
        ...


Group = Callable[[Builder, "str | None", list[ev.Event], Int64, Int64], None]
"""Appends events of one category, with their starts and ends, to their table."""


def _repeated(value: object, dtype: pl.DataType, events: list[ev.Event]) -> pl.Series:
    """A column with the same value for all events."""
    return constant("", value, dtype, len(events))


def is_absent(values: object) -> bool:
    """Whether a column has no values. The check costs a twentieth of making the column."""
    if not isinstance(values, list):
        return values is None
    # Counting None is fast only if there is nothing else, so check the ends first.
    return not values or (values[0] is None and values[-1] is None and values.count(None) == len(values))


def _unless_empty(values: list[str | None]) -> list[str | None] | None:
    """The texts; None if all are empty."""
    return None if is_absent(values) or not any(values) else values


def _coalesced(values: list[int | None], others: list[int | None]) -> list[int | None]:
    """The values, with nulls replaced by the other values."""
    if is_absent(others):
        return values
    return [other if value is None else value for value, other in zip(values, others, strict=True)]


def _track_columns(builder: Builder, events: list[ev.Event]) -> dict[str, Any]:
    return {
        "pid": builder.tracks([event.pid for event in events]),
        "tid": builder.tracks([event.tid for event in events]),
    }


def _range_columns(builder: Builder, events: list[ev.Event], start: Int64, end: Int64) -> dict[str, Any]:
    names = [event.name for event in events]
    return {"start_ns": start, "end_ns": end, "name": names, **_track_columns(builder, events)}


def _device(b: Builder, category: str | None, events: list[ev.Event], start: Int64, end: Int64) -> None:
    args = b.args(_DEVICE, ev.DeviceArgs, events)
    columns = _range_columns(b, events, start, end)
    kind = DEVICE_KINDS.get((category or "").lower(), "kernel")
    b.append(
        "device_events",
        columns
        | {
            "kind": _repeated(kind, pl.String(), events),
            "device": [a.device for a in args],
            "context": b.json([a.context for a in args]),
            "stream": _streams(events, args),
            "correlation": [a.correlation for a in args],
            "external_id": _coalesced([a.external_id for a in args], [a.external_id_2020 for a in args]),
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


def _streams(events: list[ev.Event], args: list[ev.DeviceArgs]) -> list[int | None]:
    """Each event's stream: as written; on XPU, which writes none, its SYCL queue; else its track."""
    streams = [a.stream for a in args]
    if None not in streams:
        return streams
    tracks = [event.tid if isinstance(event.tid, int) else None for event in events]
    return _coalesced(_coalesced(streams, [a.sycl_queue for a in args]), tracks)


def _collectives(b: Builder, source: str, events: list[ev.Event], rows: list[int]) -> None:
    """Collective metadata of events that were just appended to their table: rows `rows` of its last frame."""
    args = b.args(_COLLECTIVE, ev.CollectiveArgs, events)
    groups = [a.group_name if a.group_name is not None else a.group_id for a in args]
    b.append(
        "collectives",
        {
            "source": _repeated(source, pl.String(), events),
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
            "sequence": [a.collective_sequence for a in args],
            "source_rank": [a.source_rank for a in args],
            "destination_rank": [a.destination_rank for a in args],
        },
    )


def _operators(b: Builder, category: str | None, events: list[ev.Event], start: Int64, end: Int64) -> None:
    args = b.args(_OPERATOR, ev.OperatorArgs, events)
    b.append(
        "host_ops",
        _range_columns(b, events, start, end)
        | {
            "external_id": [a.external_id for a in args],
            "sequence": [a.sequence for a in args],
            "forward_thread": [a.forward_thread for a in args],
            "record_function_id": [a.record_function_id for a in args],
            "input_dims": b.json([a.input_dims for a in args]),
            "input_types": b.json([a.input_types for a in args]),
            "input_strides": b.json([a.input_strides for a in args]),
            "concrete_inputs": b.json([a.concrete_inputs for a in args]),
            "call_stack": _unless_empty([a.call_stack for a in args]),
            "module_hierarchy": _unless_empty([a.module_hierarchy for a in args]),
            "kernel_name": _unless_empty([a.kernel_name for a in args]),
            "kernel_backend": _unless_empty([a.kernel_backend for a in args]),
            "kernel_file": _unless_empty([a.kernel_file for a in args]),
            "kernel_hash": _unless_empty([a.kernel_hash for a in args]),
            "kernel_kwargs": _unless_empty([a.kernel_kwargs for a in args]),
        },
    )
    rows = [row for row, event in enumerate(events) if event.name == "record_param_comms"]
    if rows:
        _collectives(b, "host_ops", [events[row] for row in rows], rows)


def _runtime(b: Builder, category: str | None, events: list[ev.Event], start: Int64, end: Int64) -> None:
    args = b.args(_RUNTIME, ev.RuntimeArgs, events)
    driver = (category or "").lower() in DRIVER_CATEGORIES
    b.append(
        "runtime_calls",
        _range_columns(b, events, start, end)
        | {
            "correlation": [a.correlation for a in args],
            "external_id": _coalesced([a.external_id for a in args], [a.external_id_2020 for a in args]),
            "driver": _repeated(driver, pl.Boolean(), events),
            "cbid": [a.cbid for a in args],
            "bytes": _coalesced([a.bytes for a in args], [a.size for a in args]),
            "stream": [a.stream for a in args],
            "kind": _unless_empty([None if a.kind is None else str(a.kind) for a in args]),
            "kernel": _unless_empty([a.kernel for a in args]),
        },
    )


def _frames(b: Builder, category: str | None, events: list[ev.Event], start: Int64, end: Int64) -> None:
    args = b.args(_FRAME, ev.FrameArgs, events)
    b.append(
        "python_frames",
        _range_columns(b, events, start, end)
        | {
            "python_id": [a.python_id for a in args],
            "python_parent_id": [a.python_parent_id for a in args],
            "python_module_id": [a.python_module_id for a in args],
            "python_thread": [a.python_thread for a in args],
            "finished": [a.finished for a in args],
        },
    )


def _collections(b: Builder, category: str | None, events: list[ev.Event], start: Int64, end: Int64) -> None:
    """Garbage collections, which torch records as frames."""
    on_device = _repeated(False, pl.Boolean(), events)
    b.append("annotations", _range_columns(b, events, start, end) | {"on_device": on_device})


def _annotations(b: Builder, category: str | None, events: list[ev.Event], start: Int64, end: Int64) -> None:
    args = b.args(_ANNOTATION, ev.AnnotationArgs, events)
    on_device = (category or "").lower().startswith("gpu_")
    names = [event.name for event in events]
    matches = {name: None if on_device else PROFILER_STEP.match(name or "") for name in set(names)}
    steps = {name: None if match is None else int(match.group(1)) for name, match in matches.items()}
    b.append(
        "annotations",
        _range_columns(b, events, start, end)
        | {
            "on_device": _repeated(on_device, pl.Boolean(), events),
            "step": [steps[name] for name in names],
            "external_id": [a.external_id for a in args],
            "input_dims": b.json([a.input_dims for a in args]),
            "input_types": b.json([a.input_types for a in args]),
            "concrete_inputs": b.json([a.concrete_inputs for a in args]),
        },
    )


def _memory(b: Builder, category: str | None, events: list[ev.Event], start: Int64, end: Int64) -> None:
    args = b.args(_MEMORY, ev.MemoryArgs, events)
    b.append(
        "memory_events",
        {
            "time_ns": start,
            **_track_columns(b, events),
            "address": [a.address for a in args],
            "bytes": [a.bytes for a in args],
            "device_type": [a.device_type for a in args],
            "device": [a.device for a in args],
            "total_allocated": [a.total_allocated for a in args],
            "total_reserved": [a.total_reserved for a in args],
        },
    )


def _counters(b: Builder, category: str | None, events: list[ev.Event], start: Int64, end: Int64) -> None:
    names = [event.name for event in events]
    values = b.json([event.args for event in events])
    b.append("counters", {"time_ns": start, "name": names, **_track_columns(b, events), "values": values})


def _flows(b: Builder, category: str | None, events: list[ev.Event], start: Int64, end: Int64) -> None:
    b.append(
        "flows",
        {
            "time_ns": start,
            "category": [event.cat for event in events],
            "phase": [event.ph for event in events],
            "id": b.tracks([event.id for event in events]),
            **_track_columns(b, events),
        },
    )


def _tracks(b: Builder, category: str | None, events: list[ev.Event], start: Int64, end: Int64) -> None:
    args = b.args(_TRACK, ev.TrackArgs, events)
    values = [next((v for v in (a.name, a.labels, a.sort_index) if v is not None), None) for a in args]
    b.append(
        "tracks",
        {
            **_track_columns(b, events),
            "field": [event.name for event in events],
            "value": [None if value is None else str(value) for value in values],
        },
    )


def _other(b: Builder, category: str | None, events: list[ev.Event], start: Int64, end: Int64) -> None:
    args = b.json([event.args for event in events])
    b.append(
        "other_events",
        _range_columns(b, events, start, end)
        | {
            "phase": [event.ph for event in events],
            "category": [event.cat for event in events],
            "id": b.tracks([event.id for event in events]),
            "args": None if args is None else args.set(args == "{}", None),
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

GROUPS: dict[str, Group] = {
    "device_events": _device,
    "host_ops": _operators,
    "runtime_calls": _runtime,
    "python_frames": _frames,
    "annotations": _annotations,
    "collections": _collections,
    "memory_events": _memory,
    "counters": _counters,
    "flows": _flows,
    "tracks": _tracks,
    "other_events": _other,
}
