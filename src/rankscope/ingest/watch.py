"""Traces as they appear while a job runs: what is there, and which of it is whole.

rankscope's capture puts a trace in its place by one rename, and its rank's manifest names it with its size: it is whole
when it is seen. Others write in place: their files are whole once nothing of them has changed between two looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from rankscope.errors import NoTracesError
from rankscope.ingest.discover import Found, find_traces
from rankscope.ingest.source import is_url
from rankscope.rundir.manifest import read_rank_manifest

Stamp = tuple[int, int, int]
"""Size, time of change in ns, and number of a file: what changes when it is written."""


class Watch:
    """Looks at sources again and again. What is there when it is made counts as seen.

    Args:
        sources: directories, globs and files of this machine.
    """

    def __init__(self, sources: Sequence[str]) -> None:
        self._sources = list(sources)
        self._before = _stamps(self._found())
        self._taken = dict(self._before)

    @staticmethod
    def can(sources: Iterable[str]) -> bool:
        """Whether these can be watched: a URL would be listed over and over."""
        return not any(is_url(source) for source in sources)

    def look(self) -> Found | None:
        """The whole traces, if they are others than those that were taken last; None while nothing has come."""
        found = self._found()
        now = _stamps(found)
        said = _manifested(found)
        whole = {
            path: stamp
            for path, stamp in now.items()
            if self._before.get(path) == stamp or said.get(Path(path).name) == stamp[0]
        }
        self._before = now
        # What is being written anew is waited for: without it a rank would be gone for a while.
        changing = any(path in now and path not in whole for path in self._taken)
        if not whole or changing or whole == self._taken:
            return None
        self._taken = whole
        return replace(found, traces=[path for path in found.traces if path in whole])

    def _found(self) -> Found:
        try:
            return find_traces(self._sources)
        except NoTracesError:
            # Not yet, or not any more: both may change.
            return Found([])


def _stamps(found: Found) -> dict[str, Stamp]:
    stamps: dict[str, Stamp] = {}
    for path in found.traces:
        try:
            status = Path(path).stat()
        except OSError:
            continue
        if status.st_size:
            stamps[path] = status.st_size, status.st_mtime_ns, status.st_ino
    return stamps


def _manifested(found: Found) -> dict[str, int]:
    """Sizes of traces by name, as their ranks' manifests say them."""
    sizes: dict[str, int] = {}
    for file in found.rank_manifests:
        manifest = read_rank_manifest(Path(file))
        for written in manifest.written if manifest is not None else ():
            if written.bytes is not None:
                sizes[written.file.rsplit("/", 1)[-1]] = written.bytes
    return sizes
