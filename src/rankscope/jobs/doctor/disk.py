"""Directories that are written to: permissions and free space.

In: directories. Out: checks.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from rankscope.jobs.doctor.check import Check

_WARN_BYTES, _FAIL_BYTES = 5 * 10**9, 2 * 10**8
_FEW_FILES = 1000


def checks(run: Path | None, environ: Mapping[str, str], cache: Path | None) -> Iterator[Check]:
    """Run directory, staging directory and cache.

    Args:
        run: the run directory; ``RANKSCOPE_RUN_DIR``, else the working directory.
        environ: the environment.
        cache: the directory of the tables' cache; None without analysis.
    """
    staging = environ.get("RANKSCOPE_STAGING_DIR") or environ.get("TMPDIR") or tempfile.gettempdir()
    places = [
        ("run directory", run or Path(environ.get("RANKSCOPE_RUN_DIR") or Path.cwd()), "--run-dir"),
        ("staging directory", Path(staging), "TMPDIR or RANKSCOPE_STAGING_DIR"),
        *([("cache", cache, "RANKSCOPE_CACHE")] if cache is not None else []),
    ]
    for name, path, option in places:
        if path == run and run.is_file():
            continue  # the check of the run says what it is
        yield look(name, path, option)
    kind = _file_system(Path(staging))
    if kind in ("tmpfs", "ramfs"):
        what = f"{staging} is in memory ({kind}): each trace takes up memory until it is compressed"
        yield Check("disk", "staging directory", "warn", what, "TMPDIR on a local disk, or RANKSCOPE_STAGING_DIR")


def look(name: str, path: Path, option: str) -> Check:
    """Whether a directory can be written to, or made, and has room."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    if there.exists() and not there.is_dir():
        return Check("disk", name, "fail", f"{there} is not a directory", f"choose another by {option}")
    try:
        # Permissions are not enough: read-only mounts, quotas, full disks.
        with tempfile.NamedTemporaryFile(dir=there, prefix=".rankscope-doctor-") as file:
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        fix = f"choose another by {option}, or fix its permissions or quota"
        return Check("disk", name, "fail", f"{there} cannot be written to: {error.strerror}", fix)
    free = shutil.disk_usage(there).free
    files = _free_files(there)
    what = f"{path} has {free / 1e9:.1f} GB free"
    if free < _FAIL_BYTES or (files is not None and files < 1):
        return Check("disk", name, "fail", f"{what}: traces will not fit", f"make room, or choose another by {option}")
    if free < _WARN_BYTES:
        return Check(
            "disk", name, "warn", f"{what}: room for a few traces", f"make room, or choose another by {option}"
        )
    if files is not None and files < _FEW_FILES:
        return Check("disk", name, "warn", f"{path} has room for {files} more files", f"choose another by {option}")
    return Check("disk", name, "ok", what)


def _free_files(path: Path) -> int | None:
    if sys.platform == "win32":
        return None
    found = os.statvfs(path)
    # Some file systems have no such number.
    return found.f_favail if found.f_files else None


def _file_system(path: Path) -> str | None:
    """The kind of file system, from Linux's table of mounts."""
    try:
        table = Path("/proc/mounts").read_text(errors="replace").splitlines()
        real = path.resolve()
    except OSError:
        return None
    kind, best = None, -1
    for line in table:
        words = line.split(" ")
        if len(words) > 2:
            mount = Path(words[1].replace("\\040", " "))
            if (real == mount or mount in real.parents) and len(mount.parts) >= best:
                kind, best = words[2], len(mount.parts)
    return kind
