"""Where the loop's thread is, sampled: the job's own frames of its stack, some times per second.

That names the function of a rank that is late without recording every call. A sample takes some tens of microseconds of
the interpreter's lock. Samples are taken at random intervals, so that they do not keep step with the loop, more often
in the first quarter of a minute, since a short job has few.

In: a thread, and the step it is in. Out: samples, each a step and the number of a place, and the places.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple

from rankscope.rundir.code_places import is_library

FIRST_INTERVAL_S = 0.05
INTERVAL_S = 0.2
FIRST_SAMPLES = 300
"""So many are taken at the first interval."""
MAX_FRAMES = 8
"""Of the job's own, the innermost ones."""
MAX_PLACES = 1000
_WAITING_SAMPLES = 4096

Place = tuple[tuple[str, int, str], ...]
"""File, line and function of each of the job's own frames, the innermost first."""


class Sample(NamedTuple):
    """Where the thread was."""

    step: int
    place: int
    """Its number."""


class StackSampler:
    """Samples one thread.

    Args:
        thread: the identifier of the loop's thread.
        step: the step that it is in; None while it is not to be sampled.
    """

    def __init__(self, thread: int, step: Callable[[], int | None]) -> None:
        self._thread_id, self._step = thread, step
        self._places: dict[Place, int] = {}
        self._own: dict[str, bool] = {}
        self._samples: deque[Sample] = deque(maxlen=_WAITING_SAMPLES)
        self._new: deque[tuple[int, Place]] = deque()
        self._random = random.Random(0)  # not the job's generator
        self._taken = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._run, name="rankscope-samples", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take no more samples."""
        self._stop.set()

    def take(self) -> tuple[list[tuple[int, Place]], list[Sample]]:
        """The places and the samples that are new since the last call."""
        samples = [self._samples.popleft() for _ in range(len(self._samples))]
        return [self._new.popleft() for _ in range(len(self._new))], samples

    def _run(self) -> None:
        while not self._stop.wait(self._interval()):
            step = self._step()
            if step is None:
                continue
            frame = sys._current_frames().get(self._thread_id)
            if frame is None:
                return  # the thread has ended
            self._add(step, self._place(frame))
            del frame  # it keeps the job's objects alive

    def _interval(self) -> float:
        interval = FIRST_INTERVAL_S if self._taken < FIRST_SAMPLES else INTERVAL_S
        return interval * self._random.uniform(0.5, 1.5)

    def _place(self, frame: FrameType | None) -> Place:
        found: list[tuple[str, int, str]] = []
        while frame is not None and len(found) < MAX_FRAMES:
            code = frame.f_code
            file = code.co_filename
            own = self._own.get(file)
            if own is None:
                own = not is_library(file)
                if len(self._own) < MAX_PLACES:
                    self._own[file] = own
            if own:
                found.append((file, frame.f_lineno or 0, code.co_name))
            frame = frame.f_back
        return tuple(found)

    def _add(self, step: int, place: Place) -> None:
        self._taken += 1
        number = self._places.get(place)
        if number is None:
            if len(self._places) >= MAX_PLACES:
                return
            number = self._places[place] = len(self._places)
            self._new.append((number, place))
        self._samples.append(Sample(step, number))
