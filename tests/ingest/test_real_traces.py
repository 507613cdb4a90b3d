"""Every real trace is read whole: events by phase and category as in a plain reading; what is none is refused."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import SHARED_TRACES

from rankscope.errors import NotATraceError
from rankscope.ingest.kineto import read_kineto

# What the folder holds that is no trace, and the words that it is refused with.
REFUSED = {
    "_dump_": "pickle",
    ".pickle": "pickle",
    "_et.json": "execution trace",
}


def files() -> list[Path]:
    if not SHARED_TRACES.exists():
        return []
    folder = SHARED_TRACES.resolve()
    notes = {".md", ".tsv", ".txt", ".yaml", ".csv"}
    return sorted(file for file in folder.rglob("*") if file.is_file() and file.suffix not in notes)


def plain(file: Path) -> Any:
    """What `json` makes of a file; None if it is no JSON."""
    data = file.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    try:
        # Old files have backslashes that escape nothing, and numbers that are none.
        return json.loads(data.decode("utf-8", "replace").replace("\\", "/"), strict=False)
    except ValueError:
        return None


def test_there_are_traces(shared_traces: Path) -> None:
    assert len(files()) > 100


@pytest.mark.parametrize(
    "file",
    # Of the fast tests are those that are read quickly.
    [pytest.param(file, marks=pytest.mark.slow if file.stat().st_size > 300_000 else ()) for file in files()],
    ids=lambda file: str(file.relative_to(SHARED_TRACES.resolve())),
)
def test_counts_equal_a_plain_reading(file: Path) -> None:
    whole = plain(file)
    events = whole if isinstance(whole, list) else whole.get("traceEvents") if isinstance(whole, dict) else None
    if not isinstance(events, list):
        with pytest.raises(NotATraceError) as caught:
            read_kineto(str(file))
        words = next((words for part, words in REFUSED.items() if part in file.name), "")
        assert words in caught.value.what
        assert caught.value.hint
        return
    counts = Counter((event.get("ph"), event.get("cat")) for event in events)
    for chunk_bytes in (64 << 10, 8 << 20):
        found = read_kineto(str(file), chunk_bytes=chunk_bytes)
        assert found.counts == counts
        assert (found.losses.events, found.losses.truncated, found.losses.metadata) == (0, False, False)
    # Every event is a row, but for halves of ranges; texts that stand for threads are rows of their own.
    rows = sum(frame.height for name, frame in found.tables.items() if name != "collectives")
    texts = found.tables["tracks"].filter(field="text").height
    halves = sum(number for (phase, _), number in counts.items() if phase in ("B", "E"))
    assert rows - texts + halves // 2 == sum(counts.values())
    if isinstance(whole, dict):
        assert found.metadata.keys() == whole.keys() - {"traceEvents"}
    device = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset", "Kernel")]
    starts = sorted(round(float(event["ts"]) * 1000) for event in device)
    read = found.tables["device_events"].filter(found.tables["device_events"]["kind"].is_not_null())
    if starts and not any(cat in ("Memcpy", "Memset") for _, cat in counts):
        assert read.height == len(starts)
        # A float of 16 digits and three decimals is off by up to 128 ns; whole ones are exact.
        assert abs(int(read["start_ns"][0]) - starts[0]) <= 256
