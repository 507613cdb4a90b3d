"""One decision for all ranks: whether a window is recorded or skipped.

A window that only some ranks recorded cannot be compared. So a rank that cannot record one does not decide alone: some
steps before the warm-up it votes to skip; later, still before the warm-up, the ranks that can record vote to record.
A vote is one `compare_set` in the job's store: the first vote wins, and every rank gets it as the answer. It is
made in a thread, and nothing waits for another rank. torchrun keeps its store when it restarts the ranks, so each vote
names the process that made it, and a vote of a process that has been replaced does not count.

A rank that has no answer when the warm-up begins records, and asks again before the trace gets its final name: a window
that was to be skipped is dropped then. Without a store (neither torchrun nor a process group), or with one that fails,
each rank records every window, as long as it can hold the recordings: the same rule for all.

A rank on which the script's own profiler is adopted records that one's windows and no others. It leaves a note in the
store, and the other ranks then vote to skip every window of the schedule: those that it lacks. Windows that the watch
asks for are voted on as before.

In: votes. Out: decisions.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

from rankscope.capture.process import CONNECT_LIMIT_S, job_store
from rankscope.capture.script_profilers import conflicts
from rankscope.capture.writer import Writer
from rankscope.rundir.config import WAIT
from rankscope.rundir.schedule import Window

BUSY = "the previous trace was still being written"
OTHER_PROFILER = "another torch profiler was running"
PREEMPTED = "the job started a torch profiler of its own"
WAITING_LIMIT = 3
"""How many recordings may wait to be written: each may be held in memory."""
SKIP_LEAD_STEPS, RECORD_LEAD_STEPS = 4, 2
"""How long before the warm-up the votes to skip and to record are made: the ranks of a job that communicates are at the
same step, give or take one."""
LOOP_LIMIT_S = 0.05
"""How long the training loop waits for an answer, only where it has voted to skip and the warm-up begins already."""
DEFER_LIMIT_S = 1.0
"""How long the training loop waits for the store once, when this rank defers to a script's profiler."""
ANSWER_LIMIT_S = 5.0
"""How long a finished recording waits for an answer. After that, the store counts as failed."""
_EXIT_LIMIT_S = 2 * CONNECT_LIMIT_S
"""An interpreter that ends while the thread is still connecting aborts."""
_RECORD = "record"
_KEPT = 64


class WindowDecisions:
    """Whether this rank records the next window: decided alone, or by all ranks together.

    Args:
        votes: this rank's votes; ``None`` if there are no other ranks.
        rank: this rank.
        waiting: how many of its recordings wait to be written.
        steps_between: how many steps there are from the end of a window to the next warm-up.
        when_busy: ``wait`` if the loop waits for the writer before it asks :meth:`why_skipped`.
    """

    def __init__(
        self,
        votes: WindowVotes | None,
        rank: int,
        waiting: Callable[[], int],
        steps_between: int,
        when_busy: str,
    ) -> None:
        self._votes, self._rank, self._waiting, self._steps_between = votes, rank, waiting, steps_between
        self.when_busy = when_busy
        self.deferred = ""
        """Why this rank no longer records the schedule: the script's own profiler that it defers to."""

    def vote(self, step: int, window: Window) -> int:
        """Vote on the next window if it is time to. Returns the next step at which something is due."""
        to_skip, to_record = window.warmup - SKIP_LEAD_STEPS, window.warmup - RECORD_LEAD_STEPS
        if self._votes is not None and step >= to_skip:
            # Between windows that follow each other closely the writer is busy whenever a vote is due, and mostly done
            # when the warm-up begins: there a recording waits for it instead.
            close = self._steps_between < SKIP_LEAD_STEPS and self._waiting() < WAITING_LIMIT
            why_not = "" if close else self._why_not_ready()
            if why_not or step >= to_record:
                self._votes.vote(window.first, why_not, requested=window.requested)
        return next((due for due in (to_skip, to_record) if due > step), window.warmup)

    def why_skipped(self, step: int, window: Window) -> str:
        """Why a window whose warm-up begins now is not recorded; empty if it is."""
        if self._votes is None:
            return self._why_not_ready()
        self.vote(step, window)
        if skip := self._votes.decision(window.first):
            return skip
        if conflicts.another_profiler_runs():
            cannot = OTHER_PROFILER
        elif self._waiting() >= WAITING_LIMIT:
            cannot = f"{WAITING_LIMIT} recordings were waiting to be written"
        elif step > window.first:
            cannot = "the previous window ended late"
        else:
            return ""
        return self.withdraw(window, cannot)

    def withdraw(self, window: Window, reason: str) -> str:
        """This rank lost a window that others may have: they drop it. Returns the reason for all ranks."""
        if self._votes is None:
            return reason
        # One reason for a window: the answer to a vote to skip it may be late.
        reason = self._votes.voted.get(window.first) or f"{reason} on rank {self._rank}"
        self._votes.withdraw(window.first, reason)
        return reason

    def defer(self, window: Window | None, profiler: str) -> None:
        """This rank records no further window of the schedule, and no other rank does.

        Args:
            window: the next one, which is dropped on all ranks.
            profiler: the profiler of the script that records instead.
        """
        self.deferred = f"the script's own profiler records on rank {self._rank} instead: {profiler}"
        if self._votes is not None:
            self._votes.defer(self.deferred, None if window is None else window.first)

    def why_deferred(self) -> str:
        """Why the schedule is no longer recorded on any rank; empty if it is, as far as this rank can find out."""
        return self.deferred or (self._votes.why_deferred() if self._votes is not None else "")

    def script_profiler(self) -> str:
        """The script's own profiler that a rank defers to, as far as is known without asking; else empty."""
        why = self.deferred or (self._votes.deferred if self._votes is not None else "")
        return why.partition(": ")[2]

    def _why_not_ready(self) -> str:
        """Why this rank votes to skip the next window; empty if it can record it."""
        on_rank = f" on rank {self._rank}" if self._votes is not None else ""
        if self._waiting():
            if self.when_busy != WAIT:
                return BUSY + on_rank
            return OTHER_PROFILER + on_rank if conflicts.script_profiler_runs() else ""
        return OTHER_PROFILER + on_rank if conflicts.another_profiler_runs() else ""


class WindowVotes:
    """The votes of this rank.

    Args:
        scope: begins the keys in the store; the same on all ranks of a run and for no other.
        rank, world_size: of this process.
    """

    def __init__(self, scope: str, rank: int, world_size: int) -> None:
        self._scope, self._rank, self._world_size = scope, rank, world_size
        self._voter = f"{rank}:{uuid.uuid4().hex[:16]}"
        """Names this process, and not the one that had its rank before a restart."""
        self._store: Any = None
        self._failed = False
        self._thread = Writer("rankscope-votes", exit_limit_s=_EXIT_LIMIT_S)
        self._answers: dict[int, str] = {}
        self.voted: dict[int, str] = {}
        """By first step: why this rank voted to skip a window; empty if it voted to record it."""
        self._requested: deque[int] = deque(maxlen=_KEPT)
        self.deferred = ""
        """Why a rank no longer records the schedule, as far as is known; empty if all do."""
        self._changed = threading.Condition()

    def connect(self) -> None:
        """Connect to the store; returns at once. The job may destroy its process groups before the first vote, and the
        votes of the process that had this rank before a restart count until then."""
        self._thread.submit(self._note)

    def vote(self, first: int, skip: str = "", *, requested: bool = False) -> None:
        """Vote on the window that begins at step ``first``, once; returns at once.

        Args:
            skip: why it should be skipped; empty to record it.
            requested: it is recorded though a rank defers to a script's profiler.
        """
        if first not in self.voted:
            if requested:
                self._requested.append(first)
            self.voted[first] = skip
            self.voted = dict(list(self.voted.items())[-_KEPT:])
            self._submit(first, "", skip or _RECORD)

    def withdraw(self, first: int, reason: str) -> None:
        """This rank has no trace of a window that was to be recorded: the others, too, drop what they have not written
        yet."""
        self._submit(first, _RECORD, reason)

    def defer(self, why: str, first: int | None) -> None:
        """This rank records no further window, and not the one that begins at step ``first``."""
        self._thread.submit(lambda: self._note(why))
        if first is not None:
            self.vote(first, why)
            self.withdraw(first, why)  # the other ranks may have voted to record it
        # Until then, the others might begin and write a short window.
        self._thread.drain(DEFER_LIMIT_S)

    def why_deferred(self) -> str:
        """Why a rank no longer records the schedule; empty if all do. Not for the training loop: waits for the
        store."""
        if not self._failed:
            self._thread.submit(self._note)
            self._thread.drain(_EXIT_LIMIT_S)
        return self.deferred

    def by_first_rank(self, kind: str, action: Callable[[], None]) -> None:
        """Call ``action`` in the votes' thread on the first rank that comes here with this kind of action; on each one
        without a store that works."""

        def ask() -> None:
            mine = f"rank {self._rank}"
            if self._ask(f"{self._scope}/first/{kind}", "", mine) in ("", mine):
                action()

        self._thread.submit(ask)

    def decision(self, first: int) -> str | None:
        """Why the window is skipped; empty if it is recorded, ``None`` if that is not known yet."""
        if self._failed:
            return ""
        if self._answers.get(first) is None and self.voted.get(first):
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
            self._thread.submit(lambda: self._ask_about(first, expected, wanted))

    def _ask_about(self, first: int, expected: str, wanted: str) -> None:
        if wanted == _RECORD and first not in self._requested:
            self._note()
            wanted = self.deferred or _RECORD
        answer = self._ask(f"{self._scope}/{first}", expected, wanted)
        with self._changed:
            self._answers[first] = "" if answer in ("", _RECORD) else answer
            while len(self._answers) > _KEPT:
                del self._answers[next(iter(self._answers))]
            self._changed.notify_all()

    def _note(self, why: str = "") -> None:
        """Read why a rank defers; ``why`` is the reason of this one, if it is the first."""
        self.deferred = self.deferred or self._ask(f"{self._scope}/deferred", "", why)

    def _ask(self, key: str, expected: str, wanted: str) -> str:
        """The value of a key once it is ``wanted`` if it was ``expected``; empty without a store that works."""
        if self._failed:
            return ""
        try:
            if self._store is None and (store := job_store()) is not None:
                store.set(f"{self._scope}/rank{self._rank}", self._voter)
                self._store = store
            if self._store is not None:
                return self._exchange(key, expected, wanted)
        except Exception:
            self._failed = True
        return ""

    def _exchange(self, key: str, expected: str, wanted: str) -> str:
        """As `_ask`, with the voter's name before each value."""
        vote = f"{self._voter} {wanted}" if wanted else ""
        held = self._compare_set(key, "", vote)
        while held != vote:
            voter, _, value = held.partition(" ")
            value = value if self._counts(voter) else ""
            if not wanted or value != expected:
                return value
            held = self._compare_set(key, held, vote)
        return wanted

    def _counts(self, voter: str) -> bool:
        """Whether a vote's process still has its rank: torchrun may have started another one, or have fewer ranks."""
        rank = int(voter.partition(":")[0])
        if rank == self._rank:
            return voter == self._voter
        return rank < self._world_size and self._compare_set(f"{self._scope}/rank{rank}", "", "") == voter

    def _compare_set(self, key: str, expected: str, wanted: str) -> str:
        return bytes(self._store.compare_set(key, expected, wanted)).decode()

    def _wait(self, first: int, limit_s: float) -> str | None:
        with self._changed:
            self._changed.wait_for(lambda: first in self._answers, limit_s)
            return self._answers.get(first)
