"""Where a finding leads to, on a grid whose greatest values are seen by eye."""

from __future__ import annotations

from typing import Any

import pytest

from rankscope.results import Finding
from rankscope.timeline.finding_location import place_of

HEAT: dict[str, Any] = {
    "ranks": [0, 3, 5],
    "steps": [10, 11, 12],
    "step_ns": [
        100, 130, 110,
        105, None, 120,
        101, 102, 103,
    ],
    "lateness_ns": [
        0, 0, 7,
        9, 40, 8,
        0, None, 0,
    ],
    "wait_ns": [None] * 9,
}  # fmt: skip


def finding(kind: str, ranks: tuple[int, ...], steps: tuple[int, ...] = ()) -> Finding:
    return Finding(id=kind, severity="warning", title="t", ranks=ranks, steps=steps)


@pytest.mark.parametrize(
    ("of", "rank", "step"),
    [
        (finding("straggler", (3,)), 3, 11),  # lasting, so it names no step: where it came latest
        (finding("straggler", (3,), (10, 12)), 3, 10),
        (finding("straggler", (5,)), 5, 12),  # never late: its longest step
        (finding("launch-bound", (0, 3, 5)), 0, 11),
        (finding("launch-bound", (3,)), 3, 12),
        (finding("launch-bound", (), (10, 12)), 3, 12),
        (finding("launch-bound", (3,), (11,)), 3, 11),  # nothing is known of it there
        (finding("rank-not-drawn", (77,)), 77, None),
    ],
)
def test_the_place_is_where_most_is_to_be_seen(of: Finding, rank: int, step: int | None) -> None:
    assert place_of(of, HEAT) == {"rank": rank, "step": step}


def test_what_is_of_no_rank_and_no_step_has_no_place() -> None:
    assert place_of(finding("too-few-steps", ()), HEAT) is None
