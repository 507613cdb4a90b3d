"""Atomic writes: under its name a file is complete or does not exist.

What goes in is a path and its content; it is written to a temporary file in the same folder, which then gets the name.
``sync`` also waits until the content is on disk, so that it survives a crash of the host. The exception is `overwrite`,
for a full disk.

In: a path and its content. Out: the complete file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import BinaryIO

from rankscope.rundir.names import TEMPORARY_PREFIX, TEMPORARY_SUFFIX, unique_name

_counter = count()
_process = os.urandom(4).hex()
"""Ranks in different containers often have the same process id."""


@contextmanager
def atomic_file(path: Path, *, sync: bool = False) -> Iterator[BinaryIO]:
    """A file to write to that replaces ``path`` at the end of the block, and is removed if the block fails.

    Raises:
        OSError: the folder cannot be written.
    """
    temporary = _temporary(path)
    try:
        with temporary.open("wb") as file:
            yield file
            if sync:
                _sync(file)
        # Windows may refuse this while a reader has the old file open.
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        _sync_folder(path.parent)


def write_atomic(path: Path, content: bytes | str, *, sync: bool = False) -> None:
    """Replace ``path`` by ``content``; missing parent folders are made, text is written as UTF-8.

    Raises:
        OSError: the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path, sync=sync) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_new(path: Path, content: bytes) -> Path:
    """Write ``content`` to ``path`` or, where that exists, to the next free ``.2``, ``.3`` …; return which it was.

    Raises:
        OSError: the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with temporary.open("wb") as file:
            file.write(content)
            _sync(file)
        return claim(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def overwrite(path: Path, content: bytes) -> bool:
    """Replace what is in a text file where it is, which a full disk allows; the rest of the file becomes blanks.

    Readers may see a part of it. Returns whether it was done: not if ``content`` is longer than the file.

    Raises:
        OSError: the file cannot be written.
    """
    size = path.stat().st_size
    if len(content) > size:
        return False
    with path.open("r+b") as file:
        file.write(content.ljust(size))
        _sync(file)
    return True


def claim(temporary: Path, wanted: Path) -> Path:
    """Rename a finished file to ``wanted`` or to the next free ``.2``, ``.3`` …; never over another file.

    Raises:
        OSError: the folder cannot be written.
    """
    for attempt in range(10_000):
        target = wanted.with_name(unique_name(wanted.name, attempt))
        try:
            os.link(temporary, target)
        except FileExistsError:
            continue
        except OSError:
            # No hard links here (exFAT, many FUSE and network mounts): claim the name first, then replace it.
            try:
                os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            except FileExistsError:
                continue
            temporary.replace(target)
        else:
            temporary.unlink(missing_ok=True)
        _sync_folder(target.parent)
        return target
    raise FileExistsError(f"{wanted}: ten thousand files have this name already")


def _temporary(path: Path) -> Path:
    return path.with_name(f"{TEMPORARY_PREFIX}{path.name}.{os.getpid()}-{_process}-{next(_counter)}{TEMPORARY_SUFFIX}")


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return  # Windows cannot open a folder; the rename is still atomic, only later on disk.
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
