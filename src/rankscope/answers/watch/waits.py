"""Whether ranks waited for the collective before, at each place in a step: from their arrivals alone.

It is inferred from how the time between two arrivals of a rank depends on how early the rank was at the first one: one
that waits is later by as much (slope 1), one that does not is not (slope 0). Only what varies from step to step and
differs between ranks counts: not that a rank is always early, nor that a step is longer on all ranks.

Where hardly anything varies, the levels tell, if both collectives are of one step: a rank that is always early at the
first one, and takes as much longer than the last rank to come to the next, waited in between. Across two steps it may
be the last rank that is slow there.

In: the pieces of one place. Out: whether ranks waited, None if the pieces do not show it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]
ENOUGH = 8
"""Degrees of freedom to know a slope from."""
_OUTLIER = 5.0
"""Times the median change."""
_STANDARD_ERRORS = 2.0
"""A slope closer to the middle between 0 and 1 does not tell."""


class Place(NamedTuple):
    """Between which collectives of a step a piece is: those of one place are alike on all ranks and in all steps."""

    first: bool
    """Whether it is the first of the step: it begins in the step before."""
    before: int
    """The kind of the collective before, by number."""
    after: int
    """Likewise, whatever its group: ranks that leave one collective together may call the next in several groups."""


class Piece(NamedTuple):
    """The time of a rank between two of its collectives, the later one in `step`."""

    rank: int
    step: int
    place: Place
    follows: tuple[str, int]
    """The collective before: group and sequence number."""
    since_release: int
    since_arrival: int
    blocks: bool = False
    """Whether the collective before is one that is called to wait."""


def waited(pieces: Sequence[Piece]) -> bool | None:
    """Whether ranks waited for the collective before, at one place in a step; None if the pieces do not show it."""
    following: dict[tuple[str, int], dict[int, Piece]] = defaultdict(dict)
    for each in pieces:
        following[each.follows][each.rank] = each
    nth: Counter[int] = Counter()
    alike: dict[tuple[int, tuple[int, ...]], list[list[Piece]]] = defaultdict(list)
    for _, found in sorted(following.items()):
        ranks = tuple(sorted(found))
        step = found[ranks[0]].step
        alike[nth[step], ranks].append([found[rank] for rank in ranks])
        nth[step] += 1
    xx = xy = yy = 0.0
    freedom = -1
    for (_, ranks), rows in alike.items():
        since = np.array([[each.since_arrival for each in row] for row in rows], dtype=np.float64)
        early = since - np.array([[each.since_release for each in row] for row in rows], dtype=np.float64)
        if len(rows) < 2:
            continue
        dx, dy = _changes(early), _changes(since)
        xx, xy, yy = xx + float((dx * dx).sum()), xy + float((dx * dy).sum()), yy + float((dy * dy).sum())
        freedom += (len(ranks) - 1) * (len(rows) - 1)
    decided = _decided(xx, xy, yy, freedom)
    if decided is None and pieces and not pieces[0].place.first:
        # Not the reverse: a rank that is last because all of it is slow takes longer to come to the next one, too.
        return _by_levels(list(following.values())) or None
    return decided


def _by_levels(rows: Sequence[Mapping[int, Piece]]) -> bool | None:
    """Whether ranks that were early at one collective took as much longer than the last rank to come to the next."""
    early, longer = [], []
    for row in rows:
        last = min(row.values(), key=lambda each: each.since_arrival - each.since_release)
        others = [each for each in row.values() if each is not last]
        early += [each.since_arrival - each.since_release for each in others]
        longer += [each.since_arrival - last.since_arrival for each in others]
    x, y = np.array(early, dtype=np.float64), np.array(longer, dtype=np.float64)
    return _decided(float((x * x).sum()), float((x * y).sum()), float((y * y).sum()), x.size - 1)


def _decided(xx: float, xy: float, yy: float, freedom: int) -> bool | None:
    """Whether the slope of y over x, through the origin, is that of ranks that waited; None if it does not tell."""
    if freedom < ENOUGH or xx == 0:
        return None
    slope = xy / xx
    standard_error = (max(yy - slope * xy, 0.0) / freedom / xx) ** 0.5
    return slope > 0.5 if abs(slope - 0.5) > _STANDARD_ERRORS * standard_error else None


def _changes(values: Float) -> Float:
    """From each step to the next, less the mean of all ranks, cut where they are outliers.

    Not the deviations from a mean or median: where a rank becomes slow at some step, the time in which it is slow and
    the time by which it is late change together, whether ranks wait or not.
    """
    changes = np.diff(values - values.mean(axis=1, keepdims=True), axis=0)
    most = _OUTLIER * np.median(np.abs(changes), axis=0)
    found: Float = np.clip(changes, -most, most)
    return found
