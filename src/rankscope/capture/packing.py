"""From a saved JSON to a complete file under its final name: verified, compressed, synced, renamed.

isal and zstandard are used where they are installed and nothing needs them: isal's gzip costs a quarter of zlib's.
"""

from __future__ import annotations

import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from rankscope.capture.staging import free_bytes, remove_saved, temporary_beside
from rankscope.capture.trace_edits import Change, Edits, changed
from rankscope.rundir.atomic import claim

_GZIP_LEVEL = 1
"""On traces level 1 is ten times as fast as level 9 and its file 1.6 times as large."""
_ZSTD_LEVEL = 1
_GZIP_BITS = 31


@dataclass(frozen=True)
class Finished:
    """A trace that lies under its final name."""

    path: Path
    bytes: int
    json_bytes: int


def verify_json(path: Path) -> int:
    """The size of a complete JSON object in a file.

    Raises:
        OSError: it is missing, empty or cut. Torch returns normally from a save onto a full disk.
    """
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise OSError("torch saved no file (is the disk full?)") from None
    if size == 0:
        raise OSError("torch saved an empty file (is the disk full?)")
    with path.open("rb") as file:
        file.seek(max(size - 64, 0))
        if not file.read().rstrip().endswith(b"}"):
            raise OSError(f"the saved trace ends in the middle after {size} bytes (is the disk full?)")
    return size


def finish_trace(saved: Path, target: Path, *, edits: Edits | None = None, aside: Path | None = None) -> Finished:
    """Turn a saved trace into a complete file: at ``target``, or at the next free name beside it.

    Args:
        saved: plain JSON as torch wrote it, on whatever disk; removed in the end, whatever happens.
        target: the wanted name; its ending says how it is compressed.
        edits: what to change in it.
        aside: where the file lies until it is complete, on the disk of ``target``; beside it by default.

    Raises:
        OSError: the trace is not complete, or the directory cannot be written. Nothing is left behind then.
    """
    edits = Edits() if edits is None else edits
    folder = target.parent if aside is None else aside
    folder.mkdir(parents=True, exist_ok=True)
    temporary = temporary_beside(folder / target.name)
    try:
        json_bytes = verify_json(saved)
        _check_room(folder, target.name, json_bytes)
        with saved.open("rb") as source, temporary.open("wb") as sink:
            changes = edits.changes(source)
            if target.name.endswith(".tar.gz"):
                _copy_to_tar(source, sink, target.name.removesuffix(".tar.gz") + ".json", changes, json_bytes)
            else:
                with _compressed(sink, target.name) as write:
                    for piece in changed(source, changes):
                        write(piece)
            sink.flush()
            os.fsync(sink.fileno())
        size = temporary.stat().st_size
        return Finished(_claimed(temporary, target), size, json_bytes)
    finally:
        remove_saved(saved)
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _claimed(temporary: Path, target: Path) -> Path:
    for attempt in range(3):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            return claim(temporary, target)
        except FileNotFoundError:
            # Another rank's rotation has just removed the folder, which was empty.
            if attempt == 2:
                raise
    raise AssertionError


def _check_room(folder: Path, name: str, json_bytes: int) -> None:
    # A trace is compressed to a tenth. Less than half of that cannot be enough, and need not be tried.
    needed = json_bytes if name.endswith(".json") else json_bytes // 20
    free = free_bytes(folder)
    if 0 <= free < needed:
        raise OSError(f"the disk has {free >> 10} kB free, too little for a trace of {json_bytes >> 10} kB")


def compressor(ending: str) -> str:
    """What compresses here: ``isal``, ``zlib``, ``zstandard`` or ``none``.

    Raises:
        ImportError: zstandard is asked for and not installed.
    """
    if ending.endswith(".zst"):
        import_module("zstandard")
        return "zstandard"
    if not ending.endswith(".gz"):
        return "none"
    return "zlib" if _isal() is None else "isal"


def _isal() -> Any:
    try:
        return import_module("isal.isal_zlib")
    except Exception:  # an installation that is broken is none
        return None


@contextmanager
def _compressed(sink: IO[bytes], name: str) -> Iterator[Callable[[bytes], object]]:
    """What to write plain bytes to, so that they reach ``sink`` as the name's ending says."""
    machine: Any
    if name.endswith(".zst"):
        machine = import_module("zstandard").ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compressobj()
    elif name.endswith(".gz"):
        # Neither puts a name or a time into the header: the name there would be the temporary one.
        machine = (_isal() or zlib).compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_BITS)
    else:
        yield sink.write
        return
    yield lambda plain: sink.write(machine.compress(plain))
    sink.write(machine.flush())


def _copy_to_tar(source: IO[bytes], sink: IO[bytes], member: str, changes: list[Change], size: int) -> None:
    header = tarfile.TarInfo(member)
    # It stands before the member, and the changes have changed it.
    header.size = size + sum(len(change.text) - (change.end - change.begin) for change in changes)
    with _compressed(sink, ".gz") as write:
        write(header.tobuf(tarfile.GNU_FORMAT))
        for piece in changed(source, changes):
            write(piece)
        write(b"\0" * (-header.size % tarfile.BLOCKSIZE + 2 * tarfile.BLOCKSIZE))
