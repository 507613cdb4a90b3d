"""What a trace's file says happened when, in plain Python over its JSON: events by what they are, and nothing else."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.plain_reading import COMMUNICATION, DEVICE


@dataclass(frozen=True)
class Said:
    """An event as the file says it: ns on the file's clock."""

    start: int
    end: int
    name: str
    kind: str
    category: str
    thread: tuple[Any, Any]


def read(path: Path) -> tuple[list[Said], int]:
    """A file's ranges and instants, and what makes its clock the wall clock."""
    data = path.read_bytes()
    found = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data, parse_float=Decimal)
    events = found["traceEvents"] if isinstance(found, dict) else found
    said = []
    for raw in events:
        if raw.get("ph") not in ("X", "i", "I") or "ts" not in raw:
            continue
        if raw.get("name") == "[memory]":
            continue  # a counter's sample, not a range
        # As Kineto's numbers are: the start and the length each to the nanosecond.
        start = int(Decimal(str(raw["ts"])) * 1000)
        end = start + int(Decimal(str(raw.get("dur", 0))) * 1000)
        args = raw.get("args") or {}
        kind = str(raw.get("cat", "")).lower()
        said.append(
            Said(start, end, str(raw.get("name", "")), kind, _category(kind, str(raw.get("name", "")), args),
                 (raw.get("pid"), raw.get("tid")))
        )  # fmt: skip
    return said, int(found.get("baseTimeNanoseconds") or 0) if isinstance(found, dict) else 0


def _category(kind: str, name: str, args: dict[str, Any]) -> str:
    device = DEVICE.get(kind)
    if device is None:
        return ""
    if device != "kernel":
        return {"memcpy": "memory", "memset": "memset"}[device]
    return "communication" if COMMUNICATION.search(name) or "Collective name" in args else "compute"


def counted(events: list[Said], shift: int) -> Counter[tuple[int, int, str]]:
    """The events as start, end (moved) and name, with how often each is there."""
    return Counter((event.start + shift, event.end + shift, event.name) for event in events)
