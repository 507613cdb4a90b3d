"""This rank's manifest while the job runs: the traces that were written and the windows that were lost, and why.

Saved after each change, in the writer's thread. Profilers that share a process and a run directory share the log: they
are one rank.

In: written traces and lost windows. Out: `ranks/rankN.json`.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rankscope.capture.notices import warn
from rankscope.capture.packing import TraceKeptError
from rankscope.rundir.atomic import overwrite, write_atomic, write_new
from rankscope.rundir.manifest import LostWindow, RankManifest, ScriptProfiler, WrittenTrace, shortened, to_json
from rankscope.rundir.names import TEMPORARY_PREFIX, rank_manifest_name
from rankscope.rundir.schedule import Window

_logs: dict[tuple[str, int, int], RankLog] = {}
_MAX_ENTRIES = 1000
"""Of each kind; the manifest of a job that runs for a year must not grow without bound."""

_KEPT_PROFILERS = 20
_BLOCK_BYTES = 4096


class RankLog:
    """A rank's manifest and where it is saved.

    Args:
        run_dir: the run directory.
        manifest: as it is at the start.
        kept_in: where traces are kept while the run directory cannot be written.
    """

    def __init__(self, run_dir: str, manifest: RankManifest, kept_in: Path | None = None) -> None:
        self._run_dir, self._kept_in = Path(run_dir), kept_in
        self._is_first: bool | None = None
        self._manifest = manifest
        self._path: Path | None = None
        # Reentrant: a signal handler may run while the interrupted thread holds it.
        self._lock = threading.RLock()
        # A second lock: the training loop must not wait for a slow disk to add an entry.
        self._saving = threading.Lock()
        self._warned: set[str] = set()
        self.windows = self.bytes = 0
        """How many traces were written and their size in bytes, including those removed since."""
        self.kept_elsewhere = 0
        """How many the run directory could not take."""

    @property
    def manifest(self) -> RankManifest:
        """The manifest as it would be saved now."""
        return self._manifest

    @property
    def path(self) -> Path | None:
        """Where the manifest is; ``None`` before it is saved."""
        return self._path

    def update(self, **changes: object) -> None:
        """Set plain fields of the manifest."""
        with self._lock:
            self._manifest = replace(self._manifest, **changes)  # type: ignore[arg-type]  # of any type

    def add_written(self, trace: WrittenTrace) -> None:
        """Add a complete trace."""
        with self._lock:
            self.windows += 1
            self.bytes += trace.bytes or 0
            self._manifest = replace(self._manifest, written=(*self._manifest.written, trace)[-_MAX_ENTRIES:])

    def add_skipped(self, first: int | None, last: int | None, reason: str, *, on_all_ranks: bool = False) -> None:
        """Add a window that was not recorded."""
        with self._lock:
            lost = LostWindow(first, last, reason, on_all_ranks)
            self._manifest = replace(self._manifest, skipped=(*self._manifest.skipped, lost)[-_MAX_ENTRIES:])

    def add_failed(self, first: int | None, last: int | None, reason: str) -> None:
        """Add a window that was recorded and could not be written."""
        with self._lock:
            lost = LostWindow(first, last, reason)
            self._manifest = replace(self._manifest, failed=(*self._manifest.failed, lost)[-_MAX_ENTRIES:])

    def note_script_profiler(self, profiler: ScriptProfiler) -> None:
        """Add a profiler of the script, or what is new about it."""
        with self._lock:
            others = [each for each in self._manifest.script_profilers if each.name != profiler.name]
            self._manifest = replace(self._manifest, script_profilers=(*others, profiler)[-_KEPT_PROFILERS:])

    def add_uploaded(self, file: str) -> None:
        """A copy of a written trace has been uploaded."""
        with self._lock:
            written = (replace(each, uploaded=True) if each.file == file else each for each in self._manifest.written)
            self._manifest = replace(self._manifest, written=tuple(written))

    def rotate(self, keep_windows: int, keep_bytes: int) -> list[str]:
        """Drop the oldest traces beyond what is kept, and return their files for the caller to delete. 0 keeps all.

        A trace that has not been uploaded, and should be, is kept.
        """
        with self._lock:
            kept = list(self._manifest.written)
            dropped: list[str] = []
            while (
                len(kept) > 1
                and kept[0].uploaded is not False
                and (
                    (keep_windows and len(kept) > keep_windows)
                    or (keep_bytes and sum(trace.bytes or 0 for trace in kept) > keep_bytes)
                )
            ):
                dropped.append(kept.pop(0).file)
            rotated = self._manifest.rotated + len(dropped)
            self._manifest = replace(self._manifest, written=tuple(kept), rotated=rotated)
        return dropped

    def warn_once(
        self,
        kind: str,
        text: str,
        *,
        silently: bool = False,
        by: Callable[[str, Callable[[], None]], None] | None = None,
    ) -> None:
        """Warn about a kind of problem the first time it occurs, and add the warning to the manifest; ``silently`` if
        another rank has warned. ``by`` gets the kind and what warns, and calls it on one rank."""
        with self._lock:
            if kind in self._warned:
                return
            self._warned.add(kind)
            self._manifest = replace(self._manifest, warnings=(*self._manifest.warnings, text)[-_MAX_ENTRIES:])
        if by is not None:
            by(kind, lambda: warn(text))
        elif not silently:
            warn(text)

    def save(self) -> None:
        """Write the manifest; if that fails, warn once."""
        with self._saving:
            manifest = self._manifest
            wanted = self._run_dir / rank_manifest_name(manifest.rank or 0, manifest.world_size, manifest.restart_count)
            try:
                if self._path is None:
                    self._path = write_new(wanted, _whole_blocks(manifest))
                else:
                    write_atomic(self._path, _whole_blocks(manifest), sync=True)
                return
            except OSError as error:
                reason = str(error)
        if self._path is not None or self._kept_in is None:
            self.warn_once("manifest", f"the manifest {wanted} could not be written: {reason}")
            self._save_in_place()
            return
        self.warn_once(
            "run_dir",
            f"the run directory {self._run_dir} cannot be written: {reason}; name another one (--run-dir, "
            f"RANKSCOPE_RUN_DIR). Until then traces are kept in {self._kept_in}, as far as there is space: "
            f"rankscope gather RUN {self._kept_in}",
            silently=not self._warns_of_run_dir(self._kept_in),
        )

    def _warns_of_run_dir(self, folder: Path) -> bool:
        """Whether this rank is to warn; all threads get the same answer, so that one of them does."""
        with self._lock:
            if self._is_first is None:
                self._is_first = self._is_first_to_keep(folder)
            return self._is_first

    def _is_first_to_keep(self, folder: Path) -> bool:
        """Whether this is the first rank of its host to find that the run directory cannot be written: it leaves a
        hidden file where the traces are kept."""
        # The parent is the launcher: a later job of the same name warns again.
        name = re.sub(r"[^A-Za-z0-9.-]", "-", f"{self._manifest.run_id}-{os.getppid()}")[-100:]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{TEMPORARY_PREFIX}warned-{name}").touch(exist_ok=False)
        except FileExistsError:
            return False
        except OSError:
            pass  # better twice than never
        return True

    def _save_in_place(self) -> None:
        """The disk is full: how the job ends, and what was lost, goes over what the manifest was."""
        with self._saving, suppress(OSError):
            text = None if self._path is None else shortened(self._manifest, self._path.stat().st_size)
            if self._path is not None and text is not None:
                overwrite(self._path, text)

    @property
    def has_no_place(self) -> bool:
        """Whether a warning has said that the run directory cannot be written, and where traces are instead."""
        return "run_dir" in self._warned


def rank_log_for(run_dir: str, manifest: RankManifest, kept_in: Path | None = None) -> RankLog:
    """The log of this process for a run directory and rank, created on first use."""
    key = (run_dir, manifest.rank or 0, os.getpid())
    if key not in _logs:
        _logs[key] = RankLog(run_dir, manifest, kept_in)
    return _logs[key]


def _whole_blocks(manifest: RankManifest) -> bytes:
    """The manifest with blanks that fill its last block: room for what becomes known on a full disk."""
    text = to_json(manifest)
    return text + b" " * (-len(text) % _BLOCK_BYTES)


class LostWindows:
    """The windows that one profiler has lost since its start; also used in the writer's thread and after the end."""

    def __init__(self) -> None:
        self._log: RankLog | None = None
        self._by_first_rank: Callable[[str, Callable[[], None]], None] | None = None
        self._any = False

    def begin(self, log: RankLog, by_first_rank: Callable[[str, Callable[[], None]], None] | None = None) -> None:
        """A profiler starts.

        Args:
            log: its rank's.
            by_first_rank: gets a kind of action and the action, and calls it on one rank of the job.
        """
        self._log, self._any, self._by_first_rank = log, False, by_first_rank

    def failed(self, first: int | None, last: int | None, error: BaseException, stage: str) -> None:
        """Steps ``first`` to ``last`` are lost because ``stage`` raised ``error``; the job continues."""
        reason = f"{type(error).__name__}: {error}"
        if self._log is None:
            warn(f"the capture failed ({stage}): {reason}; the job continues without it")
            return
        self._any = True
        self._log.add_failed(first, last, reason)
        if isinstance(error, TraceKeptError):
            self._log.kept_elsewhere += 1
            if not self._log.has_no_place:
                text = f"steps {first} to {last} could not be written to the run directory: {error}; the job continues"
                self._log.warn_once("kept", text)
            return
        lost = f"steps {first} to {last} were lost ({stage})"
        self._log.warn_once(f"failed {stage}", f"{lost}: {reason}; the job continues")

    def skipped(self, first: int, last: int, reason: str) -> None:
        """Steps ``first`` to ``last`` are not recorded, on any rank, for a reason that is not an error."""
        if self._log is not None:
            self._any = True
            self._log.add_skipped(first, last, reason, on_all_ranks=True)
            kind = re.sub(r" on rank \d+$", "", reason)
            text = f"steps {first} to {last} were not recorded: {reason}"
            self._log.warn_once(kind, text, by=self._by_first_rank)

    def too_short(self, steps: int, window: Window | None, deferred: str = "", *, silent: bool = False) -> None:
        """The loop ended after ``steps`` steps, before a window was complete, or without any because the schedule was
        ``deferred`` to a script's profiler, for this reason. Silent if a loss was reported already, or if
        another rank of this host says the same."""
        if self._log is None or self._any:
            return
        first, last = (window.first, window.last) if window is not None else (None, None)
        reason = f"the loop ended after {steps} steps, before step {first} was complete"
        advice = "choose a smaller wait or warmup, or run more steps"
        if deferred:
            reason, advice = deferred, "--take-over records on all ranks instead"
        self._log.add_skipped(first, last, reason)
        if silent:
            return
        self._log.warn_once("short", f"no trace was written: {reason}; {advice}")
