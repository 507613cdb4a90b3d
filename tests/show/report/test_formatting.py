"""Numbers and names as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.results import Headline
from rankscope.rundir.plurals import counted, listed, plural
from rankscope.show.report.formatting import cell, inert, number_of, numbered, plain, ranks_text, sentence


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (999_600_000, "ns", "1.00 s"), (999_499_999, "ns", "999 ms"), (-999_600_000, "ns", "−1.00 s"),
        (999.6, "ns", "1.00 µs"), (9_996_000, "ns", "10.0 ms"), (99_960, "ns", "100 µs"), (999_700, "bytes", "1.00 MB"),
        (0.5, "ns", "0.50 ns"),
        (0, "ns", "0"), (7, "ns", "7 ns"), (999, "ns", "999 ns"), (1000, "ns", "1.00 µs"), (12_345, "ns", "12.3 µs"),
        (123_456_789, "ns", "123 ms"), (1_234_567_890, "ns", "1.23 s"), (-1500, "ns", "−1.50 µs"),
        (999_499_999, "ns", "999 ms"), (999_500_000, "ns", "1.00 s"), (9_995_000, "ns", "10.0 ms"),
        (99_960, "ns", "100 µs"), (999_999, "bytes", "1.00 MB"), (9_994_000, "ns", "9.99 ms"), (0.5, "ns", "0.50 ns"),
        (4096, "bytes", "4.10 kB"), (151_000_000, "bytes", "151 MB"), (0.1589, "ratio", "15.9 %"),
        (1, "ratio", "100.0 %"), (0, "ratio", "0.0 %"), (0.0042, "ratio", "0.42 %"), (0.00002, "ratio", "< 0.01 %"),
        (-0.25, "ratio", "−25.0 %"),
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


@given(st.integers(1, 10**13), st.sampled_from(["ns", "bytes"]))
def test_a_number_is_what_it_says(value: int, unit: str) -> None:
    """Three digits of the value, in a unit in which it is neither a thousand nor less than one."""
    digits, name = number_of(value, unit).split(" ")
    sizes = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
    assert float(digits) * sizes[name] == pytest.approx(value, rel=0.0051)
    assert 1 <= float(digits) < 1000 or name in ("s", "TB")
    assert len(digits.replace(".", "")) == 3 or name in ("ns", "B", "s", "TB")


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 steps"), (1, "1 step"), (2, "2 steps"), (12_000, "12,000 steps"), (1000, "1,000 steps")]
)
def test_nouns_follow_their_count(count: int, text: str) -> None:
    assert counted(count, "step") == text


def test_irregular_nouns_and_lists() -> None:
    assert [plural("rank has", count, "ranks have") for count in (1, 2)] == ["rank has", "ranks have"]
    assert [listed(list("abc"[:count])) for count in range(4)] == ["", "a", "a and b", "a, b and c"]
    assert [numbered("rank", ranks) for ranks in ([3], [0, 1, 2])] == ["rank 3", "ranks 0–2"]


def test_a_sentence_has_its_values_in_place() -> None:
    headline = Headline.of("{name} takes {time}, {what}.", name=("{time}\x1b", ""), time=(1500, "ns"))
    assert sentence(headline) == "{time}\N{REPLACEMENT CHARACTER} takes 1.50 µs, {what}."


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
