"""Read a Perfetto trace (`.pftrace`) as the events that Kineto's JSON of the same recording would have.

The slices of a track need not be in the order of time, and an end names no begin: the packets are read once, the
arguments of each event go to a temporary file, and the times stay in memory (about 30 bytes per packet), as does each
distinct name. Then ends are paired with begins.

A slice ends at the next end of its track that no later slice takes, in the order of time. PyTorch's export writes all
begins of one kind of events and then all ends in the same order, with slices of one track back to back: there the
n-th end is that of the n-th begin.

In: the decompressed bytes of a trace. Out: events, times on the trace's clock.
"""

from __future__ import annotations

import re
import tempfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

import numpy as np
import numpy.typing as npt
from msgspec import Raw
from msgspec.json import encode as _json

from rankscope.errors import NotATraceError
from rankscope.ingest import perfetto_schema as pf
from rankscope.ingest.decompress import BLOCK_BYTES, ChecksumError, Reader
from rankscope.ingest.event_types import Event
from rankscope.ingest.imported import Imported, Timed
from rankscope.ingest.perfetto_packets import Found, PacketReader, Place, TrackInfo
from rankscope.ingest.protobuf import BYTES, WireError, read_fields, read_varint
from rankscope.primitives.intervals import Int64

MAX_PACKET_BYTES = 64 << 20
_IN_MEMORY_BYTES = 64 << 20
_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
_LAUNCHES = {"cuda_runtime", "cuda_driver"}
_MAX_PACKET_FIELD = 1000
_JSON = re.compile(rb'\s*(?:\{\s*["}]|\[\s*[\]{])')
_TAG = pf.TRACE_PACKET << 3 | BYTES


def is_perfetto(head: bytes) -> bool:
    """Whether a file is a Perfetto trace, by its first bytes (512 are enough): it begins with a well-formed packet.

    A JSON file may begin with the same byte, a line feed, but does not go on as a packet does.
    """
    if not head or head[0] != _TAG or _JSON.match(head):
        return False
    try:
        size, at = read_varint(head, 1, len(head))
    except WireError:
        return False
    complete = size <= len(head) - at
    try:
        numbers = [number for number, _, _, _ in read_fields(head, at, at + size if complete else len(head))]
    except WireError as error:
        return not complete and error.cut
    return size <= MAX_PACKET_BYTES and all(number <= _MAX_PACKET_FIELD for number in numbers)


@dataclass
class _Recording:
    """The events of a file: columns with a row per event, and their arguments in a temporary file.

    Attributes:
        flows: id and row of each flow of an event.
        ends: arguments that came with the end of a slice, by row.
    """

    texts: IO[bytes]
    kind: array[int] = field(default_factory=lambda: array("b"))
    track: array[int] = field(default_factory=lambda: array("q"))
    time: array[int] = field(default_factory=lambda: array("q"))
    head: array[int] = field(default_factory=lambda: array("I"))
    args: array[int] = field(default_factory=lambda: array("I"))
    flow: array[int] = field(default_factory=lambda: array("Q"))
    flow_row: array[int] = field(default_factory=lambda: array("q"))
    ends: dict[int, bytes] = field(default_factory=dict)
    _heads: dict[tuple[str | None, str], int] = field(default_factory=dict)
    _numbers: dict[int, int] = field(default_factory=dict)

    @property
    def uuids(self) -> list[int]:
        """The tracks by their numbers in `track`."""
        return list(self._numbers)

    @property
    def heads(self) -> list[tuple[str | None, str]]:
        """Categories and names by their numbers in `head`."""
        return list(self._heads)

    def add(self, found: Found) -> None:
        """Add an event."""
        row = len(self.kind)
        self.kind.append(found.kind)
        self.track.append(self._numbers.setdefault(found.track, len(self._numbers)))
        self.time.append(found.time_ns)
        if found.kind == pf.END:
            self.head.append(0)
            self.args.append(0)
            if found.args:
                self.ends[row] = found.args
            return
        self.head.append(self._heads.setdefault((found.category, found.name), len(self._heads)))
        self.args.append(len(found.args))
        self.texts.write(found.args)
        for each in found.flows:
            self.flow.append(each)
            self.flow_row.append(row)


def read_perfetto(reader: Reader, path: str) -> Imported:
    """The events of a Perfetto trace.

    Iterating raises `NotATraceError` if none of its packets can be read. What comes before damage is read.

    Args:
        reader: the decompressed file.
        path: its name, for errors.
    """
    found = Imported((), {"schemaVersion": 1})
    found.events = _read(reader, path, found)
    return found


def _read(reader: Reader, path: str, found: Imported) -> Iterator[Timed]:
    packets = PacketReader()
    found.odd = packets.skipped
    with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as texts:
        recording = _Recording(texts)
        _fill(recording, packets, reader, found)
        if not recording.kind and not packets.tracks:
            reason = f" ({found.losses.reason})" if found.losses.reason else ", nor a track"
            raise NotATraceError(
                f"a Perfetto trace without an event of a program{reason}",
                path=path,
                hint="rankscope reads track events, as PyTorch and Perfetto's SDK write them",
            )
        texts.seek(0)
        if packets.base_ns is not None:
            found.metadata["baseTimeNanoseconds"] = packets.base_ns
        for uuid, info in packets.tracks.items():
            yield from _names(info, packets.place(uuid))
        places = [packets.place(uuid) for uuid in recording.uuids]
        yield from _events(recording, places, found)
        yield from _flows(recording, places)


def _fill(recording: _Recording, packets: PacketReader, reader: Reader, found: Imported) -> None:
    """Read all packets, up to the first that is damaged."""
    data, begins = b"", 0
    more = True
    while more:
        try:
            block = reader.read(BLOCK_BYTES)
        except NotATraceError:
            raise
        except ChecksumError as error:
            found.losses.fail_checksum(str(error))
            block = b""
        except (EOFError, OSError, ValueError, ArithmeticError) as error:
            found.losses.cut(str(error) or type(error).__name__)
            block = b""
        more = bool(block)
        found.bytes_read += len(block)
        data += block
        at = 0
        try:
            for place, end in _packets(data, last=not more):
                for event in packets.read(data, place, end):
                    recording.add(event)
                at = end
        except WireError as error:
            found.losses.cut(f"damaged at byte {begins + error.at:,}: {error}")
            return
        data, begins = data[at:], begins + at


def _events(recording: _Recording, places: list[Place], found: Imported) -> Iterator[Timed]:
    """Slices, instants and counters."""
    columns = (recording.kind, recording.track, recording.time)
    kind, track, time = (np.frombuffer(column, dtype=column.typecode) for column in columns)
    partner = pair(kind, track, time)
    if unmatched := int(np.count_nonzero((kind == pf.END) & (partner < 0))):
        found.odd["ends without a begin"] += unmatched
    heads = recording.heads
    for row, (number, head, size) in enumerate(zip(recording.kind, recording.head, recording.args, strict=True)):
        if number == pf.END:
            continue
        args, duration = recording.texts.read(size), None
        if number == pf.BEGIN:
            end = int(partner[row])
            args = b", ".join(filter(None, (args, recording.ends.get(end, b""))))
            phase = "X" if end >= 0 else "B"
            duration = recording.time[end] - recording.time[row] if end >= 0 else None
        else:
            phase = "i" if number == pf.INSTANT else "C"
        category, name = heads[head]
        pid, tid = places[recording.track[row]]
        event = Event(phase, category, name, pid=pid, tid=tid, args=Raw(b"{%b}" % args))
        yield event, recording.time[row], duration


def _packets(data: bytes, *, last: bool) -> Iterator[tuple[int, int]]:
    """Where the complete packets of a text of packets begin and end.

    Args:
        last: whether the file ends with it.

    Raises:
        WireError: something else is in it, a packet is too large, or the file ends in one.
    """
    at = 0
    while at < len(data):
        begins = at
        try:
            tag, at = read_varint(data, at, len(data))
            size, at = read_varint(data, at, len(data)) if tag & 7 == BYTES else (0, at)
        except WireError as error:
            if error.cut and not last:
                return
            raise WireError("the file ends in a packet" if error.cut else str(error), begins) from error
        if tag & 7 != BYTES or tag >> 3 == 0:
            raise WireError("something that is not a packet", begins)
        if size > MAX_PACKET_BYTES:
            raise WireError(f"a packet of {size:,} bytes", begins)
        if size > len(data) - at:
            if last:
                raise WireError("the file ends in a packet", begins)
            return
        if tag == _TAG:
            yield at, at + size
        at += size


def pair(kind: npt.NDArray[np.int8], track: Int64, time: Int64) -> Int64:
    """For each begin of a slice the row of its end, and for each end that of its begin; −1 if there is none.

    Args:
        kind: `BEGIN`, `END`, or something else.
        track: numbers of tracks.
        time: instants, ns.
    """
    partner = np.full(kind.size, -1, dtype=np.int64)
    for begins, middle, ends in _grouped_runs(kind):
        first, second = slice(begins, middle), slice(middle, ends)
        # As PyTorch writes them: not in the order of time, so that it takes the same order of tracks to be sure.
        if (
            time[second].min() < time[first].max()
            and np.array_equal(track[first], track[second])
            and (time[second] >= time[first]).all()
        ):
            partner[first] = np.arange(middle, ends)
            partner[second] = np.arange(begins, middle)
    rows = np.flatnonzero(((kind == pf.BEGIN) | (kind == pf.END)) & (partner < 0))
    if not rows.size:
        return partner
    rows = rows[np.lexsort((rows, time[rows], track[rows]))]
    opens = kind[rows] == pf.BEGIN
    step = np.where(opens, 1, -1)
    depth = np.cumsum(step)
    # How many slices are open at a begin with it, or at an end before it: of one level they alternate.
    level = depth + ~opens
    order = np.lexsort((np.arange(rows.size), level, track[rows]))
    rows, opens, level = rows[order], opens[order], level[order]
    of_track = track[rows]
    matched = opens[:-1] & ~opens[1:] & (level[:-1] == level[1:]) & (of_track[:-1] == of_track[1:])
    at = np.flatnonzero(matched)
    partner[rows[at]] = rows[at + 1]
    partner[rows[at + 1]] = rows[at]
    return partner


def _grouped_runs(kind: npt.NDArray[np.int8]) -> Iterator[tuple[int, int, int]]:
    """Runs of begins that as many ends follow: where the begins start, where the ends do, and where these end."""
    changes = np.flatnonzero(np.diff(kind, prepend=-1, append=-1))
    sizes = np.diff(changes)
    kinds = kind[changes[:-1]]
    found = np.flatnonzero(
        (kinds[:-1] == pf.BEGIN) & (kinds[1:] == pf.END) & (sizes[:-1] == sizes[1:]) & (sizes[:-1] > 1)
    )
    for place in found.tolist():
        yield int(changes[place]), int(changes[place + 1]), int(changes[place + 2])


def _names(track: TrackInfo, place: Place) -> Iterator[Timed]:
    """The metadata events that name a track."""
    kind = "process" if track.is_process else "thread"
    fields: list[tuple[str, str, object]] = [(f"{kind}_name", "name", track.name)] if track.name else []
    if track.labels:
        fields.append(("process_labels", "labels", ", ".join(track.labels)))
    if track.sort_index is not None:
        fields.append((f"{kind}_sort_index", "sort_index", track.sort_index))
    for name, key, value in fields:
        yield Event("M", None, name, pid=place[0], tid=place[1], args=Raw(_json({key: value}))), 0, None


def _flows(recording: _Recording, places: list[Place]) -> Iterator[Timed]:
    """The flows. Those of launches end at the device's events; of others the earliest event of an id is the start."""
    ids = np.frombuffer(recording.flow, dtype=np.uint64)
    rows = np.frombuffer(recording.flow_row, dtype=np.int64)
    if not ids.size:
        return
    times = np.frombuffer(recording.time, dtype=np.int64)[rows]
    order = np.lexsort((rows, times, ids))
    bounds = np.flatnonzero(np.diff(ids[order], prepend=ids[order][:1] + np.uint64(1)))
    heads = recording.heads
    for low, high in zip(bounds.tolist(), [*bounds[1:].tolist(), order.size], strict=True):
        members = rows[order[low:high]].tolist()
        categories = [heads[recording.head[row]][0] or "" for row in members]
        launches = not _DEVICE.isdisjoint(categories) or _LAUNCHES.issuperset(categories)
        if len(members) < 2 and not launches:
            continue
        category = "ac2g" if launches else "fwdbwd" if set(categories) == {"cpu_op"} else "flow"
        for number, (row, kind) in enumerate(zip(members, categories, strict=True)):
            phase = "f" if (kind in _DEVICE if launches else number > 0) else "s"
            pid, tid = places[recording.track[row]]
            yield Event(phase, category, category, pid=pid, tid=tid, id=int(ids[order[low]])), recording.time[row], None
