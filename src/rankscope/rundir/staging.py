"""Temporary files of traces that are not complete yet: where they go, whether there is space, and who removes them.

The name of a temporary file holds the host and process that made it. If that process is gone, the next one that writes
to the same folder removes the file.

In: the directories that may be used. Out: a path with enough space, or the reason why there is none.
"""

from __future__ import annotations

import hashlib
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
"""Torch, too, first saves under the name it was given plus a suffix."""
STALE_AFTER_S = 120.0
"""How old a temporary file must be before it counts as left behind: two containers with the same host name may not see
each other's processes."""
SPARE_BYTES = 16 << 20
"""Space that a trace leaves free."""
FIRST_GUESS_BYTES = 64 << 20
"""The expected size of a first trace; later ones are expected to be up to twice the largest so far."""


def temporary_path(target: Path) -> Path:
    """Where a file is until it is complete: hidden, in the same directory, unique to this process and moment."""
    return target.with_name(_own(target.name[:150]))


def staging_path(folder: str, name: str) -> Path:
    """Where torch saves a trace before it is compressed."""
    return Path(folder, _own(name[:150]))


def remove_saved(saved: Path) -> None:
    """Remove what torch saved, and what it left behind if it could not."""
    for path in (saved, saved.with_name(saved.name + TEMPORARY_SUFFIX)):
        with suppress(OSError):
            path.unlink(missing_ok=True)


def staging_folder(wanted: str | None, run_dir: str | None, needed: int) -> str | None:
    """The first directory that can be written and has space: the wanted one, else ``$TMPDIR``, else ``run_dir``.

    ``None`` if there is none.
    """
    tried = [wanted] if wanted else []
    with suppress(OSError):  # no usual temporary directory can be written, or this folder belongs to someone else
        tried.append(user_folder(tempfile.gettempdir()))
    for folder in [*tried, *([run_dir] if run_dir else [])]:
        if free_bytes(folder) >= needed + SPARE_BYTES and os.access(folder, os.W_OK):
            return folder
    return None


def kept_folder(local: str | os.PathLike[str], run_dir: str | os.PathLike[str]) -> Path:
    """Where traces are kept that cannot be written to ``run_dir``: in the directory that torch saved them to."""
    path = os.path.abspath(run_dir)  # noqa: PTH100  # links stay: the directory may be gone
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:8]
    # A character has up to four bytes, and a name up to 255.
    return Path(local, f"kept-{Path(path).name[:40]}-{digest}")


def kept_traces(wanted: str | None, run_dir: Path, since: float) -> dict[Path, int]:
    """How many traces of a run directory this host's ranks have kept elsewhere, by directory.

    Args:
        wanted: the staging directory that was chosen, if one was.
        since: the start of the job, in seconds since 1970; what is older is of another job.
    """
    places = [Path(wanted)] if wanted else []
    with suppress(OSError):
        places.append(Path(user_folder(tempfile.gettempdir())))
    found: dict[Path, int] = {}
    for folder in dict.fromkeys(kept_folder(place, run_dir) for place in places):
        with suppress(OSError):
            traces = [each for each in folder.iterdir() if not each.name.startswith(TEMPORARY_PREFIX)]
            if count := sum(each.stat().st_mtime >= since for each in traces):
                found[folder] = count
    return found


def user_folder(shared: str) -> str:
    """A folder that only this user can read, in a shared directory: traces name files and hosts."""
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    folder = Path(shared, f"{_MARK}-{user}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if folder.is_symlink() or (hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & 0o077)):
        raise OSError(f"other users have access to {folder}")
    return str(folder)


def check_writable(folder: Path) -> None:
    """Write a file and remove it again.

    Raises:
        OSError: it could not be written.
    """
    tried = temporary_path(folder / "tried")
    try:
        tried.write_bytes(bytes(4096))
    finally:
        tried.unlink(missing_ok=True)


def free_bytes(folder: str | os.PathLike[str]) -> int:
    """How much this user may still write to a directory's disk; -1 if there is no such directory."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return -1


def remove_stale(folders: Iterable[str | os.PathLike[str]]) -> int:
    """Remove temporary files of this host's dead processes; returns how many."""
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


def owned_name(name: str, pid: int, number: int) -> str:
    """A hidden file's name that holds its owner: when that process is gone, ``remove_stale`` removes the file."""
    return f"{TEMPORARY_PREFIX}{name}.{_MARK}-{_plain_host()}-{pid}-{number}{TEMPORARY_SUFFIX}"


def _own(name: str) -> str:
    return owned_name(name, os.getpid(), time.monotonic_ns())


def _plain_host() -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:40]


def _alive(pid: int) -> bool:
    if os.name == "nt":
        return True  # signal 0 would end the process on Windows
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
