"""This rank's own manifest while the job runs: what was written, skipped and lost, saved after each change.

Several profilers of one process and one directory share a log: they are one rank.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

from rankscope.capture.notices import warn
from rankscope.rundir.atomic import write_atomic, write_new
from rankscope.rundir.manifest import (
    LostWindow,
    RankManifest,
    WrittenTrace,
    to_json,
)
from rankscope.rundir.names import rank_manifest_name

_logs: dict[tuple[str, int, int], RankLog] = {}
_MAX_NOTES = 1000
"""Of each kind; a job of a year must not grow a manifest without bound."""


class RankLog:
    """What this rank has to say, and where it says it."""

    def __init__(self, run_dir: str, manifest: RankManifest) -> None:
        self._run_dir = Path(run_dir)
        self._manifest = manifest
        self._path: Path | None = None
        # A signal handler may come while the thread that it interrupts holds it.
        self._lock = threading.RLock()
        # Apart from the other: the training loop must not wait for a slow disk to note something.
        self._saving = threading.Lock()
        self._said: set[str] = set()
        self.losses = 0
        self.windows = self.bytes = 0
        """How many traces were written, and of how many bytes, whether they were kept or not."""

    @property
    def manifest(self) -> RankManifest:
        """As it would be saved now."""
        return self._manifest

    def update(self, **changes: object) -> None:
        """Change plain fields of the manifest."""
        with self._lock:
            self._manifest = replace(self._manifest, **changes)  # type: ignore[arg-type]

    def wrote(self, trace: WrittenTrace) -> None:
        """A trace lies complete."""
        with self._lock:
            self.windows += 1
            self.bytes += trace.bytes or 0
            self._manifest = replace(self._manifest, written=(*self._manifest.written, trace)[-_MAX_NOTES:])

    def rotate(self, keep_windows: int, keep_bytes: int) -> list[str]:
        """Forget the oldest traces beyond what is to be kept; their files, for the caller to remove. 0 keeps all."""
        with self._lock:
            kept = list(self._manifest.written)
            gone: list[str] = []
            while len(kept) > 1 and (
                (keep_windows and len(kept) > keep_windows)
                or (keep_bytes and sum(trace.bytes or 0 for trace in kept) > keep_bytes)
            ):
                gone.append(kept.pop(0).file)
            rotated = self._manifest.rotated + len(gone)
            self._manifest = replace(self._manifest, written=tuple(kept), rotated=rotated)
        return gone

    def skipped(self, first: int | None, last: int | None, reason: str) -> None:
        """A window was not recorded."""
        with self._lock:
            self.losses += 1
            lost = LostWindow(first, last, reason)
            self._manifest = replace(self._manifest, skipped=(*self._manifest.skipped, lost)[-_MAX_NOTES:])

    def failed(self, first: int | None, last: int | None, reason: str) -> None:
        """A window was recorded and could not be written."""
        with self._lock:
            self.losses += 1
            lost = LostWindow(first, last, reason)
            self._manifest = replace(self._manifest, failed=(*self._manifest.failed, lost)[-_MAX_NOTES:])

    def warn_once(self, kind: str, text: str) -> None:
        """Warn about a kind of trouble the first time it comes up, and keep what was said."""
        with self._lock:
            if kind in self._said:
                return
            self._said.add(kind)
            self._manifest = replace(self._manifest, warnings=(*self._manifest.warnings, text)[-_MAX_NOTES:])
        warn(text)

    def save(self) -> None:
        """Write the manifest; where it cannot be written, say so once."""
        with self._saving:
            manifest = self._manifest
            wanted = self._run_dir / rank_manifest_name(manifest.rank or 0, manifest.world_size, manifest.restart_count)
            try:
                if self._path is None:
                    self._path = write_new(wanted, to_json(manifest))
                else:
                    write_atomic(self._path, to_json(manifest), sync=True)
                return
            except OSError as error:
                reason = str(error)
        self.warn_once("manifest", f"the manifest {wanted} could not be written: {reason}")


def log_of(run_dir: str, manifest: RankManifest) -> RankLog:
    """The log of this process for a directory and rank, made at its first use."""
    key = (run_dir, manifest.rank or 0, os.getpid())
    if key not in _logs:
        _logs[key] = RankLog(run_dir, manifest)
    return _logs[key]
