"""Pairs of events on two timelines that are nearly, but not quite, on one clock."""

from __future__ import annotations

import numpy as np

from rankscope.primitives.event_pairing import pair_events
from rankscope.primitives.intervals import Int64
from rankscope.primitives.offset_estimation import Timeline

APART, STEP = 15_000, 1_000_000


def comb(counts: list[int], moved: int = 0) -> Timeline:
    """So many equal collectives in each step, 15 µs apart, all of them later by `moved` ns."""
    step = np.repeat(np.arange(len(counts)), counts).astype(np.int64)
    place = np.concatenate([np.arange(count) for count in counts]).astype(np.int64)
    end = step * STEP + place * APART + moved
    none, no = np.zeros(end.size, dtype=np.int64), np.zeros(end.size, dtype=np.bool_)
    return Timeline(end, none, none, step, no, no, end - 10_000)


def pairs(reference: Timeline, other: Timeline, blur: int = 32_000) -> Int64:
    return pair_events(reference, [other], [blur], by_step=True)[0]


def test_equal_steps_are_paired_in_order_where_ends_are_misleading() -> None:
    """The clock is off by three of them: each ends exactly with another one."""
    reference, other = comb([20, 20, 20, 20]), comb([20, 20, 20, 20], moved=3 * APART)
    assert (pairs(reference, other) == np.arange(80)).all()


def test_order_says_nothing_of_a_step_that_is_cut() -> None:
    """Both lack two of the first step's, at its beginning and at its end: the ends tell which."""
    reference, other = comb([20, 20, 20]), comb([20, 20, 20])
    found = pairs(reference.take(np.arange(2, 60)), other.take(np.array([*range(18), *range(20, 60)])), 2_000)
    assert (found[2:18] == np.arange(16)).all()
    assert (found[18:] == np.arange(18, 58)).all()
    assert (found[:2] == -1).all()
