"""Find new traces while a job runs, and decide which are complete.

rankscope's capture renames a finished trace into place and lists its size in the rank's manifest, so the trace is
complete when it appears. Other tools write in place: their files are complete once two polls find them unchanged.

In: a directory. Out: its complete traces, and changes since the last poll.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from rankscope.errors import NoTracesError
from rankscope.ingest.discover import Found, find_traces
from rankscope.ingest.source import is_url
from rankscope.rundir.manifest import read_rank_manifest
from rankscope.rundir.names import split_process

Stamp = tuple[int, int, int]
"""Size, time of change in ns, and inode of a file: they change when it is written."""


class Watch:
    """Polls sources for new traces. Those that exist at the start are not new.

    Args:
        sources: directories, globs and files of this machine.
    """

    def __init__(self, sources: Sequence[str]) -> None:
        self._sources = list(sources)
        self._before = _stamps(self._find())
        self._returned = dict(self._before)

    @staticmethod
    def supports(sources: Iterable[str]) -> bool:
        """Whether these can be polled: URLs are too slow to list repeatedly."""
        return not any(is_url(source) for source in sources)

    def look(self) -> Found | None:
        """The complete traces, if they differ from those that were returned last; None if nothing is new."""
        found = self._find()
        now = _stamps(found)
        sizes = _sizes_in_manifests(found)
        complete = {
            path: stamp
            for path, stamp in now.items()
            if self._before.get(path) == stamp or sizes.get(Path(path).name) == stamp[0]
        }
        self._before = now
        # Wait for files that are being rewritten: without them a rank would disappear for a while.
        changing = any(path in now and path not in complete for path in self._returned)
        if not complete or changing or complete == self._returned:
            return None
        self._returned = complete
        return replace(found, traces=[path for path in found.traces if path in complete])

    def _find(self) -> Found:
        try:
            return find_traces(self._sources)
        except NoTracesError:
            # Not there yet, or not any more.
            return Found([])


def _stamps(found: Found) -> dict[str, Stamp]:
    stamps: dict[str, Stamp] = {}
    for path in found.traces:
        try:
            status = Path(split_process(path)[0]).stat()
        except OSError:
            continue
        if status.st_size:
            stamps[path] = status.st_size, status.st_mtime_ns, status.st_ino
    return stamps


def _sizes_in_manifests(found: Found) -> dict[str, int]:
    """Sizes of traces by name, from the ranks' manifests."""
    sizes: dict[str, int] = {}
    for file in found.rank_manifests:
        manifest = read_rank_manifest(Path(file))
        for written in manifest.written if manifest is not None else ():
            if written.bytes is not None:
                sizes[written.file.rsplit("/", 1)[-1]] = written.bytes
    return sizes
