"""The key of a trace file in the cache: a changed file has another key.

The key holds path, size, mtime_ns, ctime_ns, inode and a hash of the first and last 64 KiB (for URLs size and ETag,
else the time of modification), the process of a database with several, and the schema's version.

In: a path or URL. Out: the key, a text that names the file's directory in the cache.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from rankscope.errors import TraceError
from rankscope.rundir.names import split_process
from rankscope.store.objects import Facts, object_facts
from rankscope.store.schema import SCHEMA_VERSION

_ENDS = 64 << 10


def trace_key(path: str, facts: Facts | None = None) -> str:
    """The key of a trace file as it is now.

    Args:
        facts: what identifies an object, if a listing has shown it.

    Raises:
        TraceError: the file cannot be read.
    """
    local = path.startswith("file://") or "://" not in path
    file, process = split_process(path)
    try:
        facts = facts or (_file_facts(file.removeprefix("file://")) if local else object_facts(path))
    except FileNotFoundError as error:
        raise TraceError("there is no such file", path=path, hint="check the spelling of the path") from error
    except (OSError, ImportError, ValueError) as error:
        raise TraceError(f"cannot be read: {error}", path=path, hint="check its permissions") from error
    facts = facts if process is None else (*facts, process)
    return hashlib.sha256(repr((SCHEMA_VERSION, *facts)).encode("utf-8", "backslashreplace")).hexdigest()[:40]


def _file_facts(path: str) -> tuple[object, ...]:
    file = Path(path)
    # Opening a pipe or a device would block.
    if not stat.S_ISREG(file.stat().st_mode):
        raise OSError("it is not a regular file")
    with file.open("rb") as handle:
        status = os.fstat(handle.fileno())
        ends = hashlib.sha256(handle.read(_ENDS))
        if status.st_size > 2 * _ENDS:
            handle.seek(-_ENDS, os.SEEK_END)
            ends.update(handle.read(_ENDS))
    return (
        os.path.realpath(path),
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_ino,
        ends.hexdigest(),
    )
