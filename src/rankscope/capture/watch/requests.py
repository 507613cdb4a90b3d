"""Windows that are recorded on request: by `rankscope trigger`, by a signal, or because a step was slow.

A request gets a window of steps that are far enough ahead for every rank to hear of it in time, and that no other
window covers. The ranks agree on it through a `Board`: who has a request makes the next entry, and every rank follows
the list. Each rank that the request names hands the window to its loop, which records it as any window of the schedule,
with the votes of `capture/votes.py`: a rank that hears of it too late, or cannot record it, withdraws it, and no rank
keeps it. Such a request is tried again, further ahead. While a profiler of the script's own records on this rank, its
requests wait.

In: requests. Out: windows for this rank's loop, and answers for those who asked.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from rankscope.capture.votes import SKIP_LEAD_STEPS
from rankscope.capture.watch.board import Board
from rankscope.errors import ConfigError
from rankscope.rundir.atomic import write_atomic
from rankscope.rundir.fields import mapping, step
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
TRIES = 3
FARTHER = 4
"""How many times further ahead each try after the first is."""
_KEPT = 256
_MOST_AHEAD = 100_000
_BETWEEN_STEPS = SKIP_LEAD_STEPS + 2
"""Between two windows, so that the votes on the second come after the first."""


@dataclass(frozen=True)
class Pace:
    """How far this rank is, and how fast."""

    step: int
    usual_ns: int
    script_profiler: str = ""
    """The script's own profiler, if it has one: windows give way to it."""
    waits: bool = False
    """Whether that one is recording on this rank."""


@dataclass(frozen=True)
class Planned:
    """A window that the ranks have agreed on."""

    request: Request
    window: Window
    tries: int = 1

    def to_text(self) -> str:
        """As an entry of the board."""
        return json.dumps({"request": asdict(self.request), "window": asdict(self.window), "tries": self.tries})

    @classmethod
    def from_text(cls, text: str) -> Planned | None:
        """From an entry of the board; ``None`` if it is something else."""
        try:
            found = mapping(json.loads(text))
        except ValueError:
            return None
        request = request_from_json(json.dumps(found.get("request")))
        numbers = [step(mapping(found.get("window")).get(name)) for name in ("warmup", "first", "last")]
        warmup, first, last = numbers
        if request is None or warmup is None or first is None or last is None or not warmup <= first <= last:
            return None
        return cls(request, Window(warmup, first, last, requested=True), step(found.get("tries")) or 1)


class Requests:
    """The requests and windows of one rank. Only the control thread calls it.

    Args:
        run_dir: where files with requests are.
        rank, local_rank: this rank.
        warmup: steps of warm-up before a window.
        scheduled: the windows of the schedule, from the beginning.
        reach_s: how long it takes until every rank has heard of an entry of the board.
    """

    def __init__(
        self,
        run_dir: str,
        rank: int,
        local_rank: int | None,
        warmup: int,
        scheduled: Callable[[], Iterable[Window]],
        reach_s: float,
    ) -> None:
        self._run_dir, self._rank, self._local_rank = run_dir, rank, local_rank
        self._warmup, self._scheduled, self._reach_s = warmup, scheduled, reach_s
        self._pending: deque[tuple[Request, int]] = deque(maxlen=_KEPT)
        self._known: deque[str] = deque(maxlen=_KEPT)
        self._asked: set[str] = set()
        self._next_entry = 1
        self._planned_until = -1

    def add(self, request: Request) -> None:
        """A request of this rank."""
        if request.id not in self._known:
            self._known.append(request.id)
            self._pending.append((request, 1))

    def retry(self, planned: Planned) -> bool:
        """The window was dropped, because a rank heard of it too late or a profiler of the script's own was faster: try
        again, further ahead."""
        if planned.tries >= TRIES:
            return False
        self._pending.append((planned.request, planned.tries + 1))
        return True

    def look_for_files(self) -> None:
        """Add the requests that are in the run directory."""
        folder = requests_folder(self._run_dir)
        try:
            names = sorted(path.stem for path in folder.iterdir() if path.suffix == REQUEST_ENDING)
        except OSError:
            return
        for name in names[:_KEPT]:
            if not is_request_id(name) or name in self._asked:
                continue
            answer = read_answer(answer_path(self._run_dir, name))
            if answer is not None and not answer.waits:
                continue
            request = read_request(request_path(self._run_dir, name))
            if request is not None and request.id == name:
                self._asked.add(name)
                self.add(request)

    def agree(self, board: Board, pace: Pace) -> list[Planned]:
        """Follow the board, and add to it what is pending; returns the windows that this rank is to record."""
        found = self._follow(board, pace)
        if pace.waits:
            for request, _ in self._pending:
                self._answer(Answer(request.id, at_step=pace.step, script_profiler=pace.script_profiler, waits=True))
            return found
        while self._pending and pace.usual_ns > 0:
            request, tries = self._pending[0]
            planned = self._plan(request, tries, pace)
            if isinstance(planned, str):
                self._pending.popleft()
                self._answer(Answer(request.id, refused=planned, at_step=pace.step))
                continue
            text = board.post(self._next_entry, planned.to_text())
            found += self._take(text, pace)
        return found

    def drop_automatic(self) -> None:
        """Ask no longer for what slow steps have asked for."""
        self._keep(lambda request, _tries: not request.automatic)

    def _keep(self, wanted: Callable[[Request, int], bool]) -> None:
        self._pending = deque((each for each in self._pending if wanted(*each)), _KEPT)

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
        self._planned_until = max(self._planned_until, window.last)
        # Another rank has read the same file, seen the same slow step, or tried again.
        self._known.append(request.id)
        self._keep(lambda other, tries: other.id != request.id or tries > planned.tries)
        if request.automatic:
            self.drop_automatic()
        script_profiler = pace.script_profiler
        self._answer(Answer(request.id, window.first, window.last, at_step=pace.step, script_profiler=script_profiler))
        return [planned] if self._is_for_this_rank(request) else []

    def _is_for_this_rank(self, request: Request) -> bool:
        try:
            return parse_ranks(request.ranks).selects(self._rank, self._local_rank)
        except ConfigError:
            return False

    def _plan(self, request: Request, tries: int, pace: Pace) -> Planned | str:
        """A window for a request, or why there is none."""
        if request.steps > MOST_STEPS:
            return f"{request.steps} steps are more than {MOST_STEPS}"
        try:
            parse_ranks(request.ranks)
        except ConfigError as error:
            return str(error)
        ahead = math.ceil(self._reach_s * 1e9 / pace.usual_ns) + SKIP_LEAD_STEPS + 1
        ahead = min(ahead * FARTHER ** (tries - 1), _MOST_AHEAD)
        begin = max(pace.step + ahead, self._planned_until + _BETWEEN_STEPS)
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
        """For who asked by a file that this rank can see."""
        path = answer_path(self._run_dir, answer.id)
        if not request_path(self._run_dir, answer.id).exists():
            return
        known = read_answer(path)
        if known is None or answer.refused or (known.waits and not answer.waits):
            write_atomic(path, to_json(answer))


def automatic_request(slow_step: int, steps: int, reason: str) -> Request:
    """The request that a slow step makes."""
    return Request(f"slow-{slow_step}", steps, reason=reason, automatic=True)
