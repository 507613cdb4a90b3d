"""``rankscope.Profiler``: put it around the training loop and call ``.step()`` in the loop.

In go the options of :class:`~rankscope.rundir.config.CaptureConfig`; out come traces and manifests in the run
directory. On a rank that is not selected it has the same methods, creates no torch profiler, and writes nothing but the
log of its steps, if the job is watched. A step that is not recorded costs a few readings of the clock, for that log. It
raises no exception: an error is reported once as a warning, and is in the rank's manifest.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from rankscope.capture import rank_owner, signals
from rankscope.capture.dynamo import not_compiled
from rankscope.capture.notices import warn
from rankscope.capture.process import this_process
from rankscope.capture.rank_log import RankLog, rank_log_for
from rankscope.capture.recording import load_torch_parts
from rankscope.capture.script_profilers import conflicts, interception
from rankscope.capture.step_log import RunSnapshot, StepTimes
from rankscope.capture.this_rank import ThisRank, resolve_rank
from rankscope.capture.torch_compat import TorchProfilerMethods
from rankscope.capture.trace_queue import TraceQueue
from rankscope.capture.votes import WindowDecisions, WindowVotes
from rankscope.capture.watch.step_logger import StepLogger
from rankscope.capture.watch.watcher import Watcher
from rankscope.capture.window_recorder import NEVER, WindowRecorder
from rankscope.capture.writer import exit_time_left
from rankscope.rundir.config import CaptureConfig, option_docs
from rankscope.rundir.measurement import PLAN_VARIABLE
from rankscope.rundir.ranks import RanksLike
from rankscope.rundir.schedule import windows

STOP_TIMEOUT_S = 60.0
"""How long ``stop()`` waits for the last trace; what is not written by then is finished when the process exits."""


class Profiler(WindowRecorder, TorchProfilerMethods):
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

    def __init__(  # noqa: PLR0913  # each is an option that users give by name
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
        when_busy: str | None = None,
        run_id: str | None = None,
        upload_to: str | None = None,
        watch: bool | None = None,
        watch_windows: int | None = None,
        watch_pause: int | None = None,
        watch_bytes: int | None = None,
        watch_signal: bool | None = None,
        hang_timeout: int | None = None,
        hang_exit_status: int | None = None,
        take_over: bool | None = None,
        activities: Sequence[torch.profiler.ProfilerActivity] | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        super().__init__(CaptureConfig.resolve(given), self._stop_at_exit)
        self.run_dir: str | None = None
        """Where this rank writes; ``None`` before the start, and on a rank that is not profiled."""
        self.run_id: str | None = None
        self._mesh, self._dist_context, self._activities = mesh, dist_context, activities
        self._error: BaseException | None = None
        """What ended the loop, if that is known before the stop."""

    def __reduce__(self) -> tuple[Callable[..., Profiler], tuple[object, ...]]:
        """A copy, as Lightning makes for the processes that it spawns, has the same options and is not started."""
        return _not_started, (self.config, self._mesh, self._dist_context, self._activities)

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
        self.step_num, self._next = start_step, NEVER
        if first_began_ns is None:
            if os.environ.get(PLAN_VARIABLE):
                return  # `rankscope measure` times this job: a profiler in the script would be part of what it measures
            conflicts.script_profiler_starts()
        self._pid = os.getpid()
        self._guarded("start", lambda: self._start(start_step, first_began_ns))
        if self._waits_for_writer:
            self._wait_for_writer()

    @not_compiled
    def step(self) -> None:
        """End a step and begin the next one."""
        self.step_num += 1
        if self._times is not None:
            self._times.mark(now := time.perf_counter_ns())
            if self._watcher is not None and self._watcher.step_ended(self.step_num - 1, now, profiled=self._busy):
                self._guarded("step", self._take_requested_windows)
        if self.step_num >= self._next:
            self._guarded("step", self._begin_step)
            if self._waits_for_writer:
                self._wait_for_writer()

    def leave_out_step(self) -> None:
        """The step that ends next is not like the others: the watch does not judge it."""
        if self._watcher is not None:
            self._watcher.leave_out_step()

    def stop(self, timeout_s: float | None = STOP_TIMEOUT_S) -> None:
        """End, and wait until everything recorded is written.

        Args:
            timeout_s: how long to wait, in seconds; ``None`` for no limit.
        """
        if self._pid != os.getpid():
            return  # never started, or a forked child
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            state = "finished" if self._end.ended_by is None else "interrupted"
            self._guarded("stop", lambda: watcher.stop(state, self._error))
        if self._log is None:  # stopped already, or not profiled
            self._times, self._next = None, NEVER
            self._end.cancel()
            return
        self._guarded("stop", self._stop)
        log, times, self._log, self._times, self._next = self._log, self._times, None, None, NEVER
        try:
            self._end.cancel()
            # Submitted after the last trace, whose snapshot is older.
            end, snapshot = self._end_fields(), RunSnapshot(self.step_num, times, self._anchors, {})
            self._writer.submit(lambda: log.update(**end, **snapshot.manifest_fields()))
            self._writer.submit(lambda: self._amend_manifest(log))
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

        Of a period that began before ``start_step``, the active steps that are left are recorded, after one step of
        warm-up.
        """
        self.start(start_step)
        try:
            yield self
        except BaseException as error:
            self.interrupted_by(type(error), error)
            raise
        finally:
            self.stop()

    def __enter__(self) -> Profiler:
        self.start()
        return self

    def __exit__(
        self,
        exception: type[BaseException] | None = None,
        error: BaseException | None = None,
        _trace: object = None,
    ) -> None:
        self.interrupted_by(exception, error)
        self.stop()

    def interrupted_by(self, exception: type[BaseException] | None, error: BaseException | None = None) -> None:
        """An exception ends the loop: the manifest gets its name, and the watch what it says. Call it before
        ``stop()``."""
        self._end.interrupted_by(exception, exit_status=error.code if isinstance(error, SystemExit) else None)
        self._error = error

    def _start(self, start_step: int, first_began_ns: int | None) -> None:
        if self._log is not None or self._watcher is not None:
            warn("the profiler was started twice; the second start is ignored")
            return
        Profiler._starts += 1
        if self.config.take_over:
            interception.take_over()
        process = this_process()[0]
        place = (process.rank, process.world_size) if process is not None else ()
        if (owner := rank_owner.claim(self.config.save_dir or self.config.upload_to, *place)) is not None:
            warn(f"process {os.getpid()} is not profiled: it was started by process {owner}, which is, as this rank")
            return
        rank = resolve_rank(self.config, self._activities, self._mesh, self._dist_context, self._writer.submit)
        if rank is None:
            return
        if not rank.is_profiled:
            self._begin_steps(start_step, first_began_ns)
            self._end.watch(threads_needed=False)
            self._guarded("watch", lambda: self._log_steps(rank))
            self._begin_step()
            return
        self._rank, self.run_id, self.run_dir = rank, rank.run_id, rank.run_dir
        log = self._log = self._last_log = rank_log_for(rank.run_dir, rank.rank_manifest(), rank.kept_folder())
        if rank.run_id_doubt:
            self._log.warn_once("run_id", rank.run_id_doubt)
        self._writer.submit(self._log.save)
        votes = None
        if rank.process.world_size > 1:
            # Without the restart count: on several nodes, torchrun's agents may count differently.
            scope = f"rankscope/windows/{Profiler._starts}"
            votes = WindowVotes(scope, rank.process.rank, rank.process.world_size)
            votes.connect()
        self._lost.begin(self._log, None if votes is None else votes.by_first_rank)
        queue = self._queue = TraceQueue(rank, self._log, self._writer, self._lost, votes)
        between = self.config.steps_between
        when_busy = self.config.when_busy
        self._decisions = WindowDecisions(votes, rank.process.rank, lambda: queue.waiting, between, when_busy)
        load_torch_parts()
        self._recorded = 0
        self._plan_windows(start_step)
        self._end.watch(threads_needed=rank.uploads is not None)
        self._begin_steps(start_step, first_began_ns)
        self._anchors.add()
        if self.config.watch:
            self._guarded("watch", lambda: self._watch(rank, log))
        self._begin_step()

    def _begin_steps(self, start_step: int, first_began_ns: int | None) -> None:
        self._first_step = start_step if first_began_ns is None else start_step - 1
        self._times = StepTimes(self._first_step, first_began_ns)
        if first_began_ns is not None:
            self._times.mark(time.perf_counter_ns())

    @property
    def _busy(self) -> bool:
        """Whether a profiler warms up or records, or a trace is being written."""
        if self._recording is not None or (self._queue is not None and self._queue.busy):
            return True
        return conflicts.script_profiler_runs()

    def _script_profiler(self) -> tuple[str, bool]:
        """The script's own profiler if it has one, else an empty text; and whether it is recording on this rank."""
        records = conflicts.script_profiler_runs()
        return ("a torch profiler of the script" if records else ""), records

    def _log_steps(self, rank: ThisRank) -> None:
        self._watcher = StepLogger(rank, RankLog(rank.run_dir, rank.rank_manifest()), self.step_num)
        self._watcher.start()

    def _watch(self, rank: ThisRank, log: RankLog) -> None:
        first, scope = self._first_step, f"rankscope/watch/{rank.process.restart_count}/{Profiler._starts}"
        if rank.run_id_doubt is None:
            scope += f"/{rank.run_id}"  # without a store, the directory may have the requests of an earlier run
        schedule = partial(windows, self.config, first)
        self._watcher = Watcher(rank, log, schedule, scope, self.step_num, self._script_profiler)
        self._watcher.start()

    def _stop_at_exit(self) -> None:
        self.stop(exit_time_left())
        self._writer.drain_at_exit()  # SIGTERM may arrive while a stop is already waiting


def _not_started(config: CaptureConfig, *given: Any) -> Profiler:
    profiler = Profiler()
    profiler.config = config
    profiler._mesh, profiler._dist_context, profiler._activities = given
    return profiler


# The options are documented where they are defined; a test compares the signature with them.
if Profiler.__doc__:
    Profiler.__doc__ = inspect.cleandoc(Profiler.__doc__).replace("{options}", option_docs())
