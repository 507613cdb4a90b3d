"""Whole numbers that follow one another, as people and Linux write them: ``0-3,8``."""

from __future__ import annotations

from collections.abc import Iterable


def runs_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """The first and the last of each run of numbers without a gap, ascending; ``{0, 1, 2, 5}`` is (0, 2), (5, 5)."""
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
