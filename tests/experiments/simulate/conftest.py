"""Simulated runs that several tests read, and how their files are read: exactly, and with nothing of rankscope."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from rankscope.experiments.simulate import Job, Recording, Truth, parse_mesh, simulate

Event = dict[str, Any]
Reader = Callable[[Path], dict[str, Any]]


def read_trace(path: Path) -> dict[str, Any]:
    """A trace; times as whole nanoseconds (``ts`` and ``dur`` have three decimals)."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    trace: dict[str, Any] = json.loads(data, parse_float=Decimal)
    for event in trace["traceEvents"]:
        for name in ("ts", "dur"):
            if name in event:
                assert event[name].as_tuple().exponent == -3, event
                event[name] = int(event[name] * 1000)
    return trace


@pytest.fixture(scope="session")
def read() -> Reader:
    return read_trace


@pytest.fixture(scope="session")
def meshed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    """16 ranks on dp x tp x pp, with clocks that differ and drift."""
    out = tmp_path_factory.mktemp("meshed")
    recording = Recording(clock_offset_ns={3: 5_000_000_000}, clock_spread_ns=200_000, drift_spread_ppm=50.0)
    job = Job(ranks=16, steps=2, mesh=parse_mesh("dp=2,tp=4,pp=2"), seed=7, recording=recording)
    return out, simulate(out, job)
