"""Decompress a trace in pieces: what comes before a cut, damage or a wrong checksum is returned.

A decompressor that verifies while it reads raises instead of returning what it has, which can be all of a small file.
So the checksums of gzip and zip are verified here, after their data was returned, and the last bytes of a zstandard
file, which are its checksum, are passed on separately.

In: compressed bytes. Out: decompressed bytes, then an error if the file is damaged.
"""

from __future__ import annotations

from typing import IO, Protocol, cast

import zstandard
from isal import isal_zlib

from rankscope.errors import NotATraceError
from rankscope.rundir.archives import FREE_BYTES, GZIP, MAX_RATIO

BLOCK_BYTES = 1 << 20
# Damage in the middle loses what one call would have returned: so much. More than a block of zstandard.
_PIECE_BYTES = 256 << 10
# Each call copies what is not decompressed yet: enough for some pieces.
_PACKED_BYTES = 128 << 10
# Flags of a gzip member's header (RFC 1952).
_HEADER_CRC, _EXTRA, _NAME, _COMMENT, _RESERVED = 2, 4, 8, 16, 0xE0
_FIXED_HEADER_BYTES, _TRAILER_BYTES = 10, 8
_MAX_HEADER_BYTES = 1 << 20
# The longest empty zstandard frame: magic, header, an empty block, checksum.
_EMPTY_FRAME_BYTES = 4 + 14 + 3 + 4
_ZSTD_CHECKSUM_BYTES = 4
_DAMAGED = isal_zlib.error
# The most memory that one zstandard frame may request: the limit of the zstd command without --long=28 or more.
_MAX_WINDOW = 1 << 27


class ChecksumError(ValueError):
    """The data was decompressed completely, but does not match its checksum."""


class Reader(Protocol):
    """Data that is read in pieces."""

    def read(self, size: int, /) -> bytes:
        """Up to so many bytes; empty at the end."""
        ...


class Prefixed:
    """Data that was already read, then the rest."""

    def __init__(self, prefix: bytes, rest: Reader) -> None:
        self._prefix, self._rest = prefix, rest

    def read(self, size: int, /) -> bytes:
        """Up to so many bytes."""
        if self._prefix:
            data, self._prefix = self._prefix[:size], self._prefix[size:]
            return data
        return self._rest.read(size)


class Checked:
    """Data with a checksum that is known in advance."""

    def __init__(self, raw: Reader, crc: int) -> None:
        self._raw, self._wanted, self._crc = raw, crc, 0

    def read(self, size: int, /) -> bytes:
        """Up to so many bytes.

        Raises:
            ChecksumError: all is read, and the checksum does not match.
        """
        data = self._raw.read(min(size, _PIECE_BYTES))
        self._crc = isal_zlib.crc32(data, self._crc)
        if not data and self._crc != self._wanted:
            raise _checksum_error()
        return data


class _Bounded:
    """Counts bytes in and out, and stops at a decompression bomb. What failed once fails again."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.taken = 0
        self.given = 0
        self._failed: ValueError | None = None

    def _next(self, size: int) -> bytes:
        """Up to so many bytes of the format."""
        raise NotImplementedError

    def _some(self, size: int) -> bytes:
        """The next bytes, or the error of the previous call: reading the head of a file may have met it."""
        if self._failed is not None:
            raise self._failed
        try:
            return self._next(size)
        except ValueError as error:
            self._failed = error
            raise

    def count(self, given: int) -> None:
        self.given += given
        if self.given > FREE_BYTES and self.given > MAX_RATIO * max(self.taken, 1):
            raise bomb(self._path)


class Gunzip(_Bounded):
    """Gzip members in sequence; returns all that can be read of a file that is cut."""

    def __init__(self, raw: Reader, path: str) -> None:
        super().__init__(path)
        self._raw = raw
        self._pending = b""
        self._inflate: isal_zlib.Decompress | None = None
        self._crc = self._size = 0
        self._ended = self._other = False

    def read(self, size: int, /) -> bytes:
        """Up to so many bytes.

        Raises:
            EOFError: the file ends inside a member.
            ValueError: it is damaged.
            ChecksumError: all of it is read, and a member's checksum does not match.
            NotATraceError: it is a decompression bomb.
        """
        return self._some(min(size, _PIECE_BYTES))

    def _next(self, size: int) -> bytes:
        while not self._ended:
            if self._inflate is None:
                self._begin_member()
                self._inflate = isal_zlib.decompressobj(wbits=-15)
            if data := self._inflated(self._inflate, size):
                self.count(len(data))
                return data
            if self._inflate.eof:
                self._end_member(self._inflate.unused_data)
                self._inflate = None
        if self._other:
            raise _checksum_error()
        return b""

    def _inflated(self, inflate: isal_zlib.Decompress, size: int) -> bytes:
        """The next data of a member; empty at its end."""
        while not inflate.eof:
            block = self._pending or self._block()
            try:
                # Without a block: what is left of the last one.
                data: bytes = inflate.decompress(block, size)
            except _DAMAGED as error:  # type: ignore[misc]  # isal has no types
                raise ValueError(f"the compressed file is damaged: {error}") from error
            self._pending = inflate.unconsumed_tail
            if data:
                self._crc = isal_zlib.crc32(data, self._crc)
                self._size += len(data)
                return data
            if not block:
                raise EOFError("the compressed file is cut off")
        return b""

    def _begin_member(self) -> None:
        self._crc = self._size = 0
        while (length := _header_bytes(self._pending)) is None:
            self._more("the compressed file is cut off")
        self._pending = self._pending[length:]

    def _end_member(self, rest: bytes) -> None:
        """Verify a member, and look for the next."""
        self._pending = rest
        while len(self._pending) < _TRAILER_BYTES:
            self._more("the compressed file is cut off")
        trailer, rest = self._pending[:_TRAILER_BYTES], self._pending[_TRAILER_BYTES:]
        # Files that were allocated before they were written, and tapes, are padded with zeros.
        rest = rest or self._block()
        while rest and not rest.strip(b"\0"):
            rest = self._block()
        self._pending = rest.lstrip(b"\0")
        # The end, or something after the last member that is not a member.
        self._ended = not self._pending.startswith(GZIP[:1])
        crc, size = int.from_bytes(trailer[:4], "little"), int.from_bytes(trailer[4:], "little")
        # Raised at the end: the members after it may be good.
        self._other |= crc != self._crc or size != self._size & 0xFFFFFFFF

    def _more(self, otherwise: str) -> None:
        block = self._block()
        if not block:
            raise EOFError(otherwise)
        self._pending += block

    def _block(self) -> bytes:
        block = self._raw.read(_PACKED_BYTES)
        self.taken += len(block)
        return block


def _header_bytes(data: bytes) -> int | None:
    """The length of the header of a gzip member; None if more data is needed.

    Raises:
        ValueError: it is not one.
    """
    if len(data) < _FIXED_HEADER_BYTES:
        return None
    flags, end = data[3], _FIXED_HEADER_BYTES
    if data[:3] != GZIP + b"\x08" or flags & _RESERVED or len(data) > _MAX_HEADER_BYTES:
        raise ValueError("the compressed file is damaged: a gzip header is missing")
    if flags & _EXTRA:
        end += 2 + int.from_bytes(data[end : end + 2], "little")
    for flag in (_NAME, _COMMENT):
        if flags & flag:
            zero = data.find(b"\0", end)
            if zero < 0:
                return None
            end = zero + 1
    if flags & _HEADER_CRC:
        end += 2
    return end if end <= len(data) else None


class Unzstd(_Bounded):
    """Zstandard frames in sequence."""

    def __init__(self, raw: Reader, path: str) -> None:
        super().__init__(path)
        self._held = b""
        source = _LastBytesApart(raw, self)
        self._stream = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(
            cast("IO[bytes]", source), read_across_frames=True
        )

    def read(self, size: int, /) -> bytes:
        """Up to so many bytes.

        Raises:
            ValueError: it is damaged, or cut before its first block ends.
            ChecksumError: its last frame's checksum does not match.
            NotATraceError: it is a decompression bomb.
        """
        if not self._held:
            # If the file is cut after a block, what is not read of that block at once is lost.
            self._held = self._some(_PIECE_BYTES)
        data, self._held = self._held[:size], self._held[size:]
        return data

    def _next(self, size: int) -> bytes:
        try:
            data = self._stream.read1(size)
        except zstandard.ZstdError as error:
            if "checksum" in str(error):
                raise _checksum_error() from error
            raise ValueError(f"the compressed file is damaged: {error}") from error
        if not data and not self.given and self.taken > _EMPTY_FRAME_BYTES:
            # A frame comes in blocks, and not even the first is complete.
            raise ValueError("the compressed file is cut off")
        self.count(len(data))
        return data


class _LastBytesApart:
    """A file that returns its last bytes, the checksum of a zstandard frame, in separate calls.

    Before the first of them the decompressor returns what it still has; with the last it verifies.
    """

    def __init__(self, raw: Reader, bounds: _Bounded) -> None:
        self._raw, self._bounds, self._held = raw, bounds, b""

    def read(self, size: int = -1, /) -> bytes:
        while data := self._raw.read(min(size, _PACKED_BYTES) if size > 0 else _PACKED_BYTES):
            self._bounds.taken += len(data)
            joined = self._held + data
            given, self._held = joined[:-_ZSTD_CHECKSUM_BYTES], joined[-_ZSTD_CHECKSUM_BYTES:]
            if given:
                return given
        given, self._held = self._held[:1], self._held[1:]
        return given


def _checksum_error() -> ChecksumError:
    return ChecksumError("the compressed file is damaged: its checksum does not match")


def bomb(path: str) -> NotATraceError:
    """The error for a file that is a decompression bomb."""
    return NotATraceError(
        f"it decompresses to more than {MAX_RATIO} times its size, which no trace does",
        path=path,
        hint="leave it out; if it is a trace nevertheless, decompress it yourself",
    )
