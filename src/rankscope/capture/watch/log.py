"""A rank's log of its steps: JSON Lines in segments of bounded size, of which the oldest are removed.

Each write appends complete lines. A segment above `SEGMENT_BYTES` is compressed into a file of its own, which gets its
name when it is complete, and the next one begins. So a reader sees complete segments, and one that grows.

In: lines. Out: the files that `rundir/watch_files.py` describes.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rankscope.rundir.atomic import write_atomic, write_new
from rankscope.rundir.watch_files import LOG_ENDING, SEGMENT_BYTES, Header, log_stem, segment_name, to_json

KEPT_BYTES = 128 << 20
"""Of complete segments, compressed: about a week of ten steps per second."""
_GZIP = 31
_MAX_LOGS = 1000
_MAX_DEFINITIONS = 2000


class WatchLog:
    """Writes the log of one rank.

    Args:
        folder: where.
        header: the first line of each segment.
        segment_bytes: the size above which a segment is complete.
        kept_bytes: how much of complete segments is kept.
    """

    def __init__(
        self, folder: Path, header: Header, segment_bytes: int = SEGMENT_BYTES, kept_bytes: int = KEPT_BYTES
    ) -> None:
        self._folder, self._header = folder, header
        self._segment_bytes, self._kept_bytes = segment_bytes, kept_bytes
        self._path: Path | None = None
        self._stem = ""
        self._size = 0
        self._segments: deque[tuple[Path, int]] = deque()
        self._definitions: list[str] = []
        self._unwritten: list[str] = []
        """Definitions that could not be written yet."""
        self._lost = 0

    @property
    def path(self) -> Path | None:
        """The file that is being written; None before the first write."""
        return self._path

    def write(self, lines: Sequence[str], definitions: Sequence[str] = ()) -> None:
        """Add lines, in one piece.

        Args:
            lines: the lines.
            definitions: what they and later ones refer to; written before them, and again in each new segment.

        Raises:
            OSError: the directory cannot be written; the lines are lost, and their number is noted later. Definitions
                are written later.
        """
        self._unwritten = [*self._unwritten, *definitions][: max(_MAX_DEFINITIONS - len(self._definitions), 0)]
        if not lines and not self._unwritten:
            return
        self._lost += len(lines)
        if self._path is None:
            self._create()
        elif self._size >= self._segment_bytes:
            self._rotate()
        lost = self._lost - len(lines)
        noted = [f'{{"note":"{lost} lines could not be written"}}'] if lost else []
        content = ("\n".join([*noted, *self._unwritten, *lines]) + "\n").encode("utf-8", "backslashreplace")
        self._append(content)
        self._definitions += self._unwritten
        self._unwritten, self._lost = [], 0
        self._size += len(content)

    def _append(self, content: bytes) -> None:
        assert self._path is not None
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            written = os.write(file, content)
            if written < len(content):
                # A full disk took a part: without it, the next line would continue this one.
                os.ftruncate(file, self._size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(file)

    def _create(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        content = self._head(self._header)
        rank, restart = self._header.rank, self._header.restart_count
        for attempt in range(_MAX_LOGS):
            stem = log_stem(rank, restart, attempt)
            wanted = self._folder / (stem + LOG_ENDING)
            if wanted.exists():
                continue
            path = write_new(wanted, content)
            if path == wanted:
                self._path, self._stem, self._size = path, stem, len(content)
                return
            path.unlink(missing_ok=True)  # another process was faster
        raise FileExistsError(f"{self._folder}: a thousand logs of rank {rank} are there already")

    def _rotate(self) -> None:
        assert self._path is not None
        target = self._folder / segment_name(self._stem, self._header.segment)
        packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
        packed = packer.compress(self._path.read_bytes()) + packer.flush()
        write_atomic(target, packed)
        header = replace(self._header, segment=self._header.segment + 1)
        content = self._head(header)
        write_atomic(self._path, content)  # if this fails, the same segment is written again
        self._header, self._size = header, len(content)
        self._segments.append((target, len(packed)))
        while len(self._segments) > 1 and sum(size for _, size in self._segments) > self._kept_bytes:
            oldest, _ = self._segments.popleft()
            with suppress(OSError):
                oldest.unlink(missing_ok=True)

    def _head(self, header: Header) -> bytes:
        lines = [to_json(header), *self._definitions]
        return ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace")
