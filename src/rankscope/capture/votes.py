"""One decision for all ranks: whether a window is recorded or skipped.

A window that only some ranks recorded cannot be compared. So a rank that cannot record one does not decide alone: some
steps before the warm-up it votes to skip, and later, still before the warm-up, the ranks that can record vote to do so.
A vote is one `compare_set` of the job's store: the first wins, and each rank gets the winning one as its answer. It is
made in a thread, over a connection of its own, and nothing waits for another rank.

A rank that has no answer when the warm-up begins records, and asks again before the trace gets its final name: a window
that was to be skipped is dropped then. Without a store, or with one that fails, each rank records every window: the
same rule for all.

In: votes. Out: decisions.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import torch.distributed as dist

from rankscope.capture.writer import Writer

SKIP_LEAD_STEPS, RECORD_LEAD_STEPS = 4, 2
"""How long before the warm-up the votes to skip and to record are made: the ranks of a job that communicates are at the
same step, give or take one."""
LOOP_LIMIT_S = 0.05
"""How long the training loop waits for an answer, only where it has voted to skip and the warm-up begins already."""
ANSWER_LIMIT_S = 5.0
"""How long a finished recording waits for an answer. After that, the store counts as failed."""
_EXIT_LIMIT_S = 2.0
_RECORD = "record"
_KEPT = 64


class WindowVotes:
    """The votes of this rank.

    Args:
        scope: begins the keys in the store; the same on all ranks of a run and for no other.
    """

    def __init__(self, scope: str) -> None:
        self._scope = scope
        self._store: Any = None
        self._failed = False
        self._thread = Writer("rankscope-votes", exit_limit_s=_EXIT_LIMIT_S)
        self._answers: dict[int, str] = {}
        self._voted: dict[int, str] = {}
        self._changed = threading.Condition()

    def vote(self, first: int, skip: str = "") -> None:
        """Vote on the window that begins at step ``first``, once; returns at once.

        Args:
            skip: why it should be skipped; empty to record it.
        """
        if first not in self._voted:
            self._voted[first] = skip
            self._voted = dict(list(self._voted.items())[-_KEPT:])
            self._submit(first, "", skip or _RECORD)

    def withdraw(self, first: int, reason: str) -> None:
        """This rank has no trace of a window that was to be recorded: the others, too, drop what they have not written
        yet."""
        self._submit(first, _RECORD, reason)

    def decision(self, first: int) -> str | None:
        """Why the window is skipped; empty if it is recorded, ``None`` if that is not known yet."""
        if self._failed:
            return ""
        if self._answers.get(first) is None and self._voted.get(first):
            return self._wait(first, LOOP_LIMIT_S)
        return self._answers.get(first)

    def final(self, first: int) -> str:
        """Why the window is skipped after all; empty if it is not. Not for the training loop: waits for the store."""
        if self._failed or self._store is None:
            return ""
        self._answers.pop(first, None)
        self._submit(first, "", _RECORD)
        answer = self._wait(first, ANSWER_LIMIT_S)
        self._failed = self._failed or answer is None
        return answer or ""

    def _submit(self, first: int, expected: str, wanted: str) -> None:
        if not self._failed:
            self._thread.submit(lambda: self._ask(first, expected, wanted))

    def _ask(self, first: int, expected: str, wanted: str) -> None:
        answer = _RECORD
        try:
            self._store = self._store or _own_connection()
            if self._store is not None:
                answer = bytes(self._store.compare_set(f"{self._scope}/{first}", expected, wanted)).decode()
        except Exception:
            self._failed = True
        with self._changed:
            self._answers[first] = "" if answer == _RECORD else answer
            while len(self._answers) > _KEPT:
                del self._answers[next(iter(self._answers))]
            self._changed.notify_all()

    def _wait(self, first: int, limit_s: float) -> str | None:
        with self._changed:
            self._changed.wait_for(lambda: first in self._answers, limit_s)
            return self._answers.get(first)


def _own_connection() -> Any:
    """The job's store, over a connection of its own where torch can make one; ``None`` without a process group."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    # Torch has no public name for it.
    store: Any = dist.distributed_c10d._get_default_store()
    with suppress(Exception):
        return store.clone()
    return store
