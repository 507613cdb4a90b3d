"""Open a trace from a path or URL in any compression, detected by content and not by name.

In: a path or URL. Out: a reader of the decompressed JSON, or the events that an importer finds. Plain, gzip (also with
several members), zstandard, and archives (tar in either, zip) with the trace as a member. Archives are read as streams
and nothing is extracted to disk, so paths in them have no effect. A Perfetto trace may be in any of these.
"""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO, cast

from rankscope.errors import NotATraceError, TraceError
from rankscope.ingest.decompress import BLOCK_BYTES, Checked, ChecksumError, Gunzip, Prefixed, Reader, Unzstd, bomb
from rankscope.ingest.imported import Imported
from rankscope.ingest.perfetto import is_perfetto, read_perfetto
from rankscope.ingest.run_files import HEAD_BYTES, is_run_file, starts_a_trace
from rankscope.ingest.titan_log import MAGIC as TITAN_LOG
from rankscope.ingest.titan_log import read_titan_log
from rankscope.rundir.archives import FREE_BYTES, GZIP, MAX_MEMBERS, MAX_RATIO, ZIP, ZSTD
from rankscope.rundir.directory import path_of_file_url
from rankscope.rundir.names import PERFETTO_SUFFIXES, split_process
from rankscope.store.objects import open_object

_ENCRYPTED = 1  # a bit in a zip member's flags
# A zstandard file may begin with a skippable frame: pzstd writes one before each frame.
_SKIPPED = tuple(bytes([low]) + b"\x2a\x4d\x18" for low in range(0x50, 0x60))
_SQLITE = b"SQLi"
_OTHER_FORMATS = {b"\xfd7zX": "xz", b"BZh": "bzip2", b"\x04\x22\x4d\x18": "lz4", b"7z\xbc\xaf": "7z", b"Rar!": "rar"}
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
# An archive member shorter than this is read completely first: it may be a settings file.
_SETTINGS_BYTES = 64 << 10
Trace = Reader | Imported


def is_url(path: str) -> bool:
    """Whether fsspec must fetch a path (``s3://…``)."""
    return "://" in path and not path.lower().startswith("file://")


def local_path(source: str) -> Path:
    """The path of a source on this machine: a path, or a ``file:`` URL."""
    path = path_of_file_url(source) or source.removeprefix("file://")
    # Shells do not quote names: a file that is called `a%20b` wins over the unquoted `a b`.
    if path != source and not os.path.lexists(path):
        from urllib.request import url2pathname  # loads an HTTP client, and TLS

        path = url2pathname(path)
    return Path(path).expanduser()


@contextmanager
def open_trace(path: str) -> Iterator[Opened]:
    """A trace, decompressed.

    Raises:
        TraceError: if the file cannot be opened.
        NotATraceError: if it is an archive without a trace, or a pickle.
    """
    with ExitStack() as stack:
        try:
            raw = stack.enter_context(open_raw(path))
        except FileNotFoundError as error:
            raise TraceError("there is no such file", path=path) from error
        except Exception as error:
            raise TraceError(f"cannot be opened: {error}", path=path, hint="check its permissions") from error
        try:
            opened = _opened(raw, path, stack)
        except (OSError, ValueError, EOFError) as error:
            raise TraceError(f"cannot be read: {error}", path=path, hint="copy it again") from error
        yield opened


def open_raw(path: str) -> AbstractContextManager[BinaryIO]:
    """The bytes of a local file or URL, not decompressed.

    Raises:
        OSError, ImportError, ValueError: it cannot be opened.
    """
    if not is_url(path):
        return io.FileIO(split_process(path)[0], "rb")
    return cast("AbstractContextManager[BinaryIO]", open_object(path))


def _opened(raw: BinaryIO, path: str, stack: ExitStack) -> Opened:
    start = _read_full(raw, 4)
    if start.startswith(ZIP):
        raw.seek(0)
        return _zip_member(raw, path, stack)
    if start.startswith(_PICKLES):
        raise _pickle(path)
    if start == _SQLITE:
        from rankscope.ingest.sqlite_trace import open_sqlite  # few workers need it

        database = open_sqlite(path, stack)
        return Opened(database, others=database.others)
    reader: Reader
    if start.startswith(GZIP):
        reader = Gunzip(Prefixed(start, raw), path)
    elif start == ZSTD or start in _SKIPPED:
        reader = Unzstd(Prefixed(start, raw), path)
    else:
        for magic, form in _OTHER_FORMATS.items():
            if start.startswith(magic):
                hint = "decompress it, or use gzip, zstandard or zip"
                raise NotATraceError(f"compressed with {form}, which is not supported", path=path, hint=hint)
        reader = Prefixed(start, raw)
    head = _read_full(reader, 512)
    start_again = Prefixed(head, reader)
    if head[257:262] == b"ustar":
        return _tar_member(start_again, path, stack)
    if head.startswith(TITAN_LOG):
        return Opened(read_titan_log(start_again))
    return Opened(_trace(head, start_again, path))


def _trace(head: bytes, reader: Reader, path: str) -> Trace:
    """A decompressed trace, by its first bytes."""
    return read_perfetto(reader, path) if is_perfetto(head) else reader


def _read_full(reader: Reader, size: int) -> bytes:
    parts, have = [], 0
    while have < size:
        try:
            data = reader.read(size - have)
        except (EOFError, OSError, ValueError):
            break  # the next read raises it again
        if not data:
            break
        parts.append(data)
        have += len(data)
    return b"".join(parts)


def _is_trace_name(name: str) -> bool:
    is_hidden = name.rsplit("/", 1)[-1].startswith(".")
    return not is_hidden and any(suffix in name.lower() for suffix in (".json", *PERFETTO_SUFFIXES))


def _tar_member(reader: Reader, path: str, stack: ExitStack) -> Opened:
    seen = _Members(path)
    file = _AsFile(reader)
    try:
        archive = stack.enter_context(tarfile.open(fileobj=file, mode="r|", bufsize=BLOCK_BYTES))  # noqa: SIM115 (the stack does)
        members = iter(archive)
        for count, member in enumerate(members):
            if member.isreg() and _is_trace_name(member.name):
                found = archive.extractfile(member)
                trace = found and seen.trace(cast("Reader", found), member.name)
                if trace:
                    names = (other.name if other.isreg() else "" for other in members)
                    return Opened(trace, names, seen.skipped, file)
            if count >= MAX_MEMBERS:
                break
    except NotATraceError:
        raise
    except (tarfile.TarError, EOFError, ValueError, OSError) as error:
        raise TraceError(f"the archive cannot be read: {error}", path=path, hint="copy it again") from error
    return Opened(seen.first_skipped())


def _zip_member(raw: BinaryIO, path: str, stack: ExitStack) -> Opened:
    seen = _Members(path)
    try:
        archive = stack.enter_context(zipfile.ZipFile(raw))
        members = [info for info in archive.infolist()[:MAX_MEMBERS] if _is_trace_name(info.filename)]
        for number, member in enumerate(members):
            if member.file_size > FREE_BYTES and member.file_size > MAX_RATIO * max(member.compress_size, 1):
                raise bomb(path)
            if member.flag_bits & _ENCRYPTED:
                hint = "extract it with its password, and open what comes out"
                raise NotATraceError("the archive is encrypted", path=path, hint=hint)
            checksum = member.CRC
            # zipfile would raise instead of returning the last bytes of a bad member, so `Checked` verifies it.
            del member.CRC
            opened = Checked(cast("Reader", stack.enter_context(archive.open(member))), checksum)
            trace = seen.trace(opened, member.filename)
            if trace:
                return Opened(trace, (other.filename for other in members[number + 1 :]), seen.skipped)
    except NotImplementedError as error:
        hint = "extract it, or write it with the default settings of zip"
        raise TraceError(f"the archive cannot be read: {error}", path=path, hint=hint) from error
    except (zipfile.BadZipFile, RuntimeError, EOFError, OSError) as error:
        raise TraceError(f"the archive cannot be read: {error}", path=path, hint="copy it again") from error
    return Opened(seen.first_skipped())


class _Members:
    """The archive members named like a trace, in order, up to the first that can be one.

    Attributes:
        skipped: how many were passed over that are neither traces nor files that rankscope writes next to traces.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._first: Reader | None = None
        self._has_run_files = False
        self.skipped = 0

    def trace(self, opened: Reader, name: str) -> Trace | None:
        """A member, unless rankscope wrote it next to traces, or it is small and certainly something else."""
        member = _Member(opened)
        head = _read_full(member, _SETTINGS_BYTES)
        start_again = Prefixed(head, member)
        if is_run_file(name) and not starts_a_trace(head[:HEAD_BYTES]):
            self._has_run_files = True
            return None
        if len(head) < _SETTINGS_BYTES and _is_not_a_trace(head) and not member.failed:
            self.skipped += 1
            self._first = self._first or start_again
            return None
        return _decompressed_member(start_again, self._path)

    def first_skipped(self) -> Reader:
        """The first skipped member: if none is a trace, reading it gives the best error.

        Raises:
            NotATraceError: none was skipped.
        """
        if self._first is not None:
            return self._first
        what = "of a run without its traces" if self._has_run_files else "without a .json in it"
        raise NotATraceError(f"an archive {what}", path=self._path)


def _is_not_a_trace(text: bytes) -> bool:
    """Whether a complete file is an object without events, or empty."""
    begin = text.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    return not begin or (begin == b"{" and b'"traceEvents"' not in text)


class Opened:
    """A trace, and the file around it, which may hold further ones.

    Args:
        trace: the reader of its JSON, or its events.
        names: the names of the archive's members after it.
        others: how many other traces are known that are not read, such as members before it.
        file: the complete archive, if its checksum comes after all members.
    """

    def __init__(self, trace: Trace, names: Iterable[str] = (), others: int = 0, file: Reader | None = None) -> None:
        self._names, self._others, self._file = names, others, file
        self.trace = trace

    def count_unread(self) -> int:
        """How many other traces the file may hold; call it after reading this one."""
        number = self._others
        # What comes after the trace may be damaged, or a decompression bomb: it is not needed.
        with suppress(Exception):
            for name in islice(self._names, MAX_MEMBERS):
                number += _is_trace_name(name) and not is_run_file(name)
        return number

    def checksum_error(self) -> str | None:
        """The error if the archive's checksum does not match; call it at the end, as the checksum comes last."""
        try:
            while self._file is not None and self._file.read(BLOCK_BYTES):
                pass
        except ChecksumError as error:
            return str(error)
        except Exception:
            return None  # damaged after the trace: there is no checksum to compare
        return None


class _Member:
    """An archive member. Errors of its format become one kind of error, which every later read raises again.

    Attributes:
        failed: the error.
    """

    def __init__(self, member: Reader) -> None:
        self._member = member
        self.failed: Exception | None = None

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes."""
        if self.failed is not None:
            raise self.failed
        try:
            return self._member.read(size)
        except (NotATraceError, ChecksumError) as error:
            self.failed = error
            raise
        except Exception as error:
            self.failed = ValueError(f"the archive is damaged: {error}")
            raise self.failed from error


def _decompressed_member(member: Reader, path: str) -> Trace:
    """A member that may be compressed itself; archives in archives are not opened."""
    start = _read_full(member, 4)
    start_again = Prefixed(start, member)
    if start.startswith(_PICKLES):
        raise _pickle(path)
    reader: Reader = start_again
    if start.startswith(GZIP):
        reader = Gunzip(start_again, path)
    elif start == ZSTD or start in _SKIPPED:
        reader = Unzstd(start_again, path)
    head = _read_full(reader, 512)
    start_again = Prefixed(head, reader)
    return _trace(head, start_again, path)


def _pickle(path: str) -> NotATraceError:
    return NotATraceError(
        "this is a pickle (a memory snapshot or a flight-recorder dump?), not a trace",
        path=path,
        hint="pickles are never loaded as traces; leave it out",
    )


class _AsFile(io.RawIOBase):
    """The part of a file object that tarfile's stream mode needs."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self._reader = reader
        self._failed: Exception | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes. What was read before an error is returned first."""
        parts, have = [], 0
        while have < size:
            try:
                data = self._next(size - have)
            except Exception as error:
                if not have:
                    raise
                self._failed = error
                break
            if not data:
                break
            parts.append(data)
            have += len(data)
        return b"".join(parts)

    def _next(self, size: int) -> bytes:
        if self._failed is not None:
            raise self._failed
        return self._reader.read(size)
