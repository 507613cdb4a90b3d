"""CPUs of a process: how lists of them are written, and binding this process to those that an experiment's plan gives.

Nothing here loads more than small parts of the standard library: it runs at the start of every Python process of a job
that is measured.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from rankscope.errors import ConfigError
from rankscope.rundir.launcher import identify
from rankscope.rundir.measurement import PLAN_VARIABLE, read_plan

MOST_CPUS = 1 << 16


def parse_cpus(text: str) -> list[int]:
    """``0-3,8`` as numbers, in order.

    Raises:
        ConfigError: it is no such list.
    """
    found: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.strip().partition("-")
        if not _is_number(first) or (dash and not _is_number(last)):
            raise ConfigError(f"{text[:80]!r} is no list of CPUs", hint="write 0-3,8")
        low, high = int(first), int(last or first)
        if high < low or high >= MOST_CPUS:
            raise ConfigError(f"{part[:40]!r} is no range of CPUs", hint="write the smaller number first")
        found.update(range(low, high + 1))
    return sorted(found)


def usable_cpus() -> list[int]:
    """The CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def bind_as_planned(environ: Mapping[str, str]) -> None:
    """Bind this process as the plan of its experiment says; nothing where that says nothing or this is no rank.

    Raises:
        ConfigError: the plan has no CPUs for this rank, or binding is not to be had here.
        OSError: the system refuses.
    """
    cpus = read_plan(environ[PLAN_VARIABLE]).cpus
    who = identify(environ)
    if not cpus or who.local_rank is None:
        return
    if who.local_rank >= len(cpus):
        raise ConfigError(f"the binding has {len(cpus)} lists of CPUs and none for local rank {who.local_rank}")
    if not hasattr(os, "sched_setaffinity"):
        raise ConfigError("this system cannot bind a process to CPUs")
    os.sched_setaffinity(0, parse_cpus(cpus[who.local_rank]))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 8
