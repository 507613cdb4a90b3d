"""The machine and software of this rank, which torch does not record: device, cores, NUMA nodes, settings, versions.

In: environment variables, and what torch and Linux know. Out: values for traces and the rank's manifest; what cannot be
found is left out.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from rankscope.rundir.manifest import redact
from rankscope.rundir.metadata import ClockAnchor, Device
from rankscope.rundir.ranges import as_ranges

SETTINGS = re.compile(
    # Collectives, and the networks below them.
    r"(?:NCCL|RCCL|CCL|ONECCL|GLOO|UCC|UCX|FI|MPICH|MPIR_CVAR|I_MPI|PALS|"
    # Torch, its compilers and its libraries.
    r"TORCH|PYTORCH|TORCHINDUCTOR|TRITON|IPEX|FSDP|ACCELERATE|KINETO|OMP|KMP|MKL|DNNL|ONEDNN|"
    # Devices: NVIDIA's, AMD's, Intel's (Level Zero, its tools and its compiler).
    r"CUDA|CUBLAS|CUDNN|HIP|HSA|ROCR|ROCM|MIOPEN|ZE|ZES|ZET|ZEL|ZEX|IGC|ONEAPI|SYCL|UR)_\w+"
)
"""Environment variables that change how a job computes and communicates."""
_MAX_VALUE = 1000
_PACKAGES = (
    "torchvision",
    "lightning",
    "pytorch_lightning",
    "oneccl_bindings_for_pytorch",
    "transformers",
    "accelerate",
    "deepspeed",
)


def describe_environment() -> dict[str, object]:
    """Settings and core affinity of this process, as traces and manifests have them."""
    found: dict[str, object] = {"settings": settings(os.environ)}
    found["torch"] = torch_settings()
    cores = affinity()
    if cores is not None:
        found["cpu_affinity"] = as_ranges(cores)
        found["numa_nodes"] = as_ranges(numa_nodes(cores))
    return found


def settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that match :data:`SETTINGS`; whatever looks like a secret is redacted."""
    kept = {}
    for name in sorted(environ):
        if SETTINGS.fullmatch(name):
            (redacted,) = redact([f"{name}={environ[name][:_MAX_VALUE]}"])
            kept[name] = redacted.partition("=")[2]
    return kept


def torch_settings() -> dict[str, object]:
    """What the program set in torch: threads, precision, determinism."""
    getters: dict[str, Callable[[], object]] = {
        "num_threads": torch.get_num_threads,
        "num_interop_threads": torch.get_num_interop_threads,
        "float32_matmul_precision": torch.get_float32_matmul_precision,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
        "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
        "cudnn_deterministic": lambda: torch.backends.cudnn.deterministic,
        "default_dtype": lambda: str(torch.get_default_dtype()).removeprefix("torch."),
    }
    found = {}
    for name, get in getters.items():
        with suppress(Exception):  # an older or newer torch
            found[name] = get()
    return found


def versions() -> dict[str, str]:
    """Versions of the software. Packages that are not loaded are not loaded for this."""
    from rankscope import __version__  # the package is still being imported when this module is

    found = {
        "rankscope": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "platform": platform.platform(),
    }
    for name in ("cuda", "hip", "xpu"):
        value = getattr(torch.version, name, None)
        if value:
            found[name] = str(value)
    with suppress(Exception):
        if torch.cuda.is_available():
            found["nccl"] = ".".join(str(part) for part in _untyped(torch.cuda.nccl.version))
            found["cudnn"] = str(_untyped(torch.backends.cudnn.version))
    for name in _PACKAGES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version:
            found[name] = str(version)
    return found


def _untyped(call: Any) -> Any:
    return call()


def memory() -> dict[str, int]:
    """Bytes: the host memory that this process uses and its peak, and what torch's allocator holds on the accelerator,
    if the job has initialized one."""
    found: dict[str, int] = {}
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            name = {"VmRSS": "host_rss", "VmHWM": "host_peak"}.get(line.partition(":")[0])
            if name is not None:
                found[name] = int(line.split()[1]) * 1024
    for _, module in initialized_accelerators():
        for name, getter in (
            ("allocated", "memory_allocated"),
            ("peak_allocated", "max_memory_allocated"),
            ("reserved", "memory_reserved"),
        ):
            with suppress(Exception):
                found[name] = int(getattr(module, getter)())
    return found


def initialized_accelerators() -> Iterator[tuple[str, Any]]:
    """Kind and torch module of each accelerator that the job has used; others are not woken for this."""
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_initialized():
            yield kind, module


def device_in_use() -> str | None:
    """``cuda`` (ROCm too) or ``xpu`` if the job has used such a device."""
    return next((kind for kind, _ in initialized_accelerators()), None)


def describe_device() -> Device:
    """The device that this rank computes on, without waking one that the job has not used."""
    for kind, module in initialized_accelerators():
        index = int(module.current_device())
        properties = module.get_device_properties(index)
        uuid, pci = getattr(properties, "uuid", None), _pci(properties)
        return Device(
            kind,
            str(properties.name),
            index,
            int(properties.total_memory),
            None if uuid is None else str(uuid),
            pci,
            numa_node_of(pci),
        )
    return Device("cpu", cpu_name(), None, None)


def default_activities() -> list[torch.profiler.ProfilerActivity]:
    """What can be recorded here: the CPU, and the accelerator if there is one (CUDA includes ROCm)."""
    kinds = torch.profiler.ProfilerActivity
    found = [kinds.CPU]
    supported = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]  # torch has no types here
    for name, kind in (("cuda", "CUDA"), ("xpu", "XPU"), ("mtia", "MTIA")):
        activity = getattr(kinds, kind, None)
        module = getattr(torch, name, None)
        if activity is not None and activity in supported and module is not None and module.is_available():
            found.append(activity)
    return found


def clock_anchor() -> ClockAnchor:
    """The host's clocks, read at one moment; of a few readings, the one that was least interrupted."""
    readings = []
    for _ in range(3):
        before = time.monotonic_ns()
        wall = time.time_ns()
        perf = time.perf_counter_ns()
        after = time.monotonic_ns()
        readings.append((after - before, wall, (before + after) // 2, perf))
    _, wall, monotonic, perf = min(readings)
    return ClockAnchor(wall, monotonic, perf)


def cpu_name() -> str | None:
    """The CPU's name, from Linux or Python."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or None


def _pci(properties: object) -> str | None:
    parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    numbers = [part for part in parts if isinstance(part, int)]
    return "{:04x}:{:02x}:{:02x}.0".format(*numbers) if len(numbers) == len(parts) else None


def numa_node_of(pci_bus_id: str | None) -> int | None:
    """The NUMA node that a device is attached to; ``None`` if the system does not report it."""
    if pci_bus_id is None:
        return None
    try:
        node = int(Path(f"/sys/bus/pci/devices/{pci_bus_id.lower()}/numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None  # -1 on a machine with a single node


def affinity() -> set[int] | None:
    """The cores that this process may run on; ``None`` if the system does not report them."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    return set(os.sched_getaffinity(0))


def numa_nodes(cores: Iterable[int]) -> set[int]:
    """The NUMA nodes that cores belong to."""
    found = set()
    for core in cores:
        with suppress(OSError, ValueError):
            for entry in Path(f"/sys/devices/system/cpu/cpu{core}").glob("node[0-9]*"):
                found.add(int(entry.name.removeprefix("node")))
    return found
