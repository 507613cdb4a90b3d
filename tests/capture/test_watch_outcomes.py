"""What became of a window that was asked for, as the manifest has it."""

from __future__ import annotations

from dataclasses import replace

from rankscope.capture.watch.outcomes import NO_RECORDING, Outcomes
from rankscope.capture.watch.requests import Planned
from rankscope.rundir.manifest import LostWindow, RankManifest, WrittenTrace
from rankscope.rundir.schedule import Window
from rankscope.rundir.watch_files import Request

PLANNED = Planned(Request("a", 3), Window(98, 100, 102))
TRACE = WrittenTrace("rank0_iter100_102.trace.json.gz", 100, 102)
EMPTY = RankManifest()


def settle(outcomes, manifest, step, *, busy=False):
    return [(each.planned.request.id, each.lost) for each in outcomes.settle(manifest, step, busy=busy)]


def waiting(manifest=EMPTY):
    outcomes = Outcomes()
    outcomes.add(PLANNED, manifest)
    return outcomes


def test_a_window_is_settled_once_by_its_trace():
    outcomes = waiting()
    assert settle(outcomes, EMPTY, 103, busy=True) == []
    written = replace(EMPTY, written=(TRACE,))
    assert settle(outcomes, written, 110) == [("a", "")]
    assert settle(outcomes, written, 111) == []


def test_a_window_that_was_skipped_or_failed_is_lost_for_its_reason():
    lost = LostWindow(100, 102, "the previous trace was still being written on rank 1")
    assert settle(waiting(), replace(EMPTY, skipped=(lost,)), 98) == [("a", lost.reason)]
    assert settle(waiting(), replace(EMPTY, failed=(lost,)), 120, busy=True) == [("a", lost.reason)]
    other = LostWindow(60, 62, "another one")
    assert settle(waiting(), replace(EMPTY, skipped=(other,)), 98) == []


def test_a_trace_that_is_withdrawn_while_it_is_written_is_lost_late():
    outcomes = waiting()
    assert settle(outcomes, EMPTY, 5000, busy=True) == []
    lost = LostWindow(100, 102, "withdrawn")
    assert settle(outcomes, replace(EMPTY, skipped=(lost,)), 5001) == [("a", "withdrawn")]


def test_a_capture_that_has_ended_records_nothing():
    outcomes = waiting()
    assert settle(outcomes, EMPTY, 120) == []  # it may wait for collectives
    assert settle(outcomes, EMPTY, 200) == [("a", NO_RECORDING)]


def test_windows_that_are_still_to_come_are_known():
    outcomes = waiting()
    assert [outcomes.not_begun(step) for step in (97, 98)] == [[PLANNED.window], []]


def test_the_same_steps_of_another_profiler_in_this_process_do_not_count():
    before = replace(EMPTY, written=(TRACE,))
    outcomes = waiting(before)
    assert settle(outcomes, before, 104, busy=True) == []
    assert settle(outcomes, replace(before, written=(TRACE, replace(TRACE, file="again"))), 105) == [("a", "")]
