"""Writers of one trace: Perfetto's own format (`.pftrace`) and Chrome's JSON.

Both take the slices of a track in the order of their begins; slices of one lane nest or follow each other. Each lane is
a track of its own. Names and arguments are untrusted text: they are encoded, and never part of the format. Memory: the
names, up to a bound, and the slices that are open.

In: processes, tracks, slices and arrows. Out: bytes, as they come.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from rankscope.ingest import perfetto_schema as pf
from rankscope.ingest.perfetto_schema import Annotation, Event, Packet
from rankscope.ingest.protobuf import bytes_field, double_field, fixed_field, number_field, text_field, varint

Value = str | int | float | bool
Args = Sequence[tuple[str, Value]]
Flow = tuple[int, Literal["s", "t", "f"], str]
"""An arrow: its id, whether it starts, goes on, or ends here, and its category."""

_SEQUENCE = 1
_MAX_NAMES = 200_000
_EXPLICIT = 3  # `TrackDescriptor.child_ordering`: by `sibling_order_rank`


class Writer(Protocol):
    """What writes a trace."""

    def process(self, number: int, name: str) -> None:
        """Begin a process."""

    def track(self, number: int, process: int, name: str, order: int) -> None:
        """Begin a track of a process."""

    def slice(
        self, track: int, span: tuple[int, int], name: str, category: str, args: Args, flows: Sequence[Flow]
    ) -> None:
        """A slice: begin and end in ns."""

    def instant(self, track: int, time_ns: int, name: str, category: str, args: Args) -> None:
        """An event without duration."""

    def close(self) -> None:
        """Write what is still open."""


class PerfettoWriter:
    """Writes Perfetto's own format.

    Args:
        write: takes bytes.
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._names: dict[tuple[int, str], int] = {}
        self._keys: dict[str, bytes] = {}
        self._open: dict[int, list[int]] = {}
        self._packet(number_field(Packet.sequence_flags, pf.STATE_CLEARED))

    def _packet(self, *fields: bytes) -> None:
        content = number_field(Packet.sequence_id, _SEQUENCE) + b"".join(fields)
        self._write(b"\x0a" + varint(len(content)) + content)

    def process(self, number: int, name: str) -> None:
        """Begin a process."""
        process = number_field(pf.Process.pid, number) + text_field(pf.Process.process_name, name)
        descriptor = [
            number_field(pf.Track.uuid, _uuid(number)),
            bytes_field(pf.Track.process, process),
            number_field(pf.Track.child_ordering, _EXPLICIT),
            number_field(pf.Track.sibling_order_rank, number),
        ]
        self._packet(bytes_field(Packet.track_descriptor, b"".join(descriptor)))

    def track(self, number: int, process: int, name: str, order: int) -> None:
        """Begin a track of a process."""
        descriptor = [
            number_field(pf.Track.uuid, number),
            number_field(pf.Track.parent_uuid, _uuid(process)),
            text_field(pf.Track.track_name, name),
            number_field(pf.Track.sibling_order_rank, order),
        ]
        self._packet(bytes_field(Packet.track_descriptor, b"".join(descriptor)))

    def slice(
        self, track: int, span: tuple[int, int], name: str, category: str, args: Args, flows: Sequence[Flow]
    ) -> None:
        """A slice. Its end is written when the next slice of the track begins after it, or at the end."""
        opened = self._open.setdefault(track, [])
        self._end(track, opened, span[0])
        arrows = b"".join(fixed_field(Event.flow_ids, number) for number, _, _ in flows)
        self._event(pf.BEGIN, track, span[0], name, category, args, arrows)
        opened.append(span[1])

    def instant(self, track: int, time_ns: int, name: str, category: str, args: Args) -> None:
        """An event without duration."""
        self._end(track, self._open.setdefault(track, []), time_ns)
        self._event(pf.INSTANT, track, time_ns, name, category, args, b"")

    def close(self) -> None:
        """End the slices that are open."""
        for track, opened in self._open.items():
            self._end(track, opened, None)

    def _end(self, track: int, opened: list[int], until: int | None) -> None:
        while opened and (until is None or opened[-1] <= until):
            event = number_field(Event.type, pf.END) + number_field(Event.track_uuid, track)
            self._packet(number_field(Packet.timestamp, opened.pop()), bytes_field(Packet.track_event, event))

    def _event(
        self, kind: int, track: int, time_ns: int, name: str, category: str, args: Args, arrows: bytes
    ) -> None:  # fmt: skip
        interned = b""
        event = [number_field(Event.type, kind), number_field(Event.track_uuid, track)]
        for text, where, iid_field, text_number in (
            (name, pf.Interned.event_names, Event.name_iid, Event.event_name),
            (category, pf.Interned.categories, Event.category_iids, Event.categories),
        ):
            iid = self._names.get((where, text))
            if iid is None and len(self._names) < _MAX_NAMES:
                iid = self._names[where, text] = len(self._names) + 1
                interned += bytes_field(where, number_field(pf.IID, iid) + text_field(pf.TEXT, text))
            event.append(text_field(text_number, text) if iid is None else number_field(iid_field, iid))
        event += [self._annotation(key, value) for key, value in args]
        event.append(arrows)
        self._packet(
            number_field(Packet.timestamp, time_ns),
            number_field(Packet.sequence_flags, pf.NEEDS_STATE),
            bytes_field(Packet.interned_data, interned) if interned else b"",
            bytes_field(Packet.track_event, b"".join(event)),
        )

    def _annotation(self, key: str, value: Value) -> bytes:
        named = self._keys.get(key)
        if named is None:
            named = self._keys[key] = text_field(Annotation.annotation_name, key)
        if isinstance(value, bool):
            return bytes_field(Event.annotations, named + number_field(Annotation.bool_value, value))
        if isinstance(value, int):
            return bytes_field(Event.annotations, named + number_field(Annotation.int_value, value))
        if isinstance(value, float):
            return bytes_field(Event.annotations, named + double_field(Annotation.double_value, value))
        return bytes_field(Event.annotations, named + text_field(Annotation.string_value, value))


def _uuid(process: int) -> int:
    """A process's track; those of threads have smaller ids."""
    return 1 << 48 | process


class JsonWriter:
    """Writes Chrome's JSON: times in µs with three decimals.

    Args:
        write: takes bytes.
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._process_of: dict[int, int] = {}
        self._next = b'{"displayTimeUnit": "ns", "traceEvents": [\n'

    def _line(self, text: str) -> None:
        self._write(self._next + text.encode("utf-8", "replace"))
        self._next = b",\n"

    def _named(self, kind: str, process: int, track: int, key: str, value: object) -> None:
        self._line(f'{{"ph":"M","name":"{kind}","pid":{process},"tid":{track},"args":{{"{key}":{_text(value)}}}}}')

    def process(self, number: int, name: str) -> None:
        """Begin a process."""
        self._named("process_name", number, 0, "name", name)
        self._named("process_sort_index", number, 0, "sort_index", number)

    def track(self, number: int, process: int, name: str, order: int) -> None:
        """Begin a track of a process."""
        self._process_of[number] = process
        self._named("thread_name", process, number, "name", name)
        self._named("thread_sort_index", process, number, "sort_index", order)

    def slice(
        self, track: int, span: tuple[int, int], name: str, category: str, args: Args, flows: Sequence[Flow]
    ) -> None:
        """A slice, and the ends of its arrows."""
        where = f'"pid":{self._process_of[track]},"tid":{track},"ts":{_microseconds(span[0])}'
        duration = _microseconds(span[1] - span[0])
        self._line(
            f'{{"ph":"X","name":{_text(name)},"cat":{_text(category)},{where},"dur":{duration},"args":{_object(args)}}}'
        )
        for number, phase, kind in flows:
            bound = "" if phase == "s" else ',"bp":"e"'
            named = f'"name":{_text(kind)},"cat":{_text(kind)}'
            self._line(f'{{"ph":"{phase}","id":{number},{named},{where}{bound}}}')

    def instant(self, track: int, time_ns: int, name: str, category: str, args: Args) -> None:
        """An event without duration."""
        where = f'"pid":{self._process_of[track]},"tid":{track},"ts":{_microseconds(time_ns)}'
        self._line(f'{{"ph":"i","s":"t","name":{_text(name)},"cat":{_text(category)},{where},"args":{_object(args)}}}')

    def close(self) -> None:
        """Write the end of the object."""
        self._write((self._next if self._next != b",\n" else b"\n") + b"]}\n")


_text = json.dumps


def _microseconds(nanoseconds: int) -> str:
    """A number of microseconds, exactly."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def _object(args: Args) -> str:
    """Arguments as JSON, which has no infinity."""
    return _text({key: value for key, value in args if not isinstance(value, float) or math.isfinite(value)})
