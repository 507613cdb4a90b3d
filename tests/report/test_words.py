"""Numbers and names as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.report.words import cell, inert, number_of, plain, ranks_text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
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
