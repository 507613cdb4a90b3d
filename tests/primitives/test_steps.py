"""Steps and their windows against a plain reading of their definition."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from rankscope.primitives.steps import Windows, events_launched_in, host_steps, owning_steps, windows

Step = tuple[int, int]
Event = tuple[int, int, "int | None", int]  # start, end, launch, stream


def found_windows(steps: list[Step], events: list[Event]) -> Windows:
    launch = np.array([0 if event[2] is None else event[2] for event in events], dtype=np.int64)
    launched = np.array([event[2] is not None for event in events], dtype=np.bool_)
    column = [np.array([event[place] for event in events], dtype=np.int64) for place in (0, 1, 3)]
    start, end = (np.array([step[side] for step in steps], dtype=np.int64) for side in (0, 1))
    return windows(start, end, column[1], column[0], launch, launched, column[2])


def read_windows(steps: list[Step], events: list[Event]) -> list[tuple[int, int]]:
    """As `step_time` says: the latest of own start, previous window's end, and for the first the backlog's end."""
    first_start = steps[0][0]
    begin = first_start
    for start, end, launch, stream in events:
        first_launched = min((s for s, _, at, of in events if of == stream and at is not None), default=first_start)
        if (launch is not None and launch < first_start) or (launch is None and start < first_launched):
            begin = max(begin, end)
    found = []
    for start, end in steps:
        begin = max(begin, start)
        owned = [until for _, until, launch, _ in events if launch is not None and start <= launch < end]
        until = max([begin, end, *owned])
        found.append((begin, until))
        begin = until
    return found


@st.composite
def loops(draw: st.DrawFn) -> tuple[list[Step], list[Event]]:
    """Steps one after another, with and without gaps, and events that were launched before, in and between them."""
    steps, at = [], 20
    for _ in range(draw(st.integers(1, 4))):
        at += draw(st.integers(0, 5))
        end = at + draw(st.integers(0, 15))
        steps.append((at, end))
        at = end
    event = st.tuples(
        st.integers(0, 100), st.integers(0, 60), st.one_of(st.none(), st.integers(0, 90)), st.integers(0, 2)
    )
    drawn = draw(st.lists(event, max_size=14))
    return steps, [(start, start + length, launch, stream) for start, length, launch, stream in drawn]


@given(loops())
def test_windows_are_as_they_are_defined(loop: tuple[list[Step], list[Event]]) -> None:
    steps, events = loop
    found = found_windows(steps, events)
    assert list(zip(found.start.tolist(), found.end.tolist(), strict=True)) == read_windows(steps, events)


@given(loops())
def test_windows_never_overlap_nor_run_backwards(loop: tuple[list[Step], list[Event]]) -> None:
    found = found_windows(*loop)
    assert (found.end >= found.start).all()
    assert (found.start[1:] >= found.end[:-1]).all()


@given(loops())
def test_an_event_belongs_to_the_step_its_launch_starts_in(loop: tuple[list[Step], list[Event]]) -> None:
    steps, events = loop
    for (_, _, launch, _), owner in zip(events, found_windows(steps, events).owner.tolist(), strict=True):
        around = [n for n, (start, end) in enumerate(steps) if launch is not None and start <= launch < end]
        assert owner == (around[0] if around else -1)


def test_a_backlog_that_outlasts_several_steps_leaves_them_empty() -> None:
    found = found_windows([(10, 20), (20, 30), (30, 40)], [(5, 35, 1, 7)])
    assert found.start.tolist() == [35, 35, 35]
    assert found.end.tolist() == [35, 35, 40]


def test_a_launch_at_the_end_of_a_step_is_the_next_ones() -> None:
    start, end = np.array([0, 10]), np.array([10, 20])
    launch = np.array([0, 9, 10, 20])
    assert owning_steps(start, end, launch, np.ones(4, dtype=np.bool_)).tolist() == [0, 0, 1, -1]


def test_without_steps_nothing_is_owned() -> None:
    none = np.empty(0, dtype=np.int64)
    assert owning_steps(none, none, np.array([3]), np.array([True])).tolist() == [-1]


def test_launched_in_takes_the_chosen_steps_events() -> None:
    annotations = pl.DataFrame(
        {
            "start_ns": [20, 0, 10, 0],
            "end_ns": [30, 10, 20, 10],
            "on_device": [False, False, False, True],
            "step": [3, 1, 2, None],
        }
    )
    steps = host_steps(annotations)
    assert steps["step"].to_list() == [1, 2, 3]
    device = pl.DataFrame({"launch_ns": [25, None, 12, 3, 31], "name": ["c", "?", "b", "a", "after"]})
    assert events_launched_in(device, steps, pl.col("step") >= 2)["name"].to_list() == ["c", "b"]
    assert events_launched_in(device, steps, pl.col("step") > 9).is_empty()
