"""Which steps are significantly slower than the job's own history.

1. A step is slow if it exceeds the median of the last `HISTORY` usual steps by `DEVIATIONS` robust standard deviations
   (1.4826 times the median absolute deviation), by a share `LEAST` of the median, and by `LEAST_NS`.
2. It is worth a recording if it takes `ALONE` times the median, or another of the last `RECENT` steps was slow too: a
   recording shows the steps that follow, and a single hiccup is over by then.
3. A history of fewer than `ENOUGH` steps judges nothing. Slow steps are not part of it, unless they keep coming: after
   `NEW_NORMAL` in a row, they are the new usual. Steps that a profiler recorded, and the first of a job, do not count.

In: the durations of steps, one after another. Out: whether each is slow, and compared with what.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

HISTORY = 256
ENOUGH = 32
DEVIATIONS = 8.0
LEAST = 0.3
LEAST_NS = 20_000_000
ALONE = 3.0
RECENT = 32
NEW_NORMAL = 64
_FIRST_STEPS = 5
_EVERY = 16
_MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True)
class SlowStep:
    """A step that is slow."""

    step: int
    ns: int
    usual_ns: int
    """The median of the history it was compared with."""
    history: int
    """How many steps that is."""
    worth_recording: bool
    first: bool
    """Whether the step before it was not slow."""


class SlowSteps:
    """The history of one rank's steps."""

    def __init__(self) -> None:
        self._usual: deque[int] = deque(maxlen=HISTORY)
        self._slow: list[int] = []
        self._seen = self._since = 0
        self._last_slow = -RECENT
        self._median = self._limit = 0.0

    @property
    def median_ns(self) -> int:
        """The usual duration; 0 if there is no history yet."""
        return int(median(self._usual)) if self._usual else 0

    def add(self, step: int, ns: int) -> SlowStep | None:
        """A step that no profiler recorded; returns it if it is slow."""
        self._seen += 1
        if self._seen <= _FIRST_STEPS:
            return None
        if len(self._usual) >= ENOUGH:
            if self._since % _EVERY == 0:
                self._learn()
            self._since += 1
            if ns > self._limit:
                slow = SlowStep(
                    step,
                    ns,
                    int(self._median),
                    len(self._usual),
                    worth_recording=ns >= ALONE * self._median or self._seen - self._last_slow <= RECENT,
                    first=not self._slow,
                )
                self._last_slow = self._seen
                self._slow.append(ns)
                if len(self._slow) >= NEW_NORMAL:
                    self._usual.clear()
                    self._usual.extend(self._slow)
                    self._slow.clear()
                    self._since = 0
                return slow
        self._slow.clear()
        self._usual.append(ns)
        return None

    def _learn(self) -> None:
        values = list(self._usual)
        self._median = median(values)
        deviation = median(abs(value - self._median) for value in values)
        more = max(DEVIATIONS * _MAD_TO_SIGMA * deviation, LEAST * self._median, LEAST_NS)
        self._limit = self._median + more
