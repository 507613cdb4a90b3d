"""The reference run as another vendor's profiler writes it.

After Kineto's sources (`plugin/xpupti/XpuptiActivityHandlers.cpp`, `ActivityType`), traces of ROCm that are here, and a
trace of an Intel Max GPU that was published event by event. What no source tells is left as CUDA has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests import kineto
from tests.analyses.reference import rank_events

# What only CUDA's kernels carry.
_CUDA_ONLY = ("blocks per SM", "warps per SM", "est. achieved occupancy %", "registers per thread", "queued")
_COLLECTIVE = (
    "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Process Group Name",
    "Process Group Description", "Process Group Ranks", "Seq",
)  # fmt: skip
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")

NAMES = {
    "rocm": {
        "cudaLaunchKernel": "hipLaunchKernel",
        "cudaMemcpyAsync": "hipMemcpyAsync",
        "cudaDeviceSynchronize": "hipDeviceSynchronize",
        "cudaStreamSynchronize": "hipStreamSynchronize",
        "ampere_sgemm_128x64_nn": "Cijk_Ailk_Bljk_SB_MT64x64x16_SN",
    },
    "xpu": {
        "cudaLaunchKernel": "urEnqueueKernelLaunch",
        "cudaMemcpyAsync": "urEnqueueUSMMemcpy",
        "cudaDeviceSynchronize": "urQueueFinish",
        "cudaStreamSynchronize": "urEventWait",
        "ampere_sgemm_128x64_nn": "gemm_kernel",
        "ncclDevKernel_allreduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": (
            "oneccl_allreduce_tree<float, 2, 16>"
        ),
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "oneccl_allgatherv_ring<char, 2>",
        "Memcpy HtoD (Pinned -> Device)": "Memcpy H2D (HOST -> DEVICE)",
        "Memcpy HtoD (Pageable -> Device)": "Memcpy M2D (MEMORY -> DEVICE)",
        "Memcpy DtoH (Device -> Pageable)": "Memcpy D2M (DEVICE -> MEMORY)",
        "Memset (Device)": "Memset (0 -> DEVICE)",
        "cuda:0": "xpu:0",
    },
    "mtia": {
        "cudaLaunchKernel": "mtiaLaunchKernel",
        "cudaDeviceSynchronize": "mtiaDeviceSynchronize",
        "cudaStreamSynchronize": "mtiaStreamSynchronize",
        "cuda:0": "mtia:0",
    },
}
"""By vendor what CUDA's names are called there: CUDA's to its own."""

DEVICES: dict[str, dict[str, Any]] = {
    "cuda": {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85_899_345_920, "numSms": 108,
             "computeMajor": 8, "computeMinor": 0},
    "rocm": {"id": 0, "name": "AMD Instinct MI300X", "totalGlobalMem": 206_141_652_992, "numSms": 304,
             "computeMajor": 9, "computeMinor": 4},
    "xpu": {"id": 0, "name": "Intel(R) Data Center GPU Max 1550", "totalGlobalMem": 68_719_476_736,
            "maxComputeUnits": 448, "maxWorkGroupSize": 1024, "maxClockFrequency": 1600,
            "maxMemAllocSize": 68_719_476_736, "localMemSize": 131_072, "vendor": "Intel(R) Corporation",
            "driverVersion": "1.3.29735"},
    "mtia": {"id": 0, "name": "MTIA"},
}  # fmt: skip
"""What `deviceProperties` says of the device."""


def cuda_events(rank: int) -> list[kineto.Event]:
    """The reference run's, with calls that wait and copies from and to pageable memory."""
    events = rank_events(rank)
    for number in (10, 11):
        at, late, ids = 1000.0 + 1000.0 * (number - 10), 150.0 * rank, 100 * number + 50
        events += [
            kineto.op("aten::to", at + 180, 12, external=ids),
            kineto.launch(at + 182, 6, name="cudaMemcpyAsync", correlation=ids, external=ids),
            kineto.memcpy(
                at + 735, 10, name="Memcpy HtoD (Pageable -> Device)", size=4000, correlation=ids, external=ids
            ),
            kineto.op("aten::item", at + 790, 50, external=ids + 1),
            kineto.launch(at + 791, 5, name="cudaMemcpyAsync", correlation=ids + 1, external=ids + 1),
            kineto.memcpy(
                at + 800, 2, name="Memcpy DtoH (Device -> Pageable)", size=4, correlation=ids + 1, external=ids + 1
            ),
            kineto.launch(at + 797, 40 - late / 10, name="cudaStreamSynchronize", external=ids + 1),
        ]
    return events


def events_of(vendor: str, rank: int) -> list[kineto.Event]:
    """The same events as a vendor's profiler writes them."""
    events = cuda_events(rank)
    return events if vendor == "cuda" else _WRITTEN[vendor](events)


def _named(event: kineto.Event, vendor: str) -> kineto.Event:
    return {**event, "name": NAMES[vendor].get(event["name"], event["name"])}


def _args(event: kineto.Event, *without: str, **more: Any) -> kineto.Event:
    kept = {key: value for key, value in event.get("args", {}).items() if key not in without}
    return {**event, "args": kept | more}


def _rocm(events: Sequence[kineto.Event]) -> list[kineto.Event]:
    """ROCm is CUDA to Kineto: categories and memory's device type are CUDA's, names and arguments are not."""
    return [_args(_named(event, "rocm"), *(_CUDA_ONLY if event.get("cat") in _DEVICE else ())) for event in events]


def _xpu(events: Sequence[kineto.Event]) -> list[kineto.Event]:
    """XPU has queues for streams and no launch shape; what a collective is, its call says and not its kernels."""
    metadata = {
        event["args"]["External id"]: {key: value for key, value in event["args"].items() if key in _COLLECTIVE}
        for event in events
        if event.get("cat") == "kernel" and "Collective name" in event.get("args", {})
    }
    written = []
    for event in events:
        category = event.get("cat")
        made = _named(event, "xpu")
        if category == "cuda_runtime":
            made = {**made, "cat": "xpu_runtime"}
        elif category in _DEVICE:
            queue = event["args"]["stream"]
            made = _args(made, "stream", *_CUDA_ONLY, *_COLLECTIVE, **{"sycl queue": queue, "l0 queue": f"0x{queue:x}"})
            made |= {"tid": 0}
        elif event.get("name") == "[memory]":
            made = _args(made, **{"Device Type": 12})
        elif event.get("name") == "record_param_comms":
            made = _args(made, **metadata.get(event["args"]["External id"], {}))
        written.append(made)
    return written


def _mtia(events: Sequence[kineto.Event]) -> list[kineto.Event]:
    """MTIA's engines have tracks, and a category of their own."""
    written = []
    for event in events:
        category, made = event.get("cat"), _named(event, "mtia")
        if category == "cuda_runtime":
            made = {**made, "cat": "mtia_runtime"}
        elif category in _DEVICE:
            made = _args(made, "stream", *_CUDA_ONLY)
            made = {**made, "cat": "mtia_ccp_events"} if category == "kernel" else made
        elif event.get("name") == "[memory]":
            made = _args(made, **{"Device Type": 19})
        written.append(made)
    return written


_WRITTEN: dict[str, Callable[[Sequence[kineto.Event]], list[kineto.Event]]] = {
    "rocm": _rocm, "xpu": _xpu, "mtia": _mtia,
}  # fmt: skip
