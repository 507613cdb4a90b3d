"""``rankscope.Profiler``: around the training loop, ``.step()`` in it.

On a rank that is not chosen it has the same surface and does nothing: no torch profiler is made, nothing is
written. On a chosen rank, a step that is not recorded costs one comparison. No exception leaves it: what goes
wrong is warned of once, and is in the rank's manifest.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from rankscope.capture import auto_profiler, profiler_conflicts, signals
from rankscope.capture.anchors import Anchors
from rankscope.capture.entry import Entry, enter
from rankscope.capture.exit_hooks import at_end, forget
from rankscope.capture.lost_windows import Losses
from rankscope.capture.notices import warn
from rankscope.capture.ranklog import RankLog, log_of
from rankscope.capture.recording import Recording, load_torch_parts
from rankscope.capture.schedule import Window, windows
from rankscope.capture.step_log import Told
from rankscope.capture.steps import StepTimes
from rankscope.capture.stop_mode import THREAD
from rankscope.capture.torch_compat import TorchSurface
from rankscope.capture.trace_queue import BUSY, Ended, TraceQueue
from rankscope.capture.user_metadata import UserNotes
from rankscope.capture.writer import Writer, exit_time_left
from rankscope.rundir.config import CaptureConfig
from rankscope.rundir.measurement import PLAN_VARIABLE
from rankscope.rundir.metadata import METADATA_KEY
from rankscope.rundir.ranks import RanksLike

_NEVER = sys.maxsize
SETTLE_S = 0.005
"""How long the loop waits at the end of a window for collectives that are not over, at each of ``SETTLE_STEPS``."""
SETTLE_STEPS = 20
STOP_TIMEOUT_S = 60.0
"""How long ``stop()`` waits for the last trace; what is not written by then is finished at the process's exit."""


class Profiler(TorchSurface):
    """Profile a training loop on chosen ranks, into a run directory.

    ::

        with rankscope.Profiler("run", ranks="0-3") as prof:
            for batch in loader:
                train(batch)
                prof.step()

    Every argument that is left out comes from its variable (``RANKSCOPE_WAIT`` …), else from the default. All counts
    are steps.

    Args:
        save_dir: the run directory; ``RANKSCOPE_RUN_DIR``, else ``rankscope_run_<time>``.
        ranks: which ranks to profile: ``"all"``, ``"0, 2, 4"``, ``"0-3"``, ``"every:8"``, ``"node"`` (the first of
            every host), several joined by commas, or whole numbers.
        period_steps: record the last ``active_steps`` of each period of so many steps.
        warmup_steps, active_steps: other names of ``warmup`` and ``active``.
        dist_context: an object that has the mesh, by ``mesh_for("regular")`` or as ``mesh``.
        mesh: the job's DeviceMesh: its dimensions and this rank's coordinate go into names and traces.
        activities: torch's activities; what is there by default.

    The others are the fields of :class:`~rankscope.rundir.config.CaptureConfig`, which explains them.

    Raises:
        ConfigError: an argument or variable that cannot be meant. Nothing is raised after that.
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str] | None = None,
        period_steps: int | None = None,
        warmup_steps: int | None = None,
        active_steps: int | None = None,
        dist_context: object = None,
        *,
        ranks: RanksLike | None = None,
        wait: int | None = None,
        warmup: int | None = None,
        active: int | None = None,
        repeat: int | None = None,
        skip_first: int | None = None,
        mesh: object = None,
        record_shapes: bool | None = None,
        with_stack: bool | None = None,
        profile_memory: bool | None = None,
        with_flops: bool | None = None,
        with_modules: bool | None = None,
        compression: str | None = None,
        name_template: str | None = None,
        staging_dir: str | os.PathLike[str] | None = None,
        keep_windows: int | None = None,
        keep_bytes: int | None = None,
        stop_off_loop: str | None = None,
        run_id: str | None = None,
        activities: Sequence[torch.profiler.ProfilerActivity] | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        self.config = CaptureConfig.resolve(given)
        self.step_num = 0
        """The number of the step that is running."""
        self.run_dir: str | None = None
        """Where this rank writes; ``None`` before the start, and on a rank that is not profiled."""
        self.run_id: str | None = None
        self._mesh_given, self._context_given = mesh, dist_context
        self._activities = activities
        self._next = 1  # the first step without a start says so
        self._windows: Iterator[Window] = iter(())
        self._window: Window | None = None
        self._recording: Recording | None = None
        self._entry: Entry | None = None
        self._log: RankLog | None = None
        self._last_log: RankLog | None = None
        self._writer = Writer()
        self._outbox: TraceQueue | None = None
        self._times: StepTimes | None = None
        self._notes = UserNotes()
        self._anchors = Anchors()
        self._window_stall_ns = self._earlier_stall_ns = 0
        self._start_step = self._recorded = self._pid = 0
        self._losses = Losses()

    # --- what a loop calls ----------------------------------------------------------------------------------

    @property
    def selected(self) -> bool:
        """Whether this rank is profiled; known once it has started."""
        return self._log is not None

    @property
    def recording(self) -> bool:
        """Whether the step that is running is recorded."""
        return self._recording is not None and self._recording.started

    def start(self, start_step: int = 0, *, first_began_ns: int | None = None) -> None:
        """Begin at step ``start_step``. After ``init_process_group``, if the job has one.

        Args:
            start_step: the number of the step that begins now.
            first_began_ns: nobody wrote this call: ``rankscope run`` or ``exec`` counts the optimizer's steps, and the
                one before ``start_step`` began at this reading of ``time.perf_counter_ns``.
        """
        self.step_num, self._next = start_step, _NEVER
        if first_began_ns is None:
            if os.environ.get(PLAN_VARIABLE):
                return  # `rankscope measure` times this job: a profiler of the script's would be measured with it
            auto_profiler.stand_aside()
        self._pid = os.getpid()
        self._guarded("start", lambda: self._start(start_step, first_began_ns))

    def step(self) -> None:
        """Say that a step is over and the next one begins."""
        self.step_num += 1
        if self._times is not None:
            self._times.mark(time.perf_counter_ns())
        if self.step_num >= self._next:
            self._guarded("step", self._begin_step)

    def stop(self, timeout_s: float | None = STOP_TIMEOUT_S) -> None:
        """End, and wait until what was recorded is written.

        Args:
            timeout_s: how long to wait, in seconds; ``None`` for as long as it takes.
        """
        if self._log is None or self._pid != os.getpid():
            return  # never started, stopped already, or a forked child
        self._guarded("stop", self._stop)
        log, times, self._log, self._times, self._next = self._log, self._times, None, None, _NEVER
        try:
            forget(self._at_exit)
            # After the last trace, which brings an older diary.
            steps, told = self.step_num - self._start_step, Told(self.step_num, times, self._anchors, {})
            self._writer.submit(lambda: log.update(state="finished", steps=steps, **told.diary()))
            self._writer.submit(log.save)
            if not self._writer.drain(timeout_s):
                log.warn_once("slow", f"{self.run_dir} is slow: a trace is still being written after {timeout_s:.0f} s")
        except Exception as error:
            warn(f"the end of the capture failed: {error!r}")
        signals.disarm()

    @contextmanager
    def open(self, start_step: int = 0) -> Iterator[Profiler]:
        """A resumed training from ``start_step``: ``ProfilerStep#`` numbers are the training's own.

        A period that began before ``start_step`` is not recorded without its warm-up.
        """
        self.start(start_step)
        try:
            yield self
        finally:
            self.stop()

    def __enter__(self) -> Profiler:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    # --- windows --------------------------------------------------------------------------------------------

    def _start(self, start_step: int, first_began_ns: int | None) -> None:
        if self._log is not None:
            warn("the profiler was started twice; the second start is ignored")
            return
        entry = enter(self.config, self._activities, self._mesh_given, self._context_given, self._writer.submit)
        if entry is None:
            return
        rank = entry.rank
        self._entry, self.run_id, self.run_dir = entry, rank.run_id, rank.run_dir
        self._log = self._last_log = log_of(rank.run_dir, rank.rank_manifest())
        self._losses.begin(self._log)
        if entry.doubt:
            self._log.warn_once("run_id", entry.doubt)
        self._writer.submit(self._log.save)
        self._outbox = TraceQueue(rank, self._log, self._writer, self._losses.failed)
        load_torch_parts()
        self._start_step, self._recorded = start_step, 0
        self._windows = windows(self.config, start_step)
        self._window = next(self._windows, None)
        # Exit or an exception after a start without a stop would otherwise end in a crash inside torch.
        at_end(self._at_exit)
        self._times = StepTimes(start_step)
        if first_began_ns is not None:
            self._times = StepTimes(start_step - 1, first_began_ns)
            self._times.mark(time.perf_counter_ns())
        self._anchors.add()
        self._begin_step()

    def _begin_step(self) -> None:
        """What a step's beginning asks for: nothing, a warm-up, a recording, or the end of one."""
        step, window, began = self.step_num, self._window, time.perf_counter_ns()
        if self._times is not None and step >= self._times.fold_at:
            self._times.fold(step)
        if self._recording is not None and self._recording.started and window is not None:
            self._recording.end_step()
            if step <= window.last:
                self._recording.begin_step(step)
                return
            if step - window.last <= SETTLE_STEPS and not self._recording.settled(SETTLE_S):
                # Torch must not stop while a collective is under way (see `inflight`): with the next step, maybe.
                self._next = step + 1
                return
            self._finish(window.last)
            began = time.perf_counter_ns()
            window = self._advance()
        if window is None or step < window.warmup:
            self._rest(_NEVER if window is None else window.warmup)
            return
        if self._recording is None:
            window = self._prepare(window)
            if window is None:
                return
        if step >= window.first and self._recording is not None:
            self._anchors.begin_window()
            self._recording.start()
            self._recording.begin_step(step)
        self._next = step + 1 if step >= window.first else window.first
        self._window_stall_ns += time.perf_counter_ns() - began

    def _rest(self, until: int) -> None:
        """Nothing to record until a step; less than nothing, once the last trace is written."""
        if self._outbox is not None and self._outbox.busy:
            until = min(until, self.step_num + 1)
        else:
            signals.disarm()
        self._next = min(until, self._times.fold_at if self._times is not None else until)

    def _prepare(self, window: Window) -> Window | None:
        outbox, entry = self._outbox, self._entry
        if outbox is None or entry is None:
            return None
        # At most one result waits: each holds its whole recording in memory.
        if outbox.busy or profiler_conflicts.another_profiler_runs():
            self._losses.skipped(window, BUSY if outbox.busy else "another torch profiler was running")
            self._advance()
            return None
        signals.arm(self._at_exit)
        outbox.look_around()
        recording = Recording(
            self.config,
            entry.activities,
            entry.rank.run_id,
            off_loop=entry.rank.way["stop"] == THREAD,
            given_up=self._displaced,
        )
        self._recording = recording
        recording.prepare()
        if self._times is not None:
            self._times.recorded(window)
        return window

    def _advance(self) -> Window | None:
        """Go on to the next window, which may begin with this very step."""
        self._earlier_stall_ns += self._window_stall_ns
        self._window_stall_ns = 0
        self._window = next(self._windows, None)
        self._rest(_NEVER if self._window is None else self._window.warmup)
        return self._window

    def _finish(self, last: int, partial_step: int | None = None) -> None:
        """End the recording and hand it over."""
        recording, window, entry, outbox = self._recording, self._window, self._entry, self._outbox
        if recording is None or window is None or entry is None or outbox is None:
            return
        first, began = window.first, time.perf_counter_ns()
        self._recording = None
        try:
            recording.end({key: text for key, text in self._notes.by_key.items() if key != METADATA_KEY})
            self._anchors.add()
            told = Told(self.step_num, self._times, self._anchors, self._cost())
            stall_ns = self._window_stall_ns + time.perf_counter_ns() - began
            outbox.take(Ended(recording, first, last, partial_step, stall_ns, told))
        except BaseException as error:
            with suppress(Exception):
                recording.abandon()
            if not isinstance(error, Exception):
                raise
            self._losses.failed(first, last, error, "save")
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

    def _displaced(self) -> None:
        """The job starts a profiler of its own while ours is busy: it has the right of way."""
        window, self._recording = self._window, None
        if window is not None:
            self._losses.skipped(window, "the job started a torch profiler of its own")
        self._advance()

    def _stop(self) -> None:
        recording, window, log = self._recording, self._window, self._log
        if log is None:
            return
        if recording is not None and window is not None:
            last = min(self.step_num - 1, window.last)
            if recording.started and last >= window.first:
                # The range of the step that had begun is in the file: it is renamed there.
                self._finish(last, partial_step=self.step_num if self.step_num <= window.last else None)
            else:
                self._recording = None
                recording.abandon()
        if self._recorded == 0:
            self._losses.too_short(self.step_num - self._start_step, window)

    # --- trouble --------------------------------------------------------------------------------------------

    def _guarded(self, what: str, action: Callable[[], Any]) -> None:
        if self._pid != os.getpid():
            self._next = _NEVER
            if not self._pid:
                warn("step() without a start: nothing is recorded; use `with`, or call start() before the loop")
            return  # or a forked child, which has the object and not the profiler
        with signals.Uninterrupted():
            try:
                action()
            except BaseException as error:
                self._give_up(what, error)
                if not isinstance(error, Exception):
                    raise  # Ctrl-C is the job's to answer

    def _give_up(self, what: str, error: BaseException) -> None:
        """Capture failed where it should not: leave torch's profiler stopped, and the job alone."""
        self._next = _NEVER
        recording, self._recording, window = self._recording, None, self._window
        if recording is not None:
            with suppress(Exception):  # it had not come so far
                recording.abandon()
        self._losses.failed(window.first if window else None, window.last if window else None, error, what)

    def _at_exit(self) -> None:
        self.stop(exit_time_left())
        self._writer.drain_at_exit()  # SIGTERM may have come while a stop was waiting already
