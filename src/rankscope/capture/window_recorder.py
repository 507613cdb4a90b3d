"""Records the windows of the schedule: at each step nothing, the beginning or end of a warm-up or of a recording.

Between two of these, a step costs one comparison. An error ends the capture, never the job.

In: the steps of the loop, the decisions of all ranks about each window. Out: ended recordings for the trace queue.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rankscope.capture import signals
from rankscope.capture.exit_hooks import EndOfRun
from rankscope.capture.notices import warn
from rankscope.capture.rank_log import LostWindows, RankLog
from rankscope.capture.recording import Recording
from rankscope.capture.step_log import ClockAnchors, RunSnapshot, StepTimes
from rankscope.capture.this_rank import ThisRank
from rankscope.capture.torch_compat import UserMetadata
from rankscope.capture.trace_queue import EndedRecording, TraceQueue
from rankscope.capture.votes import PREEMPTED, WindowDecisions
from rankscope.capture.watch.requests import TOO_LATE
from rankscope.capture.watch.step_logger import StepLogger
from rankscope.capture.writer import EXIT_LIMIT_S, Writer
from rankscope.rundir.config import SKIP, WAIT, CaptureConfig
from rankscope.rundir.metadata import METADATA_KEY
from rankscope.rundir.ranks import parse_ranks
from rankscope.rundir.schedule import Window, WindowPlan, windows

NEVER = sys.maxsize
SETTLE_S = 0.005
"""How long the loop waits at the end of a window for pending collectives, at each of ``SETTLE_STEPS`` steps."""
SETTLE_STEPS = 20


class WindowRecorder:
    """The windows of one profiler from its start to its stop: what :class:`Profiler` does behind its methods.

    Args:
        config: the options.
        stop_at_exit: ends the capture with the process.
    """

    def __init__(self, config: CaptureConfig, stop_at_exit: Callable[[], None]) -> None:
        self.config = config
        self.step_num = 0
        """The number of the current step."""
        self._next = 1  # the next step that is not merely counted; without a start, the first one warns
        self._windows = WindowPlan(iter(()))
        self._window: Window | None = None
        self._requested: set[int] = set()
        """First steps of the windows that the watch has asked for."""
        self._recording: Recording | None = None
        self._rank: ThisRank | None = None
        self._log: RankLog | None = None
        self._last_log: RankLog | None = None
        self._writer = Writer()
        self._queue: TraceQueue | None = None
        self._times: StepTimes | None = None
        self._user_metadata = UserMetadata()
        self._anchors = ClockAnchors()
        self._window_stall_ns = self._earlier_stall_ns = 0
        self._first_step = self._recorded = self._pid = 0
        self._end = EndOfRun(stop_at_exit, self._note_loss)
        self._lost = LostWindows()
        self._decisions: WindowDecisions | None = None
        self._watcher: StepLogger | None = None
        self._waits_for_writer = False
        """Whether a window is due, and the user wants the loop to wait until the previous trace is written."""

    def _plan_windows(self, step: int) -> None:
        self._windows = WindowPlan(windows(self.config, step))
        self._window = next(self._windows, None)

    def _take_requested_windows(self) -> None:
        """Add the windows that the watch asks for to those of the schedule."""
        for window in self._watcher.take_windows() if self._watcher is not None else ():
            if self.step_num >= window.warmup:
                reason = f"{TOO_LATE} for step {self.step_num}"
                skip = self._decisions.withdraw(window, reason) if self._decisions is not None else reason
                self._lost.skipped(window.first, window.last, skip)
                continue
            self._windows.add(window)
            self._requested.add(window.first)
            if self._log is not None and (requested := self._log.manifest.requested_steps) is not None:
                self._log.update(requested_steps=requested + window.last - window.first + 1)
            if self._recording is None:
                if self._window is not None:
                    self._windows.add(self._window)
                self._window = next(self._windows, None)
                self._rest_until(self._window)

    def _begin_step(self) -> None:
        """Do what the schedule has for this step: nothing, a warm-up, a recording, or the end of one."""
        step, window, began = self.step_num, self._window, time.perf_counter_ns()
        if self._times is not None and step >= self._times.fold_at:
            self._times.fold(step)
        if self._recording is not None and self._recording.started and window is not None:
            self._recording.end_step()
            if step <= window.last:
                self._recording.begin_step(step)
                return
            if step - window.last <= SETTLE_STEPS and not self._recording.ready_to_stop(SETTLE_S):
                # Torch must not stop while a collective is pending (see `inflight`): try again at the next step.
                self._next = step + 1
                return
            self._finish(window.last)
            began = time.perf_counter_ns()
            window = self._advance()
        if window is None or step < window.warmup:
            self._rest_until(window)
            return
        if self._recording is None:
            self._waits_for_writer = self._must_wait()
            if self._waits_for_writer:
                return
            window = self._prepare(window)
            if window is None:
                return
        if step >= window.first and self._recording is not None:
            self._anchors.begin_window()
            self._recording.start()
            self._recording.begin_step(step)
        self._next = step + 1 if step >= window.first else window.first
        self._window_stall_ns += time.perf_counter_ns() - began

    def _must_wait(self) -> bool:
        waits = self._decisions is not None and self._decisions.when_busy == WAIT
        return waits and self._queue is not None and self._queue.busy

    def _wait_for_writer(self) -> None:
        """Wait until the previous trace is written, then go on with the window that is due. Not within `_guarded`: a
        signal ends the wait at once, also where the job's own handler raises."""
        began, limit_s = time.perf_counter_ns(), EXIT_LIMIT_S
        self._waits_for_writer = False
        if self.config.watch and self.config.hang_timeout:
            limit_s = min(limit_s, self.config.hang_timeout / 2)  # it is no hang
        if not self._writer.drain(limit_s) and self._decisions is not None and self._log is not None:
            self._decisions.when_busy = SKIP
            text = f"a trace was still being written after {limit_s:.0f} s: the loop waits no more, windows are skipped"
            self._log.warn_once("waited", text)
        self._window_stall_ns += time.perf_counter_ns() - began
        self._guarded("step", self._begin_step)

    def _rest_until(self, window: Window | None) -> None:
        """Do nothing until a window or the vote on it, except to disarm the signals of windows once the last trace is
        written."""
        until = NEVER
        if window is not None and self._decisions is not None:
            until = self._decisions.vote(self.step_num, window)
        if self._queue is not None and self._queue.busy:
            until = min(until, self.step_num + 1)
        else:
            signals.disarm(window=True)
        self._next = min(until, self._times.fold_at if self._times is not None else until)

    def _prepare(self, window: Window) -> Window | None:
        queue, rank, decisions = self._queue, self._rank, self._decisions
        if queue is None or rank is None or decisions is None:
            return None
        if skip := decisions.why_skipped(self.step_num, window):
            self._lost.skipped(window.first, window.last, skip)
            self._advance()
            return None
        self._end.watch_signals(window=True)
        queue.check_disks()
        recording = Recording(
            self.config, rank.activities, rank.run_id, off_loop=rank.stops_off_loop, on_preempted=self._preempted
        )
        self._recording = recording
        recording.prepare()
        if self._times is not None:
            self._times.add_window(window)
        return window

    def _advance(self) -> Window | None:
        """Move on to the next window, which may begin with the current step."""
        self._earlier_stall_ns += self._window_stall_ns
        self._window_stall_ns = 0
        self._window = next(self._windows, None)
        self._rest_until(self._window)
        return self._window

    def _finish(self, last: int, partial_step: int | None = None) -> None:
        """End the recording and queue it."""
        recording, window, queue = self._recording, self._window, self._queue
        if recording is None or window is None or queue is None:
            return
        first, began = window.first, time.perf_counter_ns()
        self._recording = None
        try:
            recording.end({key: text for key, text in self._user_metadata.by_key.items() if key != METADATA_KEY})
            self._anchors.add()
            snapshot = RunSnapshot(self.step_num, self._times, self._anchors, self._cost())
            stall_ns = self._window_stall_ns + time.perf_counter_ns() - began
            queue.put(EndedRecording(recording, first, last, partial_step, stall_ns, snapshot))
        except BaseException as error:
            with suppress(Exception):
                recording.abandon()
            if not isinstance(error, Exception):
                raise
            self._lost.failed(first, last, error, "save")
            if self._log is not None:
                self._writer.submit(self._log.save)
            return
        self._window_stall_ns += time.perf_counter_ns() - began
        self._recorded += 1

    def _cost(self) -> dict[str, object]:
        log = self._log
        return {
            "start_stall_ns": self._window_stall_ns,
            "previous_stall_ns": self._earlier_stall_ns,
            "previous_windows": log.windows if log is not None else 0,
            "previous_bytes": log.bytes if log is not None else 0,
        }

    def _preempted(self) -> None:
        """The job starts its own profiler while this one records: the job's has priority."""
        window, self._recording = self._window, None
        if window is not None and self._decisions is not None:
            reason = self._decisions.withdraw(window, PREEMPTED)
            self._lost.skipped(window.first, window.last, reason)
        self._advance()

    def _stop(self) -> None:
        recording, window, log = self._recording, self._window, self._log
        if log is None:
            return
        if recording is not None and window is not None:
            last = min(self.step_num - 1, window.last)
            if recording.started and last >= window.first:
                # The range of the step that has begun is in the recording: it is renamed in the file.
                self._finish(last, partial_step=self.step_num if self.step_num <= window.last else None)
            else:
                self._recording = None
                recording.abandon()
        if self._recorded == 0:
            self._report_nothing_recorded(window)

    def _report_nothing_recorded(self, window: Window | None) -> None:
        deferred = self._decisions.why_deferred() if self._decisions is not None else ""
        process = self._rank.process if self._rank is not None else None
        local_rank = process.local_rank if process is not None else None
        # The first rank of the host says it for all, if it is profiled.
        silent = bool(
            process is not None and local_rank and parse_ranks(self.config.ranks).selects(process.rank - local_rank, 0)
        )
        self._lost.too_short(self.step_num - self._first_step, window, deferred, silent=silent)

    def _amend_manifest(self, log: RankLog) -> None:
        """In the writer's thread, before the manifest is saved for the last time."""

    # --- errors ---------------------------------------------------------------------------------------------

    def _guarded(self, stage: str, action: Callable[[], Any]) -> None:
        if self._pid != os.getpid():
            self._next = NEVER
            if not self._pid:
                warn("step() without start(): nothing is recorded; use `with`, or call start() before the loop")
            return  # or a forked child, which has this object but no running profiler
        with signals.DeferredSignals():
            try:
                action()
            except BaseException as error:
                self._give_up(stage, error)
                if not isinstance(error, Exception):
                    raise  # Ctrl-C is for the job to handle

    def _give_up(self, stage: str, error: BaseException) -> None:
        """An unexpected error: leave torch's profiler stopped and let the job continue."""
        self._next = NEVER
        recording, self._recording, window = self._recording, None, self._window
        if recording is not None:
            with suppress(Exception):  # it may not have been prepared
                recording.abandon()
        self._lost.failed(window.first if window else None, window.last if window else None, error, stage)

    # --- the end (`EndOfRun`) -------------------------------------------------------------------------------

    def _end_fields(self) -> dict[str, object]:
        return self._end.manifest_fields(self._first_step, self.step_num)

    def _note_loss(self, signal: str) -> None:
        """The main thread is inside a native call: what it records is lost."""
        log, window = self._log, self._window
        if log is not None:
            log.update(**self._end_fields())
            if self._recording is not None and window is not None:
                reason = f"{signal} came while the main thread was inside a native call"
                log.add_failed(window.first, window.last, reason)
            log.save()
