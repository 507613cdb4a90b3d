"""torchtitan's structured log: JSON Lines of one rank, as the events of a Kineto trace.

A span is two records, ``NAME_start`` and ``NAME_end``, on one thread and asyncio task; it becomes a named range. The
span `step` becomes the step of its number. Scalars become counters, other records marks. A record that cannot be read
becomes an event without a time, which the reader of traces counts as lost.

In: a reader of the lines. Out: a reader of the JSON of a trace.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from rankscope.ingest.decompress import Pieces, Reader

# How each line begins: the formatter writes this key first.
MAGIC = b'{"delta_ms"'
_BLOCK_BYTES = 1 << 20
_MAX_LINE_BYTES = 1 << 20
_TIME = "time_us"


def read_titan_log(lines: Reader) -> Reader:
    """The JSON of a trace, made from the lines of a log while they are read."""
    return Pieces(_text(lines))


def _lines(source: Reader) -> Iterator[bytes]:
    left = b""
    while block := source.read(_BLOCK_BYTES):
        *lines, left = (left + block).split(b"\n")
        yield from lines
        if len(left) > _MAX_LINE_BYTES:
            yield left[:_MAX_LINE_BYTES]
            left = b""
    yield left


def _text(source: Reader) -> Iterator[bytes]:
    """The text in pieces: the keys from the first record that can be read, then events."""
    opened: dict[tuple[object, object, object], list[dict[str, Any]]] = {}
    begun = False
    for line in _lines(source):
        if not line.strip():
            continue
        record = _record(line)
        if not begun:
            yield _head(record or {})
        events = [_broken(line)] if record is None else [json.dumps(event) for event in _events(record, opened)]
        if events:
            yield "".join(",\n" + event for event in events).encode()
        begun = True
    if not begun:
        return
    # A span without an end: the job ended inside, or the log is cut.
    left = [_range(record, None) for stack in opened.values() for record in stack]
    yield "".join(",\n" + json.dumps(event) for event in left).encode() + b"]}"


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("log_type_name"), str) else None


def _broken(line: bytes) -> str:
    """An event without a time, which is counted as lost."""
    return json.dumps({"ph": "X", "cat": "user_annotation", "name": "", "args": {"line": line[:80].decode("latin-1")}})


def _head(record: dict[str, Any]) -> bytes:
    head: dict[str, Any] = {"schemaVersion": 1}
    if isinstance(record.get("host_name"), str):
        head["host_name"] = record["host_name"]
    if isinstance(rank := record.get("global_rank", record.get("rank")), int):
        head["distributedInfo"] = {"rank": rank}
    return json.dumps(head).encode()[:-1] + b', "traceEvents": [\n' + json.dumps(_name(record)).encode()


def _name(record: dict[str, Any]) -> dict[str, Any]:
    source = record.get("source")
    name = source if isinstance(source, str) else "torchtitan"
    return {"ph": "M", "name": "process_name", "pid": record.get("pid"), "tid": 0, "args": {"name": name}}


def _events(
    record: dict[str, Any], opened: dict[tuple[object, object, object], list[dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """The event that a record completes, if it does."""
    name: str = record["log_type_name"]
    key = str(record.get("pid")), str(record.get("tid")), str(record.get("task_name"))
    if name == "metric_value":
        value = {"value": record.get("value")}
        yield _event(record, "C", str(record.get("event_name"))) | {"args": value}
    elif record.get("log_type") != "event":
        yield _event(record, "i", name)
    elif name.endswith("_start"):
        opened.setdefault(key, []).append(record)
    elif name.endswith("_end"):
        stack = opened.get(key, [])
        # An inner span may have lost its end.
        while stack:
            begun = stack.pop()
            if begun["log_type_name"].removesuffix("_start") == name.removesuffix("_end"):
                yield _range(begun, record)
                break
            yield _range(begun, None)
    else:
        yield _event(record, "i", name)


def _range(begun: dict[str, Any], ended: dict[str, Any] | None) -> dict[str, Any]:
    name, step = begun["log_type_name"].removesuffix("_start"), begun.get("step")
    if name == "step" and isinstance(step, int) and step >= 0 and ended is not None:
        name = f"ProfilerStep#{step}"
    event = _event(begun, "X", name)
    since, until = begun.get(_TIME), None if ended is None else ended.get(_TIME)
    if isinstance(since, int) and isinstance(until, int):
        event["dur"] = max(until - since, 0)
    return event


def _event(record: dict[str, Any], phase: str, name: str) -> dict[str, Any]:
    track = {"pid": record.get("pid"), "tid": record.get("tid")}
    return {"ph": phase, "cat": "user_annotation", "name": name, **track, "ts": record.get(_TIME)}
