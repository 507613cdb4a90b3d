"""A packed run directory (.tar, .tar.gz, .tar.zst, .zip): recognized by its content, and unpacked.

An archive with a single trace is a trace, and is read as a stream. One with several is a run directory that was packed
to be copied. Archives are untrusted: only regular files with the names of traces, manifests and snapshots are unpacked,
below the directory whatever their paths say, never over one another, and no more bytes than such an archive can hold.

In: a file. Out: whether it is a packed directory, or its files in a directory. Zstandard needs a package, or Python
3.14.
"""

from __future__ import annotations

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import IO, Any

from rankscope.errors import RankscopeError
from rankscope.rundir.names import DATABASE_SUFFIXES, PERFETTO_ENDINGS, RANKS_FOLDER

GZIP, ZIP, ZSTD = b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd"
MAX_MEMBERS = 10_000
MAX_RATIO, FREE_BYTES = 300, 64 << 20
"""Traces shrink 10 to 30 times. What grows more than 300 times, and beyond 64 MiB, is a decompression bomb."""
_ENDINGS = (
    ".json", ".json.gz", ".json.zst", ".json.zstd", ".tar.gz", ".tgz", ".tar.zst", ".zip", ".pickle", *PERFETTO_ENDINGS,
    *DATABASE_SUFFIXES,
)  # fmt: skip
_HEAD_BYTES = 4096
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
_BLOCK_BYTES = 1 << 20
_TRACE = (b'"traceEvents"', b'"schemaVersion"', b'{"rankscope"', b'"ph"')
A_TRACE = "is a trace, not a run directory"
_DATABASE = b"SQLite format 3"


@dataclass(frozen=True)
class Member:
    """A file in an archive."""

    path: PurePosixPath
    file: Any
    """Its content: an object with ``read``."""


def is_packed_run(path: Path) -> bool:
    """Whether a file is an archive with several traces, or with one and a rank's manifest; not if it is damaged before
    the second."""
    found = 0
    with suppress(Exception), closing(members(path)) as inside:
        for member in inside:
            found += _is_part_of_a_run(member.file.read(_HEAD_BYTES), member.path)
            if found > 1:
                return True
    return False


def describe_file(path: Path) -> tuple[str, str]:
    """What a file is that was named as a run directory, and what to name instead."""
    damage, found = "", 0
    try:
        if path.stat().st_size == 0:
            return "is empty", "copy it again: a copy, or an export, was interrupted"
        with closing(members(path)) as inside:
            found = sum(_is_part_of_a_run(member.file.read(_HEAD_BYTES), member.path) for member in inside)
    except Exception as error:
        damage = str(error)
    head = head_of(path)
    if is_archive(head) and damage:
        hint = "copy it again; or unpack it with tar or unzip, as far as that goes, and name the directory"
        return f"is a damaged archive: {damage}", hint
    if found and is_packed_run(path):
        hint = f"rankscope gather DIR {path} copies what is in the archive into a directory"
        return "is a file, not a directory", hint
    if found or any(key in head for key in _TRACE):
        return A_TRACE, "name the directory that it is in"
    hint = "name the directory that traces were written to"
    return ("is an archive without a trace" if is_archive(head) else "is a file, not a directory"), hint


def head_of(path: Path, size: int = _HEAD_BYTES) -> bytes:
    """The beginning of a file, decompressed where that is possible; what precedes damage."""
    found = b""
    with ExitStack() as stack, suppress(Exception):
        raw = stack.enter_context(path.open("rb"))
        start = raw.read(4)
        raw.seek(0)
        stream = decompressed(raw, start, stack)
        read = getattr(stream, "read1", stream.read)
        while len(found) < size and (block := read(size - len(found))):
            found += block
    return found


def is_archive(head: bytes) -> bool:
    """Whether a file with this beginning is an archive."""
    return head.startswith(ZIP) or head[_TAR_MAGIC_AT:].startswith(_TAR_MAGIC)


def decompressed(raw: IO[bytes], start: bytes, stack: ExitStack) -> Any:
    """A stream of a file's content, by its first bytes."""
    if start[:2] == GZIP:
        return stack.enter_context(gzip.GzipFile(fileobj=raw))
    return stack.enter_context(open_zstandard(raw)) if start == ZSTD else raw


def unpack_run(archive: Path, into: Path) -> list[str]:
    """Write an archive's files into an empty directory.

    Returns:
        Their paths in it.

    Raises:
        RankscopeError: the archive is damaged, or a decompression bomb, or there is no space.
    """
    written: list[str] = []
    try:
        with closing(members(archive)) as inside:
            for member in inside:
                target = into / member.path
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    while data := member.file.read(_BLOCK_BYTES):
                        file.write(data)
                written.append(member.path.as_posix())
    except Exception as error:  # whatever the decompressing package raises
        hint = "unpack it with tar or unzip, as far as that goes, and open the directory"
        raise RankscopeError(f"the archive cannot be unpacked: {error}", path=archive, hint=hint) from error
    return written


def members(path: Path) -> Generator[Member]:
    """The files of an archive that are worth unpacking; none if it is not an archive."""
    seen: set[PurePosixPath] = set()
    with ExitStack() as stack:
        for name, file in _files(path, stack):
            inside = _inside(name)
            # Not below a file, not over one.
            if inside is None or inside in seen or not seen.isdisjoint(inside.parents):
                continue
            if any(inside in other.parents for other in seen):
                continue
            seen.add(inside)
            yield Member(inside, file)
            if len(seen) >= MAX_MEMBERS:
                raise ValueError(f"it has more than {MAX_MEMBERS:,} files")


def _files(path: Path, stack: ExitStack) -> Iterator[tuple[str, Any]]:
    raw = stack.enter_context(path.open("rb"))
    start = raw.read(4)
    raw.seek(0)
    bound = _Bound(path.stat().st_size)
    if start == ZIP:
        archive = stack.enter_context(zipfile.ZipFile(raw))
        for info in archive.infolist():
            if not info.is_dir() and _inside(info.filename) is not None:
                with archive.open(info) as member:
                    yield info.filename, _Counted(member, bound)
        return
    counted = _Counted(decompressed(raw, start, stack), bound)
    with tarfile.open(fileobj=counted, mode="r|", bufsize=_BLOCK_BYTES) as tar:  # type: ignore[call-overload]  # typed for all of a file's methods; it reads alone
        for member in tar:
            if member.isreg() and (file := tar.extractfile(member)) is not None:
                yield member.name, _Counted(file, bound if member.issparse() else None)
    while counted.read(_BLOCK_BYTES):  # a checksum comes last
        pass


def _inside(name: str) -> PurePosixPath | None:
    """A member's path below the directory; ``None`` for what is not unpacked: another kind of file, or a path out."""
    path = PurePosixPath(name.replace("\\", "/"))
    parts = [part for part in path.parts if part != "."]
    if path.is_absolute() or ".." in parts or not parts or "\0" in name or ":" in parts[0]:
        return None
    hidden = any(part.startswith(".") for part in parts)
    return None if hidden or not parts[-1].lower().endswith(_ENDINGS) else PurePosixPath(*parts)


def _is_part_of_a_run(head: bytes, path: PurePosixPath) -> bool:
    """Whether a member is a trace or a rank's manifest, by its beginning."""
    if path.parent.name == RANKS_FOLDER and b'"run_id"' in head:
        return True
    if head.startswith(GZIP):
        head = zlib.decompressobj(31).decompress(head, _HEAD_BYTES)
    named = path.name.lower().endswith((".tar.gz", ".tgz", ".tar.zst", ".zip", *PERFETTO_ENDINGS))
    return named or head.startswith((ZSTD, _DATABASE)) or any(key in head for key in _TRACE)


class _Bound:
    """How many bytes an archive may have unpacked: those of its members together."""

    def __init__(self, packed_bytes: int) -> None:
        self._left = max(FREE_BYTES, MAX_RATIO * packed_bytes)

    def count(self, number: int) -> None:
        self._left -= number
        if self._left < 0:
            raise ValueError(f"it grows more than {MAX_RATIO} times: a decompression bomb?")


class _Counted:
    """A file whose bytes are counted."""

    def __init__(self, file: Any, bound: _Bound | None) -> None:
        # `read1` returns what precedes damage; `read` raises instead.
        self._read, self._bound = getattr(file, "read1", file.read), bound

    def read(self, size: int = -1, /) -> bytes:
        data: bytes = self._read(size)
        if self._bound is not None:
            self._bound.count(len(data))
        return data


@contextmanager
def open_zstandard(file: IO[bytes]) -> Iterator[IO[bytes]]:
    """Decompress Zstandard.

    Raises:
        ImportError: neither this Python nor a package can.
    """
    try:
        opened = import_module("compression.zstd").open(file)  # Python 3.14
    except ImportError:
        opened = import_module("zstandard").open(file)
    with opened as stream:
        yield stream
