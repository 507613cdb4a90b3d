"""What torch reports without a device, and the checks that are not ok."""

from __future__ import annotations

from rankscope.jobs.doctor import Check


def wrong(checks) -> dict[str, Check]:
    return {check.name: check for check in checks if check.status != "ok"}


CPU = {
    "torch": "2.13.0+cpu",
    "file": "/x/torch",
    "import_s": 1.5,
    "cuda_build": None,
    "hip_build": None,
    "backends": {"gloo": True, "nccl": False, "xccl": False, "mpi": False},
    "profiler": {"kineto": True, "activities": ["CPU"]},
    "cuda": {"count": 0},
    "xpu": {"count": 0},
}
