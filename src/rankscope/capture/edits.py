"""What is changed in a saved trace on its way into the final file, a chunk at a time.

- What the trace says of itself comes first in it. Made before the stop, as torch would have it, its making would be in
  the trace as thousands of Python frames, and in the loop.
- The range of a step that had not ended does not count as one.
- Python frames that ended before the first step, or began after the last, go: they are the profiler's own, and, where
  another thread stops, those of later steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from rankscope.capture.recorder import PARTIAL_STEP_NAME, STEP_NAME

CHUNK = 1 << 20
_EVENT_END = b"\n  },\n"
# As Kineto writes them, a field a line. A torch that writes them otherwise keeps its frames.
_FRAME = re.compile(
    rb'  \{\n    "ph": "X",\s*"cat": "python_function",\s*"name": "[^\n]*",\s*"pid": [^\n,]+,\s*"tid": [^\n,]+,\s*'
    rb'"ts": (\d+(?:\.\d+)?),\s*"dur": (\d+(?:\.\d+)?)\s*,\s*"args": \{[^{}]*\}\s*\},\n'
)
_STEP = b'"' + STEP_NAME.encode()
_STEP_TIMES = re.compile(
    rb'"[^"]*",\s*"pid": [^\n,]+,\s*"tid": [^\n,]+,\s*"ts": (\d+(?:\.\d+)?),\s*"dur": (\d+(?:\.\d+)?)'
)
_EVENT_BYTES = 1000


@dataclass(frozen=True)
class Edits:
    """What is to be changed."""

    partial_step: int | None = None
    """A step whose range must not count as one."""
    head: str | None = None
    """``"key": value`` in JSON, to stand first."""
    frames: bool = False
    """Whether there may be Python frames outside the steps."""

    def apply(self, source: IO[bytes]) -> Iterator[bytes]:
        """The changed file, in chunks.

        Args:
            source: a saved trace, at its beginning.
        """
        window = None
        if self.frames:
            window = step_times(source)
            source.seek(0)
        head = self.head
        for piece in self._pieces(source):
            chunk = piece
            if head is not None:
                chunk, head = chunk.replace(b"{", b"{\n    " + head.encode("utf-8", "replace") + b",", 1), None
            if window is not None:
                chunk = _without_frames(chunk, window)
            if self.partial_step is not None:
                whole, partial = (f'"{name}{self.partial_step}"'.encode() for name in (STEP_NAME, PARTIAL_STEP_NAME))
                chunk = chunk.replace(whole, partial)
            yield chunk

    def _pieces(self, source: IO[bytes]) -> Iterator[bytes]:
        """Whole lines, so that no name is cut in two; whole events, where frames are looked for."""
        held = b""
        while chunk := source.read(CHUNK):
            chunk = held + chunk + source.readline()
            held = b""
            if self.frames:
                cut = chunk.rfind(_EVENT_END)
                if cut >= 0:
                    cut += len(_EVENT_END)
                    chunk, held = chunk[:cut], chunk[cut:]
            yield chunk
        if held:
            yield held


def step_times(source: IO[bytes]) -> tuple[float, float] | None:
    """When the first step of a trace begins and the last one ends, as the file has it, in µs; ``None`` if
    it has none."""
    began, ended = float("inf"), 0.0
    held = b""
    while True:
        new = source.read(CHUNK)
        chunk, held, at = held + new, b"", 0
        while (at := chunk.find(_STEP, at)) >= 0:
            if new and len(chunk) - at < _EVENT_BYTES:
                held = chunk[at:]  # the rest of it is in the next chunk
                break
            found = _STEP_TIMES.match(chunk, at)
            if found is not None:
                began, ended = min(began, float(found[1])), max(ended, float(found[1]) + float(found[2]))
            at += 1
        else:
            held = chunk[1 - len(_STEP) :]
        if not new:
            return (began, ended) if ended else None


def _without_frames(chunk: bytes, window: tuple[float, float]) -> bytes:
    began, ended = window

    def judge(frame: re.Match[bytes]) -> bytes:
        at = float(frame[1])
        return b"" if at > ended or at + float(frame[2]) < began else frame[0]

    return _FRAME.sub(judge, chunk)
