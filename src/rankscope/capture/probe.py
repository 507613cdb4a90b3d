"""Prints what torch finds on this machine, as lines of JSON; run as a script, in a separate process.

Importing torch or initializing a device can hang. Each line is printed as soon as it is known, so that a caller that
stops waiting knows how far the process came.

In: nothing. Out: lines of JSON on standard output.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any


def main() -> None:
    """Run each part; one that fails is reported and the next one runs."""
    report({"stage": "import torch"})
    began = time.perf_counter()
    import torch

    report({"import_s": time.perf_counter() - began, "torch": str(torch.__version__), "file": str(torch.__file__)})
    version = torch.version
    report({"cuda_build": version.cuda, "hip_build": getattr(version, "hip", None), "xpu_build": hasattr(torch, "xpu")})
    for name, probe in (("backends", _backends), ("profiler", _profiler), ("cuda", _cuda), ("xpu", _xpu)):
        report({"stage": name})
        try:
            report({name: probe()})
        except Exception as error:
            report({name: None, f"{name}_error": f"{type(error).__name__}: {error}"})
    report({"stage": "done"})


def report(found: dict[str, object]) -> None:
    """Print one line."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def _backends() -> dict[str, object]:
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        return {}
    checks: dict[str, Callable[[], bool]] = {
        name: getattr(dist, f"is_{name}_available", lambda: False) for name in ("gloo", "nccl", "xccl", "ucc", "mpi")
    }
    found: dict[str, object] = {name: bool(check()) for name, check in checks.items()}
    if found["nccl"]:
        found["nccl_version"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]  # torch has no types here
    return found


def _profiler() -> dict[str, object]:
    import torch

    return {
        "kineto": bool(torch.autograd.profiler.kineto_available()),  # type: ignore[attr-defined]  # it is defined in C++
        "activities": sorted(a.name for a in torch.profiler.supported_activities()),  # type: ignore[no-untyped-call]  # untyped
    }


def _cuda() -> dict[str, object]:
    import torch

    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return {"count": 0}
    # is_available() hides the reason, init() raises it.
    why = None
    if not torch.cuda.is_available():
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]  # torch has no types here
        except Exception as error:
            why = str(error)
    devices = [_memory(torch.cuda, index) for index in range(torch.cuda.device_count() if why is None else 0)]
    return {"count": len(devices), "devices": devices, "why": why}


def _xpu() -> dict[str, object]:
    import torch

    xpu = getattr(torch, "xpu", None)
    if xpu is None or not xpu.is_available():
        return {"count": 0}
    return {"count": xpu.device_count(), "devices": [_memory(xpu, index) for index in range(xpu.device_count())]}


def _memory(module: Any, index: int) -> dict[str, object]:
    properties = module.get_device_properties(index)
    found: dict[str, object] = {"name": str(properties.name), "total_bytes": int(properties.total_memory)}
    try:
        found["free_bytes"] = int(module.mem_get_info(index)[0])
    except Exception as error:  # a device in exclusive use, or an older torch
        found["error"] = str(error)
    return found


if __name__ == "__main__":
    main()
