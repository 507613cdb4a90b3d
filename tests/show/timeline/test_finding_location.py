"""Where a finding leads to, on a grid whose greatest values are seen by eye."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rankscope.engine.pipeline.clock import RankClock, RunClock
from rankscope.results import Anchor, Finding
from rankscope.show.report.html_report import located
from rankscope.show.timeline.finding_location import event_of, place_of

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


def test_a_findings_event_is_on_the_runs_clock_with_its_peers() -> None:
    clock = RunClock(
        origin_ns=0, span_ns=10_000, aligned=True, residual_ns=5,
        ranks={3: RankClock((100, 1_000), 0.0, 0, 0, 5), 5: RankClock((-50,), 0.0, 0, 0, 5)},
    )  # fmt: skip
    peers = (Anchor(5, 0, 700, 1_400, "<b>peer</b>", "waits"), Anchor(8, 0, 1, 2, "on no clock", "waits"))
    anchor = Anchor(3, 1, 200, 300, "<b>secret</b>", "Rank 3 arrives here", peers)
    event = {
        "rank": 3, "start_ns": 1_200, "end_ns": 1_300, "since_ns": None, "reason": "Rank 3 arrives here",
        "peers": [5], "from_ns": 650, "to_ns": 1_350,
    }  # fmt: skip
    assert event_of(anchor, clock) == event
    assert event_of(peers[1], clock) is None
    # The gap that it ends is shown, and a rank without such an event next to it.
    gap = event_of(replace(anchor, peers=(), since_ns=150, compared=(5, 9)), clock)
    assert gap == {**event, "since_ns": 1_150, "peers": [5], "from_ns": 1_150, "to_ns": 1_300}
    symptom = Finding("x", "info", "t", anchor=anchor)
    found = Finding("straggler", "warning", "t", ranks=(3,), anchor=anchor, symptoms=(symptom,))
    shown = located(found, HEAT, clock)
    assert shown["place"] == {"rank": 3, "step": 11, "event": event}
    # Names of events are not repeated: a report may have to be anonymous.
    assert "secret" not in str(shown)
    assert "event" not in located(found, HEAT)["place"]
