"""``rankscope.HangWatch``: detects that the training loop has stopped making steps, and dumps what each rank is doing.

A thread on each rank compares the time since the last step with the usual time of a step. The ranks need not
communicate for this: when one is stuck, the others soon wait for it, and each thread notices it. The thread also
rewrites a small heartbeat file, so that a rank that has died can be distinguished from one whose dump is missing.

A step costs one clock reading. No exception gets into the job.

In: the steps of the loop. Out: heartbeats, and a dump on each hang (:mod:`.dump`).
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from time import monotonic
from types import TracebackType

import torch.distributed as dist

from rankscope.capture import exit_hooks, signals
from rankscope.capture.dynamo import not_compiled
from rankscope.capture.hang.dump import Position, Watched, within, write_hang_dump
from rankscope.capture.hang.exceptions import end_by, ending
from rankscope.capture.notices import logger, warn
from rankscope.capture.process import Process, this_process
from rankscope.errors import ConfigError
from rankscope.rundir.atomic import write_atomic
from rankscope.rundir.directory import absolute_directory
from rankscope.rundir.hang_dump import HANG_FOLDER, HEARTBEAT_FORMAT, Heartbeat, heartbeat_name
from rankscope.rundir.processes import pid_namespace

HEARTBEAT_S = 10.0
"""How often the heartbeat file is rewritten."""
FIRST_TIMEOUT_S = 1800.0
_KEPT_STEPS = 65
_WRITE_LIMIT_S = 10.0
_END_LIMIT_S = 2.0
"""For each part of what is written when the process ends, which is not to wait for it."""
_HAND_OVER_LIMIT_S = 1.0
"""In the training loop, where a slow file system must not hold it up."""


_provisional: HangWatch | None = None


class HangWatch:
    """Watch a training loop for hangs, on every rank.

    ::

        with rankscope.HangWatch("run", timeout_s=300) as watch:
            for batch in loader:
                train(batch)
                watch.heartbeat()

    A hang is a step that takes longer than ``timeout_s`` and longer than ``factor`` times the usual step. Each rank
    then writes ``hang/rank{rank}.json`` into the run directory, and ``rankscope hang RUN`` gives the verdict. The job
    continues unless ``exit_status`` is given.

    Args:
        directory: the run directory, the same for all ranks.
        timeout_s: a step that takes less is never a hang.
        factor: nor is one that takes less than this many times the median of the latest steps.
        first_timeout_s: the limit until the second step has ended, because compilation and initialization are slow.
        exit_status: ends the process with this status, up to 255, after a dump, once the other ranks have had time to
            write theirs; None or 0: it continues.
        heartbeat_s: how often the heartbeat file is rewritten.
        run_id: the id of the run, if the ranks have agreed on one; by default the launcher's.

    Raises:
        ConfigError: ``exit_status`` is not an exit status.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        timeout_s: float = 300.0,
        factor: float = 10.0,
        first_timeout_s: float = FIRST_TIMEOUT_S,
        exit_status: int | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        run_id: str = "",
    ) -> None:
        if exit_status not in (None, *range(256)):  # the system keeps the lowest 8 bits: 256 would be success
            raise ConfigError(f"exit_status={exit_status!r} must be a whole number, 0 to 255")
        self.directory = Path(absolute_directory(directory))
        self.timeout_s = timeout_s
        self.factor = factor
        self.first_timeout_s = max(first_timeout_s, timeout_s)
        self.exit_status = exit_status or None
        self.heartbeat_s = heartbeat_s
        self.run_id = run_id
        self.ranks = ""
        """Which ranks are watched, as ``--ranks`` has it, if that is known: the others leave nothing here."""
        self.warn: Callable[[str], None] = logger.warning
        """Gets the message that no heartbeat can be written, once."""
        self.dumps: list[Path] = []
        """The dumps written so far."""
        self._times: deque[float] = deque(maxlen=_KEPT_STEPS)
        self._steps = 0
        self._reported = -1
        self._training_thread: int | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._next_heartbeat = float("-inf")
        self._phase = ""
        self._began_ns = 0
        self._process: Process | None = None
        self._was_connected = False
        self._unwritten = False

    def start(self) -> HangWatch:
        """Start watching; the calling thread is taken for the one that runs the training loop."""
        if self._thread is None:
            end_provisional()
            self._training_thread = threading.get_ident()
            self._times.append(monotonic())
            self._began_ns = time.time_ns()
            self._pid = os.getpid()
            self._place()
            self._stop.clear()
            thread = threading.Thread(target=self._watch, name="rankscope-hang-watch", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system has no more threads
                warn(f"the training loop is not watched for hangs: {error}")
                return self
            self._thread = thread
            exit_hooks.register(self.close)
            signals.observe(self._on_signal)
        return self

    @not_compiled
    def heartbeat(self, phase: str = "") -> None:
        """A step has ended. ``phase`` optionally names what comes next, such as ``data_loading``."""
        self._times.append(monotonic())
        self._steps += 1
        self._phase = phase

    def close(self, exception: str = "", *, signal: str = "") -> None:
        """Stop watching, and record that this rank has ended: normally, by an exception, or by a signal.

        An exception and a signal are worth a dump, too: a launcher ends the ranks that others wait for once these have
        failed. If this step already has a dump, the end is only that of its hang. After Ctrl-C there is none.

        Args:
            exception: what ended the loop, if that is known.
            signal: the same.
        """
        if not self._end_thread(_END_LIMIT_S):
            return
        if not exception and not signal:
            exception, signal = end_by(ending())
        self._write_heartbeat(ended=True, exception=exception, signal=signal)
        if (exception or signal) and signal != "SIGINT" and self._reported != self._steps:
            self._dump(f"the training loop was ended by {exception or signal}", exception, signal)

    def _on_signal(self, name: str) -> None:
        self.close(signal=name)

    def hand_over(self) -> None:
        """Stop watching, because another watch of this rank may begin: without one, a last heartbeat would be that of a
        dead rank."""
        if self._end_thread(_HAND_OVER_LIMIT_S) and (process := self._place()) is not None:
            within(_HAND_OVER_LIMIT_S, lambda: self._heartbeat_path(process).unlink(missing_ok=True))

    def _end_thread(self, limit_s: float) -> bool:
        """End the watching thread; False if there is none, as in a forked child, where the rank has not ended."""
        thread, self._thread = self._thread, None
        if thread is None or self._pid != os.getpid():
            return False
        self._stop.set()
        exit_hooks.unregister(self.close)
        signals.unobserve(self._on_signal)
        if thread is not threading.current_thread():
            thread.join(limit_s)  # it may be writing a heartbeat, which would replace a later one
        return True

    def __enter__(self) -> HangWatch:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        exception, signal = end_by(error)
        self.close(exception, signal=signal)

    def limit_s(self) -> float:
        """How long the current step may take."""
        durations = [end - begin for begin, end in pairwise(self._times.copy())]
        # The first step compiles and initializes: it is not usual.
        if self._steps < 2:
            return self.first_timeout_s
        return max(self.timeout_s, self.factor * statistics.median(durations[1:] or durations))

    def check(self) -> Path | None:
        """Write a dump if this rank hangs and has not written one for this hang. The watching thread calls it."""
        steps, elapsed = self._steps, monotonic() - self._times[-1]
        if steps == self._reported or elapsed <= self.limit_s():
            return None
        self._reported = steps
        reason = f"no step for {elapsed:.0f} s" if steps else f"the first step has not ended after {elapsed:.0f} s"
        warn(f"{reason}: writing what this rank is doing to {self.directory / HANG_FOLDER}")
        return self._dump(reason)

    def _dump(self, reason: str, exception: str = "", signal: str = "") -> Path | None:
        path = write_hang_dump(
            self.directory,
            reason,
            position=self._position,
            training_thread=self._training_thread,
            watched=Watched(self.run_id, self._began_ns, self._place(), exception, signal),
            limit_s=_END_LIMIT_S if exception or signal else _WRITE_LIMIT_S,
        )
        if path is not None:
            self.dumps.append(path)
        return path

    def _place(self) -> Process | None:
        """This process in its job; once that has destroyed its process group, as it was before."""
        was_connected = dist.is_available() and dist.is_initialized()
        process = this_process()[0]
        connected = was_connected and dist.is_initialized()
        if connected or not self._was_connected:
            self._process, self._was_connected = process, connected
        return self._process

    def _heartbeat_path(self, process: Process) -> Path:
        return self.directory / HANG_FOLDER / heartbeat_name(process.rank)

    def _position(self) -> Position:
        elapsed = monotonic() - self._times[-1]
        return Position(self._steps, self._phase, int(elapsed * 1e9))

    def _watch(self) -> None:
        pause = min(1.0, self.heartbeat_s, max(self.timeout_s / 10, 0.05))
        while True:
            try:
                if monotonic() >= self._next_heartbeat:
                    self._write_heartbeat()
                if self.check() is not None and self.exit_status is not None:
                    self._end(self.exit_status)
            except Exception as error:  # capture never stops a job
                logger.warning("the hang watch failed: %s", error)
            if self._stop.wait(pause):
                return

    def _end(self, status: int) -> None:
        """End the process, once the other ranks have had time to notice the hang."""
        if not self._stop.wait(max(2.0, min(60.0, self.timeout_s))) and self._reported == self._steps:
            logger.warning("rankscope ends this hung process with status %d", status)
            os._exit(status)

    def _write_heartbeat(self, *, ended: bool = False, exception: str = "", signal: str = "") -> None:
        self._next_heartbeat = monotonic() + self.heartbeat_s
        process = self._place()
        if process is None:
            return
        beat = Heartbeat(
            HEARTBEAT_FORMAT,
            process.rank,
            time_ns=time.time_ns(),
            interval_ns=int(self.heartbeat_s * 1e9),
            world_size=process.world_size,
            host=process.host,
            pid=os.getpid(),
            pid_namespace=pid_namespace(),
            run_id=self.run_id or process.known_run_id or "",
            began_ns=self._began_ns,
            restart_count=process.restart_count,
            step=self._steps,
            ended=ended,
            exception=exception,
            signal=signal,
            ranks=self.ranks,
        )
        path = self._heartbeat_path(process)
        _, why = within(_END_LIMIT_S if ended else _WRITE_LIMIT_S, lambda: write_atomic(path, beat.to_json()))
        if why and not self._unwritten:
            self.warn(f"the heartbeat could not be written to {path}: {why}")
        self._unwritten = bool(why)


def start_provisional(watch: HangWatch) -> None:
    """Start a watch that ends when another one starts in this process, such as the job's own."""
    global _provisional
    _provisional = watch.start()


def end_provisional() -> None:
    """End that watch, if there is one."""
    global _provisional
    watch, _provisional = _provisional, None
    if watch is not None:
        watch.hand_over()
