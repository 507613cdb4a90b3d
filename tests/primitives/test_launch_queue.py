"""queue: depth and starvation against counting at every instant."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.primitives.launch_queue import LaunchQueue

# Start, length, and how long before the launch was (after, where clocks are wrong), if there was any.
EVENTS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 8), st.none() | st.integers(-3, 20)), min_size=1, max_size=12
)
FIRST, LAST = -25, 45


def made(events: list[tuple[int, int, int | None]]) -> LaunchQueue:
    start, length = (np.array([event[place] for event in events], dtype=np.int64) for place in (0, 1))
    latency = np.array([event[2] or 0 for event in events], dtype=np.int64)
    return LaunchQueue.of(start, start + length, start - latency, np.array([event[2] is not None for event in events]))


@given(EVENTS)
def test_against_counting(events: list[tuple[int, int, int | None]]) -> None:
    queue = made(events)
    launched = [(start - latency, start) for start, _, latency in events if latency is not None]
    depth = {at: sum((a <= at) - (b <= at) for a, b in launched) for at in range(FIRST, LAST)}
    assert queue.deepest == max(0, *depth.values())
    assert queue.queued == sum(depth.values())
    instants = [instant for pair in launched for instant in pair]
    assert queue.lasted == max(instants, default=0) - min(instants, default=0)

    running = {at for start, length, _ in events for at in range(start, start + length)}
    assert queue.span == ((min(running), max(running) + 1) if running else None)
    found = queue.starved()
    waiting = {at for start, end in zip(found.starts, found.ends, strict=True) for at in range(start, end)}
    span = range(min(running), max(running)) if running else range(0)
    assert waiting == {at for at in span if at not in running and depth[at] <= 1}
    # Stretches that touch are one.
    assert all(end < start for end, start in zip(found.ends[:-1], found.starts[1:], strict=True))


def test_by_hand() -> None:
    start = np.array([10, 20, 30, 40])
    queue = LaunchQueue.of(start, start + 1, np.array([0, 0, 0, 50]), np.ones(4, dtype=np.bool_))
    # Three are queued from 0, one fewer from each start on, one too few from 40 to 50.
    assert (queue.deepest, queue.queued, queue.lasted) == (3, 30 + 20 + 10 - 10, 50)
    assert queue.queued / queue.lasted == pytest.approx(1.0)
    waiting = queue.starved()
    assert (waiting.starts.tolist(), waiting.ends.tolist()) == ([21, 31], [30, 40])


def test_nothing() -> None:
    nothing = np.empty(0, dtype=np.int64)
    queue = LaunchQueue.of(nothing, nothing, nothing, nothing.astype(np.bool_))
    assert (queue.deepest, queue.queued, queue.lasted, queue.span, len(queue.starved())) == (0, 0, 0, None, 0)
