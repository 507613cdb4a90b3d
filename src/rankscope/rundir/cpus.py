"""CPUs of a process: read lists of them, and bind this process to the CPUs that an experiment's plan assigns to it.

Nothing here loads more than small parts of the standard library: it runs at the start of every Python process of a job
that is measured.

In: lists of CPUs as text, or a plan. Out: CPU numbers, or the bound process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from rankscope.errors import ConfigError
from rankscope.rundir.launcher import identify
from rankscope.rundir.measurement import PLAN_VARIABLE, read_plan
from rankscope.rundir.ranges import as_ranges, parse_numbers

MOST_CPUS = 1 << 16
_BEFORE_LISTS = re.compile(r"(?:--cpu-bind[= ]\s*)?(?:(?:quiet|q|verbose|v),)?(?:list:)?")


def parse_cpus(text: str, path: str | os.PathLike[str] | None = None) -> list[int]:
    """``0-3,8`` as numbers, ascending.

    Args:
        text: the list.
        path: the file that it is in, for the error.

    Raises:
        ConfigError: it is not a list of CPUs.
    """
    try:
        return sorted(set(parse_numbers(text, MOST_CPUS)))
    except ValueError as error:
        raise ConfigError(
            f"{text[:80]!r} is not a list of CPUs: {error}", path=path, hint="for example 0-7,32-39"
        ) from None


def cpu_lists(text: str) -> list[str]:
    """The list of CPUs of each local rank in ``0-3:4-7``, also as PALS and MPICH have it: ``--cpu-bind
    verbose,list:0-3:4-7``.

    Raises:
        ConfigError: one is not a list of CPUs.
    """
    lists = _BEFORE_LISTS.sub("", text.strip(), count=1).split(":")
    return [as_ranges(parse_cpus(each)) for each in lists if each.strip()]


def cpu_masks(lists: Iterable[str]) -> str:
    """Lists of CPUs as the hexadecimal masks of srun's ``mask_cpu``: CPU 0 is the lowest bit."""
    return ",".join(f"{sum(1 << cpu for cpu in parse_cpus(text)):#x}" for text in lists)


def usable_cpus() -> list[int]:
    """The CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def bind_as_planned(environ: Mapping[str, str]) -> None:
    """Bind this process as the plan of its experiment says; no effect without such a plan or a local rank.

    Raises:
        ConfigError: the plan has no CPUs for this rank, or this system cannot bind processes.
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
