"""The watch of a profiled rank: besides its step log, it notices hangs and records on request.

About once per second the control thread looks for requests, and agrees with the other ranks on windows to record. None
of this happens in the loop, and errors only cause one warning.

In: the steps of the loop. Out: the rank's log; windows that the loop is to record.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from rankscope.capture.hang.exceptions import end_by
from rankscope.capture.hang.watch import HangWatch
from rankscope.capture.process import job_store
from rankscope.capture.rank_log import RankLog
from rankscope.capture.this_rank import ThisRank
from rankscope.capture.votes import OTHER_PROFILER, PREEMPTED
from rankscope.capture.watch.board import Board, FileBoard, LocalBoard, StoreBoard
from rankscope.capture.watch.debug_page import answer_no_requests, answer_requests
from rankscope.capture.watch.log_lines import one_line
from rankscope.capture.watch.outcomes import Outcomes, Settled
from rankscope.capture.watch.requests import Pace, Planned, Requests, automatic_request, reads_files
from rankscope.capture.watch.slow_steps import SlowStep
from rankscope.capture.watch.step_logger import StepLogger
from rankscope.rundir.ranks import parse_ranks
from rankscope.rundir.schedule import Window
from rankscope.rundir.watch_files import Outcome, Request, to_json

SIGNAL = "SIGUSR2"
"""The signal that requests a window, with ``watch_signal``, unless the job has its own handler for it."""
_WAITING_REQUESTS = 64


class Watcher(StepLogger):
    """Watches one rank that is profiled.

    Args:
        rank: this rank.
        manifest: its manifest.
        scheduled: the windows of the schedule, from the beginning.
        scope: the same on all ranks for this start of the profiler, and for no other.
        step: the step that begins now.
        script_profiler: the script's own profiler if it has one, and whether it is recording on this rank.
    """

    def __init__(
        self,
        rank: ThisRank,
        manifest: RankLog,
        scheduled: Callable[[], Iterable[Window]],
        scope: str,
        step: int,
        script_profiler: Callable[[], tuple[str, bool]],
    ) -> None:
        super().__init__(rank, manifest, step)
        process, config = rank.process, rank.config
        self._config, self._scope, self._script_profiler = config, scope, script_profiler
        self._new: deque[Window] = deque()
        reach_s = 2 * self._poll_s + 1
        self._requests = Requests(
            rank.run_dir, process.rank, process.local_rank, config.warmup, scheduled, reach_s, process.restart_count
        )
        self._board: Board | None = None
        self._outcomes = Outcomes()
        self._reads_files = True
        self._automatic, self._automatic_at = 0, float("-inf")
        self._signals = 0
        self._asked: deque[Request] = deque(maxlen=_WAITING_REQUESTS)
        # With a thread of its own: the control thread may itself wait for the job's store.
        self._hangs = None
        if config.hang_timeout and process.world_size > 1:
            # Without an agreed id each rank has its own, which does not identify the run.
            run_id = "" if rank.run_id_doubt else rank.run_id
            self._hangs = HangWatch(
                rank.run_dir, timeout_s=config.hang_timeout, exit_status=config.hang_exit_status, run_id=run_id
            )
            self._hangs.warn = self._warn_of_heartbeat
            self._hangs.ranks = parse_ranks(config.ranks).expression

    # --- in the loop --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to watch."""
        if self._config.watch_signal:
            self._listen()
        answer_requests(self._asked.append)
        if self._hangs is not None:
            self._hangs.start()
        super().start()

    def step_ended(self, step: int, now: int, *, profiled: bool) -> bool:
        """A step has ended; returns whether there are windows to take."""
        super().step_ended(step, now, profiled=profiled)
        if self._hangs is not None:
            self._hangs.heartbeat()
        return bool(self._new)

    def take_windows(self) -> list[Window]:
        """The windows that are to be recorded, new since the last call."""
        return [self._new.popleft() for _ in range(len(self._new))]

    def stop(self, state: str, error: BaseException | None = None) -> None:
        """Write what is known, and end.

        Args:
            state: how the loop ended: ``finished`` or ``interrupted``.
            error: what ended the loop, if that is known.
        """
        if self._hangs is not None:
            exception, signal_name = end_by(error)
            self._hangs.close(exception, signal=signal_name)
        self._stop_listening()
        answer_no_requests(self._asked.append)
        super().stop(state)

    def _listen(self) -> None:
        self._replace_handler(signal.SIG_DFL, self._on_signal)

    def _stop_listening(self) -> None:
        self._replace_handler(self._on_signal, signal.SIG_DFL)

    def _replace_handler(self, expected: object, handler: Any) -> None:
        """Set the handler of `SIGNAL` if it is ``expected``: a handler of the job stays."""
        number = getattr(signal, SIGNAL, None)
        in_main = threading.current_thread() is threading.main_thread()
        if number is not None and in_main and signal.getsignal(number) == expected:
            signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._signals += 1

    # --- in the control thread ----------------------------------------------------------------------------------

    def _polled(self) -> None:
        self._guarded("requests", self._agree)

    def _warn_of_heartbeat(self, text: str) -> None:
        self._manifest.warn_once("heartbeat", text, silently=self._manifest.path is None)

    def _slow_step(self, slow: SlowStep, reason: str) -> None:
        if slow.worth_recording and self._may_record():
            self._requests.add(automatic_request(slow.step, self._config.active, reason))

    def _loop_ended(self) -> None:
        for window in self._outcomes.not_begun(self._step):
            note = f"steps {window.first} to {window.last} were not recorded: the loop ended before step {self._step}"
            self._notes.append(one_line({"note": note}))

    def _may_record(self) -> bool:
        """Whether a slow step may trigger a window."""
        config = self._config
        if config.watch_bytes and self._manifest.bytes >= config.watch_bytes:
            return False
        return self._automatic < config.watch_windows and time.monotonic() - self._automatic_at >= config.watch_pause

    def _agree(self) -> None:
        process = self._rank.process
        self._board = self._board or self._make_board()
        self._reads_files = self._reads_files and reads_files(process, self._rank.run_dir)
        if self._reads_files or isinstance(self._board, FileBoard):
            self._requests.look_for_files()
        for _ in range(self._signals):
            self._signals -= 1
            reason = f"{SIGNAL} reached rank {process.rank}"
            self._requests.add(Request(f"signal-{process.rank}-{time.time_ns()}", self._config.active, reason=reason))
        for _ in range(len(self._asked)):
            self._requests.add(self._asked.popleft())
        if not self._may_record():
            self._requests.drop_automatic()
        busy = self._busy  # before the manifest: what was busy until now is in it
        for settled in self._outcomes.settle(self._manifest.manifest, self._step, busy=busy):
            self._notes.append(to_json(self._outcome(settled)))
        pace = Pace(self._step, self._slow.median_ns, *self._script_profiler())
        for planned in self._requests.agree(self._board, pace):
            self._plan(planned)

    def _plan(self, planned: Planned) -> None:
        request, window = planned.request, planned.window
        if window is None:
            return
        if request.automatic:
            self._automatic += planned.tries == 1
            self._automatic_at = time.monotonic()
        why = request.reason or f"request {request.id}"
        note = f"steps {window.first} to {window.last} are to be recorded: {why}"
        self._notes.append(one_line({"note": note, "window": [window.first, window.last]}))
        self._outcomes.add(planned, self._manifest.manifest)
        self._new.append(window)

    def _outcome(self, settled: Settled) -> Outcome:
        """The outcome of a window, for the log; a window that was lost is asked for again."""
        request, window = settled.planned.request, settled.window
        steps = f"steps {window.first} to {window.last}"
        state, note = "recorded", f"{steps} were recorded"
        if settled.lost:
            own = f" on rank {self._rank.process.rank}"
            gave_way = settled.lost.startswith((OTHER_PROFILER, PREEMPTED))
            elsewhere = gave_way and " on rank " in settled.lost and not settled.lost.endswith(own)
            again = self._requests.lost(settled.planned, settled.lost, elsewhere=elsewhere)
            state = "again" if again else "lost"
            note = f"{steps} were not recorded: {settled.lost}{'; tried again' if again else ''}"
        return Outcome(request.id, state, window.first, window.last, settled.lost, note)

    def _make_board(self) -> Board:
        process = self._rank.process
        if process.world_size == 1:
            return LocalBoard()
        store = job_store()
        return FileBoard(self._rank.run_dir, self._scope) if store is None else StoreBoard(store, self._scope)
