"""Collectives that gloo has not finished when a recording is to be stopped.

Gloo's own threads end the ranges of its collectives and write that into the recording. Torch's stop frees what it has
recorded without checking whether such a range is open (2.13, seen with a memory checker): the end is then written into
memory that belongs to something else, and the job aborts sooner or later. A gap of a few microseconds remains
after the collective itself is complete: DDP continues as soon as the result is there, and a gloo thread that loses its
core at that moment ends the range later. So a stop waits until the collectives are complete and these threads are
idle.

In: the collectives that are called, and gloo's threads. Out: whether the recording can be stopped now.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

_TASKS = Path("/proc/self/task")
_THREAD_NAME = "pt_gloo_run"
"""What torch calls these threads (2.5 and newer); Linux keeps 15 characters."""
_PAUSE_S = 0.002
"""How long to wait where the state of these threads is unknown: many times what they need."""
_POLL_S = 0.0002
_IDLE_LIMIT_S = 0.1
"""How long a busy thread is waited for: it needs microseconds, once it gets a core."""
_POINT_TO_POINT = ("send", "recv")
"""Their ranges end when the job has waited for them."""


class InFlight:
    """The pending collectives of one window on CPU memory that were called from Python."""

    def __init__(self) -> None:
        self._works: deque[tuple[Any, bool]] = deque()

    def add(self, work: Any, operation: str) -> None:
        """Add a collective that has begun.

        Args:
            work: what torch returned for it, a ``Work``; anything else is ignored.
            operation: the method of ``ProcessGroup``, for example ``send``.
        """
        self._drop_complete()
        if not callable(getattr(work, "is_completed", None)):
            return
        point_to_point = operation.startswith(_POINT_TO_POINT)
        if not point_to_point:
            try:
                work.get_future()
            except Exception:
                return  # composed of others, such as gloo's reduce-scatter: it never reports that it is complete
        self._works.append((work, point_to_point))

    def wait(self, limit_s: float) -> bool:
        """Wait until they are complete and gloo's threads are idle; false if that takes too long.

        A collective that was called from C++ and that nothing has waited for is not known here.

        Args:
            limit_s: how long to wait for the collectives, in seconds; threads have their own, short limit.
        """
        if not _wait_until(self._all_complete, limit_s):
            return False
        if not _uses_gloo():
            return True
        threads = _gloo_threads()
        if not threads:
            time.sleep(_PAUSE_S)
        return _wait_until(lambda: _all_idle(threads), _IDLE_LIMIT_S)

    def _all_complete(self) -> bool:
        self._drop_complete()
        return not self._works

    def _drop_complete(self) -> None:
        while self._works:
            work, point_to_point = self._works[0]
            with suppress(Exception):  # one that failed is over too
                # A send or receive that nothing else refers to can no longer be waited for: it ends when released.
                unreferenced = point_to_point and sys.getrefcount(work) <= _OWN_REFERENCES
                if not work.is_completed() and not unreferenced:
                    return
            del work
            self._works.popleft()


def _wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Whether the condition becomes true within ``limit_s`` seconds."""
    until = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_S)
    return True


def _count_own_references() -> int:
    """How many references Python counts to a ``Work`` that only this module holds; differs between its versions."""
    works = deque([(object(), True)])
    work, _ = works[0]
    return sys.getrefcount(work)


_OWN_REFERENCES = _count_own_references()


def _uses_gloo() -> bool:
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return False
    # One backend per kind of device: "cpu:gloo,cuda:nccl".
    return "gloo" in str(distributed.get_backend_config())


def _gloo_threads() -> list[Path]:
    """Where Linux reports the state of these threads; empty on other systems, and where they have no name."""
    if sys.platform != "linux":
        return []
    found = []
    with suppress(OSError):
        for task in os.listdir(_TASKS):  # noqa: PTH208  # in the training loop
            with suppress(OSError):  # it has just ended
                if (_TASKS / task / "comm").read_text().startswith(_THREAD_NAME):
                    found.append(_TASKS / task / "stat")
    return found


def _all_idle(threads: list[Path]) -> bool:
    """Whether all threads are idle, now and a moment later: one that waited for a lock shows up the second time."""
    if any(map(_is_busy, threads)):
        return False
    time.sleep(_POLL_S if threads else 0)
    return not any(map(_is_busy, threads))


def _is_busy(stat: Path) -> bool:
    """Whether a thread has work. One that waits for another rank has none; one that waits for memory (``D``) has."""
    try:
        return stat.read_bytes().rpartition(b") ")[2][:1] != b"S"
    except OSError:
        return False
