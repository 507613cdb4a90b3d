"""What surrounds this rank and no trace says: its cores, its NUMA nodes, what it was told through the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import torch

from rankscope.rundir.manifest import redact
from rankscope.rundir.ranges import as_ranges

SETTINGS = re.compile(
    r"(?:NCCL|RCCL|CCL|GLOO|TORCH|PYTORCH|TORCHINDUCTOR|TRITON|CUDA|CUBLAS|CUDNN|HIP|HSA|ROCR|ROCM|ZE|ONEAPI|SYCL|UR|"
    r"OMP|KMP|MKL|FI|UCX|MPICH|I_MPI|PALS|FSDP|ACCELERATE|KINETO)_\w+"
)
"""Variables that change how a job computes and communicates."""
_MAX_VALUE = 1000


def surroundings(environ: Mapping[str, str] | None = None) -> dict[str, object]:
    """Everything there is to say; what cannot be found out is left out."""
    found: dict[str, object] = {"settings": settings(os.environ if environ is None else environ)}
    found["torch"] = torch_settings()
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


def torch_settings() -> dict[str, object]:
    """What torch was told in code: threads, precision, determinism."""
    asked: dict[str, Callable[[], object]] = {
        "num_threads": torch.get_num_threads,
        "num_interop_threads": torch.get_num_interop_threads,
        "float32_matmul_precision": torch.get_float32_matmul_precision,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
        "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
        "cudnn_deterministic": lambda: torch.backends.cudnn.deterministic,
        "default_dtype": lambda: str(torch.get_default_dtype()).removeprefix("torch."),
    }
    found = {}
    for name, ask in asked.items():
        with suppress(Exception):  # an older or newer torch
            found[name] = ask()
    return found


def memory() -> dict[str, int]:
    """Bytes: what this process holds of the host's memory and held at most, and what torch's allocator holds of the
    accelerator's, where the job has woken one."""
    found: dict[str, int] = {}
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            name = {"VmRSS": "host_rss", "VmHWM": "host_peak"}.get(line.partition(":")[0])
            if name is not None:
                found[name] = int(line.split()[1]) * 1024
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if module is None or not module.is_available() or not module.is_initialized():
            continue
        for name, ask in (
            ("allocated", "memory_allocated"),
            ("peak_allocated", "max_memory_allocated"),
            ("reserved", "memory_reserved"),
        ):
            with suppress(Exception):
                found[name] = int(getattr(module, ask)())
    return found


def numa_node_of(pci_bus_id: str | None) -> int | None:
    """The NUMA node that a device hangs on; ``None`` where the system does not say."""
    if pci_bus_id is None:
        return None
    try:
        node = int(Path(f"/sys/bus/pci/devices/{pci_bus_id.lower()}/numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None  # -1 on a machine that has one


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
