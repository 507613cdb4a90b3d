"""The packets of a Perfetto trace: its slices, instants, counters and tracks.

A packet refers to names, defaults and clocks that earlier packets of its sequence defined. Interned names, sequences
and nesting are bounded: the input is untrusted.

In: packets. Out: their events, with their arguments as JSON, and the tracks that they are on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from zlib import decompressobj

import msgspec

from rankscope.ingest import perfetto_schema as pf
from rankscope.ingest.perfetto_schema import Annotation, Event, Packet
from rankscope.ingest.protobuf import BYTES, WireError, as_double, read_fields, read_varint, signed
from rankscope.rundir.archives import MAX_RATIO

MAX_SEQUENCES = 1 << 16
MAX_INTERNED_BYTES = 512 << 20
MAX_NESTING = 32
_MAX_MEMO, _MAX_MEMO_BYTES = 200_000, 256
_MAX_NS = 1 << 62
_FREE_BYTES = 1 << 20

_json = msgspec.json.encode
_DRIVER_CALL = re.compile(r"cu[A-Z]")
_STREAM = re.compile(r"stream \d+")
_OPERATOR = re.compile(r"Backward\d*$|^record_param_comms$")
_OPERATOR_KEYS = {"Sequence number", "Fwd thread id", "kernel_backend"}
_RANGE_KEYS = {"External id", "Record function id", "Ev Idx"}
_OVERHEAD_PID = -1


@dataclass
class TrackInfo:
    """What a track is, as far as its descriptor says."""

    name: str = ""
    parent: int = 0
    pid: int | None = None
    tid: int | None = None
    is_process: bool = False
    labels: tuple[str, ...] = ()
    sort_index: int | None = None


@dataclass(frozen=True)
class Found:
    """One event of a packet.

    Attributes:
        kind: `BEGIN`, `END`, `INSTANT` or `COUNTER`.
        args: the JSON of its arguments, without the brackets.
        flows: the ids of its flows.
    """

    kind: int
    track: int
    time_ns: int
    category: str | None = None
    name: str = ""
    args: bytes = b""
    flows: tuple[int, ...] = ()


Place = tuple["int | str | None", "int | str | None"]
"""Process and thread."""
Clocks = dict[int, list[int]]
"""By id: unit in ns, whether it counts on, where it is, and the offset of the trace's clock."""


@dataclass
class _Sequence:
    names: dict[int, dict[int, str]] = field(default_factory=dict)
    default_track: int = 0
    default_clock: int | None = None
    clocks: Clocks = field(default_factory=dict)


class PacketReader:
    """Reads packets, with what earlier ones defined.

    Attributes:
        tracks: the tracks by their ids.
        skipped: events and packets that have no place in a table, and why.
        base_ns: the wall clock minus the trace's clock, if a packet tells.
    """

    def __init__(self) -> None:
        self.tracks: dict[int, TrackInfo] = {}
        self.skipped: Counter[str] = Counter()
        self.base_ns: int | None = None
        self._sequences: dict[int, _Sequence] = {}
        self._clocks: Clocks = {}
        self._interned_bytes = 0
        self._memo: dict[bytes, tuple[str, bytes]] = {}

    def read(self, data: bytes, at: int, end: int, *, packed: bool = False) -> Iterator[Found]:
        """The events of one packet.

        Raises:
            WireError: it is damaged, or beyond the bounds.
        """
        number, parts = 0, dict[int, tuple[int, int]]()
        for number, wire, value, stop in read_fields(data, at, end):
            if wire != BYTES or number in _MESSAGES:
                parts[number] = value, stop
        compressed = parts.get(Packet.compressed_packets)
        if compressed is not None:
            yield from self._compressed(data, compressed, packed=packed)
            return
        sequence = self._sequence(parts, at)
        if Packet.interned_data in parts:
            self._intern(sequence, data, parts[Packet.interned_data])
        if Packet.defaults in parts:
            _read_defaults(sequence, data, parts[Packet.defaults])
        if Packet.clock_snapshot in parts:
            self._snapshot(sequence, data, parts[Packet.clock_snapshot])
        if Packet.track_descriptor in parts:
            self._describe(data, parts[Packet.track_descriptor])
        elif Packet.track_event in parts:
            time_ns = self._time(sequence, parts)
            if time_ns is None:
                self.skipped["events on a clock that the file does not relate to others"] += 1
            else:
                yield from self._event(sequence, data, parts[Packet.track_event], time_ns)
        elif number and not parts.keys() & _STATE:
            self.skipped["packets of other kinds"] += 1

    def place(self, track: int) -> Place:
        """The process and the thread of a track; a track that is not a thread has its name instead."""
        info = self.tracks.get(track)
        if info is None:
            return None, track
        tid = info.tid if info.tid is not None else 0 if info.is_process else info.name or track
        for _ in range(MAX_NESTING):
            above = self.tracks.get(info.parent)
            if info.pid is not None or above is None:
                break
            info = above
        return info.pid if info.pid is not None else info.name or None, tid

    # -- state ----------------------------------------------------------------------------------------------------

    def _sequence(self, parts: dict[int, tuple[int, int]], at: int) -> _Sequence:
        number = parts.get(Packet.sequence_id, (0, 0))[0]
        found = self._sequences.get(number)
        if found is None:
            if len(self._sequences) >= MAX_SEQUENCES:
                raise WireError(f"more than {MAX_SEQUENCES} sequences of packets", at)
            found = self._sequences[number] = _Sequence()
        flags = parts.get(Packet.sequence_flags, (0, 0))[0]
        if flags & pf.STATE_CLEARED or parts.get(Packet.incremental_state_cleared, (0, 0))[0]:
            found.names.clear()
            found.default_track, found.default_clock = 0, None
        return found

    def _intern(self, sequence: _Sequence, data: bytes, part: tuple[int, int]) -> None:
        for number, wire, begins, ends in read_fields(data, *part):
            if wire != BYTES or number not in _INTERNED:
                continue
            iid, text = 0, ""
            for inner, kind, value, stop in read_fields(data, begins, ends):
                if inner == pf.IID and kind != BYTES:
                    iid = value
                elif inner == pf.TEXT and kind == BYTES:
                    text = data[value:stop].decode("utf-8", "replace")
            self._interned_bytes += ends - begins
            if self._interned_bytes > MAX_INTERNED_BYTES:
                raise WireError(f"more than {MAX_INTERNED_BYTES >> 20} MiB of interned names", begins)
            sequence.names.setdefault(number, {})[iid] = text

    def _snapshot(self, sequence: _Sequence, data: bytes, part: tuple[int, int]) -> None:
        clocks: dict[int, tuple[int, int, bool]] = {}
        for number, wire, begins, ends in read_fields(data, *part):
            if number == pf.SNAPSHOT_CLOCKS and wire == BYTES:
                values = {inner: value for inner, kind, value, _ in read_fields(data, begins, ends) if kind != BYTES}
                unit = min(values.get(pf.Clock.unit_ns, 1) or 1, 10**9)
                clocks[values.get(pf.Clock.id, 0)] = (
                    values.get(pf.Clock.timestamp, 0) * unit,
                    unit,
                    bool(values.get(pf.Clock.is_incremental, 0)),
                )
        here = clocks.get(pf.BOOTTIME)
        if here is not None and pf.REALTIME in clocks and self.base_ns is None:
            self.base_ns = clocks[pf.REALTIME][0] - here[0]
        for number, (now, unit, counts_on) in clocks.items():
            known = sequence.clocks if _is_of_sequence(number) else self._clocks
            if here is not None or known is sequence.clocks:
                known[number] = [unit, counts_on, now, (now if here is None else here[0]) - now]

    def _time(self, sequence: _Sequence, parts: dict[int, tuple[int, int]]) -> int | None:
        """When a packet was written, on the trace's clock; None if its clock is not known."""
        time = parts.get(Packet.timestamp, (0, 0))[0]
        number = parts.get(Packet.timestamp_clock_id, (sequence.default_clock or pf.BOOTTIME, 0))[0]
        if number != pf.BOOTTIME:
            clock = (sequence.clocks if _is_of_sequence(number) else self._clocks).get(number)
            if clock is None:
                # A file with one clock, whatever it is called, needs no snapshot.
                if _is_of_sequence(number) or self.base_ns is not None:
                    return None
            else:
                unit, counts_on, now, offset = clock
                time = time * unit + (now if counts_on else 0)
                if counts_on:
                    clock[2] = time
                time += offset
        return time if 0 <= time < _MAX_NS else None

    def _describe(self, data: bytes, part: tuple[int, int]) -> None:
        uuid, track = 0, TrackInfo()
        for number, wire, value, stop in read_fields(data, *part):
            if number == pf.Track.uuid:
                uuid = value
            elif number == pf.Track.parent_uuid:
                track.parent = value
            elif number in (pf.Track.track_name, pf.Track.static_name) and wire == BYTES:
                track.name = track.name or data[value:stop].decode("utf-8", "replace")
            elif number in (pf.Track.process, pf.Track.thread) and wire == BYTES:
                _describe_process(track, data, (value, stop), is_process=number == pf.Track.process)
        if len(self.tracks) >= 1 << 20 and uuid not in self.tracks:
            raise WireError("more than a million tracks", part[0])
        self.tracks[uuid] = track

    def _compressed(self, data: bytes, part: tuple[int, int], *, packed: bool) -> Iterator[Found]:
        if packed:
            raise WireError("compressed packets in compressed packets", part[0])
        limit = max(_FREE_BYTES, MAX_RATIO * (part[1] - part[0]))
        unpack = decompressobj()
        try:
            content = unpack.decompress(data[slice(*part)], limit + 1)
        except Exception as error:
            raise WireError(f"compressed packets that cannot be decompressed ({error})", part[0]) from error
        if len(content) > limit:
            raise WireError("compressed packets that grow too much", part[0])
        try:
            for number, wire, begins, ends in read_fields(content, 0, len(content)):
                if number == pf.TRACE_PACKET and wire == BYTES:
                    yield from self.read(content, begins, ends, packed=True)
        except WireError as error:
            raise WireError(f"in compressed packets: {error}", part[0]) from error

    # -- events ---------------------------------------------------------------------------------------------------

    def _event(self, sequence: _Sequence, data: bytes, part: tuple[int, int], time_ns: int) -> Iterator[Found]:
        kind, track, name, value = 0, sequence.default_track, None, b""
        categories: list[str] = []
        flows: list[int] = []
        args: dict[str, bytes] = {}
        for number, wire, first, stop in read_fields(data, *part):
            if number == Event.annotations and wire == BYTES:
                key, text = self._annotation(sequence, data, first, stop, 0)
                args[key] = text
            elif number == Event.type:
                kind = first
            elif number == Event.track_uuid:
                track = first
            elif number == Event.name_iid:
                name = sequence.names.get(pf.Interned.event_names, {}).get(first)
                if name is None:
                    self.skipped["names that the file does not define"] += 1
            elif number == Event.event_name and wire == BYTES:
                name = data[first:stop].decode("utf-8", "replace")
            elif number == Event.category_iids:
                known = sequence.names.get(pf.Interned.categories, {})
                iids = [first] if wire != BYTES else list(_varints(data, first, stop))
                categories += [known[iid] for iid in iids if iid in known]
            elif number == Event.categories and wire == BYTES:
                categories.append(data[first:stop].decode("utf-8", "replace"))
            elif number in _FLOWS:
                flows += [first] if wire != BYTES else _packed_ids(number, data, first, stop)
            elif number == Event.counter_value:
                value = _json(signed(first))
            elif number == Event.double_counter_value:
                value = _json(as_double(first))
        if kind == pf.END:
            yield Found(kind, track, time_ns, args=_joined(args))
        elif kind in (pf.BEGIN, pf.INSTANT):
            category = ",".join(categories) or _category_of(name or "", args, self.tracks.get(track))
            yield Found(kind, track, time_ns, category, name or "", _joined(args), tuple(flows))
        elif kind == pf.COUNTER:
            info = self.tracks.get(track)
            yield Found(kind, track, time_ns, None, info.name if info else "", b'"": ' + value)
        else:
            self.skipped["events of other kinds"] += 1

    def _annotation(
        self, sequence: _Sequence, data: bytes, at: int, end: int, depth: int
    ) -> tuple[str, bytes]:  # fmt: skip
        """An annotation's name, and its value as JSON."""
        text = data[at:end] if end - at <= _MAX_MEMO_BYTES else b""
        known = self._memo.get(text)
        if known is not None:
            return known
        if depth >= MAX_NESTING:
            raise WireError(f"annotations nested more than {MAX_NESTING} times", at)
        # PyTorch writes null as a text and an empty list as nothing.
        name, value, interned = "", b"[]", False
        entries: dict[str, bytes] = {}
        items: list[bytes] = []
        for number, wire, first, stop in read_fields(data, at, end):
            if number == Annotation.annotation_name and wire == BYTES:
                name = data[first:stop].decode("utf-8", "replace")
            elif number == Annotation.name_iid:
                name, interned = sequence.names.get(pf.Interned.annotation_names, {}).get(first, ""), True
            elif number == Annotation.string_value and wire == BYTES:
                value = _json(data[first:stop].decode("utf-8", "replace"))
            elif number == Annotation.string_value_iid:
                value = _json(sequence.names.get(pf.Interned.annotation_texts, {}).get(first, ""))
                interned = True
            elif number == Annotation.int_value:
                value = b"%d" % signed(first)
            elif number in (Annotation.uint_value, Annotation.pointer_value):
                value = b"%d" % first
            elif number == Annotation.bool_value:
                value = b"true" if first else b"false"
            elif number == Annotation.double_value:
                value = _json(as_double(first))
            elif number == Annotation.legacy_json_value and wire == BYTES:
                value = _valid_json(data[first:stop])
            elif number == Annotation.dict_entries and wire == BYTES:
                key, inner = self._annotation(sequence, data, first, stop, depth + 1)
                entries[key] = inner
                interned = True
            elif number == Annotation.array_values and wire == BYTES:
                items.append(self._annotation(sequence, data, first, stop, depth + 1)[1])
        if entries:
            value = b"{%b}" % _joined(entries)
        elif items:
            value = b"[%b]" % b", ".join(items)
        # What an interned id means depends on the sequence.
        if text and not interned and not items:
            if len(self._memo) >= _MAX_MEMO:
                self._memo.clear()
            self._memo[text] = name, value
        return name, value


def _category_of(name: str, args: Collection[str], track: TrackInfo | None) -> str | None:
    """The category of an event that has none, by what Kineto's categories have; PyTorch's export writes none."""
    if "cuda_sync_kind" in args:
        return "cuda_sync"
    if "cbid" in args or "cid" in args or ("correlation" in args and "stream" not in args):
        return "cuda_driver" if _DRIVER_CALL.match(name) else "cuda_runtime"
    if "correlation" in args and "stream" in args:
        if "copy kind" in args or name.startswith("Memcpy"):
            return "gpu_memcpy"
        return "gpu_memset" if "memory kind" in args or name.startswith("Memset") else "kernel"
    if "Python id" in args:
        return "python_function"
    if "Total Allocated" in args:
        return "cpu_instant_event"
    if track is not None and track.pid == _OVERHEAD_PID:
        return "overhead"
    if "External id" in args and track is not None and _STREAM.match(track.name):
        return "gpu_user_annotation"
    if _RANGE_KEYS.isdisjoint(args):
        return None
    is_operator = "::" in name or not _OPERATOR_KEYS.isdisjoint(args) or _OPERATOR.search(name) is not None
    return "cpu_op" if is_operator else "user_annotation"


def _is_of_sequence(clock: int) -> bool:
    """Whether a clock, by its id, is one of a sequence; others are the same in the whole file."""
    return pf.FIRST_SEQUENCE_CLOCK <= clock <= pf.LAST_SEQUENCE_CLOCK


def _describe_process(track: TrackInfo, data: bytes, part: tuple[int, int], *, is_process: bool) -> None:
    track.is_process = is_process
    name = pf.Process.process_name if is_process else pf.Thread.thread_name
    for number, wire, value, stop in read_fields(data, *part):
        if wire == BYTES:
            text = data[value:stop].decode("utf-8", "replace")
            if number == name:
                track.name = text
            elif is_process and number == pf.Process.labels:
                track.labels += (text,)
        elif number == pf.Process.pid:  # the same as `Thread.pid`
            track.pid = signed(value)
        elif number == pf.Thread.tid and not is_process:
            track.tid = signed(value)
        elif number == pf.Process.sort_index:  # the same as `Thread.sort_index`
            track.sort_index = signed(value)


def _read_defaults(sequence: _Sequence, data: bytes, part: tuple[int, int]) -> None:
    for number, wire, value, stop in read_fields(data, *part):
        if number == pf.Defaults.timestamp_clock_id:
            sequence.default_clock = value
        elif number == pf.Defaults.track_event and wire == BYTES:
            for inner, _, uuid, _ in read_fields(data, value, stop):
                if inner == Event.track_uuid:
                    sequence.default_track = uuid


def _packed_ids(number: int, data: bytes, at: int, end: int) -> Iterator[int]:
    return (_fixed64s if number in (Event.flow_ids, Event.terminating_flow_ids) else _varints)(data, at, end)


def _varints(data: bytes, at: int, end: int) -> Iterator[int]:
    while at < end:
        value, at = read_varint(data, at, end)
        yield value


def _fixed64s(data: bytes, at: int, end: int) -> Iterator[int]:
    if (end - at) % 8:
        raise WireError("flow ids of another size", at)
    for place in range(at, end, 8):
        yield int.from_bytes(data[place : place + 8], "little")


def _joined(args: dict[str, bytes]) -> bytes:
    return b", ".join([b"%b: %b" % (_json(key), value) for key, value in args.items()])


def _valid_json(text: bytes) -> bytes:
    """A text that should be JSON; as a JSON string if it is not."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return _json(text.decode("utf-8", "replace"))
    return text


_MESSAGES = {
    Packet.clock_snapshot,
    Packet.track_event,
    Packet.interned_data,
    Packet.compressed_packets,
    Packet.defaults,
    Packet.track_descriptor,
}
_STATE = {Packet.clock_snapshot, Packet.interned_data, Packet.defaults}
_INTERNED = set(pf.Interned)
_FLOWS = {Event.flow_ids, Event.flow_ids_old, Event.terminating_flow_ids, Event.terminating_flow_ids_old}
