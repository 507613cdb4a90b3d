"""Open a trace wherever it lies, whatever it is packed in: by its content, never by its name.

Plain JSON, gzip (several members too), zstandard, and archives (tar in either, zip) whose member is the trace.
Archives are read as streams and nothing is unpacked to disk, so no path in them can lead anywhere.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import islice
from typing import IO, BinaryIO, Protocol, cast

import zstandard
from isal import isal_zlib

from rankscope.errors import NotATraceError, TraceError

BLOCK_BYTES = 1 << 20
# Traces shrink 10 to 30 times. What grows 300 times and beyond 64 MiB is no trace but a bomb.
MAX_RATIO = 300
FREE_BYTES = 64 << 20
MAX_MEMBERS = 10_000

_GZIP, _ZSTD, _ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
# A zstandard file may begin with a frame to be skipped: pzstd writes one before each of its own.
_SKIPPED = tuple(bytes([low]) + b"\x2a\x4d\x18" for low in range(0x50, 0x60))
# The longest zstandard frame of nothing: magic, header, an empty block, checksum.
_EMPTY_FRAME_BYTES = 4 + 14 + 3 + 4
_OTHER_PACKINGS = {b"\xfd7zX": "xz", b"BZh": "bzip2", b"\x04\x22\x4d\x18": "lz4", b"7z\xbc\xaf": "7z", b"Rar!": "rar"}
_DAMAGED = isal_zlib.error
# The most memory that one zstandard frame may ask for: what the zstd command grants without --long=28 and more.
_MAX_WINDOW = 1 << 27
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


class Reader(Protocol):
    """What can be read in pieces."""

    def read(self, size: int, /) -> bytes:
        """Up to so many bytes; nothing at the end."""
        ...


def is_url(path: str) -> bool:
    """Whether a path names something that fsspec must fetch (``s3://…``)."""
    return "://" in path and not path.startswith("file://")


@contextmanager
def open_trace(path: str) -> Iterator[Reader]:
    """The decompressed bytes of a trace.

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
            reader = _unpacked(raw, path, stack)
        except (OSError, ValueError, EOFError) as error:
            raise TraceError(f"cannot be read: {error}", path=path, hint="copy it again") from error
        yield reader


def open_raw(path: str) -> AbstractContextManager[BinaryIO]:
    """The bytes of a file as they lie there, on this machine or behind a URL.

    Raises:
        OSError, ImportError, ValueError: it cannot be opened.
    """
    if not is_url(path):
        return io.FileIO(path, "rb")
    # Only where it is needed: its import is a third of a worker's start.
    import fsspec

    opened: AbstractContextManager[BinaryIO] = fsspec.open(path, "rb")
    return opened


def _unpacked(raw: BinaryIO, path: str, stack: ExitStack) -> Reader:
    start = _read_full(raw, 4)
    if start.startswith(_ZIP):
        raw.seek(0)
        return _zip_member(raw, path, stack)
    if start.startswith(_PICKLES):
        raise _pickle(path)
    reader: Reader
    if start.startswith(_GZIP):
        reader = Gunzip(Prefixed(start, raw), path)
    elif start == _ZSTD or start in _SKIPPED:
        reader = Unzstd(Prefixed(start, raw), path)
    else:
        for magic, packing in _OTHER_PACKINGS.items():
            if start.startswith(magic):
                hint = "unpack it, or pack it with gzip, zstandard or zip"
                raise NotATraceError(f"packed with {packing}, which is not read", path=path, hint=hint)
        reader = Prefixed(start, raw)
    head = _read_full(reader, 512)
    whole = Prefixed(head, reader)
    return _tar_member(whole, path, stack) if head[257:262] == b"ustar" else whole


def _read_full(reader: Reader, size: int) -> bytes:
    parts, have = [], 0
    while have < size:
        try:
            data = reader.read(size - have)
        except (EOFError, OSError, ValueError):
            break  # said again, and dealt with, at the next read
        if not data:
            break
        parts.append(data)
        have += len(data)
    return b"".join(parts)


class Prefixed:
    """What was read already, then the rest."""

    def __init__(self, prefix: bytes, rest: Reader) -> None:
        self._prefix, self._rest = prefix, rest

    def read(self, size: int, /) -> bytes:
        """Up to so many bytes."""
        if self._prefix:
            data, self._prefix = self._prefix[:size], self._prefix[size:]
            return data
        return self._rest.read(size)


class _Bounded:
    """Counts what goes in and comes out, and stops at what no trace can be."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.taken = 0
        self.given = 0

    def count(self, given: int) -> None:
        self.given += given
        if self.given > FREE_BYTES and self.given > MAX_RATIO * max(self.taken, 1):
            raise _bomb(self._path)


class Gunzip(_Bounded):
    """Gzip members one after another; gives all that can be had of a file that breaks off."""

    def __init__(self, raw: Reader, path: str) -> None:
        super().__init__(path)
        self._raw = raw
        self._inflate = isal_zlib.decompressobj(wbits=31)
        self._pending = b""
        self._fresh = True

    def read(self, size: int, /) -> bytes:
        """Up to so many bytes.

        Raises:
            EOFError: the file ends inside a member.
            ValueError: it is damaged.
            NotATraceError: it grows beyond bounds.
        """
        while True:
            if self._inflate.eof:
                self._pending = self._next_member()
                if not self._pending.startswith(_GZIP[:1]):
                    return b""  # the end, or something after the last member that is none
                self._inflate = isal_zlib.decompressobj(wbits=31)
                self._fresh = True
            block = self._pending or self._raw_block()
            data = b"" if self._fresh and not block else self._inflated(block, size)
            if not data and not block:
                raise EOFError("the compressed file breaks off")
            self._fresh = False
            if data:
                self.count(len(data))
                return data

    def _inflated(self, block: bytes, size: int) -> bytes:
        """What a block unpacks to; without one, what the last one still held."""
        try:
            data: bytes = self._inflate.decompress(block, size)
        except _DAMAGED as error:  # type: ignore[misc]
            raise ValueError(f"the compressed file is damaged: {error}") from error
        self._pending = self._inflate.unconsumed_tail
        return data

    def _next_member(self) -> bytes:
        # Files that were given their size before they were filled, and tapes, are padded with zeros.
        rest = self._inflate.unused_data or self._raw_block()
        while rest and not rest.strip(b"\0"):
            rest = self._raw_block()
        return rest.lstrip(b"\0")

    def _raw_block(self) -> bytes:
        block = self._raw.read(BLOCK_BYTES)
        self.taken += len(block)
        return block


class Unzstd(_Bounded):
    """Zstandard frames one after another."""

    def __init__(self, raw: Reader, path: str) -> None:
        super().__init__(path)
        self._raw = raw
        source = _Counted(raw, self)
        self._stream = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(
            cast("IO[bytes]", source), read_across_frames=True
        )

    def read(self, size: int, /) -> bytes:
        """Up to so many bytes.

        Raises:
            ValueError: it is damaged, or breaks off before anything of it can be had.
            NotATraceError: it grows beyond bounds.
        """
        try:
            data = self._stream.read(size)
        except zstandard.ZstdError as error:
            raise ValueError(f"the compressed file is damaged: {error}") from error
        if not data and not self.given and self.taken > _EMPTY_FRAME_BYTES:
            # A frame comes block by block, and not even its first is whole.
            raise ValueError("the compressed file breaks off")
        self.count(len(data))
        return data


class _Counted:
    def __init__(self, raw: Reader, bounds: _Bounded) -> None:
        self._raw, self._bounds = raw, bounds

    def read(self, size: int = -1, /) -> bytes:
        data = self._raw.read(size if size > 0 else BLOCK_BYTES)
        self._bounds.taken += len(data)
        return data


def _is_trace_name(name: str) -> bool:
    return ".json" in name.lower() and not name.rsplit("/", 1)[-1].startswith(".")


def _tar_member(reader: Reader, path: str, stack: ExitStack) -> Reader:
    try:
        archive = stack.enter_context(tarfile.open(fileobj=_AsFile(reader), mode="r|", bufsize=BLOCK_BYTES))  # noqa: SIM115 (the stack does)
        members = iter(archive)
        for count, member in enumerate(members):
            if member.isreg() and _is_trace_name(member.name):
                found = archive.extractfile(member)
                if found is not None:
                    names = (each.name if each.isreg() else "" for each in members)
                    return Archived(_unpacked_member(cast("Reader", found), path), names)
            if count >= MAX_MEMBERS:
                break
    except NotATraceError:
        raise
    except (tarfile.TarError, EOFError, ValueError, OSError) as error:
        raise TraceError(f"the archive cannot be read: {error}", path=path, hint="copy it again") from error
    raise NotATraceError("an archive without a .json in it", path=path)


def _zip_member(raw: BinaryIO, path: str, stack: ExitStack) -> Reader:
    try:
        archive = stack.enter_context(zipfile.ZipFile(raw))
        members = [info for info in archive.infolist()[:MAX_MEMBERS] if _is_trace_name(info.filename)]
        if not members:
            raise NotATraceError("an archive without a .json in it", path=path)
        member = members[0]
        if member.file_size > FREE_BYTES and member.file_size > MAX_RATIO * max(member.compress_size, 1):
            raise _bomb(path)
        opened = stack.enter_context(archive.open(member))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise TraceError(f"the archive cannot be read: {error}", path=path, hint="copy it again") from error
    return Archived(_unpacked_member(cast("Reader", opened), path), (each.filename for each in members[1:]))


class Archived:
    """A trace that lies in an archive, where others may lie as well."""

    def __init__(self, trace: Reader, names: Iterator[str]) -> None:
        self._names = names
        self.read = trace.read

    def others(self) -> int:
        """How many files in the archive are called as traces are and were not read; to be asked when this one was."""
        number = 0
        # What lies behind the trace may be damaged, or a bomb: none of it is wanted.
        with suppress(Exception):
            for name in islice(self._names, MAX_MEMBERS):
                number += _is_trace_name(name)
        return number


class _Member:
    """A member of an archive. Whatever its format raises over damage becomes one kind of error."""

    def __init__(self, member: Reader) -> None:
        self._member = member

    def read(self, size: int, /) -> bytes:
        """Up to so many bytes."""
        try:
            return self._member.read(size)
        except NotATraceError:
            raise
        except Exception as error:
            raise ValueError(f"the archive is damaged: {error}") from error


def _unpacked_member(opened: Reader, path: str) -> Reader:
    """A member may be gzipped itself; archives in archives are not opened."""
    member = _Member(opened)
    start = _read_full(member, 4)
    whole = Prefixed(start, member)
    if start.startswith(_PICKLES):
        raise _pickle(path)
    if start.startswith(_GZIP):
        return Gunzip(whole, path)
    if start == _ZSTD or start in _SKIPPED:
        return Unzstd(whole, path)
    return whole


def _bomb(path: str) -> NotATraceError:
    return NotATraceError(
        f"it unpacks to more than {MAX_RATIO} times its size: no trace does",
        path=path,
        hint="leave it out; if it is a trace all the same, unpack it yourself",
    )


def _pickle(path: str) -> NotATraceError:
    return NotATraceError(
        "this is a pickle (a memory snapshot or a flight-recorder dump?), not a trace",
        path=path,
        hint="pickles are never loaded as traces; leave it out",
    )


class _AsFile(io.RawIOBase):
    """The little of a file that tarfile's stream mode wants."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self._reader = reader

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        parts, have = [], 0
        while have < size:
            data = self._reader.read(size - have)
            if not data:
                break
            parts.append(data)
            have += len(data)
        return b"".join(parts)
