"""Lists of whole numbers such as ``0-3,8``: ranks, CPUs, steps.

In: the text. Out: the numbers, or an error that names the part that is wrong; and the reverse.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from rankscope.rundir.plurals import plural

_RANGE = re.compile(r"([0-9]{1,9})(?:\s*-\s*([0-9]{1,9}))?")


def parse_range(text: str) -> tuple[int, int] | None:
    """The first and last number of ``0-3``, or of ``8``; None if it is neither. ``3-0`` is (3, 0)."""
    match = _RANGE.fullmatch(text.strip())
    return None if match is None else (int(match[1]), int(match[2] or match[1]))


def parse_numbers(text: str, below: int, separator: str = ",") -> list[int]:
    """``0-3,8`` as numbers, in the order given.

    Args:
        text: the list.
        below: what all numbers have to be less than; it bounds the memory that ``0-999999999`` takes.
        separator: what is between the ranges.

    Raises:
        ValueError: it is not such a list; the message names the part that is wrong.
    """
    numbers: list[int] = []
    for part in text.split(separator):
        span = parse_range(part)
        if span is None:
            raise ValueError(
                f"{part.strip()[:40]!r} is not a number or a range" if part.strip() else "a number is missing"
            )
        first, last = span
        if last < first:
            raise ValueError(f"the range {part.strip()!r} runs backwards")
        if last >= below:
            raise ValueError(f"{last} is not below {below}")
        numbers.extend(range(first, last + 1))
        if len(numbers) > below:
            raise ValueError("numbers are given more than once")
    return numbers


def runs_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive numbers, ascending: ``{0, 1, 2, 5}`` is (0, 2), (5, 5)."""
    runs: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs


def as_ranges(numbers: Iterable[int]) -> str:
    """``{0, 1, 2, 5}`` as ``0-2,5``."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs_of(numbers))


def named_ranks(ranks: Collection[int]) -> str:
    """Ranks with their noun: ``rank 3``, ``ranks 0-3,7``."""
    return f"{plural('rank', len(ranks))} {as_ranges(ranks)}"
