"""Decompress a trace in pieces: what comes out before a file breaks off, is damaged, or fails its checksum is given.

A decompressor that verifies while it reads raises instead of giving what it had in hands, up to the whole of a small
file. So the checksums of gzip and zip are verified here, behind the data that they are of, and the end of a zstandard
file, where its checksum lies, is handed over by itself.
"""

from __future__ import annotations

from typing import IO, Protocol, cast

import zstandard
from isal import isal_zlib

from rankscope.errors import NotATraceError

BLOCK_BYTES = 1 << 20
# What is damaged in its midst loses what one call would have given: so much of it. More than a block of zstandard.
_PIECE_BYTES = 256 << 10
# What is not unpacked yet is copied by each call: as much as fills some pieces.
_PACKED_BYTES = 128 << 10
# Traces shrink 10 to 30 times. What grows 300 times and beyond 64 MiB is no trace but a bomb.
MAX_RATIO = 300
FREE_BYTES = 64 << 20

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# Flags of a gzip member's header (RFC 1952).
_HEADER_CRC, _EXTRA, _NAME, _COMMENT, _RESERVED = 2, 4, 8, 16, 0xE0
_FIXED_HEADER_BYTES, _TRAILER_BYTES = 10, 8
_MAX_HEADER_BYTES = 1 << 20
# The longest zstandard frame of nothing: magic, header, an empty block, checksum.
_EMPTY_FRAME_BYTES = 4 + 14 + 3 + 4
_ZSTD_CHECKSUM_BYTES = 4
_DAMAGED = isal_zlib.error
# The most memory that one zstandard frame may ask for: what the zstd command grants without --long=28 and more.
_MAX_WINDOW = 1 << 27


class ChecksumError(ValueError):
    """All of it came out, but it is not what was packed."""


class Reader(Protocol):
    """What can be read in pieces."""

    def read(self, size: int, /) -> bytes:
        """Up to so many bytes; nothing at the end."""
        ...


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


class Checked:
    """Data whose checksum is known before."""

    def __init__(self, raw: Reader, crc: int) -> None:
        self._raw, self._wanted, self._crc = raw, crc, 0

    def read(self, size: int, /) -> bytes:
        """Up to so many bytes.

        Raises:
            ChecksumError: all is read, and its checksum is another.
        """
        data = self._raw.read(min(size, _PIECE_BYTES))
        self._crc = isal_zlib.crc32(data, self._crc)
        if not data and self._crc != self._wanted:
            raise _other_checksum()
        return data


class _Bounded:
    """Counts what goes in and comes out, and stops at what no trace can be. What failed once fails again."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.taken = 0
        self.given = 0
        self._failed: ValueError | None = None

    def _next(self, size: int) -> bytes:
        """Up to so many bytes, as the format has them."""
        raise NotImplementedError

    def _some(self, size: int) -> bytes:
        """The next bytes, or what was wrong when they were last asked for: a look at a file's head may have met it."""
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
    """Gzip members one after another; gives all that can be had of a file that breaks off."""

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
            ChecksumError: all of it is read, and a member's checksum is another.
            NotATraceError: it grows beyond bounds.
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
            raise _other_checksum()
        return b""

    def _inflated(self, inflate: isal_zlib.Decompress, size: int) -> bytes:
        """The next of a member; nothing at its end."""
        while not inflate.eof:
            block = self._pending or self._block()
            try:
                # Without a block, what the last one still held.
                data: bytes = inflate.decompress(block, size)
            except _DAMAGED as error:  # type: ignore[misc]
                raise ValueError(f"the compressed file is damaged: {error}") from error
            self._pending = inflate.unconsumed_tail
            if data:
                self._crc = isal_zlib.crc32(data, self._crc)
                self._size += len(data)
                return data
            if not block:
                raise EOFError("the compressed file breaks off")
        return b""

    def _begin_member(self) -> None:
        self._crc = self._size = 0
        while (length := _header_bytes(self._pending)) is None:
            self._more("the compressed file breaks off")
        self._pending = self._pending[length:]

    def _end_member(self, rest: bytes) -> None:
        """Verify what a member gave, and look for the next."""
        self._pending = rest
        while len(self._pending) < _TRAILER_BYTES:
            self._more("the compressed file breaks off")
        trailer, rest = self._pending[:_TRAILER_BYTES], self._pending[_TRAILER_BYTES:]
        # Files that were given their size before they were filled, and tapes, are padded with zeros.
        rest = rest or self._block()
        while rest and not rest.strip(b"\0"):
            rest = self._block()
        self._pending = rest.lstrip(b"\0")
        # The end, or something after the last member that is none.
        self._ended = not self._pending.startswith(GZIP[:1])
        crc, size = int.from_bytes(trailer[:4], "little"), int.from_bytes(trailer[4:], "little")
        # Told at the end: the members behind it may be good.
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
    """How long the header of a gzip member is; None where more of it is needed to know.

    Raises:
        ValueError: it is none.
    """
    if len(data) < _FIXED_HEADER_BYTES:
        return None
    flags, end = data[3], _FIXED_HEADER_BYTES
    if data[:3] != GZIP + b"\x08" or flags & _RESERVED or len(data) > _MAX_HEADER_BYTES:
        raise ValueError("the compressed file is damaged: it has no gzip header where one must be")
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
    """Zstandard frames one after another."""

    def __init__(self, raw: Reader, path: str) -> None:
        super().__init__(path)
        self._held = b""
        source = _EndApart(raw, self)
        self._stream = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(
            cast("IO[bytes]", source), read_across_frames=True
        )

    def read(self, size: int, /) -> bytes:
        """Up to so many bytes.

        Raises:
            ValueError: it is damaged, or breaks off before anything of it can be had.
            ChecksumError: its last frame's checksum is another.
            NotATraceError: it grows beyond bounds.
        """
        if not self._held:
            # Where the file breaks off behind a block, what of it is not taken at once is never given.
            self._held = self._some(_PIECE_BYTES)
        data, self._held = self._held[:size], self._held[size:]
        return data

    def _next(self, size: int) -> bytes:
        try:
            data = self._stream.read1(size)
        except zstandard.ZstdError as error:
            if "checksum" in str(error):
                raise _other_checksum() from error
            raise ValueError(f"the compressed file is damaged: {error}") from error
        if not data and not self.given and self.taken > _EMPTY_FRAME_BYTES:
            # A frame comes block by block, and not even its first is whole.
            raise ValueError("the compressed file breaks off")
        self.count(len(data))
        return data


class _EndApart:
    """A file whose last bytes, where a zstandard frame has its checksum, come one by one.

    Before the first of them is taken, the decompressor gives what it still holds; with the last it verifies.
    """

    def __init__(self, raw: Reader, bounds: _Bounded) -> None:
        self._raw, self._bounds, self._held = raw, bounds, b""

    def read(self, size: int = -1, /) -> bytes:
        while data := self._raw.read(min(size, _PACKED_BYTES) if size > 0 else _PACKED_BYTES):
            self._bounds.taken += len(data)
            whole = self._held + data
            given, self._held = whole[:-_ZSTD_CHECKSUM_BYTES], whole[-_ZSTD_CHECKSUM_BYTES:]
            if given:
                return given
        given, self._held = self._held[:1], self._held[1:]
        return given


def _other_checksum() -> ChecksumError:
    return ChecksumError("the compressed file is damaged: what came out of it is not what its checksum is of")


def bomb(path: str) -> NotATraceError:
    """What to say of a file that grows beyond bounds."""
    return NotATraceError(
        f"it unpacks to more than {MAX_RATIO} times its size: no trace does",
        path=path,
        hint="leave it out; if it is a trace all the same, unpack it yourself",
    )
