"""torch's structured trace log (``TORCH_TRACE``): what torch.compile compiled and recompiled, why, and how long.

A log has a file per rank. A record is a line ``V1125 22:13:19.115000 PID FILE:LINE] {JSON}``; its payload follows in
lines that begin with a tab. Those about a compilation are read: `compilation_metrics`, `bwd_compilation_metrics` and
the artifacts `dynamo_graph_break_reason` and `recompile_reasons`. The compile id ``F/V`` is that of the ranges
``Torch-Compiled Region: F/V`` in a trace: frame F, compiled for the V-th time.

In: a directory with such logs, or one. Out: a frame with a row per compilation, and what could not be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import polars as pl

from rankscope.errors import NotATraceError, NoTracesError, TraceError
from rankscope.results import Analysis, Column, Headline
from rankscope.rundir.fields import rank as valid_rank

COLUMNS = (
    Column("rank", pl.Int64, "", "the rank; null if the log does not name it"),
    Column("compile_id", pl.String, "", "frame and version, as in the trace: `Torch-Compiled Region: 0/1`"),
    Column("function", pl.String, "", "the function that Dynamo compiled"),
    Column("place", pl.String, "", "its file and first line"),
    Column("start_ns", pl.Int64, "ns", "when it began, since the first compilation of all ranks"),
    Column("compile_ns", pl.Int64, "ns", "time to compile the frame"),
    Column("inductor_ns", pl.Int64, "ns", "of which Inductor, forward only"),
    Column("backward_ns", pl.Int64, "ns", "time Inductor took for its backward; null if it was not compiled"),
    Column("graph_ops", pl.Int64, "count", "operators in its graph"),
    Column("guards", pl.Int64, "count", "guards of the compiled code"),
    Column("breaks", pl.Int64, "count", "graph breaks in it"),
    Column("break_reason", pl.String, "", "the first graph break's place and reason"),
    Column("recompile_reason", pl.String, "", "the guard that failed, so that it was compiled again"),
    Column("failure", pl.String, "", "why it could not be compiled; null if it was"),
    Column("calls", pl.Int64, "count", "calls of the region in the run's traces; null without them"),
    Column("host_ns", pl.Int64, "ns", "host time in these calls; null without traces"),
)
_PREFIX = "dedicated_log_torch_trace_"
_RANK = re.compile(r"rank_(\d{1,9})_")
_RECORD = re.compile(rb"[A-Z]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ [^\]\n]{1,4096}\] (\{.*)", re.DOTALL)
_BREAK = re.compile(r"Graph break in user code at (?P<place>[^\n]{1,1000})")
_WANTED = (b'{"compilation_metrics"', b'{"bwd_compilation_metrics"', b'{"artifact"', b'{"dynamo_start"')
_ARTIFACTS = ("dynamo_graph_break_reason", "recompile_reasons")
_MAX_LINE_BYTES = 4 << 20
_MAX_PAYLOAD_BYTES = 64 << 10
_MAX_ROWS = 1_000_000
_MAX_TEXT = 2_000


def _headline(frame: pl.DataFrame) -> Headline | None:
    if frame.is_empty():
        return None
    again = frame["recompile_reason"].is_not_null().sum()
    total = frame.select(pl.col("compile_ns").sum() + pl.col("backward_ns").sum()).item()
    return Headline.of(
        "{compiled} compilations took {time}; {again} were recompilations.",
        compiled=(frame.height, ""),
        time=(int(total), "ns"),
        again=(int(again), ""),
    )


compilations = Analysis(name="compile_log", doc=__doc__, columns=COLUMNS, headline=_headline)


@dataclass
class CompileLog:
    """What the logs say.

    Attributes:
        frame: a row per compilation, in the order of rank and time, with `COLUMNS`.
        left_out: logs without a record: empty, or something else.
        unread: records that could not be read.
    """

    frame: pl.DataFrame
    left_out: list[Path] = field(default_factory=list)
    unread: int = 0


def read_compile_log(source: Path) -> CompileLog:
    """The compilations in a log, or in all logs in a directory.

    Raises:
        NoTracesError: there is none.
        NotATraceError: no log has a record.
        TraceError: one cannot be read.
    """
    files = [source] if source.is_file() else sorted(source.glob(f"**/{_PREFIX}*.log")) if source.is_dir() else []
    if not files:
        raise NoTracesError(
            "no log of torch.compile", path=str(source), hint="run the job with TORCH_TRACE=DIR in its environment"
        )
    log = CompileLog(pl.DataFrame())
    rows: list[dict[str, Any]] = []
    for file in files:
        reader = _Reader(file)
        try:
            rows += reader.rows()
        except NotATraceError:
            log.left_out.append(file)
            if len(log.left_out) == len(files):
                raise
        log.unread += reader.unread
    schema = {column.name: column.dtype for column in COLUMNS}
    frame = pl.DataFrame(rows, schema=schema, orient="row").sort("rank", "start_ns", nulls_last=True)
    log.frame = frame.with_columns(pl.col("start_ns") - pl.col("start_ns").min())
    return log


def with_calls(frame: pl.DataFrame, compiled: pl.DataFrame) -> pl.DataFrame:
    """Compilations with the calls of their regions.

    Args:
        frame: the compilations.
        compiled: the result of the analysis `compile` of the same job.
    """
    regions = compiled.filter(pl.col("kind") == "region").select(
        "rank", pl.format("{}/{}", "frame", "version").alias("compile_id"), "calls", "host_ns"
    )
    joined = frame.drop("calls", "host_ns").join(regions, on=["rank", "compile_id"], how="left")
    return joined.select(frame.columns)


class _Reader:
    """One log.

    Attributes:
        unread: records that could not be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        named = _RANK.search(path.name)
        self._rank = int(named[1]) if named else None
        self._rows: dict[str, dict[str, Any]] = {}
        self._texts: dict[tuple[str, str], list[str]] = {}
        self._about = "", ""
        self.unread = 0

    def rows(self) -> list[dict[str, Any]]:
        """The compilations, with what other records say about them."""
        try:
            with self._path.open("rb") as file:
                found = self._read(file)
        except OSError as error:
            raise TraceError(f"cannot be read: {error.strerror}", path=self._path) from error
        if not found:
            raise NotATraceError(
                "not a log of torch's TORCH_TRACE: no line of it is a record", path=self._path, hint="leave it out"
            )
        for compile_id, row in self._rows.items():
            breaks = self._texts.get((compile_id, "dynamo_graph_break_reason"), [])
            row["breaks"] = len(breaks)
            row["break_reason"] = _summary(breaks[0]) if breaks else None
            again = self._texts.get((compile_id, "recompile_reasons"), [])
            row["recompile_reason"] = row["recompile_reason"] or (_first_line(again[0]) if again else None)
            row["rank"] = self._rank
        return list(self._rows.values())

    def _read(self, file: BinaryIO) -> int:
        """Read all records; returns how many lines are ones."""
        found = 0
        payload: list[bytes] | None = None
        for line in _lines(file):
            if line.startswith(b"\t"):
                if payload is not None and sum(map(len, payload)) < _MAX_PAYLOAD_BYTES:
                    payload.append(line[1:])
                continue
            self._take(payload)
            payload = None
            match = _RECORD.match(line)
            if match is None:
                continue
            found += 1
            if match[1].startswith(_WANTED):
                payload = self._start(match[1])
        self._take(payload)
        return found

    def _start(self, text: bytes) -> list[bytes] | None:
        """Read a record; a list for its payload, if that is wanted."""
        try:
            record = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.unread += 1
            return None
        if self._rank is None:
            self._rank = valid_rank(record.get("rank"))
        for key in ("compilation_metrics", "bwd_compilation_metrics"):
            if isinstance(metrics := record.get(key), dict):
                self._add(metrics, forward=key == "compilation_metrics")
        artifact = record.get("artifact")
        name = artifact.get("name") if isinstance(artifact, dict) else None
        if name not in _ARTIFACTS:
            return None
        self._about = f"{record.get('frame_id')}/{record.get('frame_compile_id')}", str(name)
        return []

    def _take(self, payload: list[bytes] | None) -> None:
        if payload and len(self._texts) < _MAX_ROWS:
            self._texts.setdefault(self._about, []).append(b"".join(payload).decode("utf-8", "replace"))

    def _add(self, metrics: dict[str, Any], *, forward: bool) -> None:
        compile_id = _text(metrics.get("compile_id"))
        if compile_id is None or len(self._rows) >= _MAX_ROWS:
            self.unread += 1
            return
        row = self._rows.setdefault(compile_id, {column.name: None for column in COLUMNS} | {"compile_id": compile_id})
        if not forward:
            row["backward_ns"] = _nanoseconds(metrics.get("inductor_compile_time_s"))
            return
        file, line = _text(metrics.get("co_filename")), metrics.get("co_firstlineno")
        row |= {
            "function": _text(metrics.get("co_name")),
            "place": None if file is None else f"{file}:{line}" if isinstance(line, int) else file,
            "start_ns": _nanoseconds(metrics.get("start_time")),
            "compile_ns": _nanoseconds(metrics.get("entire_frame_compile_time_s")),
            "inductor_ns": _nanoseconds(metrics.get("inductor_compile_time_s")),
            "graph_ops": _count(metrics.get("graph_op_count")),
            "guards": _count(metrics.get("guard_count")),
            "recompile_reason": _first_line(_text(metrics.get("recompile_reason"))),
            "failure": _first_line(_text(metrics.get("fail_reason"))),
        }
        self._rows[compile_id] = row


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines; the rest of a line that is too long comes as further lines, which are not records."""
    while line := file.readline(_MAX_LINE_BYTES):
        yield line


def _summary(text: str) -> str | None:
    """A graph break's place, and the line that says what could not be traced."""
    place = _BREAK.search(text)
    lines = [line.strip() for line in text.splitlines()]
    explained = next((line for line in lines if line.startswith("Explanation: ")), None)
    reason = explained.removeprefix("Explanation: ") if explained else next(filter(None, lines), "")
    return (f"{place['place']}: {reason}" if place is not None else reason)[:_MAX_TEXT] or None


def _first_line(text: str | None) -> str | None:
    """Its first line; torch puts the source line after spaces and a `#`."""
    lines = text.strip().splitlines() if text else []
    return re.sub(r"\s+# ", "  # ", lines[0])[:_MAX_TEXT] if lines else None


def _text(value: object) -> str | None:
    return value[:_MAX_TEXT] if isinstance(value, str) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else None


def _nanoseconds(seconds: object) -> int | None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 4e9:
        return None
    return round(seconds * 1e9)
