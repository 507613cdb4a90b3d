"""Lanes for the slices of one track, on which they nest; and the slices that arrows start and end at.

Perfetto's slices of one track nest. Those of a stream or a thread may cross: each goes to the first lane on which it
begins after, or lies in, the slice that is open there.

In: slices in the order of their begins, and ends of arrows. Out: a lane per slice, a slice per end of an arrow.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankscope.primitives.intervals import Int64


def lanes_of(
    track: Int64, start: Int64, end: Int64, arrow_track: Int64, arrow_time: Int64
) -> tuple[list[int], list[int]]:  # fmt: skip
    """A lane for each slice, numbered from 0 per track, and for each end of an arrow a slice; −1 if none is there.

    Args:
        track: numbers of tracks; slices are sorted by begin, the longer first.
        start: begins, ns.
        end: ends, ns.
        arrow_track: numbers of tracks.
        arrow_time: instants. An arrow is at the last slice that begins at or before it, and is still open.
    """
    lanes = [0] * track.size
    slice_of = [-1] * arrow_track.size
    # Of each track a stack per lane: ends and numbers of the slices that are open.
    stacks: dict[int, list[list[tuple[int, int]]]] = {}
    order = np.argsort(arrow_time, kind="stable")
    arrows = list(zip(order.tolist(), arrow_track[order].tolist(), arrow_time[order].tolist(), strict=True))
    position = 0
    columns = (track.tolist(), start.tolist(), end.tolist())
    for number, (which, begins, ends) in enumerate(zip(*columns, strict=True)):
        while position < len(arrows) and arrows[position][2] < begins:
            arrow, of_track, time = arrows[position]
            slice_of[arrow] = _open_at(stacks.get(of_track, ()), time)
            position += 1
        lane = _free_lane(stacks.setdefault(which, []), begins, ends)
        stacks[which][lane].append((ends, number))
        lanes[number] = lane
    for arrow, of_track, time in arrows[position:]:
        slice_of[arrow] = _open_at(stacks.get(of_track, ()), time)
    return lanes, slice_of


def _free_lane(stacks: list[list[tuple[int, int]]], begins: int, ends: int) -> int:
    """The first lane on which nothing is open that ends within the slice; what ends before it is closed."""
    for lane, stack in enumerate(stacks):
        while stack and stack[-1][0] <= begins:
            stack.pop()
        if not stack or stack[-1][0] >= ends:
            return lane
    stacks.append([])
    return len(stacks) - 1


def _open_at(stacks: Sequence[list[tuple[int, int]]], time: int) -> int:
    """The last slice that began, of those that are open at an instant; −1 for none."""
    found = -1
    for stack in stacks:
        for ends, number in reversed(stack):
            if ends >= time:
                found = max(found, number)
                break
    return found
