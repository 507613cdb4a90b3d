"""Cut a trace of any size into chunks of whole events, without parsing it first.

The events' array is cut at a guessed boundary, the last ``}, {"`` of a buffer. The chunk before it starts at a known
boundary, so the guess is right exactly if the chunk decodes as an array: inside a string or a nested object it cannot.
Where a chunk does not decode, its text is repaired (invalid UTF-8, bad escapes, bare NaN) and tried again; what is
still broken is taken event by event, and what cannot be read is counted as a loss. Memory is a few chunks, whatever
the file's size.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from rankscope.errors import NotATraceError
from rankscope.ingest.events import EVENT, EVENTS, Event
from rankscope.ingest.repair import repair

CHUNK_BYTES = 8 << 20
# Beyond this a single event is taken for damage: the largest in real traces are some hundred kB.
MAX_EVENT_BYTES = 64 << 20
MAX_TAIL_BYTES = 64 << 20
MAX_JOINED_PIECES = 8

_BOUNDARY = re.compile(rb'\}\s*,\s*(?=\{\s*")')
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*(\[|null)')
# msgspec counts from one: the byte it names is the first that does not belong.
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass
class Losses:
    """What of a file could not be read, or only after mending.

    Attributes:
        events: events that were lost, as far as they can be told apart.
        lost_bytes: bytes that were lost with them.
        repaired: chunks or events that had to be mended before they could be read.
        truncated: the file ends before its events do.
        reason: what the decompressor or the parser said first.
    """

    events: int = 0
    lost_bytes: int = 0
    repaired: int = 0
    truncated: bool = False
    reason: str | None = None

    def lose(self, text: bytes, reason: str) -> None:
        """Count one event's text as lost."""
        self.events += 1
        self.lost_bytes += len(text)
        self.reason = self.reason or reason


@dataclass
class Chunk:
    """Some events, decoded, and the JSON array that they were decoded from."""

    text: bytes
    events: list[Event]


@dataclass
class EventStream:
    """The events of one trace, chunk by chunk; then what stands beside them.

    Args:
        read: reads up to so many bytes of the decompressed file; nothing at the end.
        path: the file's name, for errors.
        chunk_bytes: how much is decoded at once.

    Iterate once; then `metadata` (the top-level keys other than the events) and `losses` are complete.

    Raises:
        NotATraceError: while iterating, if the file is no JSON, or JSON without events.
    """

    read: Callable[[int], bytes]
    path: str
    chunk_bytes: int = CHUNK_BYTES
    metadata: dict[str, object] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)
    bytes_read: int = 0
    _buffer: bytes = b""
    _ended: bool = False

    def __iter__(self) -> Iterator[Chunk]:
        """Yield the chunks in the file's order."""
        if not self._open_array():
            return
        while True:
            self._fill(self.chunk_bytes)
            rest = self._buffer.lstrip()
            if rest.startswith(b"]") or not rest:
                self._buffer = rest
                break
            chunk, closed = self._next_chunk()
            if chunk is not None and chunk.events:
                yield chunk
            if closed:
                break
        self._read_tail()

    # -- reading ------------------------------------------------------------------------------------------------

    def _fill(self, size: int) -> None:
        if self._ended or len(self._buffer) >= size:
            return
        parts, have = [self._buffer], len(self._buffer)
        while have < size:
            try:
                data = self.read(size - have)
            except (EOFError, OSError, ValueError, ArithmeticError) as error:
                # A compressed file that breaks off or is damaged inside: what came out so far is good.
                self.losses.truncated = True
                self.losses.reason = self.losses.reason or str(error) or type(error).__name__
                data = b""
            if not data:
                self._ended = True
                break
            parts.append(data)
            have += len(data)
            self.bytes_read += len(data)
        self._buffer = b"".join(parts)

    def _open_array(self) -> bool:
        """Read up to the first event. False where there are no events to read."""
        self._fill(64 << 10)
        self._buffer = self._buffer.removeprefix(b"\xef\xbb\xbf").lstrip()
        start = self._buffer[:1]
        if not start and self.losses.truncated:
            raise NotATraceError(
                f"the file breaks off before its first event ({self.losses.reason})",
                path=self.path,
                hint="copy it again, or leave it out; the other ranks can be read without it",
            )
        if not start:
            raise NotATraceError("the file is empty", path=self.path, hint="the export failed, or was cut short")
        if start == b"[":
            self._buffer = self._buffer[1:]
            return True
        if start != b"{":
            shown = self._buffer[:24].decode("utf-8", "replace")
            raise NotATraceError(
                f"not JSON: it starts with {shown!r}",
                path=self.path,
                hint="rankscope reads the JSON traces of torch.profiler, plain or compressed",
            )
        searched = 0
        while True:
            for match in _EVENTS_KEY.finditer(self._buffer, searched):
                head = self._head(self._buffer[: match.start()])
                if head is None:
                    continue
                self.metadata = head
                self._buffer = self._buffer[match.end() :]
                if match.group(1) == b"null":
                    self._read_tail(b"]")
                    return False
                return True
            if self._ended:
                break
            # The key may straddle the end of the buffer.
            searched = max(0, len(self._buffer) - 64)
            self._fill(max(2 * len(self._buffer), self.chunk_bytes))
        raise NotATraceError(
            self._why_no_trace(),
            path=self.path,
            hint="rankscope reads the traces that torch.profiler exports (a JSON object with `traceEvents`)",
        )

    def _head(self, text: bytes) -> dict[str, object] | None:
        """The metadata before the events, if the text up to the key is the start of an object."""
        return _decode_object(text + b'"traceEvents":[]}')

    def _why_no_trace(self) -> str:
        try:
            found = msgspec.json.decode(self._buffer)
        except _UNREADABLE as error:
            return "the file breaks off before its first event" if "truncated" in str(error) else f"not JSON: {error}"
        keys = ", ".join(repr(key) for key in list(found)[:4]) if isinstance(found, dict) else "no object"
        if isinstance(found, dict) and {"schema", "nodes"} <= set(found):
            return "this is an execution trace (ExecutionTraceObserver), which holds no times"
        return f"JSON, but no trace: it has no `traceEvents` (it has {keys})"

    # -- cutting ------------------------------------------------------------------------------------------------

    def _next_chunk(self) -> tuple[Chunk | None, bool]:
        """The next chunk, and whether it was the last."""
        cut = _last_boundary(self._buffer)
        while cut is None and not self._ended:
            if len(self._buffer) > MAX_EVENT_BYTES:
                self.losses.lose(self._buffer, f"an event of over {MAX_EVENT_BYTES >> 20} MiB")
                self._buffer = b""
                self._ended = True
                return None, True
            self._fill(2 * len(self._buffer))
            cut = _last_boundary(self._buffer)
        if cut is None:
            return self._last_piece()
        body, rest = self._buffer[: cut[0]], self._buffer[cut[1] :]
        text = b"[" + body + b"]"
        try:
            events = EVENTS.decode(text)
        except _UNREADABLE as error:
            closed = _TRAILING.search(str(error))
            if closed:
                return self._closed_inside(text, int(closed.group(1)) - 1, rest)
            return self._mend(text, rest)
        self._buffer = rest
        return Chunk(text, events), False

    def _closed_inside(self, text: bytes, end: int, rest: bytes) -> tuple[Chunk | None, bool]:
        """The array ended inside the chunk: what follows belongs to the metadata after it."""
        array = text[:end]
        after = text[end:-1]
        # The last boundary of the buffer lay in the metadata: put back what the cut took away.
        self._buffer = b"]" + after + (b"," + rest if rest else b"")
        try:
            return Chunk(array, EVENTS.decode(array)), True
        except _UNREADABLE:
            return self._salvage(array[1:].rstrip()[:-1]), True

    def _mend(self, text: bytes, rest: bytes) -> tuple[Chunk | None, bool]:
        mended = repair(text)
        if mended is not None:
            try:
                chunk = Chunk(mended, EVENTS.decode(mended))
            except _UNREADABLE:
                pass
            else:
                self.losses.repaired += 1
                self._buffer = rest
                return chunk, False
        self._buffer = rest
        return self._salvage(text[1:-1]), False

    def _last_piece(self) -> tuple[Chunk | None, bool]:
        """The last event of the file, with what closes the array behind it."""
        piece = self._buffer
        event, end = _decode_first(piece)
        if event is None:
            mended = repair(piece)
            if mended is not None:
                event, end = _decode_first(mended)
                if event is not None:
                    piece = mended
                    self.losses.repaired += 1
        if event is None:
            # Neither whole nor mendable: cut off in the middle, or damaged with the array's end unknown.
            self.losses.truncated = True
            if piece.strip():
                self.losses.lose(piece, "the file breaks off in the middle of an event")
            self._buffer = b""
            return None, True
        self._buffer = piece[end:].lstrip().removeprefix(b",").lstrip()
        if not self._buffer.startswith(b"]"):
            self.losses.truncated = True
        return Chunk(b"[" + piece[:end] + b"]", [event]), True

    def _salvage(self, body: bytes) -> Chunk | None:
        """Event by event: keep what decodes, alone or joined with what follows; count the rest."""
        pieces = [piece + b"}" for piece in _BOUNDARY.split(body)]
        pieces[-1] = pieces[-1][:-1]
        kept: list[bytes] = []
        events: list[Event] = []
        index = 0
        while index < len(pieces):
            for last in range(index + 1, min(index + 1 + MAX_JOINED_PIECES, len(pieces) + 1)):
                text = b",".join(pieces[index:last])
                event = _decode_event(text)
                if event is None:
                    mended = repair(text)
                    event = None if mended is None else _decode_event(mended)
                    if event is not None and mended is not None:
                        self.losses.repaired += 1
                        text = mended
                if event is not None:
                    kept.append(text)
                    events.append(event)
                    index = last
                    break
            else:
                self.losses.lose(pieces[index], "events that are not valid JSON, or not events")
                index += 1
        return Chunk(b"[" + b",".join(kept) + b"]", events) if events else None

    def _read_tail(self, tail: bytes | None = None) -> None:
        """What stands after the events: more metadata."""
        self._fill(MAX_TAIL_BYTES)
        text = (self._buffer if tail is None else tail + self._buffer).strip().removeprefix(b"]").strip()
        self._buffer = b""
        if not text or text == b"}":
            return
        found = _decode_object(b'{"traceEvents":[]' + text)
        if found is None:
            self.losses.truncated = True
            self.losses.reason = self.losses.reason or "the metadata after the events cannot be read"
            return
        self.metadata.update(found)


def _last_boundary(buffer: bytes) -> tuple[int, int] | None:
    """Where the last event but one ends and the last one starts, as far as can be guessed."""
    reach = 64 << 10
    while True:
        start = max(0, len(buffer) - reach)
        found = deque(_BOUNDARY.finditer(buffer, start), maxlen=1)
        if found:
            return found[0].start() + 1, found[0].end()
        if start == 0:
            return None
        reach *= 4


def _decode_event(text: bytes) -> Event | None:
    try:
        return EVENT.decode(text)
    except msgspec.ValidationError:
        return _coerced(text)
    except _UNREADABLE:
        return None


def _coerced(text: bytes) -> Event | None:
    """An event some of whose fields are of a type that no producer writes: keep the fields that are as expected."""
    try:
        found = msgspec.json.decode(text)
    except _UNREADABLE:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("ph"), str):
        return None
    good: dict[str, object] = {}
    for key, value in found.items():
        try:
            EVENT.decode(msgspec.json.encode({key: value}))
        except (*_UNREADABLE, OverflowError, ValueError):
            continue
        good[key] = value
    return EVENT.decode(msgspec.json.encode(good))


def _decode_first(text: bytes) -> tuple[Event | None, int]:
    """The event that the text starts with, and where it ends."""
    try:
        return EVENT.decode(text), len(text)
    except _UNREADABLE as error:
        trailing = _TRAILING.search(str(error))
    if trailing is None:
        return None, 0
    end = int(trailing.group(1)) - 1
    return _decode_event(text[:end]), end


def _decode_object(text: bytes) -> dict[str, object] | None:
    for candidate in (text, repair(text)):
        if candidate is None:
            continue
        try:
            found = msgspec.json.decode(candidate)
        except _UNREADABLE:
            continue
        if isinstance(found, dict):
            found.pop("traceEvents", None)
            return found
    return None
