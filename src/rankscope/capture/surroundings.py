"""What surrounds this rank and no trace says: its cores, its NUMA nodes, what it was told through the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from rankscope.rundir.manifest import redact

SETTINGS = re.compile(
    r"(?:NCCL|RCCL|CCL|GLOO|TORCH|PYTORCH|TORCHINDUCTOR|TRITON|CUDA|CUBLAS|CUDNN|HIP|HSA|ROCR|ROCM|ZE|ONEAPI|SYCL|UR|"
    r"OMP|KMP|MKL|FI|UCX|MPICH|I_MPI|PALS|FSDP|ACCELERATE|KINETO)_\w+"
)
"""Variables that change how a job computes and communicates."""
_MAX_VALUE = 1000


def surroundings(environ: Mapping[str, str] | None = None) -> dict[str, object]:
    """Everything there is to say; what cannot be found out is left out."""
    found: dict[str, object] = {"settings": settings(os.environ if environ is None else environ)}
    cores = affinity()
    if cores is not None:
        found["cpu_affinity"] = as_ranges(cores)
        found["numa_nodes"] = as_ranges(numa_nodes(cores))
    return found


def settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of :data:`SETTINGS`, with everything cut that looks like a secret."""
    kept = {}
    for name in sorted(environ):
        if SETTINGS.fullmatch(name):
            (said,) = redact([f"{name}={environ[name][:_MAX_VALUE]}"])
            kept[name] = said.partition("=")[2]
    return kept


def affinity() -> set[int] | None:
    """The cores that this process may run on; ``None`` where the system does not say."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    return set(os.sched_getaffinity(0))


def numa_nodes(cores: Iterable[int]) -> set[int]:
    """The NUMA nodes that some cores belong to."""
    found = set()
    for core in cores:
        with suppress(OSError, ValueError):
            for entry in Path(f"/sys/devices/system/cpu/cpu{core}").glob("node[0-9]*"):
                found.add(int(entry.name.removeprefix("node")))
    return found


def as_ranges(numbers: Iterable[int]) -> str:
    """``{0, 1, 2, 5}`` as ``0-2,5``."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
