"""What a trace file is, as a cache must know it: a changed file has another key.

The key holds path, size, mtime_ns, ctime_ns, inode and a hash of the first and last 64 KiB (for URLs what the file
system tells: ETag, size, modification time), and the schema's version.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from rankscope.errors import TraceError
from rankscope.store.schema import SCHEMA_VERSION

_ENDS = 64 << 10


def trace_key(path: str) -> str:
    """The key of a trace file as it is now.

    Raises:
        TraceError: the file cannot be looked at.
    """
    local = path.startswith("file://") or "://" not in path
    try:
        facts = _file_facts(path.removeprefix("file://")) if local else _url_facts(path)
    except FileNotFoundError as error:
        raise TraceError("there is no such file", path=path, hint="check the spelling of the path") from error
    except (OSError, ImportError, ValueError) as error:
        raise TraceError(f"cannot be read: {error}", path=path, hint="check its permissions") from error
    return hashlib.sha256(repr((SCHEMA_VERSION, *facts)).encode("utf-8", "backslashreplace")).hexdigest()[:40]


def _file_facts(path: str) -> tuple[object, ...]:
    file = Path(path)
    # A pipe or a device would keep its reader waiting for ever.
    if file.exists() and not file.is_file():
        raise OSError("it is no regular file")
    with file.open("rb") as handle:
        status = os.fstat(handle.fileno())
        ends = hashlib.sha256(handle.read(_ENDS))
        if status.st_size > 2 * _ENDS:
            handle.seek(-_ENDS, os.SEEK_END)
            ends.update(handle.read(_ENDS))
    return (
        str(file.resolve()),
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_ino,
        ends.hexdigest(),
    )


def _url_facts(path: str) -> tuple[object, ...]:
    import fsspec  # only where it is needed: it is slow to import

    system, name = fsspec.core.url_to_fs(path)
    facts: dict[str, Any] = system.info(name)
    told = [facts.get(key) for key in ("ETag", "etag", "md5Hash", "LastModified", "mtime", "updated")]
    return (path, facts.get("size"), *map(str, told))
