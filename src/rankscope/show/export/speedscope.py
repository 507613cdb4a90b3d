"""Writes the host's stacks for speedscope: an evented profile per thread of each rank.

Times are nanoseconds since the first event of the run, on the hosts' clocks. A range that ends after the one around it
is cut there, as the format needs nested frames.

In: a run. Out: one JSON file in speedscope's format, and what was cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl

from rankscope import __version__
from rankscope.engine.pipeline import Run
from rankscope.engine.pipeline.clock import RankClock, clock_of
from rankscope.errors import ConfigError, RankscopeError
from rankscope.primitives.intervals import Int64
from rankscope.results import Inputs, chosen_starts
from rankscope.rundir.atomic import atomic_file
from rankscope.store.cache import CachedTrace

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
TABLES = {
    "all": ("annotations", "python_frames", "host_ops", "runtime_calls"),
    "python": ("python_frames",),
    "operators": ("host_ops",),
}
_COLUMNS = ("start_ns", "end_ns", "name", "pid", "tid")
# How torch names the frame of a Python function: `train.py(12): main`.
_PYTHON = re.compile(r"(?P<file>[^()]+)\((?P<line>\d{1,9})\): (?P<name>.+)", re.DOTALL)


@dataclass
class Written:
    """What was written.

    Attributes:
        profiles: threads with ranges.
        ranges: their ranges.
        cut: ranges that were cut at the end of the range around them.
    """

    profiles: int = 0
    ranges: int = 0
    cut: int = 0


def write_speedscope(run: Run, path: Path, *, ranks: Sequence[int] | None = None, only: str = "all") -> Written:
    """Write the ranges of the host's threads.

    Args:
        ranks: which; None for all.
        only: `python`, `operators`, or `all`, which adds annotations and calls of the device's runtime.

    Raises:
        ConfigError: there is no such rank, or nothing to write.
        RankscopeError: the file cannot be written.
    """
    chosen = run.ranks if ranks is None else [rank for rank in ranks if rank in run.ranks]
    if ranks is not None and (missing := sorted(set(ranks) - set(chosen))):
        raise ConfigError(f"there is no trace of rank {missing[0]}", hint=f"ranks with a trace: {run.ranks}")
    clock = clock_of(run)
    frames = _Frames()
    written = Written()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            head = {"$schema": _SCHEMA, "exporter": f"rankscope {__version__}", "name": run.name}
            file.write(json.dumps(head).encode()[:-1] + b', "profiles": [')
            for rank in chosen:
                for (pid, tid), rows in _threads(run, rank, clock.ranks[rank], TABLES[only]):
                    file.write(b",\n" if written.profiles else b"\n")
                    _write_profile(file, f"rank {rank}, process {pid}, thread {tid}", rows, frames, written)
            shared = json.dumps({"frames": frames.listed}).encode()
            file.write(b'\n], "shared": ' + shared + b"}\n")
            if not written.profiles:
                hint = "record with with_stack" if only == "python" else "choose other steps, or another --only"
                raise ConfigError("there are no such ranges of the host in these traces", hint=hint)
    except OSError as error:
        raise RankscopeError(f"cannot be written: {error.strerror}", path=path, hint="choose another -o") from error
    return written


class _Frames:
    """The distinct frames, each with its number.

    Attributes:
        listed: the frames in speedscope's form.
    """

    def __init__(self) -> None:
        self.listed: list[dict[str, Any]] = []
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        """The number of a range's frame."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.listed)
            python = _PYTHON.fullmatch(name)
            frame: dict[str, Any] = {"name": name}
            if python is not None:
                frame = {"name": python["name"], "file": python["file"], "line": int(python["line"])}
            self.listed.append(frame)
        return number


def _threads(
    run: Run, rank: int, clock: RankClock, tables: Sequence[str]
) -> Iterator[tuple[tuple[int, int], pl.DataFrame]]:
    """The ranges of each host thread of a rank by process and thread, the busiest thread first."""
    windows = []
    for window, trace in enumerate(run.loaded.ranks[rank]):
        own = _ranges(run, trace, tables)
        times = [pl.Series(name, clock.run_time(window, own[name].to_numpy())) for name in ("start_ns", "end_ns")]
        windows.append(own.with_columns(times))
    rows = pl.concat(windows).sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)
    threads = rows.partition_by("pid", "tid", as_dict=True, include_key=False)
    for key, own in sorted(threads.items(), key=lambda item: -item[1].height):
        yield (int(key[0]), int(key[1])), own


def _ranges(run: Run, trace: CachedTrace, tables: Sequence[str]) -> pl.DataFrame:
    """The host's ranges in one file, in the chosen steps: start_ns, end_ns, name, pid, tid."""
    wanted: dict[str, Sequence[str]] = dict.fromkeys(tables, _COLUMNS)
    wanted["annotations"] = (*_COLUMNS, "on_device", "step")
    loaded = trace.load_all(wanted)
    inputs = Inputs(run.options, (trace.info,))
    parts = []
    for name in tables:
        rows = loaded[name]
        if name == "annotations":
            rows = rows.filter(~pl.col("on_device"))
        rows = rows.filter(pl.col("pid").is_not_null() & pl.col("tid").is_not_null()).select(_COLUMNS)
        parts.append(rows.filter(chosen_starts(rows, loaded["annotations"], inputs)))
    return pl.concat(parts)


def _write_profile(file: BinaryIO, name: str, rows: pl.DataFrame, frames: _Frames, written: Written) -> None:
    numbers = [frames.number(each) for each in rows["name"].to_list()]
    events = list(_events(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy(), numbers, written))
    head = {"type": "evented", "name": name, "unit": "nanoseconds", "startValue": events[0][1]}
    end = max(events[-1][1], events[0][1])
    file.write(json.dumps(head | {"endValue": end}).encode()[:-1] + b', "events": [')
    text = ",".join(f'{{"type":"{kind}","at":{at},"frame":{frame}}}' for kind, at, frame in events)
    file.write(text.encode() + b"]}")
    written.profiles += 1
    written.ranges += rows.height


def _events(start: Int64, end: Int64, frames: Sequence[int], written: Written) -> Iterator[tuple[str, int, int]]:
    """Opened and closed frames in the order of time: kind, instant, frame. The ranges are sorted, the longest first."""
    opened: list[tuple[int, int]] = []
    for since, until, frame in zip(start.tolist(), end.tolist(), frames, strict=True):
        while opened and opened[-1][0] <= since:
            closing, number = opened.pop()
            yield "C", closing, number
        last = min(until, opened[-1][0]) if opened else until
        written.cut += last < until
        yield "O", since, frame
        opened.append((last, frame))
    while opened:
        closing, number = opened.pop()
        yield "C", closing, number
