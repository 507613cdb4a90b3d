"""``rankscope.Profiler``: around the training loop, ``.step()`` in it.

On a rank that is not chosen it has the same surface and does nothing: no torch profiler is made, nothing is
written. On a chosen rank, a step that is not recorded costs one comparison. No exception leaves it: what goes
wrong is warned of once, and is in the rank's manifest.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from rankscope.capture import process as facts
from rankscope.capture.config import CaptureConfig
from rankscope.capture.describe import ThisRank, write_run_manifest
from rankscope.capture.notices import warn
from rankscope.capture.ranklog import RankLog, log_of
from rankscope.capture.ranks import RanksLike, parse_ranks
from rankscope.capture.recorder import Recording, another_profiler_runs, load_torch_parts
from rankscope.capture.schedule import Window, windows
from rankscope.capture.writer import Writer, finish_trace, temporary_beside
from rankscope.rundir.manifest import WrittenTrace
from rankscope.rundir.metadata import METADATA_KEY, ClockAnchor, kineto_json

_NEVER = sys.maxsize
STOP_TIMEOUT_S = 60.0
"""How long ``stop()`` waits for the last trace; what is not written by then is finished at the process's exit."""


class Profiler:
    """Profile a training loop on chosen ranks, into a run directory.

    ::

        with rankscope.Profiler("run", ranks="0-3") as prof:
            for batch in loader:
                train(batch)
                prof.step()

    Every argument that is left out comes from its variable (``RANKSCOPE_WAIT`` …), else from the default; see
    :class:`~rankscope.capture.CaptureConfig`. All counts are steps.

    Args:
        save_dir: the run directory; ``RANKSCOPE_RUN_DIR``, else ``rankscope_run_<time>``.
        ranks: which ranks to profile: ``"all"`` (the default), ``"0, 2, 4"``, ``"0-3"``, ``"every:8"``,
            ``"node"``
            (the first of every host), several joined by commas, or whole numbers.
        wait, warmup, active, repeat, skip_first: as of ``torch.profiler.schedule``; 10, 5, 3, 1, 0 by
        default. period_steps: record the last ``active`` steps of each period of this many steps, instead of
        ``wait``. warmup_steps, active_steps: other names of ``warmup`` and ``active``. mesh: the job's
        DeviceMesh: its dimensions and this rank's coordinate go into names and traces. dist_context: an
        object that has the mesh, by ``mesh_for("regular")`` or as ``mesh``. record_shapes, with_stack,
        profile_memory, with_flops, with_modules: torch's switches, off by default. compression: ``"gz"`` (the
        default) or ``"none"``. name_template: what trace names are made of; see
        :mod:`rankscope.rundir.names`. run_id: what all ranks of this run share; found out where it is not
        given. activities: torch's activities; what is there by default.

    Raises:
        ConfigError: an argument or variable that cannot be meant. Nothing is raised after that.
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str] | None = None,
        *,
        ranks: RanksLike | None = None,
        wait: int | None = None,
        warmup: int | None = None,
        active: int | None = None,
        repeat: int | None = None,
        skip_first: int | None = None,
        period_steps: int | None = None,
        warmup_steps: int | None = None,
        active_steps: int | None = None,
        mesh: object = None,
        dist_context: object = None,
        record_shapes: bool | None = None,
        with_stack: bool | None = None,
        profile_memory: bool | None = None,
        with_flops: bool | None = None,
        with_modules: bool | None = None,
        compression: str | None = None,
        name_template: str | None = None,
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
        self._next = _NEVER
        self._windows: Iterator[Window] = iter(())
        self._window: Window | None = None
        self._recording: Recording | None = None
        self._rank: ThisRank | None = None
        self._log: RankLog | None = None
        self._writer = Writer()
        self._user_metadata: dict[str, str] = {}
        self._anchors: list[ClockAnchor] = []
        self._window_stall_ns = 0
        self._earlier_stall_ns = 0
        self._recorded = 0
        self._told = False
        self._start_step = 0
        self._pid = 0

    # --- what a loop calls ----------------------------------------------------------------------------------

    @property
    def selected(self) -> bool:
        """Whether this rank is profiled; known once it has started."""
        return self._log is not None

    @property
    def recording(self) -> bool:
        """Whether the step that is running is recorded."""
        return self._recording is not None and self._recording.started

    def start(self, start_step: int = 0) -> None:
        """Begin at step ``start_step``. After ``init_process_group``, if the job has one."""
        self.step_num = start_step
        self._pid = os.getpid()
        try:
            self._start(start_step)
        except Exception as error:
            self._give_up("start", error)

    def step(self) -> None:
        """Say that a step is over and the next one begins."""
        self.step_num += 1
        if self.step_num >= self._next:
            self._guarded("step", self._begin_step)

    def stop(self, timeout_s: float | None = STOP_TIMEOUT_S) -> None:
        """End, and wait until what was recorded is written.

        Args:
            timeout_s: how long to wait, in seconds; ``None`` for as long as it takes.
        """
        if self._log is None or self._pid != os.getpid():
            return
        self._guarded("stop", self._stop)
        log, self._log, self._next = self._log, None, _NEVER
        try:
            atexit.unregister(self._at_exit)
            log.update(state="finished", steps=self.step_num - self._start_step)
            self._writer.submit(log.save)
            if not self._writer.drain(timeout_s):
                log.warn_once("slow", f"{self.run_dir} is slow: a trace is still being written after {timeout_s:.0f} s")
        except Exception as error:
            warn(f"the end of the capture failed: {error!r}")

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

    def add_metadata(self, key: str, value: str) -> None:
        """Put a text into every trace that is still to be written."""
        self._user_metadata[_plain_key(key)] = kineto_json(str(value))

    def add_metadata_json(self, key: str, value: str) -> None:
        """Put a JSON value, given as text, into every trace that is still to be written."""
        try:
            self._user_metadata[_plain_key(key)] = kineto_json(json.loads(value))
        except (TypeError, ValueError) as error:
            # Torch would put it into the file as it is, and the file would be no JSON.
            warn(f"add_metadata_json({key!r}): the value is no JSON and is left out: {error}")

    # --- windows --------------------------------------------------------------------------------------------

    def _start(self, start_step: int) -> None:
        if self._log is not None:
            warn("the profiler was started twice; the second start is ignored")
            return
        process, notes = facts.this_process()
        for note in notes:
            warn(note)
        if process is None:
            warn("this rank is not profiled: nobody says which rank it is")
            return
        choice = parse_ranks(self.config.ranks)
        chosen = choice.selects(process.rank, process.local_rank)
        if process.rank != 0 and not chosen:
            return
        for odd in choice.doubts(process.rank, process.local_rank, process.world_size):
            warn(odd)
        if chosen and another_profiler_runs():
            warn("another torch profiler is running in this process: this one stays inert")
            chosen = False
        run_id, doubt = facts.resolve_run_id(self.config.run_id, process)
        run_dir = facts.resolve_run_dir(self.config.save_dir, run_id, process)
        mesh = facts.mesh_of(self._mesh_given, self._context_given)
        rank = ThisRank(self.config, process, mesh, run_id, run_dir)
        if process.rank == 0:
            manifest = rank.run_manifest(choice.expression)
            self._writer.submit(lambda: write_run_manifest(run_dir, manifest))
        if not chosen:
            return
        self._rank, self.run_id, self.run_dir = rank, run_id, run_dir
        self._log = log_of(run_dir, rank.rank_manifest())
        if doubt:
            self._log.warn_once("run_id", doubt)
        self._writer.submit(self._log.save)
        load_torch_parts()
        self._start_step, self._recorded, self._told = start_step, 0, False
        self._windows = windows(self.config, start_step)
        self._window = next(self._windows, None)
        # Exit or an exception after a start without a stop would otherwise end in a crash inside torch.
        atexit.register(self._at_exit)
        self._begin_step()

    def _begin_step(self) -> None:
        """What a step's beginning asks for: nothing, a warm-up, a recording, or the end of one."""
        step, window, began = self.step_num, self._window, time.perf_counter_ns()
        if self._recording is not None and self._recording.started and window is not None:
            self._recording.end_step()
            if step <= window.last:
                self._recording.begin_step(step)
                return
            self._finish(window.last)
            began = time.perf_counter_ns()
            window = self._advance()
        if window is None:
            return
        if step < window.warmup:
            self._next = window.warmup
            return
        if self._recording is None:
            window = self._prepare(window)
            if window is None:
                return
        if step >= window.first and self._recording is not None:
            self._anchors = [facts.clock_anchor()]
            self._recording.start()
            self._recording.begin_step(step)
        self._next = step + 1 if step >= window.first else window.first
        self._window_stall_ns += time.perf_counter_ns() - began

    def _prepare(self, window: Window) -> Window | None:
        if another_profiler_runs():
            self._skip(window, "another torch profiler was running")
            self._advance()
            return None
        activities = self._activities if self._activities is not None else facts.activities()
        recording = Recording(self.config, activities, self.run_id or "")
        recording.prepare()
        self._recording = recording
        return window

    def _advance(self) -> Window | None:
        """Go on to the next window, which may begin with this very step."""
        self._earlier_stall_ns += self._window_stall_ns
        self._window_stall_ns = 0
        self._window = next(self._windows, None)
        self._next = _NEVER if self._window is None else self._window.warmup
        return self._window

    def _finish(self, last: int, partial_step: int | None = None) -> None:
        """Stop and save in the loop, hand over the rest."""
        recording, window, log, rank = self._recording, self._window, self._log, self._rank
        if recording is None or window is None or log is None or rank is None:
            return
        first, began = window.first, time.perf_counter_ns()
        self._recording = None
        self._anchors.append(facts.clock_anchor())
        try:
            metadata = rank.metadata(
                first,
                last,
                partial_step=partial_step,
                anchors=self._anchors,
                start_stall_ns=self._window_stall_ns,
                previous_stall_ns=self._earlier_stall_ns,
            )
            # Ours goes last: a user's key cannot take its place.
            recording.stop({**self._user_metadata, METADATA_KEY: metadata.to_json()})
            target = rank.trace_path(first, last)
            target.parent.mkdir(parents=True, exist_ok=True)
            saved = temporary_beside(target, ".json")
            recording.save(saved)
        except Exception as error:
            recording.abandon()
            self._fail(first, last, error)
            self._writer.submit(log.save)
            return
        self._window_stall_ns += time.perf_counter_ns() - began
        self._recorded += 1
        result, stall_ns = recording.result(), self._window_stall_ns

        def finish(held: object = result) -> None:
            try:
                done = finish_trace(saved, target, partial_step=partial_step)
                file = done.path.relative_to(rank.run_dir).as_posix()
                log.wrote(WrittenTrace(file, first, last, done.bytes, done.json_bytes, stall_ns))
                log.update(device=facts.device_of())
            except Exception as error:
                self._fail(first, last, error, log)
            log.save()

        del result
        self._writer.submit(finish)

    def _stop(self) -> None:
        recording, window, log = self._recording, self._window, self._log
        if log is None:
            return
        if recording is not None and window is not None:
            last = self.step_num - 1
            if recording.started and last >= window.first:
                # The range of the step that had begun is in the file: it is renamed there.
                self._finish(last, partial_step=self.step_num)
            else:
                self._recording = None
                recording.abandon()
        if self._recorded == 0 and not self._told:
            steps, first = self.step_num - self._start_step, window.first if window else None
            reason = f"the loop ended after {steps} steps, before step {first} was complete"
            log.skipped(first, window.last if window else None, reason)
            log.warn_once(
                "short", f"no trace was written: {reason}; choose a smaller wait or warmup, or make more steps"
            )

    # --- trouble --------------------------------------------------------------------------------------------

    def _guarded(self, what: str, action: Callable[[], Any]) -> None:
        if self._pid != os.getpid():
            self._next = _NEVER  # a forked child has the object and not the profiler
            return
        try:
            action()
        except Exception as error:
            self._give_up(what, error)

    def _give_up(self, what: str, error: Exception) -> None:
        """Capture failed where it should not: leave torch's profiler stopped, and the job alone."""
        self._next = _NEVER
        recording, self._recording, window = self._recording, None, self._window
        if recording is not None:
            with suppress(Exception):  # it had not come so far
                recording.abandon()
        self._fail(window.first if window else None, window.last if window else None, error, what=what)

    def _fail(
        self,
        first: int | None,
        last: int | None,
        error: Exception,
        log: RankLog | None = None,
        what: str = "save",
    ) -> None:
        log = log or self._log
        reason = f"{type(error).__name__}: {error}"
        if log is None:
            warn(f"the capture failed ({what}): {reason}; the job goes on without it")
            return
        self._told = True
        log.failed(first, last, reason)
        lost = f"steps {first} to {last} were lost ({what})"
        log.warn_once(f"failed {what}", f"{lost}: {reason}; the job goes on")

    def _skip(self, window: Window, reason: str) -> None:
        if self._log is not None:
            self._told = True
            self._log.skipped(window.first, window.last, reason)
            self._log.warn_once(reason, f"steps {window.first} to {window.last} were not recorded: {reason}")

    def _at_exit(self) -> None:
        self.stop(timeout_s=None)


def _plain_key(key: str) -> str:
    return json.loads(kineto_json(str(key)))  # type: ignore[no-any-return]
