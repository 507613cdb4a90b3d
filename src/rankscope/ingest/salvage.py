"""Recover events from text that is not a valid array of events.

A chunk that does not decode is walked event by event. The parser's error gives the end of each event (the first
trailing byte), so commas, nested objects and strings need no guessing. What does not parse is repaired (invalid UTF-8,
bad escapes, raw control characters and bare NaN, which real producers write) and tried again; what is still broken is
counted as lost, and reading continues at the next text that is an event.

In: text that does not decode as an array of events. Out: its events, and the number of those that were lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import msgspec
from msgspec import Raw

from rankscope.ingest.event_types import EVENT, Event

# What a decoder raises on untrusted text; RecursionError if it is nested too deeply.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

# Some damage extends over several pieces (a string with a boundary in it): up to this many are tried together.
MAX_JOINED_PIECES = 8
MAX_RESYNC_PIECES = 256

# msgspec counts from one: this is the first byte after the value.
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_RAW = msgspec.json.Decoder(Raw)
# An event ends before a boundary, or before the bracket that closes the array.
_END = re.compile(rb'\}(?=\s*,\s*\{\s*"|\s*\]\s*(?:,\s*"|\}|$))')
_GAP = re.compile(rb"[\s,]*")
_FINAL = re.compile(rb"\]\s*\}?\s*$")
_CLOSED = re.compile(rb'\]\s*(?:,\s*(?:"|\}|$)|\}|\0|$)')
# The end of the events, inside text that is broken: the keys that profilers write after them.
_TAIL_KEY = re.compile(
    rb'\]\s*,\s*"(?:traceName|displayTimeUnit|baseTimeNanoseconds|deviceProperties|distributedInfo|schemaVersion'
    rb'|record_shapes|with_stack|profile_memory|rankscope|trace_id)"\s*:'
)
# Complete strings, so that nothing inside them is taken for a bare word; then the words that C++ prints for floats
# that JSON does not have.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|-?\b(?:nan|inf|infinity)\b', re.IGNORECASE | re.DOTALL)
_IN_STRING = re.compile(
    rb"(?P<pair>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb'|(?P<good>\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))'
    rb"|(?P<bad>\\)"
    rb"|(?P<control>[\x00-\x1f])"
)
_SUSPECT = re.compile(rb"[\\\x00-\x1f]")


@dataclass
class Losses:
    """What could not be read of a file, or only after a repair.

    Attributes:
        events: events that were lost, as far as they can be counted.
        lost_bytes: bytes that were lost with them.
        repaired: chunks or events that were repaired.
        retyped: events with a field of an unexpected type, which is null.
        truncated: the file ends before its events do.
        metadata: some of the metadata before or after the events could not be read.
        checksum: it was decompressed completely, but its checksum does not match.
        reason: the first error of the decompressor or parser.
    """

    events: int = 0
    lost_bytes: int = 0
    repaired: int = 0
    retyped: int = 0
    truncated: bool = False
    metadata: bool = False
    checksum: bool = False
    reason: str | None = None

    def lose(self, size: int, reason: str, events: int = 1) -> None:
        """Count events as lost.

        Args:
            size: their length in bytes.
        """
        self.events += events
        self.lost_bytes += size
        self.reason = self.reason or reason

    def fail_checksum(self, reason: str) -> None:
        """The file is complete, but its checksum does not match."""
        self.checksum = True
        self.reason = self.reason or reason

    def cut(self, reason: str) -> None:
        """The file ends before its events do."""
        self.truncated = True
        self.reason = self.reason or reason


def trailing_byte(error: BaseException) -> int | None:
    """Where text continues after its first value, if that is the decoder's error."""
    found = _TRAILING.search(str(error))
    return None if found is None else int(found.group(1)) - 1


def closes_array(text: bytes, position: int = 0) -> bool:
    """Whether the bracket there can be the one that closes the array of events."""
    return _CLOSED.match(text, position) is not None


def decode_object(text: bytes) -> dict[str, object] | None:
    """A JSON object, repaired if needed; None if it is something else."""
    for candidate in text_then_repaired(text):
        try:
            value = msgspec.json.decode(candidate)
        except UNREADABLE:
            continue
        return value if isinstance(value, dict) else None
    return None


def first_keys(text: bytes) -> dict[str, object]:
    """The leading keys of an object that is cut or damaged further on."""
    end = len(text)
    for _ in range(64):
        end = text.rfind(b",", 0, end)
        if end < 0:
            break
        found = decode_object(text[:end] + b"}")
        if found is not None:
            return found
    return {}


@dataclass
class Salvage:
    """Reads events one by one.

    Attributes:
        position: where in the text reading stopped.
        closed: whether it stopped at the end of the array.
        unfinished: whether it stopped at an event whose end is not in the text.
    """

    losses: Losses
    kept: list[bytes] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    position: int = 0
    closed: bool = False
    unfinished: bool = False

    def read(self, text: bytes, limit: int, *, last: bool) -> None:
        """Read the events that start before `limit`.

        Args:
            last: whether the text is the end of the file.
        """
        view = memoryview(text)
        while True:
            gap = _GAP.match(text, self.position)
            self.position = gap.end() if gap else self.position
            if self.position >= min(limit, len(text)):
                return
            if text[self.position] == 0x5D:  # ]
                if closes_array(text, self.position):
                    self.closed = True
                    return
                self._lose(self.position + 1, "a bracket that closes nothing")
                continue
            length, _ = _extent(view[self.position :])
            if length is not None:
                self._take(text[self.position : self.position + length], length)
            elif not self._repair(text) and not self._skip(text, last=last):
                return

    def _take(self, piece: bytes, length: int) -> None:
        event = _event(piece, self.losses)
        if event is None:
            self._lose(self.position + length, "values among the events that are not events")
            return
        self.kept.append(piece)
        self.events.append(event)
        self.position += length

    def _repair(self, text: bytes) -> bool:
        """Repair the event here, up to one of the next places where it may end."""
        at = self.position
        for end in _ends(text, at, MAX_JOINED_PIECES):
            repaired = repair(text[at:end])
            if repaired is None or _extent(memoryview(repaired))[0] != len(repaired):
                continue
            event = _event(repaired, self.losses)
            if event is not None:
                self.losses.repaired += 1
                self.kept.append(repaired)
                self.events.append(event)
                self.position = end
                return True
        return False

    def _skip(self, text: bytes, *, last: bool) -> bool:
        """Skip the event here and continue after it. False if its end may come after this text."""
        view = memoryview(text)
        for end in _ends(text, self.position, MAX_RESYNC_PIECES):
            gap = _GAP.match(text, end)
            start = gap.end() if gap else end
            length, _ = _extent(view[start:]) if start < len(text) else (None, True)
            if length is not None and _event(text[start : start + length], Losses()) is not None:
                return self._lost_until(text, start)
        if not last:
            self.unfinished = True
            return False
        _, cut = _extent(view[self.position :])
        close = _TAIL_KEY.search(text, self.position) or (None if cut else _FINAL.search(text, self.position))
        if close is not None:
            return self._lost_until(text, close.start())
        self.losses.cut("the file ends in the middle of an event")
        self._lose(len(text), "the file ends in the middle of an event")
        return True

    def _lost_until(self, text: bytes, end: int) -> bool:
        close = _TAIL_KEY.search(text, self.position, end)
        self._lose(close.start() if close else end, "events that are not valid JSON")
        return True

    def _lose(self, end: int, reason: str) -> None:
        self.losses.lose(end - self.position, reason)
        self.position = end


def _ends(text: bytes, start: int, limit: int) -> Iterator[int]:
    """Where an event that starts here may end: before the next boundaries, or before the end of the array."""
    return (match.end() for match in islice(_END.finditer(text, start), limit))


def _extent(text: memoryview) -> tuple[int | None, bool]:
    """The length of the first value of a text, None if it does not parse; and whether the text is cut there."""
    try:
        _RAW.decode(text)
    except UNREADABLE as error:
        return trailing_byte(error), "truncated" in str(error)
    return len(text), False


def _event(text: bytes, losses: Losses) -> Event | None:
    """One event; None if it is something else, or cannot be read."""
    try:
        event = EVENT.decode(text)
    except msgspec.ValidationError:
        return _retyped(text, losses)
    except UNREADABLE:
        repaired = repair(text)
        if repaired is None:
            return None
        try:
            event = EVENT.decode(repaired)
        except UNREADABLE:
            return None
        losses.repaired += 1
    return event if event.ph is not None else None


def _retyped(text: bytes, losses: Losses) -> Event | None:
    """An event with fields of unexpected types: only the other fields are kept."""
    try:
        fields = msgspec.json.decode(text)
    except UNREADABLE:
        return None
    if not isinstance(fields, dict) or not isinstance(fields.get("ph"), str):
        return None
    good: dict[str, object] = {}
    for key, value in fields.items():
        try:
            EVENT.decode(msgspec.json.encode({key: value}))
        except (*UNREADABLE, OverflowError, ValueError):
            continue
        good[key] = value
    losses.retyped += 1
    return EVENT.decode(msgspec.json.encode(good))


def repair(text: bytes) -> bytes | None:
    """The repaired text; None if there was nothing to repair.

    Names keep what can be shown: undecodable bytes become U+FFFD, a backslash that escapes nothing is kept as a
    backslash. NaN and Infinity become null.
    """
    try:
        text.decode("utf-8")
        valid = text
    except UnicodeDecodeError:
        valid = text.decode("utf-8", "replace").encode()
    repaired = _TOKEN.sub(_repair_token, valid)
    return None if repaired == text else repaired


def text_then_repaired(text: bytes) -> Iterator[bytes]:
    """The text; then, if the caller asks for more, the repaired text if that differs."""
    yield text
    repaired = repair(text)
    if repaired is not None:
        yield repaired


def _repair_token(match: re.Match[bytes]) -> bytes:
    token = match.group()
    if not token.startswith(b'"'):
        return b"null"
    return _IN_STRING.sub(_repair_escape, token) if _SUSPECT.search(token) else token


def _repair_escape(match: re.Match[bytes]) -> bytes:
    kind = match.lastgroup
    if kind == "bad":
        return b"\\\\"
    if kind == "lone":
        return b"\\ufffd"
    if kind == "control":
        return b"\\u%04x" % match.group()[0]
    return match.group()
