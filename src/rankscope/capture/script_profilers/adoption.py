"""The windows of the script's own torch profilers become windows of the run: named, compressed and described as
rankscope's own, and listed in the manifest.

Once one of the script's profilers is started at the end of a step of the training, rankscope defers to it: the script's
schedule replaces rankscope's for the rest of the job. A profiler that was started and stopped before the end of the
first step, to count the FLOPs of a model for example, does not.

In: profilers of the script (`script_profilers`), and steps of the training. Out: recordings for the trace queue.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from typing import Any

from rankscope.capture import signals
from rankscope.capture.profiler import Profiler
from rankscope.capture.rank_log import RankLog
from rankscope.capture.script_profilers import interception
from rankscope.capture.script_profilers.adopted_window import AdoptedWindow
from rankscope.capture.step_log import RunSnapshot
from rankscope.capture.trace_queue import EndedRecording
from rankscope.rundir.manifest import ScriptProfiler
from rankscope.rundir.schedule import AUTO_START_STEP, Window, windows

ADOPTED = "adopted"
NO_STEP = "its schedule recorded no step"
CUPTI_MONITOR = "not adopted: torch's CUPTI monitor adds the device's events to its own file alone"
_KEPT_EXPORTS = 5


class AdoptingProfiler(Profiler):
    """A profiler that also takes the windows of the script's own profilers.

    Args:
        deferring: whether one of these is started already.
    """

    def __init__(self, *, deferring: bool) -> None:
        super().__init__()
        self._deferring = deferring
        self._deferred_to = ""
        if deferring:
            # Otherwise it would be tried out by a recording of its own.
            self.config = replace(self.config, stop_off_loop="never")

    @property
    def script_profilers(self) -> tuple[ScriptProfiler, ...]:
        """The script's own profilers so far, if this rank has written nothing."""
        log = self._last_log
        nothing = log is not None and not log.windows and not log.kept_elsewhere
        return log.manifest.script_profilers if log is not None and nothing else ()

    def start_before_first_step(self) -> None:
        """Start for a profiler of the script's that begins before the first step has ended."""
        self.step_num, self._next, self._pid = 0, sys.maxsize, os.getpid()
        self._guarded("start", lambda: self._start(0, None))

    def after_step(self, script_profiler_is_open: bool) -> None:
        """After each step: defer to a profiler of the script's, or no longer if it was open in the first step only."""
        if self._log is None:
            return
        if script_profiler_is_open:
            self._deferred_to = interception.name_of_open()
            self._defer_on_all_ranks()
        if self._deferring == script_profiler_is_open:
            return
        if not self._deferring:
            self._deferring = True
            self._windows.drop_schedule()
            scheduled = self._window is not None and not self._window.requested
            if self._recording is None and scheduled:  # else it ends by itself, or before the script's begins
                self._window = next(self._windows, None)
                self._rest_until(self._window)
        elif self.step_num == 1:
            self._deferring = False
            self._plan_windows(self.step_num)
            self._guarded("step", self._begin_step)

    def _defer_on_all_ranks(self) -> None:
        """No rank is to record the windows of rankscope's schedule that this one lacks."""
        if self._decisions is None or self._decisions.deferred:
            return
        # A window that is being recorded ends by itself, or before the script's profiler begins.
        planned = self._window
        if planned is None or planned.requested:
            planned = self._windows.next_scheduled or next(windows(self.config, AUTO_START_STEP), None)
        upcoming = planned if self._recording is None else None
        self._decisions.defer(upcoming, interception.name_of_open())

    # --- windows of the script's profilers ------------------------------------------------------------------

    def adopted_window(self, profile: Any, owner: Any, source: str) -> AdoptedWindow | None:
        """The window whose warm-up a profiler of the script's begins; ``None`` if it is not written.

        Args:
            profile: the ``torch.autograd.profiler.profile`` that records.
            owner: the ``torch.profiler.profile`` that drives it, if there is one.
            source: its class, and where it was created.
        """
        log, queue = self._log, self._queue
        if log is None or queue is None or self._pid != os.getpid():
            return None
        cannot = CUPTI_MONITOR if getattr(owner, "_use_cupti_monitor", False) else ""
        log.note_script_profiler(ScriptProfiler(source, cannot or ADOPTED, self._exports_of(source)))
        if cannot:
            log.warn_once(cannot, f"{source}: {cannot}")
            self._writer.submit(log.save)
            return None
        self._end.watch_signals(window=True)
        queue.check_disks()
        return AdoptedWindow(profile, owner, source, self.step_num)

    def begin_adopted(self, window: AdoptedWindow) -> None:
        """The script's profiler begins to record."""
        self._anchors.begin_window()
        window.begin(self.step_num)

    def end_adopted(self, window: AdoptedWindow, in_step_call: bool) -> None:
        """The script's profiler has stopped: save what it recorded, before the script's handler does."""
        log, queue = self._log, self._queue
        if log is None or queue is None or self._pid != os.getpid():
            return
        began = time.perf_counter_ns()
        first, last = window.steps(in_step_call=in_step_call)
        with signals.DeferredSignals():
            try:
                self._anchors.add()
                finished = max(self.step_num - 1, window.began_at)
                # The script may count other things than steps of the training.
                same_numbers = first == window.began_at and last in (finished, self.step_num)
                if self._times is not None:
                    self._times.add_window(Window(window.warmup, window.began_at, finished))
                times = self._times if same_numbers else None
                snapshot = RunSnapshot(self.step_num, times, self._anchors, self._cost())
                stall_ns = time.perf_counter_ns() - began
                queue.put(EndedRecording(window, first, last, None, stall_ns, snapshot))
            except Exception as error:
                self._lost.failed(first, last, error, "save")
                self._writer.submit(log.save)
        self._earlier_stall_ns += time.perf_counter_ns() - began
        self._recorded += 1
        if self._recording is None:
            self._rest_until(self._window)

    def note_export(self, source: str, path: str) -> None:
        """The script exports a trace to ``path``."""
        if self._log is not None:
            files = (*self._exports_of(source), os.path.abspath(path))[-_KEPT_EXPORTS:]  # noqa: PTH100  # links stay
            known = [each for each in self._log.manifest.script_profilers if each.name == source]
            treatment = known[0].treatment if known else "its trace was not adopted"
            self._log.note_script_profiler(ScriptProfiler(source, treatment, files))
            self._writer.submit(self._log.save)

    def _exports_of(self, source: str) -> tuple[str, ...]:
        known = self._log.manifest.script_profilers if self._log is not None else ()
        return next((each.exported for each in known if each.name == source), ())

    # --- what a profiler does otherwise that defers to the script's ------------------------------------------

    def _plan_windows(self, step: int) -> None:
        if not self._deferring:
            super()._plan_windows(step)
        if self._log is not None:
            steps = self.config.repeat * self.config.active
            self._log.update(requested_steps=None if self._deferring else steps or None)

    def _report_nothing_recorded(self, window: Window | None) -> None:
        if not self._deferring:
            super()._report_nothing_recorded(window)
        elif self._last_log is not None:
            known = {each.name: each for each in self._last_log.manifest.script_profilers}
            name = self._deferred_to
            if name and known.get(name, ScriptProfiler(name, ADOPTED)).treatment == ADOPTED:
                self._last_log.note_script_profiler(ScriptProfiler(name, NO_STEP, self._exports_of(name)))
            reason = f"the script's own profiler{f' ({name})' if name else ''} recorded no step"
            self._last_log.add_skipped(None, None, reason)
            self._last_log.warn_once("short", f"no trace was written: {reason}; --take-over records instead of it")

    def _amend_manifest(self, log: RankLog) -> None:
        """No manifest has the schedule if profilers of the script recorded instead."""
        rank, decisions = self._rank, self._decisions
        own = (each for each in log.manifest.written if not each.adopted)
        scheduled = [each for each in own if each.first_step not in self._requested]
        if rank is None or decisions is None or scheduled:
            return
        if decisions.deferred or (rank.process.rank == 0 and decisions.why_deferred()):
            log.update(requested_steps=None)
            rank.drop_schedule()

    def _script_profiler(self) -> tuple[str, bool]:
        _, records = super()._script_profiler()
        known = self._decisions.script_profiler() if self._decisions is not None else ""
        return (self._deferred_to or known or interception.name_of_open() if records else known), records

    def _stop_at_exit(self) -> None:
        interception.stop_recording()
        super()._stop_at_exit()
