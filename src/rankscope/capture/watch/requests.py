"""Windows that are recorded on request: by `rankscope trigger`, by a signal, or because a step was slow.

A request gets a window of steps far enough ahead for every rank to learn of it in time, and free of other windows. The
ranks agree on it through a `Board`: the rank with a request makes the next entry, and every rank follows the list. Each
rank that the request names hands the window to its loop, which records it like any window of the schedule, with the
votes of `capture/votes.py`: a rank that learns of it too late, or cannot record it, withdraws it, and no rank keeps it.
The request is then tried again, each time twice as far ahead, and finally refused.

In: requests. Out: windows for this rank's loop, and answers for those who asked.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rankscope.capture.process import Process
from rankscope.capture.votes import SKIP_LEAD_STEPS
from rankscope.capture.watch.board import Board
from rankscope.errors import ConfigError
from rankscope.rundir.atomic import write_atomic
from rankscope.rundir.fields import mapping, step
from rankscope.rundir.names import rank_manifest_name
from rankscope.rundir.ranks import parse_ranks
from rankscope.rundir.schedule import Window
from rankscope.rundir.watch_files import (
    REQUEST_ENDING,
    Answer,
    Request,
    answer_path,
    is_request_id,
    read_answer,
    read_request,
    request_from_json,
    request_path,
    requests_folder,
    to_json,
)

MOST_STEPS = 1000
"""Of one request."""
TOO_LATE = "the request came too late"
"""Begins the reason why a rank withdraws a window that it heard of too late."""
TRIES = 6
FARTHER = 2
"""How many times further ahead each try after the first is: the last one of a usual job, a minute and a half."""
_KEPT = 256
_KEPT_IDS = 4096
_MOST_OPEN = 64
"""Windows that may be planned at a time; further requests wait."""
_MOST_AHEAD = 100_000
_BETWEEN_STEPS = SKIP_LEAD_STEPS + 2
"""Between two windows, so that the votes on the second come after the first."""


@dataclass(frozen=True)
class Pace:
    """How far this rank is, and how fast."""

    step: int
    usual_ns: int
    script_profiler: str = ""
    """The script's own profiler, if it has one: it takes precedence over requested windows."""
    waits: bool = False
    """Whether that one is recording on this rank."""


@dataclass(frozen=True)
class Planned:
    """A window that the ranks have agreed on, or their refusal of the request."""

    request: Request
    window: Window | None
    tries: int = 1
    refused: str = ""
    """Why they have given up."""

    def to_text(self) -> str:
        """As an entry of the board."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Planned | None:
        """From an entry of the board; ``None`` if it is something else."""
        try:
            found = mapping(json.loads(text))
        except ValueError:
            return None
        request, refused = request_from_json(json.dumps(found.get("request"))), found.get("refused")
        if request is None:
            return None
        tries = step(found.get("tries")) or 1
        if isinstance(refused, str) and refused:
            return cls(request, None, tries, refused)
        numbers = [step(mapping(found.get("window")).get(name)) for name in ("warmup", "first", "last")]
        warmup, first, last = numbers
        if warmup is None or first is None or last is None or not warmup <= first <= last:
            return None
        return cls(request, Window(warmup, first, last, requested=True), tries)


@dataclass(frozen=True)
class _Pending:
    """What this rank is to add to the board: a window for the request, or that it is given up."""

    request: Request
    tries: int = 1
    refused: str = ""
    by_file: bool = False
    """Whether it is withdrawn once its file is gone."""


class Requests:
    """The requests and windows of one rank. Only the control thread calls it.

    Args:
        run_dir: where files with requests are.
        rank, local_rank: this rank.
        warmup: steps of warm-up before a window.
        scheduled: the windows of the schedule, from the beginning.
        reach_s: how long it takes until every rank has heard of an entry of the board.
        restart_count: of this attempt of an elastic job.
    """

    def __init__(
        self,
        run_dir: str,
        rank: int,
        local_rank: int | None,
        warmup: int,
        scheduled: Callable[[], Iterable[Window]],
        reach_s: float,
        restart_count: int = 0,
    ) -> None:
        self._run_dir, self._rank, self._local_rank = run_dir, rank, local_rank
        self._warmup, self._scheduled, self._reach_s = warmup, scheduled, reach_s
        self._restart_count = restart_count
        self._pending: deque[_Pending] = deque()
        self._tries: dict[str, int] = {}
        """By request: the latest try that is on the board; 0 for one that this rank has only heard of."""
        self._asked: set[str] = set()
        self._open: deque[Window] = deque()
        self._next_entry = 1
        self._planned_until = -1

    def add(self, request: Request, *, by_file: bool = False) -> None:
        """A request of this rank."""
        if request.id not in self._tries and len(self._pending) < _KEPT:
            self._note_try(request.id, 0)
            self._pending.append(_Pending(request, by_file=by_file))

    def lost(self, planned: Planned, reason: str, *, elsewhere: bool = False) -> bool:
        """A window was not recorded. Returns whether the request is tried again, by this rank or another one.

        Args:
            planned: the window.
            reason: why not.
            elsewhere: another rank's profiler was faster: that rank asks again, once it has ended.
        """
        again = planned.tries < TRIES
        if not elsewhere and self._tries.get(planned.request.id, 0) <= planned.tries:
            self._pending.append(_Pending(planned.request, planned.tries + 1, "" if again else reason))
        return again

    def _note_try(self, request_id: str, tries: int) -> None:
        self._tries[request_id] = tries
        if len(self._tries) > _KEPT_IDS:
            del self._tries[next(iter(self._tries))]

    def look_for_files(self) -> None:
        """Add the requests that are in the run directory."""
        folder = requests_folder(self._run_dir)
        try:
            names = sorted(path.stem for path in folder.iterdir() if path.suffix == REQUEST_ENDING)
        except OSError:
            return
        self._asked.intersection_update(names)
        for name in [name for name in names if name not in self._asked and is_request_id(name)]:
            if len(self._pending) >= _KEPT:
                return  # the others when these are on their way
            self._asked.add(name)
            request = read_request(request_path(self._run_dir, name))
            answer = read_answer(answer_path(self._run_dir, name))
            if request is not None and request.id == name and (answer is None or answer.waits):
                self.add(request, by_file=True)

    def agree(self, board: Board, pace: Pace) -> list[Planned]:
        """Follow the board, and add to it what is pending; returns the windows that this rank is to record."""
        found = self._follow(board, pace)
        if pace.waits:
            for pending in self._pending:
                profiler, tries = pace.script_profiler, pending.tries
                self._answer(
                    Answer(pending.request.id, at_step=pace.step, tries=tries, script_profiler=profiler, waits=True)
                )
            return found
        while self._open and self._open[0].last < pace.step:
            self._open.popleft()
        while self._pending and pace.usual_ns > 0 and len(self._open) < _MOST_OPEN:
            pending = self._pending[0]
            if pending.by_file and not request_path(self._run_dir, pending.request.id).exists():
                self._pending.popleft()  # the requester no longer waits for an answer
                continue
            planned = self._plan(pending, pace)
            if isinstance(planned, str):
                self._pending.popleft()
                self._answer(Answer(pending.request.id, refused=planned, at_step=pace.step))
                continue
            text = board.post(self._next_entry, planned.to_text())
            found += self._take(text, pace)
        return found

    def drop_automatic(self) -> None:
        """Drop the requests made because of slow steps."""
        self._keep(lambda pending: not pending.request.automatic)

    def _keep(self, wanted: Callable[[_Pending], bool]) -> None:
        self._pending = deque(each for each in self._pending if wanted(each))

    def _follow(self, board: Board, pace: Pace) -> list[Planned]:
        found: list[Planned] = []
        while (text := board.read(self._next_entry)) is not None:
            found += self._take(text, pace)
        return found

    def _take(self, text: str, pace: Pace) -> list[Planned]:
        self._next_entry += 1
        planned = Planned.from_text(text)
        if planned is None:
            return []
        request, window = planned.request, planned.window
        # Another rank has read the same file, seen the same slow step, or tried again.
        self._note_try(request.id, max(planned.tries, self._tries.get(request.id, 0)))
        self._keep(lambda other: other.request.id != request.id or other.tries > planned.tries)
        if request.automatic:
            self.drop_automatic()
        if window is None:
            self._answer(Answer(request.id, refused=planned.refused, at_step=pace.step, tries=planned.tries))
            return []
        self._planned_until = max(self._planned_until, window.last)
        self._open.append(window)
        steps, profiler = (window.first, window.last), pace.script_profiler
        answer = Answer(request.id, *steps, at_step=pace.step, tries=planned.tries, script_profiler=profiler)
        self._answer(answer)
        return [planned] if self._is_for_this_rank(request) else []

    def _is_for_this_rank(self, request: Request) -> bool:
        try:
            return parse_ranks(request.ranks).selects(self._rank, self._local_rank)
        except ConfigError:
            return False

    def _plan(self, pending: _Pending, pace: Pace) -> Planned | str:
        """A window for a request, or why there is none."""
        request, tries = pending.request, pending.tries
        if pending.refused:
            return Planned(request, None, tries, pending.refused)
        if request.steps > MOST_STEPS:
            return f"{request.steps} steps are more than {MOST_STEPS}"
        try:
            parse_ranks(request.ranks)
        except ConfigError as error:
            return str(error)
        reach = math.ceil(self._reach_s * 1e9 / pace.usual_ns)
        ahead = min((reach + SKIP_LEAD_STEPS + 1) * FARTHER ** (tries - 1), _MOST_AHEAD)
        # The trace of the window before has to be written by then.
        begin = max(pace.step + ahead, self._planned_until + max(_BETWEEN_STEPS, reach))
        length = self._warmup + request.steps
        for scheduled in self._scheduled():
            if scheduled.last + _BETWEEN_STEPS <= begin:
                continue
            if begin + length + _BETWEEN_STEPS <= scheduled.warmup:
                break
            begin = scheduled.last + _BETWEEN_STEPS
            if begin > pace.step + _MOST_AHEAD:
                return "the schedule leaves no steps between its own windows"
        first = begin + self._warmup
        return Planned(request, Window(begin, first, first + request.steps - 1, requested=True), tries)

    def _answer(self, answer: Answer) -> None:
        """Answer a request file that this rank can see; another rank may have written the same answer."""
        path = answer_path(self._run_dir, answer.id)
        if not request_path(self._run_dir, answer.id).exists():
            return
        known = read_answer(path)
        newer = known is None or known.tries < answer.tries or (known.waits and not answer.waits)
        if newer or (answer.refused and known is not None and not known.refused):
            with suppress(OSError):  # the window is recorded all the same
                write_atomic(path, to_json(replace(answer, restart_count=self._restart_count)))


def reads_files(process: Process, run_dir: str) -> bool:
    """Whether a rank looks for requests: the first one of each host does, and one that has another run directory."""
    if process.local_rank in (0, None):
        return True
    first = rank_manifest_name(process.rank - process.local_rank, process.world_size, process.restart_count)
    return not Path(run_dir, first).exists()


def automatic_request(slow_step: int, steps: int, reason: str) -> Request:
    """The request that a slow step makes."""
    return Request(f"slow-{slow_step}", steps, reason=reason, automatic=True)
