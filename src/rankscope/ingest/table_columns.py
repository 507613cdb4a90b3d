"""The columns of each table, from its events and their arguments.

`GROUPS` has one function per table: it takes events of one category and appends a frame with their columns.

In: events of one category. Out: columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import polars as pl
from msgspec.json import Decoder

from rankscope.ingest import event_types as ev
from rankscope.ingest.event_columns import Arguments, Events, Values, coalesced, unless_empty
from rankscope.ingest.event_types import DEVICE_KINDS, DRIVER_CATEGORIES, PROFILER_STEP, UNITRACE
from rankscope.primitives.columns import constant
from rankscope.primitives.intervals import Int64


class Builder(Protocol):
    """Receives the columns, and converts unusual values in them (`table_builder.TableBuilder`)."""

    def append(self, table: str, columns: dict[str, Any]) -> None:
        """Append a frame with some of a table's columns to the table."""
        ...

    def rows_before_last(self, table: str) -> int:
        """How many rows a table had before its last frame."""
        ...


_LEVEL_ZERO = re.compile(r"zeCommandListAppend(?:Memory|Image)(Copy|Fill)")

Group = Callable[[Builder, "str | None", Events, Int64, Int64], None]
"""Appends events of one category, with their starts and ends, to their table."""


def _repeated(value: object, dtype: pl.DataType, events: Events) -> pl.Series:
    """A column with the same value for all events."""
    return constant("", value, dtype, len(events))


def _track_columns(events: Events) -> dict[str, Any]:
    return {"pid": events.ids("pid"), "tid": events.ids("tid")}


def _range_columns(events: Events, start: Int64, end: Int64) -> dict[str, Any]:
    return {"start_ns": start, "end_ns": end, "name": events.names(), **_track_columns(events)}


def _device(b: Builder, category: str | None, events: Events, start: Int64, end: Int64) -> None:
    args = events.arguments(_DEVICE, ev.DeviceArgs)
    columns = _range_columns(events, start, end)
    collective = args.present("collective")
    kind = _repeated(DEVICE_KINDS.get((category or "").lower(), "kernel"), pl.String(), events)
    b.append(
        "device_events",
        columns
        | {
            "kind": events.by_name(_kind_in_unitrace, pl.String()) if category == UNITRACE else kind,
            "device": args.values("device"),
            "context": args.json("context"),
            "stream": _streams(events, args),
            "correlation": args.values("correlation"),
            "external_id": coalesced(args.values("external_id"), args.values("external_id_2020")),
            "graph_id": args.values("graph_id"),
            "graph_node_id": args.values("graph_node_id"),
            "grid": args.json("grid"),
            "block": args.json("block"),
            "registers": args.values("registers"),
            "shared_memory": args.values("shared_memory"),
            "blocks_per_sm": args.values("blocks_per_sm"),
            "warps_per_sm": args.values("warps_per_sm"),
            "occupancy": args.values("occupancy"),
            "queued": args.values("queued"),
            "bytes": args.values("bytes"),
            "is_collective": collective,
        },
    )
    rows = np.flatnonzero(collective)
    if rows.size:
        _collectives(b, "device_events", events.take(rows), rows)


def _kind_in_unitrace(name: str) -> str:
    """The kind of a device event in unitrace's trace, which names copies and fills after Level Zero's calls."""
    call = _LEVEL_ZERO.match(name)
    return "kernel" if call is None else {"Copy": "memcpy", "Fill": "memset"}[call[1]]


def _streams(events: Events, args: Arguments) -> Values:
    """Each event's stream: as written; on XPU, which writes none, its SYCL queue; else its track."""
    return coalesced(coalesced(args.values("stream"), args.values("sycl_queue")), events.numeric_tids())


def _collectives(b: Builder, source: str, events: Events, rows: Int64) -> None:
    """Collective metadata of events that were just appended to their table: rows `rows` of its last frame."""
    args = events.arguments(_COLLECTIVE, ev.CollectiveArgs)
    b.append(
        "collectives",
        {
            "source": _repeated(source, pl.String(), events),
            "row": rows + b.rows_before_last(source),
            "external_id": args.values("external_id"),
            "collective": args.values("collective"),
            "dtype": args.values("dtype"),
            "in_elements": args.values("in_elements"),
            "out_elements": args.values("out_elements"),
            "in_split": args.json("in_split"),
            "out_split": args.json("out_split"),
            "group_name": coalesced(args.words("group_name"), args.words("group_id")),
            "group_description": args.values("group_description"),
            "group_ranks": args.json("group_ranks"),
            "group_size": args.values("group_size"),
            "group_rank": args.values("group_rank"),
            "sequence": args.values("collective_sequence"),
            "source_rank": args.values("source_rank"),
            "destination_rank": args.values("destination_rank"),
        },
    )


def _operators(b: Builder, category: str | None, events: Events, start: Int64, end: Int64) -> None:
    args = events.arguments(_OPERATOR, ev.OperatorArgs)
    b.append(
        "host_ops",
        _range_columns(events, start, end)
        | {
            "external_id": args.values("external_id"),
            "sequence": args.values("sequence"),
            "forward_thread": args.values("forward_thread"),
            "record_function_id": args.values("record_function_id"),
            "input_dims": args.json("input_dims"),
            "input_types": args.json("input_types"),
            "input_strides": args.json("input_strides"),
            "concrete_inputs": args.json("concrete_inputs"),
            "call_stack": unless_empty(args.values("call_stack")),
            "module_hierarchy": unless_empty(args.values("module_hierarchy")),
            "kernel_name": unless_empty(args.values("kernel_name")),
            "kernel_backend": unless_empty(args.values("kernel_backend")),
            "kernel_file": unless_empty(args.values("kernel_file")),
            "kernel_hash": unless_empty(args.values("kernel_hash")),
            "kernel_kwargs": unless_empty(args.values("kernel_kwargs")),
        },
    )
    rows = np.flatnonzero(np.asarray(events.by_name("record_param_comms".__eq__, pl.Boolean())))
    if rows.size:
        _collectives(b, "host_ops", events.take(rows), rows)


def _runtime(b: Builder, category: str | None, events: Events, start: Int64, end: Int64) -> None:
    args = events.arguments(_RUNTIME, ev.RuntimeArgs)
    driver = (category or "").lower() in DRIVER_CATEGORIES
    b.append(
        "runtime_calls",
        _range_columns(events, start, end)
        | {
            "correlation": args.values("correlation"),
            "external_id": coalesced(args.values("external_id"), args.values("external_id_2020")),
            "driver": _repeated(driver, pl.Boolean(), events),
            "cbid": args.values("cbid"),
            "bytes": coalesced(args.values("bytes"), args.values("size")),
            "stream": args.values("stream"),
            "kind": unless_empty(args.words("kind")),
            "kernel": unless_empty(args.values("kernel")),
        },
    )


def _frames(b: Builder, category: str | None, events: Events, start: Int64, end: Int64) -> None:
    args = events.arguments(_FRAME, ev.FrameArgs)
    b.append(
        "python_frames",
        _range_columns(events, start, end)
        | {
            "python_id": args.values("python_id"),
            "python_parent_id": args.values("python_parent_id"),
            "python_module_id": args.values("python_module_id"),
            "python_thread": args.values("python_thread"),
            "finished": args.values("finished"),
        },
    )


def _collections(b: Builder, category: str | None, events: Events, start: Int64, end: Int64) -> None:
    """Garbage collections, which torch records as frames."""
    on_device = _repeated(False, pl.Boolean(), events)
    b.append("annotations", _range_columns(events, start, end) | {"on_device": on_device})


def _step(name: str) -> int | None:
    match = PROFILER_STEP.match(name)
    return None if match is None else int(match.group(1))


def _annotations(b: Builder, category: str | None, events: Events, start: Int64, end: Int64) -> None:
    args = events.arguments(_ANNOTATION, ev.AnnotationArgs)
    on_device = (category or "").lower().startswith("gpu_")
    b.append(
        "annotations",
        _range_columns(events, start, end)
        | {
            "on_device": _repeated(on_device, pl.Boolean(), events),
            "step": None if on_device else events.by_name(_step, pl.Int64()),
            "external_id": args.values("external_id"),
            "input_dims": args.json("input_dims"),
            "input_types": args.json("input_types"),
            "concrete_inputs": args.json("concrete_inputs"),
        },
    )


def _memory(b: Builder, category: str | None, events: Events, start: Int64, end: Int64) -> None:
    args = events.arguments(_MEMORY, ev.MemoryArgs)
    b.append(
        "memory_events",
        {
            "time_ns": start,
            **_track_columns(events),
            "address": args.values("address"),
            "bytes": args.values("bytes"),
            "device_type": args.values("device_type"),
            "device": args.values("device"),
            "total_allocated": args.values("total_allocated"),
            "total_reserved": args.values("total_reserved"),
        },
    )


def _counters(b: Builder, category: str | None, events: Events, start: Int64, end: Int64) -> None:
    values = events.json_arguments()
    b.append("counters", {"time_ns": start, "name": events.names(), **_track_columns(events), "values": values})


def _flows(b: Builder, category: str | None, events: Events, start: Int64, end: Int64) -> None:
    b.append(
        "flows",
        {
            "time_ns": start,
            "category": events.categories(),
            "phase": events.phases(),
            "id": events.ids("id"),
            **_track_columns(events),
        },
    )


def _tracks(b: Builder, category: str | None, events: Events, start: Int64, end: Int64) -> None:
    args = events.arguments(_TRACK, ev.TrackArgs)
    values = coalesced(coalesced(args.words("name"), args.words("labels")), args.words("sort_index"))
    b.append("tracks", {**_track_columns(events), "field": events.names(), "value": values})


def _other(b: Builder, category: str | None, events: Events, start: Int64, end: Int64) -> None:
    args = events.json_arguments()
    b.append(
        "other_events",
        _range_columns(events, start, end)
        | {
            "phase": events.phases(),
            "category": events.categories(),
            "id": events.ids("id"),
            "args": args.set(args == "{}", None) if isinstance(args, pl.Series) else args,
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
