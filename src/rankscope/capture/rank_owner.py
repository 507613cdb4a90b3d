"""Ensures that only the first process of a rank is profiled. The processes that it starts inherit its rank with its
environment, and some of them train, too (an evaluation, a data loader's worker): these are not profiled.

A profiled process leaves a file in the temporary directory, and a process that is to be profiled looks for the files
of its ancestors. An inherited variable would not reach the processes that were started before the profiling began.

In: this process's ancestors. Out: the one that owns this rank, or a file that says that this process does.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rankscope.capture.exit_hooks import register
from rankscope.rundir.staging import owned_name, user_folder

_MAX_ANCESTORS = 100


def claim(save_dir: str | None, rank: int = 0, world_size: int = 1) -> int | None:
    """Make this process the owner of its rank, unless an ancestor that writes to the same directory is.

    An ancestor may also be another rank of the same job: Lightning's rank 0 starts the others.

    Args:
        save_dir: the run directory as the job named it: a process that names another one is profiled on its own.
        rank, world_size: of this process.

    Returns:
        The ancestor's process id; ``None`` if this process is the owner.
    """
    with suppress(OSError):  # without a temporary directory there is nothing to compare with
        if (owner := owner_above(save_dir, rank, world_size)) is not None:
            return owner
        _own_file().write_text(f"{rank}\n{_job(world_size)}\n{_directory(save_dir)}")
        register(release)
    return None


def owner_above(save_dir: str | None, rank: int = 0, world_size: int = 1) -> int | None:
    """The process id of the ancestor that owns this process's rank, as `claim` has it; ``None`` if there is none.

    Raises:
        OSError: there is no temporary directory.
    """
    job, folder = _job(world_size), Path(user_folder(tempfile.gettempdir()))
    for pid, started in _ancestors():
        with suppress(OSError, ValueError):
            its_rank, its_job, its_directory = (folder / _file(pid, started)).read_text().split("\n", 2)
            is_another_rank = bool(job) and its_job == job and its_rank != str(rank)
            if its_directory == _directory(save_dir) and not is_another_rank:
                return pid
    return None


def _directory(save_dir: str | None) -> str:
    return os.path.abspath(save_dir) if save_dir else ""  # noqa: PTH100  # compared only, and links stay


def _job(world_size: int) -> str:
    return f"{world_size} {os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}" if world_size > 1 else ""


def release() -> None:
    """Processes that this one starts from now on are profiled."""
    with suppress(OSError):
        _own_file().unlink(missing_ok=True)


def _own_file() -> Path:
    return Path(user_folder(tempfile.gettempdir()), _file(os.getpid(), process_stat(os.getpid())[1]))


def _file(pid: int, started: int) -> str:
    return owned_name("owner", pid, started)


def _ancestors() -> Iterator[tuple[int, int]]:
    """Process id and start time of the processes above this one, the nearest first."""
    pid = os.getppid()
    for _ in range(_MAX_ANCESTORS):
        if pid <= 0:
            return
        parent, started = process_stat(pid)
        yield pid, started
        pid = parent


def process_stat(pid: int) -> tuple[int, int]:
    """The parent's id, and when the process started, in ticks since the system's start; zeros where neither is known.
    A process that replaces itself (``os.exec``) keeps both."""
    if sys.platform == "linux":
        with suppress(OSError, ValueError, IndexError):
            # The second field, the program's name, may have blanks and brackets in it.
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            return int(fields[1]), int(fields[19])
    return 0, 0
