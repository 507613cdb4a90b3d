"""Edits of a saved trace while it is copied into the final file, for what torch cannot be made to write itself.

- The ranges of steps are inserted where a profiler of the script has marked none.
- Rankscope's metadata is inserted as the first key. Added before the stop, as torch requires, making it would take time
  in the loop and be in the trace as thousands of Python frames.
- The range of a step that had not ended is renamed, so that no reader of the file counts it as a step.
- Python frames that ended before the first step or began after the last are removed, for every reader of the file: they
  are the profiler's own and, if another thread stops, those of later steps.

The file is searched for its steps, and the places that change are noted; everything else is copied unread. Frames are
parsed only where some may have to be removed: Kineto writes them in the order in which they began; if a file has
another order, all are parsed.

In: the saved JSON, and the metadata. Out: the edited JSON, piece by piece.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, NamedTuple

from rankscope.capture.recording import PARTIAL_STEP_NAME, STEP_NAME

CHUNK = 1 << 20
_EVENT_END = b"\n  },\n"
_FRAME_CATEGORY = b'"cat": "python_function"'
_TIMES = rb'"pid": [^\n,]+,\s*"tid": [^\n,]+,\s*"ts": (\d+(?:\.\d+)?),\s*"dur": (\d+(?:\.\d+)?)'
# As Kineto writes them, one field per line. If a torch writes them differently, its frames are kept.
_FRAME = re.compile(
    rb'  \{\n    "ph": "X",\s*"cat": "python_function",\s*"name": "[^\n]*",\s*' + _TIMES + rb'\s*,\s*"args": '
    rb"\{[^{}]*\}\s*\},\n"
)
_FRAME_TIMES = re.compile(_FRAME_CATEGORY + rb',\s*"name": "[^\n]*",\s*' + _TIMES)
_EVENTS = b'"traceEvents": ['
_BASE_TIME = re.compile(rb'"baseTimeNanoseconds": (\d+)')
_STEP = b'"' + STEP_NAME.encode()
_STEP_TIMES = re.compile(rb'"[^"]*",\s*' + _TIMES)
_STEP_BYTES = 1000
"""The name and the times of a step are within this many bytes."""
_LARGEST_FRAME = 1 << 16


class Change(NamedTuple):
    """The replacement for the bytes from ``begin`` to ``end`` of a file."""

    begin: int
    end: int
    text: bytes = b""


class StepRange(NamedTuple):
    """The range of a step that the trace lacks. Times are nanoseconds of the wall clock."""

    step: int
    begin_ns: int
    end_ns: int
    pid: int
    tid: int


class _Frames(NamedTuple):
    """When the first and the last Python frame in a chunk of a file began, in µs; ``None`` if not known."""

    begin: int
    end: int
    first: float | None
    last: float | None


@dataclass(frozen=True)
class Edits:
    """What to change."""

    partial_step: int | None = None
    """A step whose range must not count as a step."""
    head: str | None = None
    """``"key": value`` in JSON, inserted first."""
    frames: bool = False
    """Whether to remove Python frames outside the steps."""
    steps: tuple[StepRange, ...] = ()
    """Ranges to add."""

    def changes(self, source: IO[bytes]) -> list[Change]:
        """The changes to a saved trace, in file order.

        Args:
            source: the trace.
        """
        found: list[Change] = []
        if self.head is not None:
            source.seek(0)
            brace = source.read(CHUNK).find(b"{") + 1
            if brace:
                found.append(Change(brace, brace, b"\n    " + self.head.encode("utf-8", "replace") + b","))
        if self.steps and (added := _added_steps(source, self.steps)) is not None:
            found.append(added)
        if self.frames or self.partial_step is not None:
            steps = _Steps(self.partial_step)
            chunks = list(steps.search(source, frames=self.frames))
            found += steps.renamed
            if steps.ended:
                window = steps.began, steps.ended
                for region in _regions_to_parse(chunks, window):
                    found += _frames_outside(source, region, window)
        return sorted(found)


def _added_steps(source: IO[bytes], steps: Iterable[StepRange]) -> Change | None:
    """The ranges of steps as the first events; ``None`` if the file has no list of events."""
    source.seek(0)
    head = b""
    while (at := head.find(_EVENTS)) < 0:
        piece = source.read(CHUNK)
        if not piece:
            return None
        head += piece
    base = _BASE_TIME.search(head, 0, at)
    base_ns = int(base[1]) if base else 0
    text = "".join(
        f'\n  {{\n    "ph": "X", "cat": "user_annotation", "name": "{STEP_NAME}{each.step}", "pid": {each.pid}, '
        f'"tid": {each.tid},\n    "ts": {_micros(each.begin_ns - base_ns)}, '
        f'"dur": {_micros(each.end_ns - each.begin_ns)},\n    "args": {{}}\n  }},'
        for each in steps
    )
    place = at + len(_EVENTS)
    return Change(place, place, text.encode())


def _micros(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def apply_changes(source: IO[bytes], changes: Iterable[Change]) -> Iterator[bytes]:
    """The file with its changes, in pieces.

    Args:
        source: the original file.
        changes: in file order.
    """
    at = 0
    for change in changes:
        yield from _pieces(source, at, change.begin)
        if change.text:
            yield change.text
        at = change.end
    yield from _pieces(source, at)


def _pieces(source: IO[bytes], begin: int, end: int | None = None) -> Iterator[bytes]:
    source.seek(begin)
    left = end - begin if end is not None else None
    while left is None or left > 0:
        piece = source.read(CHUNK if left is None else min(CHUNK, left))
        if not piece:
            return
        if left is not None:
            left -= len(piece)
        yield piece


class _Steps:
    """Searches a trace for the ranges of its steps.

    Args:
        partial: the number of the step that is to be renamed.
    """

    def __init__(self, partial: int | None) -> None:
        self.began, self.ended = float("inf"), 0.0
        """When the first step begins and the last one ends, in µs on the file's clock; ``ended`` is 0 if there is
        none."""
        self.renamed: list[Change] = []
        if partial is not None:
            self._full_name, self._partial_name = (
                f'"{name}{partial}"'.encode() for name in (STEP_NAME, PARTIAL_STEP_NAME)
            )
        else:
            self._full_name = self._partial_name = b""

    def search(self, source: IO[bytes], *, frames: bool) -> Iterator[_Frames]:
        """Find them, and with ``frames`` the first and last Python frame of each chunk that has any."""
        source.seek(0)
        held, at = b"", 0
        while True:
            new = source.read(CHUNK)
            chunk = held + new
            # What is too near to the end may continue in the next chunk: it is searched again there.
            seen = max(len(chunk) - _STEP_BYTES, 0) if new else len(chunk)
            self._find_steps(chunk, seen, at)
            if frames and (found := _frames_of(chunk, seen, at)) is not None:
                yield found
            if not new:
                return
            held, at = chunk[seen:], at + seen

    def _find_steps(self, chunk: bytes, seen: int, at: int) -> None:
        place = chunk.find(_STEP)
        while 0 <= place < seen:
            times = _STEP_TIMES.match(chunk, place)
            if times is not None:
                self.began = min(self.began, float(times[1]))
                self.ended = max(self.ended, float(times[1]) + float(times[2]))
            if self._full_name and chunk.startswith(self._full_name, place):
                self.renamed.append(Change(at + place, at + place + len(self._full_name), self._partial_name))
            place = chunk.find(_STEP, place + 1)


def _frames_of(chunk: bytes, seen: int, at: int) -> _Frames | None:
    first = chunk.find(_FRAME_CATEGORY, 0, seen)
    if first < 0:
        return None
    began = [_FRAME_TIMES.match(chunk, place) for place in (first, chunk.rfind(_FRAME_CATEGORY, 0, seen))]
    return _Frames(at, at + seen, *(float(frame[1]) if frame else None for frame in began))


def _regions_to_parse(chunks: list[_Frames], window: tuple[float, float]) -> Iterator[tuple[int, int]]:
    """The parts of a file that may hold frames outside the steps, with a margin: a frame may begin in one chunk and
    end in the next."""
    known = [began for frames in chunks for began in (frames.first, frames.last) if began is not None]
    in_order = len(known) == 2 * len(chunks) and all(one <= other for one, other in pairwise(known))
    region: tuple[int, int] | None = None
    # The first and the last chunk are always parsed.
    inner = range(1, len(chunks) - 1)
    for number, frames in enumerate(chunks):
        if in_order and number in inner and _inside(frames, window):
            continue
        begin, end = max(frames.begin - _LARGEST_FRAME, 0), frames.end + _LARGEST_FRAME
        if region is not None and begin <= region[1]:
            region = region[0], end
            continue
        if region is not None:
            yield region
        region = begin, end
    if region is not None:
        yield region


def _inside(frames: _Frames, window: tuple[float, float]) -> bool:
    """Whether all frames of a chunk began within the steps, provided they are in order."""
    first, last = frames.first, frames.last
    return first is not None and last is not None and window[0] <= first and last <= window[1]


def _frames_outside(source: IO[bytes], region: tuple[int, int], window: tuple[float, float]) -> Iterator[Change]:
    """The frames in a part of a file that are outside the steps; adjacent ones as one change."""
    at, end = region
    pending: Change | None = None
    held = b""
    for piece in _pieces(source, at, end):
        text = held + piece
        cut = text.rfind(_EVENT_END) + len(_EVENT_END)
        if cut < len(_EVENT_END):
            cut = len(text) if len(text) > _LARGEST_FRAME else 0
        for frame in _FRAME.finditer(text, 0, cut):
            began = float(frame[1])
            if began <= window[1] and began + float(frame[2]) >= window[0]:
                continue
            removed = Change(at + frame.start(), at + frame.end())
            if pending is not None and pending.end == removed.begin:
                pending = Change(pending.begin, removed.end)
                continue
            if pending is not None:
                yield pending
            pending = removed
        held, at = text[cut:], at + cut
    if pending is not None:
        yield pending
