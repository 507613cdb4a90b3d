"""The watch of one rank: a call per step in the loop, and a control thread for everything else.

About once per second the thread writes the steps that have ended into the log, reads new collectives, looks for slow
steps and for requests, and agrees with the other ranks on windows to record. None of this happens in the
loop, and errors only cause one warning.

In: the steps of the loop. Out: the rank's log; windows that the loop is to record.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from rankscope.capture.flight_recorder import records_all_calls
from rankscope.capture.hang.exceptions import end_by
from rankscope.capture.hang.watch import HangWatch
from rankscope.capture.process import job_store
from rankscope.capture.rank_log import RankLog
from rankscope.capture.this_rank import ThisRank
from rankscope.capture.votes import OTHER_PROFILER, PREEMPTED
from rankscope.capture.watch.board import Board, FileBoard, LocalBoard, StoreBoard
from rankscope.capture.watch.debug_page import answer_no_requests, answer_requests
from rankscope.capture.watch.log import WatchLog
from rankscope.capture.watch.log_lines import LogLines, one_line
from rankscope.capture.watch.outcomes import Outcomes, Settled
from rankscope.capture.watch.phases import StepPhases, StepRow, unwatch_phases, watch_phases
from rankscope.capture.watch.requests import Pace, Planned, Requests, automatic_request, reads_files
from rankscope.capture.watch.ring import CollectiveRing, RingRead
from rankscope.capture.watch.slow_steps import SlowStep, SlowSteps
from rankscope.capture.watch.stack_samples import StackSampler
from rankscope.rundir.launcher import max_restarts
from rankscope.rundir.processes import elastic_agent, pid_namespace
from rankscope.rundir.ranks import parse_ranks
from rankscope.rundir.schedule import Window
from rankscope.rundir.watch_files import SCHEMA_VERSION, Header, Outcome, Request, log_folder, to_json

POLL_S = 1.0
RANKS_PER_POLL_S = 1000
"""How often per second all ranks together ask the store: in larger jobs each rank asks less often."""
STOP_LIMIT_S = 5.0
DEVICE_LIMIT_S = 10.0
"""After so much time a step is logged without the times of its device."""
SIGNAL = "SIGUSR2"
"""The signal that requests a window, with ``watch_signal``, unless the job has its own handler for it."""
_WAITING_ROWS = 8192
_WAITING_REQUESTS = 64


class Watcher:
    """Watches one rank.

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
        process, config = rank.process, rank.config
        self._rank, self._manifest, self._config, self._scope = rank, manifest, config, scope
        self._step, self._busy, self._script_profiler = step, False, script_profiler
        self._leave_out = False
        self._phases = StepPhases(time.perf_counter_ns())
        self._rows: deque[StepRow] = deque(maxlen=_WAITING_ROWS)
        self._new: deque[Window] = deque()
        header = Header(
            SCHEMA_VERSION,
            process.rank,
            run_id=rank.run_id,
            world_size=process.world_size,
            host=process.host,
            pid=os.getpid(),
            pid_namespace=pid_namespace(),
            restart_count=process.restart_count,
            max_restarts=max_restarts(os.environ),
            agent_pid=elastic_agent(),
            began_ns=time.time_ns(),
            device=next((kind.name for kind in rank.activities if kind.name != "CPU"), None),
            has_all_calls=records_all_calls(),
        )
        self._log = WatchLog(log_folder(rank.run_dir, process.rank, process.world_size), header)
        self._lines, self._notes = LogLines(), list[str]()
        self._ring, self._slow = CollectiveRing(), SlowSteps()
        # A profiler's own work is not what the loop does.
        self._sampler = StackSampler(self._phases.thread, lambda: None if self._busy else self._step)
        self._poll_s = max(POLL_S, process.world_size / RANKS_PER_POLL_S)
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
            self._hangs.ranks = parse_ranks(config.ranks).expression
        self.ended_by: BaseException | None = None
        """What ended the loop, if that is known before `stop`."""
        self._stopping, self._wake = False, threading.Event()
        self._thread: threading.Thread | None = None

    # --- in the loop --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to watch."""
        watch_phases(self._phases)
        if self._config.watch_signal:
            self._listen()
        answer_requests(self._asked.append)
        if self._hangs is not None:
            self._hangs.start()
        self._sampler.start()
        self._thread = threading.Thread(target=self._run, name="rankscope-watch", daemon=True)
        self._thread.start()

    def step_ended(self, step: int, now: int, *, profiled: bool) -> bool:
        """A step has ended; returns whether there are windows to take."""
        self._rows.append(self._phases.end_step(step, now, profiled=profiled or self._leave_out))
        self._step, self._busy, self._leave_out = step + 1, profiled, False
        if self._step == self._ring.next_step:
            self._wake.set()
        if self._hangs is not None:
            self._hangs.heartbeat()
        return bool(self._new)

    def leave_out_step(self) -> None:
        """The step that ends next is not judged."""
        self._leave_out = True

    def take_windows(self) -> list[Window]:
        """The windows that are to be recorded, new since the last call."""
        return [self._new.popleft() for _ in range(len(self._new))]

    def stop(self) -> None:
        """Write what is known, and end."""
        if self._hangs is not None:
            exception, signal_name = end_by(self.ended_by)
            self._hangs.close(exception, signal=signal_name)
        unwatch_phases(self._phases)
        self._phases.close()
        self._sampler.stop()
        self._stop_listening()
        answer_no_requests(self._asked.append)
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(STOP_LIMIT_S)

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

    def _run(self) -> None:
        self._guarded("collectives", self._ring.skip)
        while not self._stopping:
            woken = self._wake.wait(self._poll_s)
            self._wake.clear()
            self._guarded("log", self._write_log)
            if not woken:
                self._guarded("requests", self._agree)
        for window in self._outcomes.not_begun(self._step):
            note = f"steps {window.first} to {window.last} were not recorded: the loop ended before step {self._step}"
            self._notes.append(one_line({"note": note}))
        self._guarded("log", lambda: self._write_log(last=True))

    def _guarded(self, stage: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            text = f"the watch failed ({stage}): {type(error).__name__}: {error}; the job continues"
            is_known = isinstance(error, OSError) and self._manifest.has_no_place
            self._manifest.warn_once(f"watch {stage}", text, silently=is_known)

    def _write_log(self, *, last: bool = False) -> None:
        lines, self._notes = self._notes, []
        read: list[RingRead] = []
        # First: with few calls in the buffer, all ranks have to read it at the same step.
        step, usual_ns = self._step, self._slow.median_ns
        if last or self._ring.due(step):
            # Their format is not documented, and the steps are known without them.
            self._guarded("collectives", lambda: read.append(self._ring.read(step, usual_ns, last=last)))
        offset = time.time_ns() - time.perf_counter_ns()
        quiet = not self._rows
        if last:
            self._wait_for_device()
        while self._rows and (last or self._is_complete(self._rows[0])):
            row = self._rows.popleft()
            slow = None if row.profiled else self._slow.add(row.step, row.ended - row.began)
            if slow is not None:
                lines += self._note_slow(slow)
            if line := self._lines.step(row, offset, self._slow.median_ns, slow=slow is not None):
                lines.append(line)
        if (quiet or last) and (line := self._lines.latest_step()):
            lines.append(line)
        if line := self._lines.samples(*self._sampler.take()):
            lines.append(line)
        lines += [line for each in read if (line := self._lines.calls(each.calls, each.missed))]
        definitions, self._lines.definitions = self._lines.definitions, []
        self._log.write(lines, definitions)

    def _is_complete(self, row: StepRow) -> bool:
        """Whether the device has done a step, or does not seem to."""
        waited_ns = time.perf_counter_ns() - row.ended
        return row.device is None or row.device.is_over() or waited_ns > DEVICE_LIMIT_S * 1e9

    def _wait_for_device(self) -> None:
        """Wait for the last step, as long as the end of the job can."""
        until = time.monotonic() + STOP_LIMIT_S / 5
        while self._rows and not self._is_complete(self._rows[-1]) and time.monotonic() < until:
            time.sleep(0.01)

    def _note_slow(self, slow: SlowStep) -> list[str]:
        """Ask for a window if the step is worth one; returns a line for the first of several slow steps."""
        times, rank = slow.ns / slow.usual_ns, self._rank.process.rank
        took = f"step {slow.step} took {slow.ns / 1e6:.0f} ms on rank {rank}"
        reason = f"{took}, {times:.1f} times the median of {slow.history} steps"
        if slow.worth_recording and self._may_record():
            self._requests.add(automatic_request(slow.step, self._config.active, reason))
        note = one_line({"note": reason, "slow_step": slow.step, "usual_ns": slow.usual_ns})
        return [note] if slow.first else []

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
