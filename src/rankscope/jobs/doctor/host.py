"""The host's clock and its limits.

In: this host's settings. Out: checks.
"""

from __future__ import annotations

import ctypes
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from rankscope.jobs.doctor.check import Check

_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")
_UNSYNCHRONIZED = 0x40
_ERROR = 5
_GIB = 2**30


def checks(root: Path = Path("/")) -> Iterator[Check]:
    """Whether the clock is synchronized and fast to read, and whether the usual limits are high enough.

    Args:
        root: where ``/sys`` and ``/dev`` are looked for.
    """
    yield from _synchronized()
    yield from _source(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    yield from _limits(root)
    yield from _shared_memory(root / "dev/shm")


class _Timex(ctypes.Structure):
    """``struct timex`` of Linux, up to what is read here, and room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 512),
    )


def _synchronized() -> Iterator[Check]:
    """What the kernel knows of its clock; asking needs no rights."""
    if sys.platform != "linux":
        return
    try:
        asked = _Timex()
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(asked))
    except (OSError, AttributeError):
        return
    if state < 0:
        return
    if state == _ERROR or asked.status & _UNSYNCHRONIZED:
        what = "this host's clock is not synchronized (NTP, PTP): hosts' clocks drift apart"
        fix = "traces are still aligned by their collectives; the administrators can start chronyd"
        yield Check("clock", "synchronised", "warn", what, fix)
    else:
        yield Check("clock", "synchronised", "ok", f"synchronized, at most {asked.maxerror / 1000:.0f} ms off")


def _source(path: Path) -> Iterator[Check]:
    try:
        name = path.read_text().strip()
    except OSError:
        return
    if name in _SLOW_CLOCKS:
        what = f"the kernel reads time from {name}, which takes microseconds: profiling slows the job down"
        yield Check("clock", "source", "warn", what, "it should be tsc or kvm-clock; the kernel's log has the reason")
    else:
        yield Check("clock", "source", "ok", f"clock source {name}")


def _limits(root: Path) -> Iterator[Check]:
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < 1024:
        fix = f"ulimit -n {hard if hard > 0 else 65536}" if hard < 0 or hard > soft else "ask for more open files"
        yield Check("limits", "files", "warn", f"limit of {soft} open files: loaders and sockets may need more", fix)
    else:
        shown = "any number of" if soft == resource.RLIM_INFINITY else str(soft)
        yield Check("limits", "files", "ok", f"{shown} open files")
    fabrics = [p.name for folder in ("infiniband", "cxi") for p in sorted((root / "sys/class" / folder).glob("*"))]
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if fabrics and locked != resource.RLIM_INFINITY and locked < _GIB:
        what = f"only {locked // 1024} KiB of memory can be locked: the network ({fabrics[0]}) cannot register buffers"
        yield Check(
            "limits", "locked memory", "warn", what, "ulimit -l unlimited, in the job; Slurm: PropagateResourceLimits"
        )


def _shared_memory(path: Path) -> Iterator[Check]:
    try:
        total, _, free = shutil.disk_usage(path)
    except OSError:
        return
    what = f"{path} has {free / _GIB:.1f} of {total / _GIB:.1f} GiB free"
    if total < _GIB or free < _GIB // 4:
        fix = "docker run --ipc=host or --shm-size=8g; remove files that dead jobs left there"
        yield Check("limits", "shared memory", "warn", f"{what}: data loaders and NCCL put their buffers there", fix)
    else:
        yield Check("limits", "shared memory", "ok", what)
