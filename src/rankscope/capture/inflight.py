"""Collectives that gloo has not ended when a recording is to stop.

Gloo's own threads end the ranges of its collectives, and write the end into the recording. Torch's stop frees what it
has recorded and does not ask whether such a range is open (2.13, seen with a memory checker): the end is then written
into memory that belongs to somebody else, and the job aborts sooner or later. The same few microseconds are there when
the collective is over: DDP goes on as soon as the result is there, and a gloo thread that lost its CPU in that moment
ends the range later. So a stop waits until the collectives are over and these threads rest.
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
"""How torch calls them (2.5 and newer); Linux keeps 15 characters."""
_PAUSE_S = 0.002
"""Where nobody says what these threads are doing: many times what they need."""
_POLL_S = 0.0002
_REST_S = 0.1
"""How long a thread that has something to do is given for it: microseconds, once it gets a CPU."""
_BETWEEN_TWO = ("send", "recv")
"""Their ranges end when the job has waited for them."""


class InFlight:
    """The collectives on the CPU's memory of one window, as far as they are called from Python."""

    def __init__(self) -> None:
        self._works: deque[tuple[Any, bool]] = deque()

    def add(self, work: Any, operation: str) -> None:
        """One more that has begun.

        Args:
            work: what torch gave for it, a ``Work``; anything else is none.
            operation: the method of ``ProcessGroup``, ``send`` say.
        """
        self._drop_ended()
        if not callable(getattr(work, "is_completed", None)):
            return
        between_two = operation.startswith(_BETWEEN_TWO)
        if not between_two:
            try:
                work.get_future()
            except Exception:
                return  # made of others, such as gloo's reduce-scatter: it never says that it is completed
        self._works.append((work, between_two))

    def settle(self, limit_s: float) -> bool:
        """Wait until they are over, and until gloo's threads rest; false where either does not come.

        A collective that was called from C++ and that nobody has waited for is not known of.

        Args:
            limit_s: how long to wait for the collectives, in seconds; threads have a moment of their own.
        """
        if not _comes(self._all_ended, limit_s):
            return False
        if not _uses_gloo():
            return True
        threads = _gloo_threads()
        if not threads:
            time.sleep(_PAUSE_S)
        return _comes(lambda: _rest(threads), _REST_S)

    def _all_ended(self) -> bool:
        self._drop_ended()
        return not self._works

    def _drop_ended(self) -> None:
        while self._works:
            work, between_two = self._works[0]
            with suppress(Exception):  # one that failed is over too
                # One between two that nobody else holds can no longer be waited for: it ends when it is let go of.
                if not work.is_completed() and not (between_two and sys.getrefcount(work) <= _OURS):
                    return
            del work
            self._works.popleft()


def _comes(condition: Callable[[], bool], limit_s: float) -> bool:
    """Whether something comes true within so many seconds."""
    until = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_S)
    return True


def _references_of_ours() -> int:
    """How many references to a ``Work`` Python counts where nobody else holds it: differs between its versions."""
    works = deque([(object(), True)])
    work, _ = works[0]
    return sys.getrefcount(work)


_OURS = _references_of_ours()


def _uses_gloo() -> bool:
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return False
    # One backend for each kind of device: "cpu:gloo,cuda:nccl".
    return "gloo" in str(distributed.get_backend_config())


def _gloo_threads() -> list[Path]:
    """Where Linux tells of these threads; empty elsewhere, and where they have no name."""
    if sys.platform != "linux":
        return []
    found = []
    with suppress(OSError):
        for task in os.listdir(_TASKS):  # noqa: PTH208  # in the training loop
            with suppress(OSError):  # it has just ended
                if (_TASKS / task / "comm").read_text().startswith(_THREAD_NAME):
                    found.append(_TASKS / task / "stat")
    return found


def _rest(threads: list[Path]) -> bool:
    """Whether none has anything to do, now and a moment later: one that waited for a lock would be seen the second
    time."""
    if any(map(_runs, threads)):
        return False
    time.sleep(_POLL_S if threads else 0)
    return not any(map(_runs, threads))


def _runs(stat: Path) -> bool:
    """Whether a thread has something to do; one that waits for another rank has not. One that waits for its memory
    (``D``) has."""
    try:
        return stat.read_bytes().rpartition(b") ")[2][:1] != b"S"
    except OSError:
        return False
