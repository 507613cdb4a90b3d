"""Write text to a file, compressed and, if requested, truncated; memory does not grow with its size.

In: pieces of bytes. Out: a file, and its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import zstandard
from isal import isal_zlib

from rankscope.rundir.atomic import atomic_file

SUFFIXES = {"gz": ".gz", "zst": ".zst", "none": ""}
_GZIP_WINDOW = 31  # deflate's largest window, in gzip's wrapping; isal writes no time and no name into it


def write(path: Path, chunks: Iterable[bytes], compression: str, keep: float | None = None) -> int:
    """Write a file, and return its size before compression; ``keep`` is the fraction of its bytes to keep.

    The file appears complete under its name, or not at all.
    """
    compress, finish = _compressor(compression)
    size = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        for chunk in chunks:
            size += len(chunk)
            file.write(compress(chunk))
        file.write(finish())
        if keep is not None:
            file.truncate(int(file.tell() * keep))
    return size


def _compressor(compression: str) -> tuple[Callable[[bytes], bytes], Callable[[], bytes]]:
    if compression == "gz":
        gzip = isal_zlib.compressobj(level=1, wbits=_GZIP_WINDOW)
        return gzip.compress, gzip.flush
    if compression == "zst":
        zst = zstandard.ZstdCompressor(level=1).compressobj()
        return zst.compress, zst.flush
    return bytes, bytes
