"""A small Perfetto trace, written field by field."""

from __future__ import annotations

from collections.abc import Sequence

from rankscope.ingest.protobuf import bytes_field, number_field, text_field, varint


def packet(*fields: bytes) -> bytes:
    """A packet of these fields, as it is in a file."""
    content = b"".join(fields)
    return b"\x0a" + varint(len(content)) + content


def track(uuid: int, *, pid: int = 7, tid: int = 8, name: str = "worker") -> bytes:
    """A thread's track."""
    thread = number_field(1, pid) + number_field(2, tid) + text_field(5, name)
    return packet(bytes_field(60, number_field(1, uuid) + bytes_field(4, thread)))


def event(kind: int, time_ns: int, *fields: bytes, uuid: int = 1, sequence: int = 1) -> bytes:
    """A track event with these further fields."""
    content = number_field(9, kind) + number_field(11, uuid) + b"".join(fields)
    return packet(number_field(8, time_ns), number_field(10, sequence), bytes_field(11, content))


def named(text: str) -> bytes:
    """The name of an event."""
    return text_field(23, text)


def integer(key: str, value: int) -> bytes:
    """An argument of an event."""
    return bytes_field(4, text_field(10, key) + number_field(4, value))


def perfetto_text(slices: Sequence[tuple[int, int, str]]) -> bytes:
    """A trace of one thread with nested slices: begin and end in µs, and name; sorted by begin."""
    parts, opened = [track(1)], list[int]()
    for begin, end, name in slices:
        while opened and opened[-1] <= begin:
            parts.append(event(2, 1000 * opened.pop()))
        parts.append(event(1, 1000 * begin, named(name), integer("External id", 5), text_field(22, "cpu_op")))
        opened.append(end)
    parts += [event(2, 1000 * end) for end in reversed(opened)]
    return b"".join(parts)
