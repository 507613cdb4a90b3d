"""Whether a process that left its number in a file is gone. Only a reader in the same place can tell.

In: host, number and namespace of a process. Out: whether it is gone for sure; and which process is torchrun's agent.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Protocol


class Writer(Protocol):
    """The process that wrote a file."""

    @property
    def host(self) -> str | None:
        """Where it ran."""

    @property
    def pid(self) -> int | None:
        """Its number."""

    @property
    def pid_namespace(self) -> str:
        """In which it had that number."""


def pid_namespace() -> str:
    """The namespace of this process's number; empty where the system has none."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except (OSError, ValueError):
        return ""


def elastic_agent() -> int | None:
    """The number of torchrun's agent that started this process: the nearest process above it that no agent has started.
    ``None`` if there is none, or where the system does not tell."""
    number = os.getpid()
    try:
        while b"TORCHELASTIC_RUN_ID=" in Path(f"/proc/{number}/environ").read_bytes():
            number = int(Path(f"/proc/{number}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return number if number not in (0, os.getpid()) else None


def is_here(writer: Writer) -> bool:
    """Whether a process is, or was, where this one can see it."""
    if writer.pid is None or writer.host != socket.gethostname():
        return False
    return writer.pid_namespace == pid_namespace() != ""


def is_dead(writer: Writer) -> bool:
    """Whether a process is gone, or a zombie; False also where that cannot be known: on another host or in another
    container."""
    if not is_here(writer):
        return False
    try:
        # The second field, the program's name, may have blanks and brackets in it.
        state = Path(f"/proc/{writer.pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except FileNotFoundError:
        return True
    except (OSError, IndexError):
        return False
    return state in (b"Z", b"X")
