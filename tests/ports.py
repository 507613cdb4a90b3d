"""Ports for jobs that are told where to meet before they are started."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST = 10_240
_chosen = random.SystemRandom()


def free_port() -> int:
    """A port that nobody of this host listens on, and that stays free until the job has started.

    Not the one that binding to 0 gives: it lies among those that the system also gives to outgoing connections, and
    between this and the job's start, many seconds on a busy machine, one of the other tests' could get it.
    """
    first = 32_768
    with suppress(OSError, ValueError):
        first = int(RANGE.read_text().split()[0])
    for _ in range(1000):
        port = _chosen.randrange(LOWEST, first) if first > LOWEST + 1000 else 0
        with suppress(OSError), socket.socket() as found:
            found.bind(("127.0.0.1", port))
            return int(found.getsockname()[1])
    raise OSError(f"no port is free from {LOWEST} to {first - 1}")
