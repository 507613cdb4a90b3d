"""Microseconds as written become nanoseconds exactly."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kineto import kernel, trace, write

from rankscope.ingest.chunks import Chunk
from rankscope.ingest.event_types import EVENTS
from rankscope.ingest.findings import losses_of
from rankscope.ingest.kineto import read_kineto
from rankscope.ingest.timestamps import MAX_NS, NO_TIME, event_times
from rankscope.ingest.trace_metadata import trace_info


def times(*stamps: str, dur: str = "1.001") -> tuple[list[int], list[int]]:
    text = "[" + ",".join(f'{{"ph":"X","ts":{stamp},"dur":{dur}}}' for stamp in stamps) + "]"
    start, spent = event_times(Chunk(text.encode(), EVENTS.decode(text)))
    return start.tolist(), spent.tolist()


def written(ns: int) -> str:
    sign, ns = ("-" if ns < 0 else ""), abs(ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"


@settings(max_examples=300)
@given(st.lists(st.integers(-(2**61), MAX_NS - 10**6), min_size=1, max_size=5), st.booleans())
def test_three_decimals_are_exact(instants: list[int], as_text: bool) -> None:
    stamps = [f'"{written(ns)}"' if as_text else written(ns) for ns in instants]
    assert times(*stamps)[0] == instants


@settings(max_examples=200)
@given(st.integers(0, MAX_NS // 1000 - 1))
def test_whole_microseconds_are_exact(stamp: int) -> None:
    assert times(str(stamp))[0] == [stamp * 1000]


@pytest.mark.parametrize("stamp", ["1e3", "1.5E3", "1234567890123456.789e0", "17005500000000005e-1", "0.5", "-0.001"])
def test_any_notation(stamp: str) -> None:
    assert times(stamp)[0] == [int(Decimal(stamp) * 1000)]


@pytest.mark.parametrize("stamp", ["null", '"nan"', '"inf"', "1e300", "1e17", "-1e17"])
def test_no_time(stamp: str) -> None:
    assert times(stamp)[0] == [NO_TIME]
    assert times("1700550000000000.123", stamp)[0] == [1700550000000000123, NO_TIME]


def test_an_exponent_beyond_reason_does_not_hang() -> None:
    assert times('"1e308"', "1700550000000000.123")[0] == [NO_TIME, 1700550000000000123]
    assert times("1e-300", "1700550000000000.123")[0] == [0, 1700550000000000123]


@pytest.mark.parametrize("dur", ["null", "-1", '"nan"', "1e300"])
def test_no_duration(dur: str) -> None:
    assert times("5", dur=dur)[1] == [-1]


def test_epoch_stamps_in_a_file(tmp_path: Path) -> None:
    text = '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1712161111222333.444, "dur": 0.001}]}'
    device = read_kineto(str(write(tmp_path / "t.json", text))).tables["device_events"]
    assert device.select("start_ns", "end_ns").row(0) == (1712161111222333444, 1712161111222333445)


def test_without_a_duration_an_event_ends_where_it_starts(tmp_path: Path) -> None:
    made = {key: value for key, value in kernel("k", 7, 1).items() if key != "dur"}
    found = read_kineto(str(write(tmp_path / "t.json", trace([made]))))
    assert found.tables["device_events"].select("start_ns", "end_ns").row(0) == (7000, 7000)
    assert found.account.no_duration == 1


def test_a_duration_of_31_years_is_a_warning(tmp_path: Path) -> None:
    path = str(write(tmp_path / "t.json", trace([kernel("k", 7, 10**15), kernel("k", 9, 2)])))
    found = read_kineto(path)
    assert found.account.no_duration == 1
    (finding,) = losses_of([trace_info(found)])
    assert (finding.id, finding.severity) == ("trace-oddities", "warning")
    assert "1 event without a plausible duration" in finding.title
