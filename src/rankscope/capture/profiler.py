"""``rankscope.Profiler``: put it around the training loop and call ``.step()`` in the loop.

In go the options of :class:`~rankscope.rundir.config.CaptureConfig`; out come traces and manifests in the run
directory. On a rank that is not selected it has the same methods and does nothing: no torch profiler is created,
nothing is written. On a selected rank, a step that is not recorded costs one comparison. It raises no exception: an
error is reported once as a warning, and is in the rank's manifest.
"""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from rankscope.capture import profiler_conflicts, rank_owner, script_profilers, signals
from rankscope.capture.exit_hooks import AtThreadEnd, before_thread_pools_end, register, unregister
from rankscope.capture.notices import warn
from rankscope.capture.rank_log import LostWindows, RankLog, rank_log_for
from rankscope.capture.recording import Recording, load_torch_parts
from rankscope.capture.step_log import ClockAnchors, RunSnapshot, StepTimes
from rankscope.capture.this_rank import ThisRank, resolve_rank
from rankscope.capture.torch_compat import TorchProfilerMethods, UserMetadata
from rankscope.capture.trace_queue import EndedRecording, TraceQueue
from rankscope.capture.votes import WindowDecisions, WindowVotes
from rankscope.capture.writer import Writer, exit_time_left
from rankscope.rundir.config import CaptureConfig, option_docs
from rankscope.rundir.measurement import PLAN_VARIABLE
from rankscope.rundir.metadata import METADATA_KEY
from rankscope.rundir.ranks import RanksLike
from rankscope.rundir.schedule import Window, windows

_NEVER = sys.maxsize
SETTLE_S = 0.005
"""How long the loop waits at the end of a window for pending collectives, at each of ``SETTLE_STEPS`` steps."""
SETTLE_STEPS = 20
STOP_TIMEOUT_S = 60.0
"""How long ``stop()`` waits for the last trace; what is not written by then is finished when the process exits."""


class Profiler(TorchProfilerMethods):
    """Profile a training loop on selected ranks, into a run directory.

    ::

        with rankscope.Profiler("run", ranks="0-3") as prof:
            for batch in loader:
                train(batch)
                prof.step()

    An argument that is left out comes from its environment variable (``RANKSCOPE_WAIT`` …), else from the default. All
    counts are steps. ``ranks`` can also be integers.

    Args:
        {options}
        warmup_steps, active_steps: other names of ``warmup`` and ``active``.
        mesh: the job's DeviceMesh: its dimensions and this rank's coordinate go into names and traces.
        dist_context: the mesh, or an object that has it, by ``mesh_for("regular")`` or as ``mesh``.
        activities: torch's activities; by default what is available.

    Raises:
        ConfigError: an argument or variable that is not valid. Nothing is raised after that.
    """

    _starts = 0
    """Of all profilers in this process, on ranks that are not profiled too: the ranks know each start by its number."""

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
        preset: str | None = None,
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
        upload_to: str | None = None,
        take_over: bool | None = None,
        activities: Sequence[torch.profiler.ProfilerActivity] | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        self.config = CaptureConfig.resolve(given)
        self.step_num = 0
        """The number of the current step."""
        self.run_dir: str | None = None
        """Where this rank writes; ``None`` before the start, and on a rank that is not profiled."""
        self.run_id: str | None = None
        self._mesh, self._dist_context, self._activities = mesh, dist_context, activities
        self._next = 1  # the next step that is not merely counted; without a start, the first one warns
        self._windows: Iterator[Window] = iter(())
        self._window: Window | None = None
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
        self._ended_by: str | None = None
        self._thread_end: AtThreadEnd | None = None
        self._lost = LostWindows()
        self._decisions: WindowDecisions | None = None

    # --- what a loop calls ----------------------------------------------------------------------------------

    @property
    def selected(self) -> bool:
        """Whether this rank is profiled; known after the start."""
        return self._log is not None

    @property
    def recording(self) -> bool:
        """Whether the current step is recorded."""
        return self._recording is not None and self._recording.started

    def start(self, start_step: int = 0, *, first_began_ns: int | None = None) -> None:
        """Begin at step ``start_step``. Call it after ``init_process_group``, if the job has one.

        Args:
            start_step: the number of the step that begins now.
            first_began_ns: only for ``rankscope run`` and ``exec``, which count the optimizer's steps: the step before
                ``start_step`` began at this reading of ``time.perf_counter_ns``.
        """
        self.step_num, self._next = start_step, _NEVER
        if first_began_ns is None:
            if os.environ.get(PLAN_VARIABLE):
                return  # `rankscope measure` times this job: a profiler in the script would be part of what it measures
            profiler_conflicts.script_profiler_starts()
        self._pid = os.getpid()
        self._guarded("start", lambda: self._start(start_step, first_began_ns))

    def step(self) -> None:
        """End a step and begin the next one."""
        self.step_num += 1
        if self._times is not None:
            self._times.mark(time.perf_counter_ns())
        if self.step_num >= self._next:
            self._guarded("step", self._begin_step)

    def stop(self, timeout_s: float | None = STOP_TIMEOUT_S) -> None:
        """End, and wait until everything recorded is written.

        Args:
            timeout_s: how long to wait, in seconds; ``None`` for no limit.
        """
        if self._log is None or self._pid != os.getpid():
            return  # never started, stopped already, or a forked child
        self._guarded("stop", self._stop)
        log, times, self._log, self._times, self._next = self._log, self._times, None, None, _NEVER
        try:
            unregister(self._at_exit)
            if self._thread_end is not None:
                self._thread_end.cancel()
            # Submitted after the last trace, whose snapshot is older.
            end, snapshot = self._end_fields(), RunSnapshot(self.step_num, times, self._anchors, {})
            self._writer.submit(lambda: log.update(**end, **snapshot.manifest_fields()))
            self._writer.submit(self._note_unused_schedule)
            self._writer.submit(log.save)
            if not self._writer.drain(timeout_s):
                log.warn_once("slow", f"{self.run_dir} is slow: a trace is still being written after {timeout_s:.0f} s")
            elif self._queue is not None:
                self._queue.finish_uploads(timeout_s)
        except Exception as error:
            warn(f"the end of the capture failed: {error!r}")
        signals.disarm()
        if self._rank is not None and self._rank.process.launcher == "none":
            rank_owner.release()  # a notebook may start other jobs now; what a rank starts remains its helper

    @contextmanager
    def open(self, start_step: int = 0) -> Iterator[Profiler]:
        """Profile a training that resumes at ``start_step``: ``ProfilerStep#`` numbers are those of the training.

        A period that began before ``start_step`` is not recorded without its warm-up.
        """
        self.start(start_step)
        try:
            yield self
        except BaseException as error:
            self.interrupted_by(type(error))
            raise
        finally:
            self.stop()

    def __enter__(self) -> Profiler:
        self.start()
        return self

    def __exit__(self, exception: type[BaseException] | None = None, *_rest: object) -> None:
        self.interrupted_by(exception)
        self.stop()

    def interrupted_by(self, exception: type[BaseException] | None) -> None:
        """An exception ends the loop: the manifest gets its name. Call it before ``stop()``."""
        if exception is not None and not issubclass(exception, SystemExit):
            self._ended_by = "SIGINT" if issubclass(exception, KeyboardInterrupt) else exception.__name__

    # --- windows --------------------------------------------------------------------------------------------

    def _start(self, start_step: int, first_began_ns: int | None) -> None:
        if self._log is not None:
            warn("the profiler was started twice; the second start is ignored")
            return
        Profiler._starts += 1
        if self.config.take_over:
            script_profilers.take_over()
        if (owner := rank_owner.claim(self.config.save_dir or self.config.upload_to)) is not None:
            warn(f"process {os.getpid()} is not profiled: it was started by process {owner}, which is, as this rank")
            return
        rank = resolve_rank(self.config, self._activities, self._mesh, self._dist_context, self._writer.submit)
        if rank is None:
            return
        self._rank, self.run_id, self.run_dir = rank, rank.run_id, rank.run_dir
        self._log = self._last_log = rank_log_for(rank.run_dir, rank.rank_manifest(), rank.kept_folder())
        self._lost.begin(self._log)
        if rank.run_id_doubt:
            self._log.warn_once("run_id", rank.run_id_doubt)
        self._writer.submit(self._log.save)
        votes = None
        if rank.process.world_size > 1:
            votes = WindowVotes(f"rankscope/windows/{rank.process.restart_count}/{Profiler._starts}")
            votes.connect()
        queue = self._queue = TraceQueue(rank, self._log, self._writer, self._lost, votes)
        between = self.config.steps_between
        self._decisions = WindowDecisions(votes, rank.process.rank, lambda: queue.waiting, between)
        load_torch_parts()
        self._recorded = 0
        self._plan_windows(start_step)
        # Without it, an exit or exception before a stop would crash inside torch.
        register(self._at_exit)
        if rank.uploads is not None:
            before_thread_pools_end(self._at_exit)
        self._thread_end = AtThreadEnd(self._at_exit)
        signals.arm(self._on_signal, self._on_signal_in_a_hang, window=False)
        self._first_step = start_step if first_began_ns is None else start_step - 1
        self._times = StepTimes(self._first_step, first_began_ns)
        if first_began_ns is not None:
            self._times.mark(time.perf_counter_ns())
        self._anchors.add()
        self._begin_step()

    def _plan_windows(self, step: int) -> None:
        self._windows = windows(self.config, step)
        self._window = next(self._windows, None)

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
            window = self._prepare(window)
            if window is None:
                return
        if step >= window.first and self._recording is not None:
            self._anchors.begin_window()
            self._recording.start()
            self._recording.begin_step(step)
        self._next = step + 1 if step >= window.first else window.first
        self._window_stall_ns += time.perf_counter_ns() - began

    def _rest_until(self, window: Window | None) -> None:
        """Do nothing until a window or the vote on it, except to disarm the signals of windows once the last trace is
        written."""
        until = _NEVER
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
        signals.arm(self._on_signal, self._on_signal_in_a_hang, window=True)
        queue.check_disks()
        recording = Recording(
            self.config,
            rank.activities,
            rank.run_id,
            off_loop=rank.stops_off_loop,
            on_preempted=self._preempted,
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
            reason = self._decisions.withdraw(window, "the job started a torch profiler of its own")
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
        aside = self._decisions.why_aside() if self._decisions is not None else ""
        self._lost.too_short(self.step_num - self._first_step, window, aside)

    def _note_unused_schedule(self) -> None:
        """In the writer's thread: no manifest has the schedule if profilers of the script's own recorded instead."""
        rank, log, decisions = self._rank, self._last_log, self._decisions
        if rank is None or log is None or decisions is None or not all(each.adopted for each in log.manifest.written):
            return
        if decisions.aside or (rank.process.rank == 0 and decisions.why_aside()):
            log.update(requested_steps=None)
            rank.drop_schedule()

    # --- errors ---------------------------------------------------------------------------------------------

    def _guarded(self, stage: str, action: Callable[[], Any]) -> None:
        if self._pid != os.getpid():
            self._next = _NEVER
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
        self._next = _NEVER
        recording, self._recording, window = self._recording, None, self._window
        if recording is not None:
            with suppress(Exception):  # it may not have been prepared
                recording.abandon()
        self._lost.failed(window.first if window else None, window.last if window else None, error, stage)

    def _end_fields(self) -> dict[str, object]:
        """What the manifest says about the end."""
        return {
            "state": "finished" if self._ended_by is None else "interrupted",
            "ended_by": self._ended_by,
            "steps": self.step_num - self._first_step,
            "last_step": self.step_num - 1 if self.step_num > self._first_step else None,
        }

    def _on_signal(self, name: str) -> None:
        self._ended_by = name
        self._at_exit()

    def _on_signal_in_a_hang(self, name: str) -> None:
        """The main thread is inside a native call: what it records is lost."""
        self._ended_by, log, window = name, self._log, self._window
        if log is not None:
            log.update(**self._end_fields())
            if self._recording is not None and window is not None:
                log.add_failed(window.first, window.last, f"{name} came while the main thread was inside a native call")
            log.save()

    def _at_exit(self) -> None:
        if self._ended_by is None and not hasattr(sys, "ps1"):
            self.interrupted_by(getattr(sys, "last_type", None))
        self.stop(exit_time_left())
        self._writer.drain_at_exit()  # SIGTERM may arrive while a stop is already waiting


# The options are documented where they are defined; a test compares the signature with them.
if Profiler.__doc__:
    Profiler.__doc__ = inspect.cleandoc(Profiler.__doc__).replace("{options}", option_docs())
