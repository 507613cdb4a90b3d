"""Where traces lie until they are complete, whether there is room for them, and what the dead left behind.

A temporary's name says which process of which host made it: one whose process is gone is removed by the next that
writes there.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from rankscope.rundir.names import TEMPORARY_PREFIX, TEMPORARY_SUFFIX

_MARK = "rankscope"
_OWNER = re.compile(rf"\.{_MARK}-(?P<host>[A-Za-z0-9.-]*)-(?P<pid>\d+)-\d+(?:{re.escape(TEMPORARY_SUFFIX)})+$")
"""Torch, too, saves beside the name it was given, with a further suffix."""
STALE_AFTER_S = 120.0
"""How long nobody must have written to a temporary before it counts as left behind: two containers of one host name
may not see each other's processes."""
SPARE_BYTES = 16 << 20
"""Room that a trace leaves to others."""
FIRST_GUESS_BYTES = 64 << 20
"""How large a first trace is taken to be; later ones as large as twice the largest so far."""


def temporary_beside(target: Path) -> Path:
    """Where a file lies until it is complete: hidden, in the same directory, its own for each process and time."""
    return target.with_name(f"{TEMPORARY_PREFIX}{target.name[:150]}{_owner()}")


def staged(folder: str, name: str) -> Path:
    """Where torch saves a trace before it is compressed."""
    return Path(folder, f"{TEMPORARY_PREFIX}{name[:150]}{_owner()}")


def remove_saved(saved: Path) -> None:
    """Remove what torch saved, and what it left where it could not."""
    for path in (saved, saved.with_name(saved.name + TEMPORARY_SUFFIX)):
        with suppress(OSError):
            path.unlink(missing_ok=True)


def staging_folder(wanted: str | None, run_dir: str | None, needed: int) -> str | None:
    """The first directory that can be written and has room: the wanted one, else ``$TMPDIR``, else ``run_dir``.

    ``None`` if none has.
    """
    tried = [wanted] if wanted else []
    with suppress(OSError):  # no directory of the usual ones can be written, or this one is not ours
        tried.append(_own_folder(tempfile.gettempdir()))
    for folder in [*tried, *([run_dir] if run_dir else [])]:
        if free_bytes(folder) >= needed + SPARE_BYTES and os.access(folder, os.W_OK):
            return folder
    return None


def _own_folder(shared: str) -> str:
    """A folder of this user's alone in a directory that everybody writes to: traces name files and hosts."""
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    folder = Path(shared, f"{_MARK}-{user}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if folder.is_symlink() or (hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & 0o077)):
        raise OSError(f"{folder} is not this user's alone")
    return str(folder)


def try_to_write(folder: Path) -> None:
    """Write a file and remove it again.

    Raises:
        OSError: it could not be written.
    """
    tried = temporary_beside(folder / "tried")
    try:
        tried.write_bytes(bytes(4096))
    finally:
        tried.unlink(missing_ok=True)


def free_bytes(folder: str | os.PathLike[str]) -> int:
    """What this user may still write to a directory's disk; -1 where there is no such directory."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return -1


def remove_stale(folders: Iterable[str | os.PathLike[str]]) -> int:
    """Remove temporaries of this host's dead processes; how many there were."""
    host, removed = _plain_host(), 0
    for folder in {os.fspath(folder) for folder in folders}:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                owner = _OWNER.search(entry.name)
                if owner is None or owner["host"] != host or _alive(int(owner["pid"])):
                    continue
                with suppress(OSError):
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime >= STALE_AFTER_S:
                        Path(entry.path).unlink()
                        removed += 1
    return removed


def _owner() -> str:
    return f".{_MARK}-{_plain_host()}-{os.getpid()}-{time.monotonic_ns()}{TEMPORARY_SUFFIX}"


def _plain_host() -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:40]


def _alive(pid: int) -> bool:
    if os.name == "nt":
        return True  # signal 0 would end the process there
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
