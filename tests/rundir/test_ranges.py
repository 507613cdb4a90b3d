"""Lists such as ``0-3,8``: read, bounded, and written again."""

from __future__ import annotations

import pytest

from rankscope.rundir.ranges import as_ranges, parse_numbers, parse_range


@pytest.mark.parametrize(
    ("text", "numbers"), [("3", [3]), ("0-3,8", [0, 1, 2, 3, 8]), (" 8 , 0 - 1", [8, 0, 1]), ("1,1", [1, 1])]
)
def test_numbers_in_the_order_given(text, numbers):
    assert parse_numbers(text, 10) == numbers
    assert parse_numbers(text.replace(",", "+"), 10, "+") == numbers
    assert parse_numbers(as_ranges(numbers), 10) == sorted(set(numbers))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "missing"), ("1,,2", "missing"), ("a", "not a number"), ("-1", "not a number"), ("1-", "not a number"),
        ("\u00b2", "not a number"), ("3-0", "backwards"), ("10", "not below 10"), ("0-999999999", "not below 10"),
        ("0-999999999999", "not a number"), (",".join(["0-9"] * 3), "more than once"),
    ],
)  # fmt: skip
def test_errors(text, message):
    with pytest.raises(ValueError, match=message):
        parse_numbers(text, 10)


def test_a_backward_range_is_left_to_the_caller():
    assert parse_range("3-0") == (3, 0)
