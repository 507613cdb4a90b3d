"""The step log of one rank: a call per step in the loop, and a control thread for everything else.

About once per second the thread writes the steps that have ended into the log, reads new collectives, and looks for
slow steps. None of this happens in the loop, and errors only cause one warning. A rank that is not profiled keeps a log
too: it may be the one that the others wait for. `watcher.Watcher` is what a profiled rank does besides.

In: the steps of the loop. Out: the rank's log.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable

from rankscope.capture.flight_recorder import records_all_calls
from rankscope.capture.rank_log import RankLog
from rankscope.capture.this_rank import ThisRank
from rankscope.capture.watch.log import WatchLog
from rankscope.capture.watch.log_lines import LogLines, one_line
from rankscope.capture.watch.phases import StepPhases, StepRow, unwatch_phases, watch_phases
from rankscope.capture.watch.ring import CollectiveRing, RingRead
from rankscope.capture.watch.slow_steps import SlowStep, SlowSteps
from rankscope.capture.watch.stack_samples import StackSampler
from rankscope.rundir.launcher import max_restarts
from rankscope.rundir.processes import elastic_agent, pid_namespace
from rankscope.rundir.schedule import Window
from rankscope.rundir.watch_files import SCHEMA_VERSION, Header, log_folder

POLL_S = 1.0
RANKS_PER_POLL_S = 1000
"""How often per second all ranks together ask the store: in larger jobs each rank asks less often."""
STOP_LIMIT_S = 5.0
DEVICE_LIMIT_S = 10.0
"""After so much time a step is logged without the times of its device."""
_WAITING_ROWS = 8192


class StepLogger:
    """Logs the steps of one rank.

    Args:
        rank: this rank.
        manifest: its manifest, which gets what goes wrong; never saved on a rank that is not profiled.
        step: the step that begins now.
    """

    def __init__(self, rank: ThisRank, manifest: RankLog, step: int) -> None:
        process = rank.process
        self._rank, self._manifest = rank, manifest
        self._step, self._busy = step, False
        self._leave_out = False
        self._phases = StepPhases(time.perf_counter_ns())
        self._rows: deque[StepRow] = deque(maxlen=_WAITING_ROWS)
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
            profiled=rank.is_profiled,
        )
        self._log = WatchLog(log_folder(rank.run_dir, process.rank, process.world_size), header)
        self._lines, self._notes = LogLines(), list[str]()
        self._ring, self._slow = CollectiveRing(), SlowSteps()
        # A profiler's own work is not what the loop does.
        self._sampler = StackSampler(self._phases.thread, lambda: None if self._busy else self._step)
        self._poll_s = max(POLL_S, process.world_size / RANKS_PER_POLL_S)
        self._ended = ""
        self._stopping, self._wake = False, threading.Event()
        self._thread: threading.Thread | None = None

    # --- in the loop --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to log."""
        watch_phases(self._phases)
        self._sampler.start()
        self._thread = threading.Thread(target=self._run, name="rankscope-watch", daemon=True)
        self._thread.start()

    def step_ended(self, step: int, now: int, *, profiled: bool) -> bool:
        """A step has ended; returns whether there are windows to take."""
        self._rows.append(self._phases.end_step(step, now, profiled=profiled or self._leave_out))
        self._step, self._busy, self._leave_out = step + 1, profiled, False
        if self._step == self._ring.next_step:
            self._wake.set()
        return False

    def take_windows(self) -> list[Window]:
        """The windows that are to be recorded, new since the last call."""
        return []

    def leave_out_step(self) -> None:
        """The step that ends next is not judged."""
        self._leave_out = True

    def stop(self, state: str, _error: BaseException | None = None) -> None:
        """Write what is known, and end.

        Args:
            state: how the loop ended: ``finished`` or ``interrupted``.
        """
        unwatch_phases(self._phases)
        self._phases.close()
        self._sampler.stop()
        self._ended = state
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(STOP_LIMIT_S)

    # --- in the control thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        self._guarded("collectives", self._ring.skip)
        while not self._stopping:
            woken = self._wake.wait(self._poll_s)
            self._wake.clear()
            self._guarded("log", self._write_log)
            if not woken:
                self._polled()
        self._loop_ended()
        self._guarded("log", lambda: self._write_log(last=True))

    def _polled(self) -> None:
        """The log has been written; called about once per second."""

    def _slow_step(self, slow: SlowStep, reason: str) -> None:
        """A step was slow, for this ``reason`` in words."""

    def _loop_ended(self) -> None:
        """The log is written for the last time next."""

    def _guarded(self, stage: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            text = f"the watch failed ({stage}): {type(error).__name__}: {error}; the job continues"
            # A run directory that takes no manifest is reported with that.
            is_known = isinstance(error, OSError) and self._manifest.path is None
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
        if last and self._ended:
            lines.append(one_line({"ended": self._ended}))
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
        """Returns a line for the first of several slow steps."""
        times, rank = slow.ns / slow.usual_ns, self._rank.process.rank
        took = f"step {slow.step} took {slow.ns / 1e6:.0f} ms on rank {rank}"
        reason = f"{took}, {times:.1f} times the median of {slow.history} steps"
        self._slow_step(slow, reason)
        note = one_line({"note": reason, "slow_step": slow.step, "usual_ns": slow.usual_ns})
        return [note] if slow.first else []
