"""Read a memory snapshot of `torch.cuda.memory._dump_snapshot` (or `torch.xpu`) into tables.

In: a pickle of plain values, read by `unpickle`, which cannot import or call anything. Out: tables of segments, blocks
and the history of allocations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from rankscope.errors import NotATraceError, TraceError
from rankscope.ingest.source import open_raw
from rankscope.ingest.unpickle import UnpickleError, unpickle
from rankscope.rundir.names import parse_trace_name
from rankscope.store.schema import TABLES
from rankscope.store.trace_info import TraceInfo

MAX_BYTES = 4 << 30
# A small file may refer to one list a million times, so the number of rows is bounded.
MAX_ROWS = 50_000_000
MAX_FRAMES = 64
_BLOCK_BYTES = 8 << 20


def read_snapshot(path: str) -> tuple[dict[str, pl.DataFrame], TraceInfo]:
    """The tables of a snapshot, and its metadata.

    Raises:
        TraceError: it cannot be read.
        NotATraceError: it is not a snapshot, or needs opcodes that no snapshot needs.
    """
    data = _content(path)
    try:
        snapshot = unpickle(data)
    except UnpickleError as error:
        raise NotATraceError(
            f"a pickle, but not a memory snapshot: {error}",
            path=path,
            hint="nothing in it was run; leave it out, or check where it came from",
        ) from error
    if not isinstance(snapshot, dict) or not isinstance(snapshot.get("segments"), list):
        raise NotATraceError(
            "a pickle, but not a memory snapshot: it has no segments",
            path=path,
            hint="rankscope reads what torch.cuda.memory._dump_snapshot writes",
        )
    tables = _Reader(path).tables(snapshot)
    name = parse_trace_name(path)
    counts = {f"snapshot {table}": frame.height for table, frame in tables.items() if frame.height}
    info = TraceInfo(
        path=path,
        rank=name.rank,
        rank_source="none" if name.rank is None else "folder" if name.pattern == "folder" else "name",
        json_bytes=len(data),
        counts=counts,
    )
    return tables, info


def _content(path: str) -> bytes:
    try:
        with open_raw(path) as handle:
            parts, size = [], 0
            # A single read of MAX_BYTES would allocate them all.
            while size <= MAX_BYTES and (part := handle.read(_BLOCK_BYTES)):
                parts.append(part)
                size += len(part)
    except (OSError, ImportError, ValueError) as error:
        raise TraceError(f"cannot be read: {error}", path=path, hint="check its permissions") from error
    if size > MAX_BYTES:
        raise NotATraceError("a memory snapshot of more than 4 GiB", path=path, hint="record a shorter history")
    return b"".join(parts)


class _Reader:
    """Turns the lists of a snapshot into columns; each stack is formatted once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._rows = 0
        self._frames: dict[int, str] = {}

    def tables(self, snapshot: dict[str, Any]) -> dict[str, pl.DataFrame]:
        """Segments, blocks and the history."""
        segments: list[tuple[Any, ...]] = []
        blocks: list[tuple[Any, ...]] = []
        for segment in _dicts(snapshot.get("segments")):
            row = len(segments)
            segments.append(self._counted((*self._segment(segment), self._stack(segment))))
            start = _int(segment.get("address"))
            for block in _dicts(segment.get("blocks")):
                size = _int(block.get("size"))
                address = _int(block.get("address"))
                blocks.append(
                    self._counted(
                        (
                            row,
                            _int(segment.get("device")),
                            start if address is None else address,
                            size,
                            _int(block.get("requested_size")),
                            _text(block.get("state")),
                            self._stack(block),
                        )
                    )
                )
                start = None if start is None or size is None else start + size
        events = []
        histories = snapshot.get("device_traces")
        for device, history in enumerate(histories if isinstance(histories, list) else []):
            for number, event in enumerate(_dicts(history)):
                events.append(
                    self._counted(
                        (
                            device,
                            number,
                            _int(event.get("time_us")),
                            _text(event.get("action")),
                            _int(event.get("addr", event.get("address"))),
                            _int(event.get("size")),
                            _int(event.get("stream")),
                            self._stack(event),
                        )
                    )
                )
        rows = {"snapshot_segments": segments, "snapshot_blocks": blocks, "snapshot_events": events}
        return {name: pl.DataFrame(data, schema=TABLES[name].schema, orient="row") for name, data in rows.items()}

    def _counted(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        self._rows += 1
        if self._rows > MAX_ROWS:
            raise NotATraceError(f"a memory snapshot of more than {MAX_ROWS:,} rows", path=self._path)
        return row

    @staticmethod
    def _segment(segment: dict[Any, Any]) -> tuple[Any, ...]:
        pool = segment.get("segment_pool_id")
        private = isinstance(pool, tuple | list) and any(_int(part) for part in pool[:2])
        return (
            _int(segment.get("device")),
            _int(segment.get("address")),
            _int(segment.get("total_size")),
            _int(segment.get("allocated_size")),
            _int(segment.get("active_size")),
            _int(segment.get("stream")),
            _text(segment.get("segment_type")),
            ".".join(str(_int(part)) for part in pool[:2]) if private and pool is not None else None,
            segment.get("is_expandable") is True,
        )

    def _stack(self, owner: dict[Any, Any]) -> str | None:
        frames = owner.get("frames")
        if not frames:
            # Before torch 2.1 the stack is in the history of a block.
            history = owner.get("history")
            newest = history[0] if isinstance(history, list) and history and isinstance(history[0], dict) else {}
            frames = newest.get("frames")
        return "\n".join(self._frame_lines(frames)) or None

    def _frame_lines(self, frames: Any) -> Iterator[str]:
        """One line per frame, innermost first; only Python frames if there are any."""
        known = _dicts(frames)
        python = [frame for frame in known if _string(frame.get("filename")).endswith(".py")]
        for frame in (python or known)[:MAX_FRAMES]:
            # The snapshot keeps all frames alive while it is read, so ids are unique.
            text = self._frames.get(id(frame))
            if text is None:
                line = _int(frame.get("line"))
                file, name = _string(frame.get("filename"))[-200:], _string(frame.get("name"))[:200]
                self._frames[id(frame)] = text = f"{file}:{line or 0} {name}".replace("\n", " ")
            yield text


def _dicts(value: Any) -> list[dict[Any, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list | tuple) else []


def _int(value: Any) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 63) <= value < 1 << 63:
        return None
    return value


def _string(value: Any) -> str:
    # Not `str(value)`: a list that holds another one twice, and so on forty times, is a small pickle and a huge text.
    return value if isinstance(value, str) else ""


def _text(value: Any) -> str | None:
    return value[:200] if isinstance(value, str) else None
