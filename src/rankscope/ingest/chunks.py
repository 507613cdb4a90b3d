"""Cut a trace of any size into chunks of complete events, without parsing it first.

The events' array is cut at a guessed boundary, the last ``}, {"`` of a buffer. The chunk before it starts at a known
boundary, so the guess is right exactly if the chunk decodes as an array: inside a string or a nested object it cannot.
A chunk that does not decode is repaired (invalid UTF-8, bad escapes, bare NaN) and tried again; what is still broken is
read event by event, and what cannot be read is counted as a loss. Memory is a few chunks, whatever the file's size.

In: the bytes of a trace. Out: chunks of complete events, the metadata around them, and losses.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec import defstruct
from msgspec.json import Decoder

from rankscope.errors import NotATraceError
from rankscope.ingest import native
from rankscope.ingest.boundaries import last_boundary, pieces
from rankscope.ingest.decompress import ChecksumError
from rankscope.ingest.event_types import CATEGORIES, EVENTS, Event
from rankscope.ingest.native import Piece
from rankscope.ingest.salvage import (
    UNREADABLE,
    Losses,
    Salvage,
    closes_array,
    decode_object,
    first_keys,
    repair,
    trailing_byte,
)
from rankscope.primitives.intervals import Int64

# Small enough that a decoded chunk fits the processor's caches, large enough that there are few chunks.
CHUNK_BYTES = 4 << 20
# Beyond this a single event is treated as damage: the largest in real traces are some hundred kB.
MAX_EVENT_BYTES = 64 << 20
# The most metadata before the events, and after them. Real traces have some kB there.
MAX_METADATA_BYTES = 64 << 20

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*(\[|null)')
_OPENED = b'{"traceEvents":['
# Real metadata has no other key of this name: give up after this many.
_MAX_KEYS = 64
_EXECUTION_TRACE = re.compile(rb'"nodes"\s*:\s*\[')
# After this many chunks in a row with unknown categories, the compiled reader is not tried again.
_TRIES = 3
# Blocks of events without a category at the edges of a file are mostly shorter.
_EDGE_BYTES = 64 << 10
_KNOWN = Decoder(list[defstruct("Known", [("cat", Literal[tuple(CATEGORIES)])])])  # type: ignore[misc]  # made at run time
_CUT_EARLY = "the file ends before its first event"
_WANTED = "rankscope reads the traces that torch.profiler exports (a JSON object with `traceEvents`)"


@dataclass
class Chunk:
    """Decoded events, and the JSON array that they come from.

    Attributes:
        times: starts and durations, ns, of events that do not come from JSON.
        piece: what the compiled reader has made of them (`native`) instead of `events`.
        known: whether the categories of all are known (`event_types.CATEGORIES`).
    """

    text: bytes
    events: list[Event]
    piece: Piece | None = None
    known: bool = False
    times: tuple[Int64, Int64] | None = None

    def decoded(self) -> Chunk:
        """The same events, decoded in Python."""
        return Chunk(self.text, EVENTS.decode(self.text)) if self.piece else self


@dataclass
class EventStream:
    """The events of one trace, in chunks; then its metadata.

    Args:
        read: reads up to a number of bytes of the decompressed file; empty at the end.
        path: the file's name, for errors.
        chunk_bytes: how much is decoded at once.

    Iterate once; then `metadata` (the top-level keys other than the events), `losses` and `odd` are complete. Files
    that were merged by hand may have the key `traceEvents` more than once: all arrays are read.

    Raises:
        NotATraceError: while iterating, if the file is not JSON, or JSON without events.
    """

    read: Callable[[int], bytes]
    path: str
    chunk_bytes: int = CHUNK_BYTES
    metadata: dict[str, object] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)
    odd: Counter[str] = field(default_factory=Counter)
    bytes_read: int = 0
    _buffer: bytes = b""
    _ended: bool = False
    _begun: bool = False
    _tries: int = _TRIES
    _bare: bool = False
    _native: bool = field(default_factory=native.wanted)

    def __iter__(self) -> Iterator[Chunk]:
        """Yield the chunks in the file's order."""
        more = self._open_array()
        while more:
            yield from self._array()
            more = self._open_next_array()
            if more:
                self.odd["further arrays called traceEvents"] += 1
        if self.losses.retyped:
            self.odd["events with a field of an unexpected type"] += self.losses.retyped

    def _array(self) -> Iterator[Chunk]:
        """The chunks of one array, up to the bracket that closes it."""
        closed = False
        while not closed:
            self._fill(self.chunk_bytes)
            self._buffer = self._buffer.lstrip()
            if not self._buffer:
                self.losses.cut("the file ends between two events")
                return
            if closes_array(self._buffer):
                break
            chunks, closed = self._next_chunks()
            while chunks:
                # Keep no reference to it while the next one is decoded.
                yield chunks.pop(0)

    # -- reading ------------------------------------------------------------------------------------------------

    def _fill(self, size: int) -> None:
        if self._ended or len(self._buffer) >= size:
            return
        parts, have = [self._buffer], len(self._buffer)
        while have < size:
            try:
                data = self.read(size - have)
            except ChecksumError as error:
                self.losses.fail_checksum(str(error))
                data = b""
            except (EOFError, OSError, ValueError, ArithmeticError) as error:
                # The compressed file is cut or damaged: what was decompressed before is valid.
                self.losses.cut(str(error) or type(error).__name__)
                data = b""
            if not data:
                self._ended = True
                break
            parts.append(data)
            have += len(data)
            self.bytes_read += len(data)
        self._buffer = b"".join(parts)

    def _open_array(self) -> bool:
        """Read up to the first event. False if there are none."""
        self._fill(64 << 10)
        self._buffer = self._buffer.removeprefix(b"\xef\xbb\xbf").lstrip()
        start = self._buffer[:1]
        if not start and self.losses.truncated:
            raise NotATraceError(
                f"{_CUT_EARLY} ({self.losses.reason})",
                path=self.path,
                hint="copy it again, or leave it out; the other ranks can be read without it",
            )
        if not start:
            raise NotATraceError("the file is empty", path=self.path, hint="the export failed, or was interrupted")
        if start == b"[":
            self._buffer, self._bare = self._buffer[1:].lstrip(), True
            if self._buffer[:1] not in (b"{", b"]", b""):
                raise NotATraceError("JSON, but not a trace: an array of something else", path=self.path, hint=_WANTED)
            return True
        if start != b"{":
            shown = self._buffer[:24].decode("utf-8", "replace")
            raise NotATraceError(
                f"not JSON: it starts with {shown!r}",
                path=self.path,
                hint="rankscope reads the JSON traces of torch.profiler, plain or compressed",
            )
        found = self._find_events()
        if found is None:
            raise NotATraceError(self._why_no_trace(), path=self.path, hint=_WANTED)
        return self._opened(found) or self._open_next_array()

    def _open_next_array(self) -> bool:
        """Read what follows an array of events, up to the next such array or the end."""
        while not self._bare:
            # What is broken here is not a second array, but lost metadata.
            found = self._find_events(_OPENED)
            if found is None:
                break
            if self._opened(found):
                return True
        self._read_tail()
        return False

    def _opened(self, found: re.Match[bytes]) -> bool:
        """Continue after the key of the events. False if its value is null, which counts as an empty array."""
        is_array = found.group(1) == b"["
        self._buffer = (b"" if is_array else b"]") + self._buffer[found.end() :]
        return is_array

    def _find_events(self, opened: bytes = b"") -> re.Match[bytes] | None:
        """Find the key of the events: the text before it must be the start of an object, the metadata.

        Args:
            opened: what comes before the text; if not empty, a doubtful key is not used.
        """
        doubtful: re.Match[bytes] | None = None
        searched = tries = 0
        while True:
            for match in _EVENTS_KEY.finditer(self._buffer, searched):
                tries += 1
                if tries > _MAX_KEYS:
                    break
                before = self._buffer[: match.start()]
                head = decode_object(opened + before + b'"traceEvents":[]}')
                if head is not None:
                    self.metadata.update(_without_events(head))
                    return match
                if doubtful is None and before.rstrip().endswith((b"{", b",")):
                    doubtful = match
            if self._ended or len(self._buffer) > MAX_METADATA_BYTES:
                break
            # The key may straddle the end of the buffer.
            searched = max(0, len(self._buffer) - 64)
            self._fill(max(2 * len(self._buffer), self.chunk_bytes))
        if opened:
            return None
        if doubtful is not None:
            self._lose_metadata(self._buffer[: doubtful.start()])
        return doubtful

    def _why_no_trace(self) -> str:
        execution_trace = "this is an execution trace (ExecutionTraceObserver), which has no times"
        try:
            found = msgspec.json.decode(self._buffer)
        except UNREADABLE as error:
            if b'"schema"' in self._buffer[:4096] and _EXECUTION_TRACE.search(self._buffer):
                return execution_trace
            if not self._ended:
                return f"JSON, but not a trace: no `traceEvents` in its first {MAX_METADATA_BYTES >> 20} MiB"
            if "truncated" in str(error):
                return f"{_CUT_EARLY} ({self.losses.reason})" if self.losses.reason else _CUT_EARLY
            return f"not JSON: {error}"
        keys = ", ".join(repr(key[:40]) for key in list(found)[:4]) if isinstance(found, dict) else "no object"
        if isinstance(found, dict) and {"schema", "nodes"} <= set(found):
            return execution_trace
        if isinstance(found, dict) and "traceEvents" in found:
            return "JSON, but not a trace: its `traceEvents` are not an array"
        return f"JSON, but not a trace: it has no `traceEvents` (it has {keys or 'nothing'})"

    # -- cutting ------------------------------------------------------------------------------------------------

    def _next_chunks(self) -> tuple[list[Chunk], bool]:
        """The next events, and whether they were the last."""
        cut = last_boundary(self._buffer)
        while cut is None and not self._ended and len(self._buffer) <= MAX_EVENT_BYTES:
            self._fill(2 * len(self._buffer))
            cut = last_boundary(self._buffer)
        if cut is None:
            return self._separately(len(self._buffer))
        text = b"".join((b"[", memoryview(self._buffer)[: cut[0]], b"]"))
        try:
            chunks = self._decoded(text)
        except UNREADABLE as error:
            closed = trailing_byte(error)
            if closed is not None:
                return self._closed_inside(text[:closed].rstrip(), cut[0])
            repaired = _decode_repaired(text)
            if repaired is None:
                return self._separately(cut[0])
            self.losses.repaired += 1
            chunks = [repaired]
        self._buffer = self._buffer[cut[1] :]
        return chunks, False

    def _decoded(self, text: bytes) -> list[Chunk]:
        """The events of a JSON array.

        Raises:
            UNREADABLE: it is not one.
        """
        at_edge, self._begun = self._ended or not self._begun, True
        if self._tries <= 0:
            return [Chunk(text, EVENTS.decode(text))]
        # Events without a category are at the edges: there they are cut off first.
        chunks = self._in_pieces(text, _EDGE_BYTES if at_edge else 0)
        if not any(chunk.known for chunk in chunks):
            chunks = self._in_pieces(text)
        self._tries = _TRIES if any(chunk.known for chunk in chunks) else self._tries - 1
        return chunks or [Chunk(text, EVENTS.decode(text))]

    def _in_pieces(self, text: bytes, reach: int | None = None) -> list[Chunk]:
        """The events of a text; empty if it is not an array, or was cut wrongly.

        Both readers get the same pieces: in which order rows of the same time stand depends on them.
        """
        chunks = []
        for piece in pieces(text, reach):
            try:
                chunk = self._read(piece, only_known=reach is not None and 2 * len(piece) > len(text))
            except UNREADABLE:
                return []
            if chunk is None:
                return []  # try another cut
            chunks.append(chunk)
        return chunks

    def _read(self, text: bytes, *, only_known: bool) -> Chunk | None:
        """The events of an array, from the compiled reader if it takes them.

        Args:
            only_known: return None if not all have known categories.
        """
        if self._native:
            if (piece := native.read_piece(text)) is not None:
                return Chunk(text, [], piece, known=True)
            if only_known and not _are_known(text):
                return None
            if (piece := native.read_piece(text, only_memory=True)) is not None:
                return Chunk(text, [], piece)
        events = EVENTS.decode(text)
        known = CATEGORIES.keys() >= {event.cat for event in events}
        return Chunk(text, events, known=known) if known or not only_known else None

    def _closed_inside(self, array: bytes, cut: int) -> tuple[list[Chunk], bool]:
        """The array ended inside the chunk: what follows is metadata."""
        # The text starts with a bracket that the buffer does not have.
        rest = self._buffer[len(array) - 2 :]
        if not closes_array(rest):
            return self._separately(cut)
        try:
            chunk = Chunk(array, EVENTS.decode(array))
        except UNREADABLE:
            return self._separately(cut)
        self._buffer = rest
        return [chunk] if chunk.events else [], True

    def _separately(self, limit: int) -> tuple[list[Chunk], bool]:
        """The events that start before `limit`, decoded separately: the last of the file, or a damaged chunk."""
        salvage = Salvage(self.losses)
        salvage.read(self._buffer, limit, last=self._ended)
        taken = salvage.position
        if salvage.unfinished and taken == 0:
            if len(self._buffer) > MAX_EVENT_BYTES:
                last = last_boundary(self._buffer)
                taken = len(self._buffer) if last is None else last[1]
                self.losses.lose(taken, f"an event of over {MAX_EVENT_BYTES >> 20} MiB")
            else:
                self._fill(2 * len(self._buffer))
        self._buffer = self._buffer[taken:]
        chunks = [Chunk(b"[" + b",".join(salvage.kept) + b"]", salvage.events)] if salvage.events else []
        return chunks, salvage.closed

    # -- after the events ---------------------------------------------------------------------------------------

    def _read_tail(self) -> None:
        self._fill(MAX_METADATA_BYTES)
        # Files that were allocated before they were written end in zeros.
        text = self._buffer.removeprefix(b"]").strip(b" \t\r\n\0")
        self._buffer = b""
        if text == (b"" if self._bare else b"}"):
            return
        if not text:
            self.losses.cut("the file ends right after its events")
            return
        closed = _OPENED + b"]" + text
        found = decode_object(closed)
        if found is not None:
            self.metadata.update(_without_events(found))
            return
        if any(match[1] == b"[" for match in _EVENTS_KEY.finditer(text)):
            self.losses.lose(len(text), "there are further events after damaged text, or after the end of the trace")
        self._lose_metadata(closed)

    def _lose_metadata(self, text: bytes) -> None:
        """Keep the leading keys of metadata that is cut or damaged."""
        self.losses.metadata = True
        self.metadata.update(_without_events(first_keys(text)))
        try:
            msgspec.json.decode(text)
        except UNREADABLE as error:
            if self._ended and "truncated" in str(error):
                self.losses.cut("the file ends right after its events")
        self.losses.reason = self.losses.reason or "the metadata is damaged"


def _without_events(found: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in found.items() if key != "traceEvents"}


def _are_known(text: bytes) -> bool:
    """Whether all events have known categories, found without decoding those after the first that has not."""
    try:
        _KNOWN.decode(text)
    except UNREADABLE:
        return False
    return True


def _decode_repaired(text: bytes) -> Chunk | None:
    repaired = repair(text)
    if repaired is None:
        return None
    try:
        return Chunk(repaired, EVENTS.decode(repaired))
    except UNREADABLE:
        return None
