"""Programs that have one problem each, and the same programs with the advice of its rule followed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from benchmarks.savings.model import COPIES, Job, Program

MIB = 1 << 20
A100 = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0, "numSms": 108}
SHAPES = {"dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
BACKWARD = "autograd::engine::evaluate_function: MmBackward0"


@dataclass(frozen=True)
class Case:
    """A problem and what its rule's advice changes.

    Attributes:
        rule: the id of the finding.
        change: what was changed, in a few words.
        before: the calls of a step.
        after: the same with the advice followed.
        ranks: of the job.
        metadata: of the traces.
    """

    rule: str
    change: str
    before: Program
    after: Program
    ranks: int = 1
    metadata: dict[str, Any] = field(default_factory=dict)


def _loading(load: float, *, item: bool) -> Program:
    def step(job: Job) -> None:
        job.load(load)
        for _ in range(4):
            job.launch(1000)
        if item:
            job.synchronize()

    return step


def _silent(time: float, *, item: bool) -> Program:
    def step(job: Job) -> None:
        job.silent(time)
        for _ in range(4):
            job.launch(1000)
        if item:
            job.synchronize()

    return step


def _host_before_kernels(count: int, host: float, time: float) -> Program:
    def step(job: Job) -> None:
        for _ in range(count):
            job.launch(time, host=host)
        job.synchronize()

    return step


def _graph(count: int, time: float) -> Program:
    def step(job: Job) -> None:
        job.graph(count, time)
        job.synchronize()

    return step


def _fused(time: float) -> Program:
    def step(job: Job) -> None:
        job.launch(time, host=15)
        job.synchronize()

    return step


def _item_in_the_middle(*, item: bool) -> Program:
    def step(job: Job) -> None:
        for _ in range(4):
            job.launch(1000)
        if item:
            job.synchronize()
        job.host(1500, "aten::nonzero")
        for _ in range(4):
            job.launch(1000)

    return step


def _copying(*, pageable: bool) -> Program:
    def step(job: Job) -> None:
        job.copy(2000 if pageable else 500, pageable=pageable)
        job.wait(COPIES)
        for _ in range(4):
            job.launch(1000)

    return step


def _backward(buckets: int, total: float, *, compute: float = 8000, size: int = 100 * MIB) -> Program:
    """A backward whose gradients are reduced in some buckets of one size each, each as soon as it is computed."""

    def step(job: Job) -> None:
        for _ in range(buckets):
            job.launch(compute / buckets, op=BACKWARD)
            job.reduce(total / buckets, size // buckets // 4, bucket=True)
        job.wait()
        job.launch(500, op="aten::_fused_adamw_")
        job.synchronize()

    return step


def _latencies(buckets: int) -> Program:
    """Many buckets of 40 kB, each of which takes 100 µs whatever its size, behind a short backward."""

    def step(job: Job) -> None:
        job.launch(2000, op=BACKWARD)
        for _ in range(buckets):
            job.reduce(100, 400_000 // buckets, bucket=True)
        job.wait()
        job.launch(500, op="aten::_fused_adamw_")
        job.synchronize()

    return step


def _micro_steps(*, each: bool) -> Program:
    def step(job: Job) -> None:
        for micro in range(6):
            job.launch((2000, 1000) if micro % 2 else (1000, 2000))
            if each or micro == 5:
                job.reduce(20, 1)
                job.wait()
        job.synchronize()

    return step


def _collecting(time: float, *, ahead: bool = False) -> Program:
    def step(job: Job) -> None:
        job.collect(time)
        for _ in range(4):
            job.launch(1000)
        if not ahead:
            job.synchronize()

    return step


def _collecting_in_turns(time: float) -> Program:
    """Each rank collects in another part of the step, and a collective follows each part."""

    def step(job: Job) -> None:
        for rank in range(2):
            job.collect([time if rank == other else 0.0 for other in range(2)])
            job.launch(2000)
            job.reduce(50, 1 << 20)
            job.wait()
            job.synchronize()

    return step


def _compiled(regions: int, *, ahead: bool) -> Program:
    """Compiled regions with Dynamo's lookup before each; the host may be ahead of the device."""

    def step(job: Job) -> None:
        for number in range(regions):
            job.host(200, "TorchDynamo Cache Lookup")
            job.launch((4000 if ahead else 600) / regions, op=f"Torch-Compiled Region: {number}/0", host=10)
        if not ahead:
            job.synchronize()

    return step


def _sharing(*times: float) -> Program:
    def step(job: Job) -> None:
        for part in range(4):
            job.launch([time / 4 for time in times], f"gemm_{part}")
        job.reduce(100, MIB)
        job.wait()
        job.synchronize()

    return step


def _host_of_one_rank(extra: float) -> Program:
    def step(job: Job) -> None:
        for _ in range(20):
            job.launch(100, host=[50 + extra / 20, 50, 50, 50])
        job.reduce(100, MIB)
        job.wait()
        job.synchronize()

    return step


def _two_sizes(slow: float) -> Program:
    """64 MiB with a rate that may be lower than that of 32 MiB."""

    def step(job: Job) -> None:
        job.launch(2000)
        job.reduce(320, 8 * MIB)
        job.wait()
        job.launch(2000)
        job.reduce(slow, 16 * MIB)
        job.wait()
        job.synchronize()

    return step


def _little_compute(steps_per_reduce: int) -> Program:
    """1 ms of compute beside 5 ms of transfer; or the transfer in one of some steps."""
    calls = 0

    def step(job: Job) -> None:
        nonlocal calls
        calls += 1
        job.launch(10)
        if calls % steps_per_reduce == 0:
            job.reduce(5000, 25 * MIB)
        job.launch(990)
        job.wait()
        job.synchronize()

    return step


def _stages(*times: float) -> Program:
    """A pipeline of two stages and four microbatches: all of them forward, then all backward."""

    def step(job: Job) -> None:
        for _ in range(4):
            job.launch(times[0], by=(0,))
            job.send(0, 1, 20)
            job.launch(times[1], by=(1,))
        for _ in range(4):
            job.launch(times[1], by=(1,), op=BACKWARD)
            job.send(1, 0, 20)
            job.launch(times[0], by=(0,), op=BACKWARD)
        job.synchronize()

    return step


def _replicas(*times: float) -> Program:
    """Replicas of different work."""

    def step(job: Job) -> None:
        for part in range(4):
            job.launch([time / 4 for time in times], f"gemm_{part}")
        job.reduce(100, MIB, description="mesh_dp")
        job.wait()
        job.synchronize()

    return step


def _allocating(time: float) -> Program:
    """The cache is returned to the driver in the middle of a step: the device is idle until memory is allocated."""

    def step(job: Job) -> None:
        for part in range(4):
            job.launch(1000)
            if part == 1 and time:
                job.allocate(time)
        job.synchronize()

    return step


def _product(name: str, time: float, **on: Any) -> Program:
    def step(job: Job) -> None:
        job.launch(time, name, args=SHAPES, **on)
        job.launch(500, "elementwise_kernel", op="aten::add")
        job.synchronize()

    return step


def _blocks(blocks: int, time: float) -> Program:
    def step(job: Job) -> None:
        for _ in range(2):
            job.launch(time, "reduce_kernel", op="aten::sum", **{"blocks per SM": blocks / 108, "grid": [blocks, 1, 1]})
        job.launch(1000)
        job.synchronize()

    return step


CASES = (
    Case("data_loading", "the loader is always ready", _loading(3000, item=True), _loading(0, item=True)),
    Case("data_loading", "the same, the host runs ahead", _loading(6000, item=False), _loading(0, item=False)),
    Case("silent_host", "no Python between steps", _silent(3000, item=True), _silent(0, item=True)),
    Case("silent_host", "the same, the host runs ahead", _silent(6000, item=False), _silent(0, item=False)),
    Case("launch_bound", "a CUDA graph", _host_before_kernels(40, 50, 30), _graph(40, 30)),
    Case("small_kernels", "fused into one", _host_before_kernels(200, 12, 4), _fused(800)),
    Case("synchronizing_calls", "no .item()", _item_in_the_middle(item=True), _item_in_the_middle(item=False)),
    Case("pageable_copies", "pinned, ahead", _copying(pageable=True), _copying(pageable=False)),
    Case("exposed_communication", "in 10 buckets", _backward(1, 2000), _backward(10, 2000), 2),
    Case("bucket_size", "4 buckets for 1", _backward(1, 4000), _backward(4, 4000), 2),
    Case("bucket_size", "4 buckets for 40", _latencies(40), _latencies(4), 2),
    Case("small_collectives", "only the last", _micro_steps(each=True), _micro_steps(each=False), 2),
    Case("gc_pauses", "gc.freeze()", _collecting(1500), _collecting(0)),
    Case("gc_pauses", "the same, ranks in turns", _collecting_in_turns(1000), _collecting_in_turns(0), 2),
    Case("graph_breaks", "one graph", _compiled(4, ahead=False), _compiled(1, ahead=False)),
    Case("imbalance", "shared", _sharing(4000, 4000, 4000, 6000), _sharing(4500, 4500, 4500, 4500), 4),
    Case("mesh-imbalance", "shared", _replicas(4000, 4000, 6000, 6000), _replicas(*[5000] * 4), 4),
    Case("pipeline-bubble", "stages of equal work", _stages(1000, 2000), _stages(1500, 1500), 2),
    Case("memory_retries", "no calls of the driver", _allocating(1200), _allocating(0)),
    Case("straggler", "a host as fast as the others", _host_of_one_rank(2000), _host_of_one_rank(0), 4),
    Case("slow_network", "at the rate of 32 MiB", _two_sizes(3000), _two_sizes(640), 2),
    Case("small_problem", "one transfer in 6 steps", _little_compute(1), _little_compute(6), 2),
    Case(
        "tensor_cores",
        "TF32, bound by compute",
        _product("ampere_sgemm_128x64_nn", 8000),
        _product("ampere_sgemm_tf32_s1688gemm_128x64", 8000 * 19.5 / 156),
        metadata={"deviceProperties": [A100]},
    ),
    Case(
        "tensor_cores",
        "TF32, bound by memory",
        _product("ampere_sgemm_128x64_nn", 8000),
        _product("ampere_sgemm_tf32_s1688gemm_128x64", 4000),
        metadata={"deviceProperties": [A100]},
    ),
    Case(
        "precision",
        "bfloat16, bound by compute",
        _product("ampere_sgemm_tf32_s1688gemm_128x64", 8000),
        _product("ampere_bf16_s16816gemm_bf16_128x64", 4000),
        metadata={"deviceProperties": [A100]},
    ),
    Case(
        "low_occupancy",
        "as many blocks as multiprocessors",
        _blocks(27, 2000),
        _blocks(108, 500),
        metadata={"deviceProperties": [A100]},
    ),
)
QUIET = (
    Case("silent_host", "hidden behind the device", _silent(3000, item=False), _silent(0, item=False)),
    Case("gc_pauses", "hidden behind the device", _collecting(1500, ahead=True), _collecting(0, ahead=True)),
    Case("data_loading", "hidden behind the device", _loading(2000, item=False), _loading(0, item=False)),
    Case("graph_breaks", "hidden behind the device", _compiled(4, ahead=True), _compiled(1, ahead=True)),
)
"""Problems that cost nothing, because the host is ahead of its device: following the advice gains nothing."""
