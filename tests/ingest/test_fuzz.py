"""Thousands of damaged traces: no crash, no hang, no memory beyond a bound; what is whole in them is read."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.conftest import SHARED_TRACES
from tests.ingest.perfetto_text import perfetto_text
from tests.kineto import dumps, event, frame, memory, pack, small_step, trace, write
from tests.soak import some_of

from rankscope.errors import NotATraceError, TraceError
from rankscope.ingest.kineto import KinetoTrace, read_kineto
from rankscope.ingest.perfetto import is_perfetto

EACH = 500
MOST_BYTES = 60_000

SYNTHETIC = [
    *small_step(),
    *small_step(100, 2, correlation=4),
    frame("train.py(1): main", 0, 90, python_id=1),
    memory(3, 512, allocated=512, reserved=1024),
    event("loss", 5, ph="C", args={"value": 0.5}),
    event("b", 6, ph="B"),
    event("b", 9, ph="E"),
    event("ac2g", 5, ph="s", id=1, cat="ac2g"),
    event("process_name", None, ph="M", args={"name": "python"}),
]


@cache
def bases() -> list[bytes]:
    """Synthetic traces, and the smallest real one of each producer, cut to its first events if it is great."""
    keys = {"deviceProperties": [{"id": 0}], "baseTimeNanoseconds": 1}
    made = [dumps(trace(SYNTHETIC, rank=0, **keys), indent=indent) for indent in (None, 2)]
    made.append(dumps(SYNTHETIC))
    made.append(perfetto_text([(0, 90, "main"), (1, 20, "aten::mm"), (30, 40, "aten::add"), (35, 35, "x")]))
    folders: dict[Path, Path] = {}
    for file in SHARED_TRACES.rglob("*.json*") if SHARED_TRACES.exists() else ():
        kept = folders.get(file.parent)
        if kept is None or file.stat().st_size < kept.stat().st_size:
            folders[file.parent] = file
    for _, file in sorted(folders.items()):
        data = file.read_bytes()
        text = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
        if b'"traceEvents"' not in text[: 1 << 20]:
            continue
        if len(text) > MOST_BYTES and (spans := spans_of(text, MOST_BYTES)):
            text = text[: spans[-1][1]] + b'], "traceName": "cut"}'
        if len(text) <= 2 * MOST_BYTES:
            made.append(text)
    return made


def spans_of(text: bytes, most: int = 1 << 30) -> list[tuple[int, int]]:
    """Where the events begin and end, as a plain parser sees it; only in text that is one byte a character."""
    shown = text.decode("latin-1")
    at = 1 if shown.startswith("[") else shown.find("[", shown.find('"traceEvents"')) + 1
    decoder, spans = json.JSONDecoder(strict=False), []
    while at < most:
        while at < len(shown) and shown[at] in " \t\r\n,":
            at += 1
        if at >= len(shown) or shown[at] != "{":
            break
        try:
            _, end = decoder.raw_decode(shown, at)
        except ValueError:
            break
        spans.append((at, end))
        at = end
    return spans


OLD = [b'"ph"', b'"ts"', b'"dur"', b'"name"', b'"args"', b'"cat"', b'"pid"', b'"tid"', b'"X"']
NEW = [b'"x"', b'"ts"', b"null", b"1", b'"\xff"', b'"\\q"', b'"\\ud800"', b"NaN", b"[", b'"']
NUMBERS = [b"9" * 30, b"-1", b"1e400", b"1e-400", b"0.1", b'"7"', b"null", b"true", b"[[]]", b"{}"]


def damage(source: random.Random, text: bytes, others: list[bytes]) -> bytes:
    """Several kinds of damage, one upon another."""
    data = bytearray(text)
    for _ in range(source.choice([1, 1, 2, 5, 20])):
        at, size = source.randrange(len(data) + 1), source.choice([1, 3, 20, 500, 5000])
        kind = source.randrange(8)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << source.randrange(8)
        elif kind == 1:
            del data[at : len(data) if source.random() < 0.2 else at + size]
        elif kind == 2:
            other = source.choice(others)
            start = source.randrange(len(other))
            data[at:at] = other[start : start + size]
        elif kind == 3:
            data[at:at] = source.randbytes(min(size, 50))
        elif kind == 4:
            old, new = source.choice(OLD), source.choice(NEW)
            data = bytearray(bytes(data).replace(old, new, source.choice([1, 3, -1])))
        elif kind == 5:
            data[at:at] = source.choice([b"]", b"}", b"{", b"[", b",", b'"', b"\\", b"\0", b"}, {", b'}, {"ph"', b"]}"])
        elif kind == 6:
            data[at : at + 1] = source.choice(NUMBERS)
        else:
            data[at:at] = data[at : at + size]
        if not data:
            break
    return bytes(data)


def read(file: Path, chunk_bytes: int) -> KinetoTrace | None:
    try:
        return read_kineto(str(file), chunk_bytes=chunk_bytes)
    except TraceError as error:
        assert error.what
        # An archive that cannot be unpacked may have held one; anything else is none.
        assert isinstance(error, NotATraceError) or "archive" in error.what
        return None


def rows_of(found: KinetoTrace) -> Counter[tuple[str | None, int, int]]:
    """Name, start and end of every range, whichever table it is in."""
    rows: Counter[tuple[str | None, int, int]] = Counter()
    for name, table in found.tables.items():
        if name != "collectives" and "start_ns" in table.columns:
            rows.update(table.select("name", "start_ns", "end_ns").iter_rows())
    return rows


def ranges_of(events: list[dict[str, Any]]) -> Counter[tuple[str | None, int, int]]:
    """The same of events that a plain parser has read: exact, of numbers read as decimals."""
    ranges: Counter[tuple[str | None, int, int]] = Counter()
    for one in events:
        if one["ph"] == "X" and "ts" in one:
            start = int(Decimal(one["ts"]) * 1000)
            ranges[one.get("name"), start, start + int(Decimal(one.get("dur", 0)) * 1000)] += 1
    return ranges


def seen(found: KinetoTrace) -> Counter[str | None]:
    return Counter(phase for phase, _ in found.counts.elements())


@pytest.mark.slow
@pytest.mark.parametrize("seed", some_of(range(20), usual=range(4)))
def test_anything_goes(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    process, peak = psutil.Process(), 0
    before = process.memory_info().rss
    for _ in range(EACH):
        text = damage(source, source.choice(bases()), bases())
        packing = source.choice([None, None, None, "gz", "zst", "tar.gz", "zip"])
        data = pack(text, packing)
        if packing and source.random() < 0.3:
            data = data[: source.randrange(len(data) + 1)]
        found = read(write(tmp_path / "t.json", data, None), source.choice([200, 5000, 8 << 20]))
        if found is not None and packing is None:
            events = sum(found.counts.values())
            # A packet of a Perfetto trace begins with a line feed; one that names a track gives up to three events.
            assert events <= (3 * text.count(b"\n") if is_perfetto(text[:512]) else text.count(b"{"))
            # Whatever did not become an event of the file is counted.
            assert events or found.losses.reason or found.odd or b"[" in text
        peak = max(peak, process.memory_info().rss - before)
    assert peak < 300 << 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", some_of(range(5), usual=range(2)))
def test_what_is_whole_is_read(tmp_path: Path, seed: int) -> None:
    source = random.Random(1000 + seed)
    for _ in range(200):
        text = source.choice(bases())
        spans = spans_of(text)
        if not spans:
            continue
        chunk_bytes = source.choice([200, 5000, 8 << 20])
        whole = [json.loads(text[start:end], strict=False, parse_float=Decimal) for start, end in spans]
        if source.random() < 0.5:  # cut off
            cut = source.randrange(spans[0][0], len(text))
            left = [each for each, (_, end) in zip(whole, spans, strict=True) if end <= cut]
            found = read(write(tmp_path / "t.json", text[:cut]), chunk_bytes)
            assert (found is None) == (not left)
            if found is not None:
                assert found.counts == Counter((each["ph"], each.get("cat")) for each in left)
                assert found.losses.truncated
                assert not ranges_of(left) - rows_of(found)
        else:  # one event is broken for good
            number = source.randrange(len(spans))
            start, end = spans[number]
            at = source.randrange(start + 1, end - 1)
            data = text[:at] + b"\x01}{\x01" + text[at:]
            found = read(write(tmp_path / "t.json", data), chunk_bytes)
            others = [each for index, each in enumerate(whole) if index != number]
            if found is not None:
                assert not Counter((each["ph"], each.get("cat")) for each in others) - found.counts
                assert not ranges_of(others) - rows_of(found)
                assert found.losses.events or found.losses.repaired or sum(found.counts.values()) > len(whole)
            else:
                assert len(others) == 0
