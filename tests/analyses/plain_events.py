"""A trace's events in plain Python, for tests that read once more what an analysis says. Nothing of rankscope in it."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

_NAMED_2020 = re.compile(r"ProfilerStep#|enumerate\(Data(Loader|Pipe)\)#|Optimizer\.|DistributedDataParallel\.")


@dataclass(eq=False)
class Range:
    """One range, in nanoseconds."""

    start: int
    end: int
    name: str
    category: str
    thread: tuple[str, str]
    args: dict[str, Any] = field(repr=False)
    step: int | None = None
    above: Range | None = None


def load(path: Path) -> dict[str, Any]:
    """The JSON of a file, numbers as they are written."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    content = json.loads(raw, parse_float=Decimal)
    return content if isinstance(content, dict) else {"traceEvents": content}


def ns(microseconds: Any) -> int:
    """Kineto's microseconds, exactly."""
    return int(Decimal(str(microseconds)) * 1000)


def thread_of(raw: dict[str, Any]) -> tuple[str, str]:
    """Files of 2020–21 write the same thread as a number here and as a text there."""
    return str(raw.get("pid")), str(raw.get("tid"))


def named_2020(name: str) -> bool:
    """Whether an `operator` of a 2020 file is a named range."""
    return _NAMED_2020.match(name) is not None


def ranges(trace: dict[str, Any]) -> list[Range]:
    """All ranges in the order of starts, longest first; `above` is the innermost one of its kind and thread."""
    found = []
    for raw in trace["traceEvents"]:
        if raw.get("ph") != "X":
            continue
        start = ns(raw["ts"])
        end = start + max(ns(raw.get("dur", 0)), 0)
        one = Range(
            start,
            end,
            raw.get("name", ""),
            (raw.get("cat") or "").lower(),
            thread_of(raw),
            raw.get("args") or {},
        )
        number = re.fullmatch(r"ProfilerStep#(\d+)", one.name)
        one.step = int(number.group(1)) if number else None
        found.append(one)
    found.sort(key=lambda event: (event.start, -event.end))
    open_: dict[tuple[Any, str], list[Range]] = defaultdict(list)
    for event in found:
        stack = open_[event.thread, event.category]
        while stack and stack[-1].end <= event.start:
            stack.pop()
        event.above = stack[-1] if stack else None
        stack.append(event)
    return found


def stacks(operators: list[Range], instants: list[tuple[int, tuple[Any, Any]]]) -> list[list[Range]]:
    """For each (time, thread) the ranges that are open then on the thread, outermost first.

    Args:
        operators: in the order of starts.
        instants: in the order of times.
    """
    by_thread: dict[tuple[Any, Any], list[Range]] = defaultdict(list)
    for operator in operators:
        by_thread[operator.thread].append(operator)
    position: dict[tuple[Any, Any], int] = defaultdict(int)
    open_: dict[tuple[Any, Any], list[Range]] = defaultdict(list)
    found = []
    for time, thread in instants:
        mine = by_thread[thread]
        while position[thread] < len(mine) and mine[position[thread]].start <= time:
            open_[thread].append(mine[position[thread]])
            position[thread] += 1
        # A range without duration is open at its own instant.
        open_[thread] = [o for o in open_[thread] if o.end > time or o.start == o.end == time]
        found.append(list(open_[thread]))
    return found
