"""From an ended recording to a file in the run directory, with as little of it as possible in the training loop.

The loop writes only to a local directory. The run directory, which may be slow, full or gone, is accessed by the
writer's thread: when a warm-up begins, so that problems are known in time, and again with the finished trace.

In: ended recordings. Out: traces in the run directory, and entries in the rank's manifest.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rankscope.capture.environment import describe_device
from rankscope.capture.notices import logger
from rankscope.capture.packing import finish_trace
from rankscope.capture.rank_log import LostWindows, RankLog
from rankscope.capture.recording import Recording
from rankscope.capture.script_profilers.adopted_window import AdoptedWindow
from rankscope.capture.step_log import RunSnapshot
from rankscope.capture.this_rank import ThisRank
from rankscope.capture.trace_edits import Edits
from rankscope.capture.votes import WindowVotes
from rankscope.capture.writer import Writer
from rankscope.rundir import staging
from rankscope.rundir.manifest import WrittenTrace
from rankscope.rundir.metadata import METADATA_KEY

LOOP_LIMIT_S = 1.0
"""How long the training loop waits for the run directory at most, and only if no local directory has space."""


@dataclass(frozen=True)
class EndedRecording:
    """A recording that has ended, and its place in the training. All but ``stall_ns`` are step numbers."""

    recording: Recording | AdoptedWindow
    first: int
    last: int
    partial_step: int | None
    stall_ns: int
    snapshot: RunSnapshot


class TraceQueue:
    """Takes ended recordings.

    Args:
        rank: this rank.
        log: its manifest.
        writer: runs what need not be done in the loop.
        lost: gets the windows of which there is no trace.
        votes: those of all ranks about each window; ``None`` if this rank decides alone.
    """

    def __init__(
        self, rank: ThisRank, log: RankLog, writer: Writer, lost: LostWindows, votes: WindowVotes | None = None
    ) -> None:
        self._rank, self._log, self._writer, self._lost, self._votes = rank, log, writer, lost, votes
        self._checked = threading.Event()
        self._staging: str | None = None
        self._disk_error: OSError | None = None
        self._largest = 0
        self.waiting = 0
        """How many recordings are being written or wait for it."""
        # At the start, so that a store that does not work is noticed before there is a trace.
        self._writer.submit(self._upload_manifest)

    def check_disks(self) -> None:
        """Find out in the writer's thread whether the run directory can be written, and where there is space."""
        self._checked.clear()
        self._writer.submit(self._check_disks)

    def put(self, ended: EndedRecording) -> None:
        """Stop and save, here or in the writer's thread, and leave the rest to that thread.

        Raises:
            OSError: there is no space, or the directory cannot be written: the recording is lost.
        """
        began = time.perf_counter_ns()
        target = self._rank.trace_path(ended.first, ended.last)
        self.waiting += 1
        try:
            saved = staging.staging_path(self._folder_to_save_in(), target.name)
            if not ended.recording.off_loop:
                self._save(ended.recording, saved)
            ended = replace(ended, stall_ns=ended.stall_ns + time.perf_counter_ns() - began)
            self._writer.submit(lambda: self._finish(ended, saved, target))
        except BaseException:
            self.waiting -= 1
            raise

    @property
    def busy(self) -> bool:
        """Whether a trace is being written."""
        return self.waiting > 0

    def _finish(self, ended: EndedRecording, saved: Path, target: Path) -> None:
        began = time.perf_counter_ns()
        adopted = ended.recording if isinstance(ended.recording, AdoptedWindow) else None
        try:
            # The ranks of a script record the windows of its own profilers without a vote.
            if skip := self._votes.final(ended.first) if self._votes is not None and adopted is None else "":
                ended.recording.abandon()
                ended.recording.free()
                staging.remove_saved(saved)
                self._lost.skipped(ended.first, ended.last, skip)
                return
            ended.recording.calls.add_native_calls()
            if ended.recording.off_loop:
                self._save(ended.recording, saved)
            # Saving and freeing hold the interpreter: they must not run at a priority below the loop's.
            ended.recording.free()
            self._writer.lower_priority()
            head = self._metadata_entry(ended)
            if adopted is not None:
                edits = Edits(head=head, steps=adopted.step_ranges())
            else:
                edits = Edits(ended.partial_step, head, frames=self._rank.config.with_stack)
            done = finish_trace(
                saved, target, edits=edits, temporary_folder=self._rank.folder(), run_dir=Path(self._rank.run_dir)
            )
            self._largest = max(self._largest, done.json_bytes)
            off_loop_ns = time.perf_counter_ns() - began
            file = done.path.relative_to(self._rank.run_dir).as_posix()
            self._log.add_written(
                WrittenTrace(
                    file,
                    ended.first,
                    ended.last,
                    done.bytes,
                    done.json_bytes,
                    ended.stall_ns,
                    off_loop_ns,
                    None if self._rank.uploads is None else False,
                    adopted=adopted is not None,
                    recorded_by=adopted.source if adopted is not None else None,
                )
            )
            self._log.update(device=describe_device(), **ended.snapshot.manifest_fields())
            self._rotate()
            if self._rank.uploads is not None:
                self._rank.uploads.put(done.path, lambda failure: self._upload_done(file, failure))
        except Exception as error:
            with suppress(Exception):  # a profiler that is left running would crash the process at its exit
                ended.recording.abandon()
            self._lost.failed(ended.first, ended.last, error, "save")
        finally:
            self._log.save()
            self.waiting -= 1

    def finish_uploads(self, timeout_s: float | None) -> None:
        """The last traces and manifest are written: wait until they are uploaded, or are given up."""
        uploads = self._rank.uploads
        if uploads is None:
            return
        self._upload_manifest()
        if not uploads.finish(timeout_s):
            kept = f"it is slow; what is not there yet remains in {self._rank.run_dir}"
            self._log.warn_once("upload", f"not everything was uploaded to {self._log.manifest.upload_to}: {kept}")
            self._log.save()

    def _upload_manifest(self) -> None:
        if self._rank.uploads is not None and self._log.path is not None:
            self._rank.uploads.put(self._log.path, self._warn_of_upload)

    def _warn_of_upload(self, error: Exception | None) -> None:
        if error is not None:
            reason = f"{type(error).__name__}: {error}"
            kept = f"everything remains in {self._rank.run_dir}"
            self._log.warn_once("upload", f"{self._log.manifest.upload_to} cannot be written: {reason}; {kept}")

    def _upload_done(self, file: str, error: Exception | None) -> None:
        """In the upload's thread: a trace was uploaded, or could not be."""
        self._warn_of_upload(error)
        if error is None:
            self._log.add_uploaded(file)
            self._rotate()
        self._log.save()
        self._upload_manifest()

    def _rotate(self) -> None:
        folder = self._rank.folder()
        for old in self._log.rotate(self._rank.config.keep_windows, self._rank.config.keep_bytes):
            path = Path(self._rank.run_dir, old)
            with suppress(OSError):
                path.unlink(missing_ok=True)
                if path.parent != folder:
                    path.parent.rmdir()  # a folder in the trace's name; refused while another rank's trace is in it

    def _save(self, recording: Recording | AdoptedWindow, saved: Path) -> None:
        try:
            recording.stop()
            recording.save(saved)
        except BaseException:
            staging.remove_saved(saved)
            raise

    def _bytes_needed(self) -> int:
        return max(staging.FIRST_GUESS_BYTES, 2 * self._largest)

    def _folder_to_save_in(self) -> str:
        needed = self._bytes_needed()
        local = staging.staging_folder(self._rank.config.staging_dir, None, needed)
        if local is not None:
            return local
        if self._disk_error is not None:
            raise self._disk_error
        if not self._checked.wait(LOOP_LIMIT_S):
            raise OSError(f"{self._rank.run_dir} did not answer within {LOOP_LIMIT_S:.0f} s")
        if self._staging is None:
            raise OSError(f"no directory has {needed >> 20} MB free to save the trace in")
        return self._staging

    def _check_disks(self) -> None:
        run_dir, config = self._rank.run_dir, self._rank.config
        try:
            self._disk_error = None
            folder = self._rank.folder()
            for attempt in range(3):
                folder.mkdir(parents=True, exist_ok=True)
                try:
                    staging.check_writable(folder)
                    break
                except FileNotFoundError:
                    # Another rank's rotation has just removed it: create it again.
                    if attempt == 2:
                        raise
            self._staging = staging.staging_folder(config.staging_dir, str(folder), self._bytes_needed())
        except OSError as error:
            self._disk_error = error
        finally:
            self._checked.set()
        with suppress(OSError):
            local = staging.staging_folder(config.staging_dir, None, 0)
            staging.remove_stale([run_dir, str(folder), *([local] if local else [])])
        if self._rank.process.world_size > 1:
            with suppress(Exception):
                if not self._rank.wrappers.any:  # the model did not exist yet when the capture began
                    self._rank.wrappers.find()
                self._rank.structure()  # the job may destroy its process groups before the recording ends

    def _metadata_entry(self, ended: EndedRecording) -> str | None:
        try:
            metadata = self._rank.metadata(
                ended.first,
                ended.last,
                partial_step=ended.partial_step,
                snapshot=ended.snapshot,
                collectives=ended.recording.calls.describe(),
                groups=ended.recording.calls.groups,
                adopted=ended.recording if isinstance(ended.recording, AdoptedWindow) else None,
            )
            return f'"{METADATA_KEY}": {metadata.to_json()}'
        except Exception:  # a trace without metadata is better than none
            logger.exception("the trace's metadata could not be made")
            return None
