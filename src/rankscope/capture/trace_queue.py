"""From an ended recording to a file in the run directory, as little of it as can be in the training loop.

The loop writes to a local directory alone. The run directory, which may be slow, full or gone, is met by the writer's
thread: once when a warm-up begins, so that it is known in time, and again with the finished trace.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rankscope.capture import process as facts
from rankscope.capture import staging
from rankscope.capture.describe import ThisRank
from rankscope.capture.notices import logger
from rankscope.capture.packing import finish_trace
from rankscope.capture.ranklog import RankLog
from rankscope.capture.recording import Recording
from rankscope.capture.step_log import Told
from rankscope.capture.stop_mode import THREAD
from rankscope.capture.trace_edits import Edits
from rankscope.capture.writer import Writer
from rankscope.rundir.manifest import WrittenTrace
from rankscope.rundir.metadata import METADATA_KEY

LOOP_LIMIT_S = 1.0
"""How long the training loop waits for the run directory at most, and only where no local directory has room."""


BUSY = "the trace before was still being written"

Failed = Callable[[int | None, int | None, BaseException, str], None]


@dataclass(frozen=True)
class Ended:
    """A recording that has ended and its place in the training. All but ``stall_ns`` are step numbers."""

    recording: Recording
    first: int
    last: int
    partial_step: int | None
    stall_ns: int
    told: Told


class TraceQueue:
    """Takes ended recordings, one at a time.

    Args:
        rank: this rank.
        log: its manifest.
        writer: does what need not be done in the loop.
        failed: told of the first and last step of a window that is lost, why, and in what.
    """

    def __init__(
        self,
        rank: ThisRank,
        log: RankLog,
        writer: Writer,
        failed: Failed,
    ) -> None:
        self._rank, self._log, self._writer, self._failed = rank, log, writer, failed
        self._off_loop = rank.way["stop"] == THREAD
        self._looked = threading.Event()
        self._staging: str | None = None
        self._trouble: OSError | None = None
        self._largest = 0
        self.busy = False
        """Whether a trace is being written. At most one is: each holds its whole recording in memory."""

    def look_around(self) -> None:
        """Find out in the writer's thread whether the run directory can be written, and where there is room."""
        self._looked.clear()
        self._writer.submit(self._look_around)

    def take(self, ended: Ended) -> None:
        """Stop and save, here or in the writer's thread, and leave the rest to that.

        Raises:
            OSError: there is no room, or the directory cannot be written: nothing is left of the recording.
        """
        began = time.perf_counter_ns()
        target = self._rank.trace_path(ended.first, ended.last)
        self.busy = True
        try:
            saved = staging.staged(self._place(), target.name)
            if not self._off_loop:
                self._save(ended.recording, saved)
            ended = replace(ended, stall_ns=ended.stall_ns + time.perf_counter_ns() - began)
            self._writer.submit(lambda: self._finish(ended, saved, target))
        except BaseException:
            self.busy = False
            raise

    def _finish(self, ended: Ended, saved: Path, target: Path) -> None:
        began = time.perf_counter_ns()
        try:
            ended.recording.calls.gather()
            if self._off_loop:
                self._save(ended.recording, saved)
            # Both need the interpreter for themselves: not at a priority below the loop's.
            ended.recording.free()
            self._writer.yield_to_training()
            edits = Edits(ended.partial_step, self._head(ended), frames=self._rank.config.with_stack)
            done = finish_trace(saved, target, edits=edits, aside=self._rank.folder())
            self._largest = max(self._largest, done.json_bytes)
            took = time.perf_counter_ns() - began
            file = done.path.relative_to(self._rank.run_dir).as_posix()
            self._log.wrote(
                WrittenTrace(file, ended.first, ended.last, done.bytes, done.json_bytes, ended.stall_ns, took)
            )
            self._log.update(device=facts.device_of(), **ended.told.diary())
            self._rotate()
        except Exception as error:
            with suppress(Exception):  # a profiler that is left running would crash the process at its exit
                ended.recording.abandon()
            self._failed(ended.first, ended.last, error, "save")
        finally:
            self.busy = False
        self._log.save()

    def _rotate(self) -> None:
        folder = self._rank.folder()
        for old in self._log.rotate(self._rank.config.keep_windows, self._rank.config.keep_bytes):
            path = Path(self._rank.run_dir, old)
            with suppress(OSError):
                path.unlink(missing_ok=True)
                if path.parent != folder:
                    path.parent.rmdir()  # of a name with a folder of its own; refused while another rank's is there

    def _save(self, recording: Recording, saved: Path) -> None:
        try:
            recording.stop()
            recording.save(saved)
        except BaseException:
            staging.remove_saved(saved)
            raise

    def _place(self) -> str:
        needed = max(staging.FIRST_GUESS_BYTES, 2 * self._largest)
        if self._trouble is not None:
            raise self._trouble
        local = staging.staging_folder(self._rank.config.staging_dir, None, needed)
        if local is not None:
            return local
        if not self._looked.wait(LOOP_LIMIT_S):
            raise OSError(f"{self._rank.run_dir} did not answer within {LOOP_LIMIT_S:.0f} s")
        if self._staging is None:
            raise OSError(f"no directory has {needed >> 20} MB free to save the trace in")
        return self._staging

    def _look_around(self) -> None:
        run_dir, config = self._rank.run_dir, self._rank.config
        try:
            self._trouble = None
            folder = self._rank.folder()
            for attempt in range(3):
                folder.mkdir(parents=True, exist_ok=True)
                try:
                    staging.try_to_write(folder)
                    break
                except FileNotFoundError:
                    # Removed in this very moment: it is made again.
                    if attempt == 2:
                        raise
            needed = max(staging.FIRST_GUESS_BYTES, 2 * self._largest)
            self._staging = staging.staging_folder(config.staging_dir, str(folder), needed)
        except OSError as error:
            self._trouble = error
        finally:
            self._looked.set()
        with suppress(OSError):
            local = staging.staging_folder(config.staging_dir, None, 0)
            staging.remove_stale([run_dir, str(folder), *([local] if local else [])])
        if self._rank.process.world_size > 1 and not self._rank.wrappers.any:
            with suppress(Exception):  # the model was not there yet when the capture began
                self._rank.wrappers.look()

    def _head(self, ended: Ended) -> str | None:
        try:
            return f'"{METADATA_KEY}": {ended.told.metadata(self._rank, ended).to_json()}'
        except Exception:  # a trace without it is better than none
            logger.exception("what the trace says of itself could not be made")
            return None
