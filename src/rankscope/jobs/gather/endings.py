"""Is a trace file complete? A check of its end, without parsing it, for files whose length no manifest has.

Plain JSON: by its last bytes, where the bracket that closes last must be the one that opened first. Zstandard: by the
lengths of its blocks, which are skipped (RFC 8878, section 3.1). Zip: by the directory at its end. Deflate has no
lengths: a gzip is decompressed in constant memory and discarded, which takes a fraction of the time of reading it.
Perfetto's traces: by the lengths of their packets.

In: a file. Out: whether it is complete.
"""

from __future__ import annotations

import gzip
import mmap
import os
import zipfile
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from rankscope.rundir.names import PERFETTO_SUFFIXES

_TAIL = 1 << 16
"""Bytes at the end that are looked at: more than any event has."""
_CHUNK = 1 << 20
_MAGIC = b"\x28\xb5\x2f\xfd"
_CLOSES = {ord("}"): ord("{"), ord("]"): ord("[")}
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_BLANK = b" \t\r\n\0"
_PACKET = 0x0A
"""The tag of a packet in Perfetto's format."""
_CUT_DATA = "it is truncated: its compressed data ends too early"


def wrong_ends(paths: Iterable[Path]) -> dict[Path, str]:
    """Files that are incomplete or damaged, with what is wrong; several are checked at once.

    Args:
        paths: traces: ``.json``, ``.json.gz``, ``.json.zst``, ``.tar.gz``, ``.tar.zst``, ``.zip``, ``.pftrace``.
    """
    every = list(paths)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return {path: wrong for path, wrong in zip(every, pool.map(wrong_end, every), strict=True) if wrong}


def wrong_end(path: Path) -> str | None:
    """What is wrong with a file that is incomplete or damaged; None if it is neither."""
    try:
        with path.open("rb") as file:
            if not file.read(1):
                return "it is empty"
            file.seek(0)
            if path.name.endswith((".zst", ".zstd")):
                return _zstd(file, path.stat().st_size)
            if path.name.endswith((".gz", ".tgz")):
                return _gzip(file, json=path.name.endswith(".json.gz"))
            if path.name.endswith(".zip"):
                # Its directory comes last.
                return None if zipfile.is_zipfile(file) else "it is cut: its directory is missing"
            if path.name.endswith(PERFETTO_SUFFIXES):
                return _perfetto(file)
            return _json(file, path.stat().st_size)
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"


def _json(file: BinaryIO, size: int) -> str | None:
    start = file.read(_TAIL)
    file.seek(max(0, size - _TAIL))
    return _closed(start, file.read(_TAIL), whole=size <= _TAIL)


def _gzip(file: BinaryIO, *, json: bool) -> str | None:
    start, tail, total = b"", b"", 0
    try:
        with gzip.GzipFile(fileobj=file) as unpacked:
            while chunk := unpacked.read(_CHUNK):
                start = start or chunk[:_TAIL]
                total += len(chunk)
                tail = (tail + chunk)[-_TAIL:]
    except EOFError:
        return _CUT_DATA
    except (gzip.BadGzipFile, zlib.error) as error:
        return f"it is damaged: {error}"
    if not total:
        return "it is empty"
    return _closed(start, tail, whole=total <= _TAIL) if json else None


def _zstd(file: BinaryIO, size: int) -> str | None:
    cut = _CUT_DATA
    frames = 0
    while magic := file.read(4):
        if len(magic) < 4:
            return cut
        if magic[1:] == b"\x2a\x4d\x18" and magic[0] >> 4 == 5:  # a skippable frame
            length = file.read(4)
            if len(length) < 4:
                return cut
            file.seek(int.from_bytes(length, "little"), os.SEEK_CUR)
        elif magic != _MAGIC:
            return "it is damaged: not a Zstandard frame"
        else:
            frames += 1
            wrong = _zstd_frame(file, size)
            if wrong is not None:
                return cut if wrong == "" else wrong
        if file.tell() > size:
            return cut
    return None if frames else "it is empty"


def _zstd_frame(file: BinaryIO, size: int) -> str | None:
    """Pass over a frame's blocks; "" if they end too early."""
    descriptor = file.read(1)
    if not descriptor:
        return ""
    flags = descriptor[0]
    single = flags >> 5 & 1
    window = 0 if single else 1
    content = (1 if single else 0, 2, 4, 8)[flags >> 6]
    file.seek(window + (0, 1, 2, 4)[flags & 3] + content, os.SEEK_CUR)
    while True:
        header = file.read(3)
        if len(header) < 3:
            return ""
        block = int.from_bytes(header, "little")
        last, kind, length = block & 1, block >> 1 & 3, block >> 3
        if kind == 3:
            return "it is damaged: an invalid Zstandard block"
        file.seek(1 if kind == 1 else length, os.SEEK_CUR)
        if file.tell() > size:
            return ""
        if last:
            file.seek(4 if flags >> 2 & 1 else 0, os.SEEK_CUR)  # the checksum
            return None


def _perfetto(file: BinaryIO) -> str | None:
    """Skip the packets, each a tag, a length and that many bytes."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at, size = 0, len(content)
        while at < size:
            if content[at] != _PACKET:
                return f"it is damaged: no packet begins at byte {at:,}"
            length, shift = 0, 0
            while (at := at + 1) < size:
                length |= (content[at] & 0x7F) << shift
                shift += 7
                if content[at] < 0x80:
                    break
            at += 1 + length
    return None if at == size else "it is truncated: its last packet ends too early"


def _closed(start: bytes, tail: bytes, *, whole: bool) -> str | None:
    """What is wrong where the last bracket of a text does not close its first.

    Args:
        start: the beginning of the text.
        tail: its end.
        whole: whether that is all of it.
    """
    text = tail.rstrip(_BLANK)
    if not text:
        return "it is empty"
    first = start.lstrip(_BLANK + b"\xef\xbb\xbf")
    # Both are of one kind, and the opening one is at the beginning of the text, or too far away to be seen.
    if first and _CLOSES.get(text[-1]) == first[0]:
        opened = _opening(text)
        if opened == (len(start) - len(first) if whole else None):
            return None
    return "it is truncated: its JSON ends too early"


def _opening(text: bytes) -> int | None:
    """Where the bracket opens that the last byte closes; None where that is not in the text."""
    expected: list[int] = []
    at = len(text) - 1
    while at >= 0:
        byte = text[at]
        if byte == _QUOTE:
            at = _string_start(text, at)
        elif byte in _CLOSES:
            expected.append(_CLOSES[byte])
        elif expected and byte == expected[-1]:
            expected.pop()
            if not expected:
                return at
        at -= 1
    return None


def _string_start(text: bytes, end: int) -> int:
    """Where the string begins whose closing quote is at ``end``; -1 if that is not in the text."""
    at = text.rfind(b'"', 0, end)
    while at >= 0:
        escapes = 0
        while at - escapes > 0 and text[at - escapes - 1] == _BACKSLASH:
            escapes += 1
        if escapes % 2 == 0:
            return at
        at = text.rfind(b'"', 0, at)
    return -1
