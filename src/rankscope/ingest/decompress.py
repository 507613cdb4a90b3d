"""Decompress a trace in pieces, and return all data before a cut, damage or a wrong checksum.

A decompressor that verifies while it reads raises an error instead of returning what it has, which can be all of a
small file. So the checksums of gzip and zip are verified here after their data was returned, and the last bytes of a
zstandard file, its checksum, are passed to the decompressor separately.

In: compressed bytes. Out: decompressed bytes, then an error if the file is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Protocol, cast

import zstandard
from isal import isal_zlib

from rankscope.errors import NotATraceError
from rankscope.rundir.archives import FREE_BYTES, GZIP, MAX_RATIO

BLOCK_BYTES = 1 << 20
# The most that one call returns, and so the most that damage in the middle loses. More than a block of zstandard.
_PIECE_BYTES = 256 << 10
# Each call copies what is not decompressed yet, so this is only enough for a few pieces.
_PACKED_BYTES = 128 << 10
# Flags of a gzip member's header (RFC 1952).
_HEADER_CRC, _EXTRA, _NAME, _COMMENT, _RESERVED = 2, 4, 8, 16, 0xE0
_FIXED_HEADER_BYTES, _TRAILER_BYTES = 10, 8
_MAX_HEADER_BYTES = 1 << 20
# The longest empty zstandard frame: magic, header, an empty block, checksum.
_EMPTY_FRAME_BYTES = 4 + 14 + 3 + 4
_ZSTD_CHECKSUM_BYTES = 4
_CUT = "the compressed file is cut off"
# The most memory that one zstandard frame may request: the limit of the zstd command without --long=28 or more.
_MAX_WINDOW = 1 << 27


class ChecksumError(ValueError):
    """The data was decompressed completely, but does not match its checksum."""


class Reader(Protocol):
    """Data that is read in pieces."""

    def read(self, size: int, /) -> bytes:
        """At most this many bytes; empty at the end."""
        ...


class Prefixed:
    """Data that was already read, followed by the rest of a reader."""

    def __init__(self, prefix: bytes, rest: Reader) -> None:
        self._prefix, self._rest = prefix, rest

    def read(self, size: int, /) -> bytes:
        """At most this many bytes."""
        if self._prefix:
            data, self._prefix = self._prefix[:size], self._prefix[size:]
            return data
        return self._rest.read(size)


class Pieces:
    """Data that is made piece by piece while it is read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._left = pieces, b""

    def read(self, size: int, /) -> bytes:
        """At most this many bytes."""
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._left = piece
        data, self._left = self._left[:size], self._left[size:]
        return data


class Checked:
    """Data with a checksum known in advance, verified at the end."""

    def __init__(self, raw: Reader, crc: int) -> None:
        self._raw, self._wanted, self._crc = raw, crc, 0

    def read(self, size: int, /) -> bytes:
        """At most this many bytes.

        Raises:
            ChecksumError: all is read, and the checksum does not match.
        """
        data = self._raw.read(min(size, _PIECE_BYTES))
        self._crc = isal_zlib.crc32(data, self._crc)
        if not data and self._crc != self._wanted:
            raise _checksum_error()
        return data


class _Bounded:
    """Counts bytes in and out, and stops at a decompression bomb. After an error every call raises it again."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.bytes_in = 0
        self.bytes_out = 0
        self._failed: ValueError | None = None

    def _next(self, size: int) -> bytes:
        """At most this many bytes of the format."""
        raise NotImplementedError

    def _next_or_error(self, size: int) -> bytes:
        """The next bytes, or the error of an earlier call, which only read the head of the file."""
        if self._failed is not None:
            raise self._failed
        try:
            return self._next(size)
        except ValueError as error:
            self._failed = error
            raise

    def count(self, size: int) -> None:
        self.bytes_out += size
        if self.bytes_out > FREE_BYTES and self.bytes_out > MAX_RATIO * max(self.bytes_in, 1):
            raise bomb(self._path)


class Gunzip(_Bounded):
    """Gzip members in sequence; returns all that can be read of a file that is cut."""

    def __init__(self, raw: Reader, path: str) -> None:
        super().__init__(path)
        self._raw = raw
        self._pending = b""
        self._inflate: isal_zlib.Decompress | None = None
        self._crc = self._size = 0
        self._ended = self._checksum_failed = False

    def read(self, size: int, /) -> bytes:
        """At most this many bytes.

        Raises:
            EOFError: the file ends inside a member.
            ValueError: it is damaged.
            ChecksumError: all of it is read, and a member's checksum does not match.
            NotATraceError: it is a decompression bomb.
        """
        return self._next_or_error(min(size, _PIECE_BYTES))

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
        if self._checksum_failed:
            raise _checksum_error()
        return b""

    def _inflated(self, inflate: isal_zlib.Decompress, size: int) -> bytes:
        """The next data of a member; empty at its end."""
        while not inflate.eof:
            block = self._pending or self._block()
            try:
                # At the end of the file the block is empty, and the decompressor returns what it still has.
                data: bytes = inflate.decompress(block, size)
            except isal_zlib.error as error:  # type: ignore[misc]  # isal has no types
                raise ValueError(f"the compressed file is damaged: {error}") from error
            self._pending = inflate.unconsumed_tail
            if data:
                self._crc = isal_zlib.crc32(data, self._crc)
                self._size += len(data)
                return data
            if not block:
                raise EOFError(_CUT)
        return b""

    def _begin_member(self) -> None:
        self._crc = self._size = 0
        while (length := _header_bytes(self._pending)) is None:
            self._extend_pending()
        self._pending = self._pending[length:]

    def _end_member(self, rest: bytes) -> None:
        """Verify a member, and look for the next."""
        self._pending = rest
        while len(self._pending) < _TRAILER_BYTES:
            self._extend_pending()
        trailer, rest = self._pending[:_TRAILER_BYTES], self._pending[_TRAILER_BYTES:]
        # Files that were allocated before they were written, and tapes, are padded with zeros.
        rest = rest or self._block()
        while rest and not rest.strip(b"\0"):
            rest = self._block()
        self._pending = rest.lstrip(b"\0")
        # The end of the file, or data after the last member.
        self._ended = not self._pending.startswith(GZIP[:1])
        crc, size = int.from_bytes(trailer[:4], "little"), int.from_bytes(trailer[4:], "little")
        # Raised at the end: later members may be good.
        self._checksum_failed |= crc != self._crc or size != self._size & 0xFFFFFFFF

    def _extend_pending(self) -> None:
        block = self._block()
        if not block:
            raise EOFError(_CUT)
        self._pending += block

    def _block(self) -> bytes:
        block = self._raw.read(_PACKED_BYTES)
        self.bytes_in += len(block)
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
        source = _ChecksumSeparately(raw, self)
        self._stream = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(
            cast("IO[bytes]", source), read_across_frames=True
        )

    def read(self, size: int, /) -> bytes:
        """At most this many bytes.

        Raises:
            ValueError: it is damaged, or cut before its first block ends.
            ChecksumError: its last frame's checksum does not match.
            NotATraceError: it is a decompression bomb.
        """
        if not self._held:
            # If the file is cut after a block, what one call does not read of that block is lost.
            self._held = self._next_or_error(_PIECE_BYTES)
        data, self._held = self._held[:size], self._held[size:]
        return data

    def _next(self, size: int) -> bytes:
        try:
            data = self._stream.read1(size)
        except zstandard.ZstdError as error:
            if "checksum" in str(error):
                raise _checksum_error() from error
            raise ValueError(f"the compressed file is damaged: {error}") from error
        if not data and not self.bytes_out and self.bytes_in > _EMPTY_FRAME_BYTES:
            # A frame consists of blocks, and not even the first is complete.
            raise ValueError(_CUT)
        self.count(len(data))
        return data


class _ChecksumSeparately:
    """A file that returns its last bytes, the checksum of a zstandard frame, in separate calls.

    The decompressor returns all its data before the first of these bytes, and verifies at the last.
    """

    def __init__(self, raw: Reader, bounds: _Bounded) -> None:
        self._raw, self._bounds, self._held = raw, bounds, b""

    def read(self, size: int = -1, /) -> bytes:
        while data := self._raw.read(min(size, _PACKED_BYTES) if size > 0 else _PACKED_BYTES):
            self._bounds.bytes_in += len(data)
            joined = self._held + data
            data, self._held = joined[:-_ZSTD_CHECKSUM_BYTES], joined[-_ZSTD_CHECKSUM_BYTES:]
            if data:
                return data
        data, self._held = self._held[:1], self._held[1:]
        return data


def _checksum_error() -> ChecksumError:
    return ChecksumError("the compressed file is damaged: its checksum does not match")


def bomb(path: str) -> NotATraceError:
    """The error for a file that is a decompression bomb."""
    return NotATraceError(
        f"it decompresses to more than {MAX_RATIO} times its size, which no trace does",
        path=path,
        hint="leave it out; if it is a trace nevertheless, decompress it yourself",
    )
