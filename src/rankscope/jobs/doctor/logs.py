"""Messages of NCCL (RCCL, oneCCL) and torch in a run's logs, and their meaning.

In: log files. Out: checks, one for each kind of message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankscope.jobs.doctor.check import Check, Status
from rankscope.rundir.plurals import counted

_MOST_BYTES = 64 << 20
_MOST_FILES = 5000
_SUFFIXES = (".log", ".out", ".err")


@dataclass(frozen=True)
class Sign:
    """A problem that a line in a log is a sign of."""

    name: str
    pattern: re.Pattern[str]
    status: Status
    what: str
    fix: str


def _sign(name: str, pattern: str, status: Status, what: str, fix: str) -> Sign:
    return Sign(name, re.compile(pattern), status, what, fix)


# The first that fits a line counts.
SIGNS = (
    _sign(
        "timeout",
        r"Watchdog caught collective operation timeout|ran for \d+ milliseconds before timing out",
        "fail",
        "a collective timed out: some rank did not call it",
        "rankscope hang names that rank from dumps: rankscope.HangWatch in the job, or TORCH_NCCL_DUMP_ON_TIMEOUT=1 "
        "with TORCH_FR_BUFFER_SIZE=2000 (TORCH_NCCL_TRACE_BUFFER_SIZE before torch 2.9)",
    ),
    _sign(
        "memory",
        r"(?:CUDA|HIP|XPU) out of memory|OutOfMemoryError|OUT_OF_DEVICE_MEMORY|Cuda failure.*out of memory",
        "fail",
        "a device ran out of memory",
        "a smaller batch, activation checkpointing or sharding; rankscope analyze memory shows what holds it",
    ),
    _sign(
        "version",
        r"NCCL version mismatch|Mismatched NCCL version|internal error.*version",
        "fail",
        "ranks use different versions of NCCL",
        "one environment, or one container image, for all nodes",
    ),
    _sign(
        "shared memory",
        r"Error while creating shared memory segment|No space left on device.*(?:shm|nccl)|posix_fallocate failed",
        "fail",
        "NCCL found no room in /dev/shm",
        "docker run --ipc=host or --shm-size=8g; remove what dead jobs left in /dev/shm",
    ),
    _sign(
        "interface",
        r"Bootstrap : no socket interface found|no socket interface found|Could not find any local path to any",
        "fail",
        "NCCL found no network interface with the given name",
        "NCCL_SOCKET_IFNAME must be the beginning of a name that `ip addr` lists on every node",
    ),
    _sign(
        "connection",
        r"NCCL WARN.*(?:Connection (?:refused|reset|timed out)|No route to host)|Connection closed by remote peer",
        "fail",
        "a rank lost its connection to another",
        "the other rank usually failed first: read its last lines; else a firewall between nodes (NCCL_SOCKET_IFNAME)",
    ),
    _sign(
        "locked memory",
        r"ibv_reg_mr\w* failed|Cannot allocate memory.*ibv|Call to ibv_\w+ failed",
        "fail",
        "InfiniBand verbs failed",
        "ulimit -l unlimited within the job; nvidia-peermem loaded for GPU direct",
    ),
    _sign(
        "system error",
        r"unhandled system error|unhandled cuda error|ncclSystemError|ncclUnhandledCudaError",
        "fail",
        "a system call or CUDA call of NCCL failed",
        "the NCCL WARN line before it names the call; NCCL_DEBUG=INFO logs more (rankscope job --nccl-debug INFO)",
    ),
    _sign(
        "plugin",
        r"NET/Plugin\s?: (?:No plugin found|Could not find|Failed to load)|NET/OFI.*(?:Failed|failed)|Failed to open "
        r"libibverbs",
        "warn",
        "NCCL has no plugin or library for the fast network",
        "load the site's module (aws-ofi-nccl, aws-ofi-rccl), or bind it into the container; on one node this does not "
        "matter",
    ),
    _sign(
        "sockets",
        r"Using network Socket|NET/Socket : Using",
        "warn",
        "NCCL uses TCP sockets between nodes instead of the fast network",
        "NCCL_NET=IB or 'AWS Libfabric' makes it fail rather than fall back; on one node this does not matter",
    ),
    _sign(
        "direct",
        r"GPU Direct RDMA Disabled|GDRDMA.*disabled|NET/IB : GPU Direct RDMA Disabled",
        "warn",
        "network and device exchange data through host memory",
        "load nvidia-peermem (or use DMA-BUF); NCCL_NET_GDR_LEVEL=PHB",
    ),
    _sign(
        "peer to peer",
        r"P2P is disabled|P2P disabled|peer-to-peer.*not (?:supported|available)",
        "warn",
        "devices of one node cannot access each other's memory",
        "NCCL_P2P_DISABLE is set, or the container or virtual machine hides the links; nvidia-smi topo -m",
    ),
    _sign(
        "warning",
        r"NCCL WARN|RCCL WARN|CCL_WARN",
        "warn",
        "NCCL logged a warning",
        "see the line; NCCL_DEBUG=INFO logs more",
    ),
)


def checks(folder: Path | None, more: Sequence[Path] = ()) -> Iterator[Check]:
    """Signs of problems in the logs of a run.

    Args:
        folder: a run directory; files that end in .log, .out or .err in it are read.
        more: further files.
    """
    files = [*more, *(_logs(folder) if folder is not None and folder.is_dir() else [])]
    if not files:
        return
    seen: dict[str, list[tuple[Path, str]]] = {}
    unread = []
    for path in files:
        try:
            for line in _lines(path):
                sign = next((sign for sign in SIGNS if sign.pattern.search(line)), None)
                if sign is not None:
                    seen.setdefault(sign.name, []).append((path, line.strip()))
        except OSError as error:
            unread.append(f"{path}: {error.strerror}")
    for sign in SIGNS:
        if sign.name in seen:
            found = seen[sign.name]
            where = len({path for path, _ in found})
            path, line = found[0]
            many = f"{counted(len(found), 'line')} in {counted(where, 'file')}"
            what = f"{sign.what} ({many}): {path.name}: {line[:160]}"
            yield Check("logs", sign.name, sign.status, what, sign.fix)
    for text in unread[:1]:
        yield Check(
            "logs",
            "unread",
            "warn",
            f"{counted(len(unread), 'log')} cannot be read: {text}",
            "check names and permissions",
        )
    if not seen and not unread:
        yield Check("logs", "logs", "ok", f"no problems in {counted(len(files), 'log')}")


def _logs(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
    return found[:_MOST_FILES]


def _lines(path: Path) -> Iterator[str]:
    """Lines of a log, its beginning and its end where it is very long."""
    with path.open("rb") as file:
        size = path.stat().st_size
        if size <= _MOST_BYTES:
            data = file.read(_MOST_BYTES)
        else:
            data = file.read(_MOST_BYTES // 2)
            file.seek(size - _MOST_BYTES // 2)
            data += b"\n" + file.read(_MOST_BYTES // 2)
    yield from data.decode("utf-8", "replace").splitlines()
