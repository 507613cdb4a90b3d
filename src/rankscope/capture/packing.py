"""From the JSON that torch saved to a complete file under its final name: verified, edited, compressed, synced,
renamed.

isal and zstandard are used if they are installed; neither is required. isal's gzip takes a quarter of zlib's time.

In: the file that torch saved, the metadata, and how to compress. Out: a complete trace under its final name, and its
size.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from rankscope.capture.trace_edits import Change, Edits, apply_changes
from rankscope.rundir.atomic import claim
from rankscope.rundir.coverage import KEPT
from rankscope.rundir.staging import SPARE_BYTES, free_bytes, kept_folder, remove_saved, temporary_path

_GZIP_LEVEL = 1
"""On traces, level 1 is ten times as fast as level 9 and the file 1.6 times as large."""
_ZSTD_LEVEL = 1
_GZIP_BITS = 31


@dataclass(frozen=True)
class FinishedTrace:
    """A complete trace under its final name."""

    path: Path
    bytes: int
    json_bytes: int


class TraceKeptError(OSError):
    """A trace cannot be written to the run directory, and is kept elsewhere."""


def verify_json(path: Path) -> int:
    """The size in bytes of a file that holds a complete JSON object.

    Raises:
        OSError: it is missing, empty or truncated. Torch does not raise when it saves to a full disk.
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


def finish_trace(
    saved: Path,
    target: Path,
    *,
    edits: Edits | None = None,
    temporary_folder: Path | None = None,
    run_dir: Path | None = None,
) -> FinishedTrace:
    """Turn a saved trace into a complete file at ``target``, or at the next free name.

    Args:
        saved: plain JSON as torch wrote it, on any disk; always removed at the end.
        target: the wanted name; its ending decides how it is compressed.
        edits: what to change in it.
        temporary_folder: where the file is until it is complete, on the disk of ``target``; by default its folder.
        run_dir: the run directory, whose name that of the kept traces' directory has; by default ``temporary_folder``.

    Raises:
        TraceKeptError: the directory cannot be written. The trace is kept in a directory next to ``saved``, which the
            error names.
        OSError: the trace is not complete, or there is no space to keep it.
    """
    edits = Edits() if edits is None else edits
    folder = target.parent if temporary_folder is None else temporary_folder
    try:
        json_bytes = verify_json(saved)
        try:
            return _finish(saved, target, folder, edits, json_bytes)
        except OSError as error:
            kept = _keep(saved, target, kept_folder(saved.parent, run_dir or folder), edits, json_bytes)
            if kept is None:
                raise
            advice = f"rankscope gather adds what is in {kept.parent} to a run"
            raise TraceKeptError(f"{error}; {KEPT}{kept}: {advice}") from error
    finally:
        remove_saved(saved)


def _keep(saved: Path, target: Path, kept: Path, edits: Edits, json_bytes: int) -> Path | None:
    """Finish a trace where it was saved, because the run directory is gone or full; its path, or None if it is lost."""
    try:
        # The job needs the space more than we do.
        if free_bytes(saved.parent) < json_bytes + SPARE_BYTES:
            return None
        try:
            kept.mkdir(exist_ok=True)
            return _finish(saved, kept / target.name, kept, edits, json_bytes).path
        except FileExistsError:  # the directory's name is a file's, or all variants of the trace's name are taken
            another = Path(tempfile.mkdtemp(prefix=f"{kept.name}-", dir=saved.parent))
            return _finish(saved, another / target.name, another, edits, json_bytes).path
    except OSError:
        return None


def _finish(saved: Path, target: Path, folder: Path, edits: Edits, json_bytes: int) -> FinishedTrace:
    folder.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(folder / target.name)
    try:
        _check_space(folder, target.name, json_bytes)
        with saved.open("rb") as source, temporary.open("wb") as sink:
            changes = edits.changes(source)
            if target.name.endswith(".tar.gz"):
                _copy_to_tar(source, sink, target.name.removesuffix(".tar.gz") + ".json", changes, json_bytes)
            else:
                with _compressed(sink, target.name) as write:
                    for piece in apply_changes(source, changes):
                        write(piece)
            sink.flush()
            os.fsync(sink.fileno())
        size = temporary.stat().st_size
        return FinishedTrace(_claimed(temporary, target), size, json_bytes)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _claimed(temporary: Path, target: Path) -> Path:
    for attempt in range(3):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            return claim(temporary, target)
        except FileNotFoundError:
            # Another rank's rotation has just removed the empty folder.
            if attempt == 2:
                raise
    raise AssertionError


def _check_space(folder: Path, name: str, json_bytes: int) -> None:
    # A trace compresses to about a tenth. Less than half of that cannot be enough.
    needed = json_bytes if name.endswith(".json") else json_bytes // 20
    free = free_bytes(folder)
    if 0 <= free < needed:
        raise OSError(f"the disk has {free >> 10} kB free, too little for a trace of {json_bytes >> 10} kB")


def compressor(ending: str) -> str:
    """The library that compresses files with this ending: ``isal``, ``zlib``, ``zstandard`` or ``none``.

    Raises:
        ImportError: zstandard is needed and not installed.
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
    except Exception:  # a broken installation counts as missing
        return None


@contextmanager
def _compressed(sink: IO[bytes], name: str) -> Iterator[Callable[[bytes], object]]:
    """A function that writes plain bytes to ``sink``, compressed as the name's ending says."""
    compressor: Any
    if name.endswith(".zst"):
        compressor = import_module("zstandard").ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compressobj()
    elif name.endswith(".gz"):
        # Without a name and time in the header: the name would be the temporary one.
        compressor = (_isal() or zlib).compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_BITS)
    else:
        yield sink.write
        return
    yield lambda plain: sink.write(compressor.compress(plain))
    sink.write(compressor.flush())


def _copy_to_tar(source: IO[bytes], sink: IO[bytes], member: str, changes: list[Change], size: int) -> None:
    header = tarfile.TarInfo(member)
    # The size precedes the member, so it has to include the changes.
    header.size = size + sum(len(change.text) - (change.end - change.begin) for change in changes)
    with _compressed(sink, ".gz") as write:
        write(header.tobuf(tarfile.GNU_FORMAT))
        for piece in apply_changes(source, changes):
            write(piece)
        write(b"\0" * (-header.size % tarfile.BLOCKSIZE + 2 * tarfile.BLOCKSIZE))
