"""Read a Perfetto trace (`.pftrace`) as the JSON that the same recording would be, so that all of the reader applies.

The slices of a track need not be in the order of time, and an end names no begin: the packets are read once, the text
of each event goes to a temporary file, and the times stay in memory (about 30 bytes per packet). Then ends are paired
with begins, and the JSON is written event by event.

A slice ends at the next end of its track that no later slice takes, in the order of time. PyTorch's export writes all
begins of one kind of events and then all ends in the same order, with slices of one track back to back: there the
n-th end is that of the n-th begin.

In: the decompressed bytes of a trace. Out: JSON in the Chrome format, times on the trace's clock.
"""

from __future__ import annotations

import re
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

import msgspec
import numpy as np
import numpy.typing as npt

from rankscope.errors import NotATraceError
from rankscope.ingest import perfetto_schema as pf
from rankscope.ingest.decompress import BLOCK_BYTES, ChecksumError, Reader
from rankscope.ingest.perfetto_packets import Found, PacketReader
from rankscope.ingest.protobuf import BYTES, WireError, read_fields, read_varint
from rankscope.primitives.intervals import Int64

MAX_PACKET_BYTES = 64 << 20
_IN_MEMORY_BYTES = 64 << 20
_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
_LAUNCHES = {"cuda_runtime", "cuda_driver"}
_MAX_PACKET_FIELD = 1000
_JSON = re.compile(rb'\s*(?:\{\s*["}]|\[\s*[\]{])')
_TAG = pf.TRACE_PACKET << 3 | BYTES

_json = msgspec.json.encode


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
    """The events of a file: columns with a row per event, and their texts in a temporary file.

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
    categories: dict[int, str] = field(default_factory=dict)
    _numbers: dict[int, int] = field(default_factory=dict)

    @property
    def uuids(self) -> list[int]:
        """The tracks by their numbers in `track`."""
        return list(self._numbers)

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
        self.head.append(len(found.head))
        self.args.append(len(found.args))
        self.texts.write(found.head)
        self.texts.write(found.args)
        for each in found.flows:
            self.flow.append(each)
            self.flow_row.append(row)
        if found.flows:
            self.categories[row] = found.category or ""


class PerfettoReader:
    """A reader of the JSON of a Perfetto trace.

    Args:
        reader: the decompressed file.
        path: its name, for errors.

    Attributes:
        skipped: what has no place in the JSON, and why: with the numbers of events; complete after the last byte.
    """

    def __init__(self, reader: Reader, path: str) -> None:
        self._reader, self._path = reader, path
        self._json: Iterator[bytes] | None = None
        self._rest = b""
        self._failed: Exception | None = None
        self.skipped: Counter[str] = Counter()

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes of JSON.

        Raises:
            NotATraceError: none of its packets can be read.
            ValueError: it is damaged; what comes before the damage was returned.
        """
        if self._json is None:
            self._json = self._written()
        parts, have = [self._rest], len(self._rest)
        while have < size:
            part = next(self._json, None)
            if part is None:
                break
            parts.append(part)
            have += len(part)
        content = b"".join(parts)
        self._rest = content[size:]
        if not content and self._failed is not None:
            raise self._failed
        return content[:size]

    def _written(self) -> Iterator[bytes]:
        packets = PacketReader()
        self.skipped = packets.skipped
        with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as texts:
            recording = _Recording(texts)
            self._fill(recording, packets)
            if not recording.kind and not packets.tracks:
                reason = f" ({self._failed})" if self._failed else ", nor a track"
                raise NotATraceError(
                    f"a Perfetto trace without an event of a program{reason}",
                    path=self._path,
                    hint="rankscope reads track events, as PyTorch and Perfetto's SDK write them",
                )
            texts.seek(0)
            base = b"" if packets.base_ns is None else b'"baseTimeNanoseconds": %d, ' % packets.base_ns
            # The first keys of Kineto's files, by which other parts recognize a trace.
            yield b'{"schemaVersion": 1, %b"traceEvents": [\n' % base
            lines = self._lines(recording, packets)
            yield next(lines, b"").removeprefix(b",\n")
            yield from lines
            if self._failed is None:
                yield b"\n]}\n"

    def _fill(self, recording: _Recording, packets: PacketReader) -> None:
        """Read all packets, up to the first that is damaged."""
        data, begins = b"", 0
        more = True
        while more:
            try:
                block = self._reader.read(BLOCK_BYTES)
            except NotATraceError:
                raise
            except ChecksumError as error:
                self._failed, block = error, b""
            except (EOFError, OSError, ValueError, ArithmeticError) as error:
                self._failed, block = ValueError(str(error) or type(error).__name__), b""
            more = bool(block)
            data += block
            at = 0
            try:
                for place, end in _packets(data, last=not more):
                    for found in packets.read(data, place, end):
                        recording.add(found)
                    at = end
            except WireError as error:
                self._failed = self._failed or ValueError(f"damaged at byte {begins + error.at:,}: {error}")
                return
            data, begins = data[at:], begins + at

    def _lines(self, recording: _Recording, packets: PacketReader) -> Iterator[bytes]:
        """The events as JSON, each after a comma."""
        columns = (recording.kind, recording.track, recording.time)
        kind, track, time = (np.frombuffer(column, dtype=column.typecode) for column in columns)
        partner = pair(kind, track, time)
        unmatched = (kind == pf.END) & (partner < 0)
        if unmatched.any():
            self.skipped["ends without a begin"] += int(unmatched.sum())
        places = [_place(*packets.place(uuid)) for uuid in recording.uuids]
        for uuid, info in packets.tracks.items():
            yield from _track_lines(info.name, info.labels, info.sort_index, packets.place(uuid), info.is_process)
        for row, (number, head, args) in enumerate(zip(recording.kind, recording.head, recording.args, strict=True)):
            if number == pf.END:
                continue
            text, arguments = recording.texts.read(head), recording.texts.read(args)
            begins = recording.time[row]
            where = places[recording.track[row]]
            if number == pf.BEGIN:
                end = int(partner[row])
                arguments = b", ".join(filter(None, (arguments, recording.ends.get(end, b""))))
                phase = b"X" if end >= 0 else b"B"
                length = b', "dur": %b' % _microseconds(recording.time[end] - begins) if end >= 0 else b""
            else:
                phase, length = (b"i", b', "s": "t"') if number == pf.INSTANT else (b"C", b"")
            yield b',\n{"ph": "%b", %b, %b, "ts": %b%b, "args": {%b}}' % (
                phase, text, where, _microseconds(begins), length, arguments,
            )  # fmt: skip
        yield from _flow_lines(recording, places)


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


def _place(pid: int | str | None, tid: int | str | None) -> bytes:
    return b'"pid": %b, "tid": %b' % (_json(pid), _json(tid))


def _microseconds(nanoseconds: int) -> bytes:
    return b"%d.%03d" % divmod(nanoseconds, 1000)


def _track_lines(
    name: str, labels: tuple[str, ...], sort_index: int | None, place: tuple[int | str | None, ...], is_process: bool
) -> Iterator[bytes]:
    """The metadata events that name a track."""
    kind = "process" if is_process else "thread"
    fields: list[tuple[str, str, object]] = [(f"{kind}_name", "name", name)] if name else []
    if labels:
        fields.append(("process_labels", "labels", ", ".join(labels)))
    if sort_index is not None:
        fields.append((f"{kind}_sort_index", "sort_index", sort_index))
    for field_name, key, value in fields:
        yield b',\n{"ph": "M", "name": %b, %b, "ts": 0, "args": {%b: %b}}' % (
            _json(field_name), _place(*place), _json(key), _json(value),
        )  # fmt: skip


def _flow_lines(recording: _Recording, places: list[bytes]) -> Iterator[bytes]:
    """The flows. Those of launches end at the device's events; of others the earliest event of an id is the start."""
    ids = np.frombuffer(recording.flow, dtype=np.uint64)
    rows = np.frombuffer(recording.flow_row, dtype=np.int64)
    if not ids.size:
        return
    times = np.frombuffer(recording.time, dtype=np.int64)[rows]
    order = np.lexsort((rows, times, ids))
    bounds = np.flatnonzero(np.diff(ids[order], prepend=ids[order][:1] + np.uint64(1)))
    for low, high in zip(bounds.tolist(), [*bounds[1:].tolist(), order.size], strict=True):
        members = rows[order[low:high]].tolist()
        categories = [recording.categories[row] for row in members]
        launches = not _DEVICE.isdisjoint(categories) or _LAUNCHES.issuperset(categories)
        if len(members) < 2 and not launches:
            continue
        category = b"ac2g" if launches else b"fwdbwd" if set(categories) == {"cpu_op"} else b"flow"
        for number, (row, kind) in enumerate(zip(members, categories, strict=True)):
            ends = kind in _DEVICE if launches else number > 0
            yield b',\n{"ph": "%b", "id": %d, "cat": "%b", "name": "%b", %b, "ts": %b%b}' % (
                b"f" if ends else b"s", int(ids[order[low]]), category, category, places[recording.track[row]],
                _microseconds(recording.time[row]), b', "bp": "e"' if ends else b"",
            )  # fmt: skip
