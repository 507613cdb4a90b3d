"""Numbers and names as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.report.words import cell, counted, inert, number_of, plain, ranks_text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (999_600_000, "ns", "1.00 s"), (999_499_999, "ns", "999 ms"), (-999_600_000, "ns", "-1.00 s"),
        (999.6, "ns", "1.00 µs"), (9_996_000, "ns", "10.0 ms"), (99_960, "ns", "100 µs"), (999_700, "bytes", "1.00 MB"),
        (0.5, "ns", "0.50 ns"),
        (0, "ns", "0"), (7, "ns", "7 ns"), (999, "ns", "999 ns"), (1000, "ns", "1.00 µs"), (12_345, "ns", "12.3 µs"),
        (123_456_789, "ns", "123 ms"), (1_234_567_890, "ns", "1.23 s"), (-1500, "ns", "-1.50 µs"),
        (4096, "bytes", "4.10 kB"), (151_000_000, "bytes", "151 MB"), (0.1589, "ratio", "15.9 %"),
        (1, "ratio", "100.0 %"),
        (12_345, "count", "12,345"), (8, "ranks", "8"), (0.25, "GB/s", "0.25 GB/s"),
    ],
)  # fmt: skip
def test_numbers(value: float, unit: str, text: str) -> None:
    assert number_of(value, unit) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(None, "ns", "–"), (True, "", "yes"), (6322354295054, "", "6322354295054"), ("a\x1bb", "", "a\ufffdb")],
)
def test_cells(value: object, unit: str, text: str) -> None:
    assert cell(value, unit) == text


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([], "none"), ([3], "3"), ([0, 1, 2, 3, 7], "0–3, 7"), ([9, 8, 1], "1, 8–9"), ([2, 4, 6], "2, 4, 6")],
)
def test_ranks(ranks: list[int], text: str) -> None:
    assert ranks_text(ranks) == text


@given(st.integers(1, 10**15))
def test_no_number_is_a_thousand_of_its_unit(value: int) -> None:
    number, unit = number_of(value, "ns").split()
    assert float(number) < 1000 or unit == "s"
    scale = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit]
    assert float(number) * scale == pytest.approx(value, rel=0.0051)


def test_nouns_are_counted() -> None:
    assert [counted(n, "rank") for n in (0, 1, 2, 1000)] == ["0 ranks", "1 rank", "2 ranks", "1,000 ranks"]
    assert counted(2, "process", "processes") == "2 processes"


@given(st.text())
def test_text_is_inert(text: str) -> None:
    shown = inert(text)
    assert not any(
        (ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0 or c in "\u202e\u2028\u2066\u200b" for c in shown
    )
    assert "\n" not in plain(text)
    assert len(plain(text, limit=20)) <= 20
    # What can be shown stays.
    assert [c for c in shown if c.isalnum()] == [c for c in text if c.isalnum()]


def test_a_path_with_undecodable_bytes_can_be_shown() -> None:
    assert plain("run\udcff.json") == "run.json"
