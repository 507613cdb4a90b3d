"""Cells that are not the model's own operators: copies, synchronisation, loading, communication, pauses."""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.simulate.cells import (
    COMPUTE_STREAM,
    MAIN,
    STEP,
    Builder,
    Cell,
    launch_shape,
    rank_text,
)
from rankscope.simulate.jitter import LAUNCH_CALL_NS

_NCCL_SHAPE = launch_shape(96, 103808, 0.181818, 3.090909, "24, 1, 1", 544, 0)


@dataclass(frozen=True)
class Naming:
    """What torch and NCCL call a collective."""

    operator: str
    recorded: str
    annotation: str
    kernel: str


NAMES: dict[str, Naming] = {
    "all_reduce": Naming("c10d::allreduce_", "allreduce", "nccl:all_reduce", "AllReduce_Sum_{}_RING_LL"),
    "all_gather": Naming("c10d::_allgather_base_", "_allgather_base", "nccl:_all_gather_base", "AllGather_RING_LL"),
    "reduce_scatter": Naming(
        "c10d::_reduce_scatter_base_",
        "_reduce_scatter_base",
        "nccl:_reduce_scatter_base",
        "ReduceScatter_Sum_{}_RING_LL",
    ),
    "all_to_all": Naming("c10d::alltoall_base_", "all_to_all", "nccl:all_to_all", "SendRecv"),
    "send": Naming("c10d::send", "send", f"nccl:send {rank_text('group_rank:pp')}->{rank_text('next_in_group')}", ""),
    "recv": Naming(
        "c10d::recv_", "recv", f"nccl:recv {rank_text('group_rank:pp')}<-{rank_text('previous_in_group')}", ""
    ),
}


@dataclass(frozen=True)
class Message:
    """What a collective carries, as one rank sees it."""

    kind: str
    dim: str
    stream: int
    in_elements: int
    out_elements: int
    dtype: str = "BFloat16"
    forward: bool = True
    """send and recv: towards the later stages."""

    @property
    def bytes(self) -> int:
        """The full size S: out for all_gather, in for the others."""
        elements = self.out_elements if self.kind == "all_gather" else self.in_elements
        return elements * (4 if self.dtype == "Float" else 2)


def communication(message: Message, thread: str, *, metadata: bool, sequence_numbers: bool) -> Cell:
    """A collective, or one half of a send and receive."""
    b = Builder(thread)
    naming, dim = NAMES[message.kind], message.dim
    group = {name: rank_text(f"{name}:{dim}") for name in ("name", "description", "ranks", "size", "start", "stride")}
    peer = ""
    annotation = naming.annotation
    if message.kind in ("send", "recv"):
        to_next = (message.kind == "send") == message.forward
        side = rank_text("next" if to_next else "previous")
        peer = f', "{"Dst" if message.kind == "send" else "Src"} Rank": {side}'
        if not message.forward:
            annotation = (
                annotation.replace("next_in", "x_in").replace("previous_in", "next_in").replace("x_in", "previous_in")
            )
    seq = ', "Seq": \x01q0\x01' if sequence_numbers else ""
    sizes = (
        f'"Collective name": "{naming.recorded}", "In msg nelems": {message.in_elements}, '
        f'"Out msg nelems": {message.out_elements}, "Group size": {group["size"]}, "dtype": "{message.dtype}"'
    )
    whose = (
        f'"In split size": "[]", "Out split size": "[]", "Process Group Name": "{group["name"]}", '
        f'"Process Group Description": "{group["description"]}", "Process Group Ranks": "{group["ranks"]}"{peer}{seq}'
    )
    kind = "c10::BFloat16" if message.dtype == "BFloat16" else "float"
    inputs = f'"Input type": ["{kind}"], "Input Dims": [[{message.in_elements}]], '
    b.operator(naming.operator, 0, 10, inputs)
    recorded = ""
    if metadata:
        recorded = (
            f'{sizes}, {whose}, "Rank": {rank_text("group_rank:" + dim)}, "Global rank start": {group["start"]}, '
            f'"Global rank stride": {group["stride"]}, '
        )
    number = b.operator("record_param_comms", 1, 9, recorded + inputs)
    b.host("user_annotation", annotation, 2, 8, inputs)
    b.runtime("cudaEventRecord", 135, 3, 4, number)
    b.runtime("cudaStreamWaitEvent", 147, 4, 5, number)
    c = b.runtime("cudaLaunchKernelExC", 430, 6, 7, number, launches=True)
    kernel = naming.kernel or "SendRecv"
    kernel = kernel.format("bf16" if message.dtype == "BFloat16" else "f32")
    shape = f"{_NCCL_SHAPE}, {sizes}, {whose}" if metadata else _NCCL_SHAPE
    name = f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)"
    b.device("kernel", name, c, number, shape, message.stream, "collective")
    spans = (6_000, 9_000, 6_000, 14_000, 530, 800, 12_000, LAUNCH_CALL_NS, 4_000, 3_000, 2_500)
    return b.cell(naming.operator, spans, launch_at=7)


def wait(thread: str) -> Cell:
    """The compute stream waits for a communication stream; the host goes on."""
    b = Builder(thread)
    b.runtime("cudaStreamWaitEvent", 147, 0, 1, None)
    return b.cell("wait", (900, 800))


def copy_in(*, stacks: bool) -> Cell:
    """The batch goes to the device."""
    b = Builder(MAIN, stacks)
    b.frame("train.py(88): to_device", 0, 7)
    inputs = '"Input type": ["long int"], "Input Dims": [[2, 2049]], '
    b.operator("aten::to", 0, 7, inputs)
    b.operator("aten::_to_copy", 1, 6, inputs)
    number = b.operator("aten::copy_", 2, 5, inputs)
    c = b.runtime("cudaMemcpyAsync", 41, 3, 4, number, launches=True)
    copied = '"bytes": 2097152, "memory bandwidth (GB/s)": 24.385488372093022'
    b.device("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", c, number, copied, COMPUTE_STREAM, "kernel")
    return b.cell("aten::to", (5_000, 3_000, 4_000, 3_000, 7_000, 2_000, 1_500, 1_000), launch_at=4, kernel_ns=86_000)


def copy_on_device(kernel_ns: int, thread: str) -> Cell:
    """A copy that somebody did not need to make."""
    b = Builder(thread)
    number = b.operator("aten::copy_", 0, 3, '"Input type": ["c10::BFloat16", "c10::BFloat16"], ')
    c = b.runtime("cudaMemcpyAsync", 41, 1, 2, number, launches=True)
    copied = f'"bytes": {kernel_ns * 1200}, "memory bandwidth (GB/s)": 1200'
    b.device("gpu_memcpy", "Memcpy DtoD (Device -> Device)", c, number, copied, COMPUTE_STREAM, "kernel")
    return b.cell("aten::copy_", (4_000, 4_000, 7_000, 1_500), launch_at=2, kernel_ns=kernel_ns)


def zero_gradients(*, stacks: bool) -> Cell:
    """The gradients are cleared."""
    b = Builder(MAIN, stacks)
    b.host("user_annotation", "Optimizer.zero_grad#AdamW.zero_grad", 0, 7)
    b.operator("aten::zero_", 1, 6, '"Input type": ["float"], "Input Dims": [[16777216]], ')
    c = b.runtime("cudaMemsetAsync", 51, 3, 4, 1, launches=True)
    cleared = '"bytes": 67108864, "memory bandwidth (GB/s)": 2796.2026666666666'
    b.device("gpu_memset", "Memset (Device)", c, 1, cleared, COMPUTE_STREAM, "kernel")
    return b.cell("zero_grad", (9_000, 25_000, 0, 4_000, 3_400, 0, 3_000, 12_000), launch_at=4, kernel_ns=24_000)


def load_batch(*, stacks: bool) -> Cell:
    """The next batch comes from the loader's workers."""
    b = Builder(MAIN, stacks)
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    b.host("user_annotation", name, 0, 2)
    b.frame("torch/utils/data/dataloader.py(1458): _next_data", 1, 2)
    return b.cell("load", (20_000, 10_000, 75_000), waits_at=2)


def read_loss(*, stacks: bool) -> Cell:
    """``loss.item()``: the host waits for the device."""
    b = Builder(MAIN, stacks)
    b.frame("train.py(97): log", 0, 7)
    inputs = '"Input type": ["float"], "Input Dims": [[]], '
    b.operator("aten::item", 0, 7, inputs)
    number = b.operator("aten::_local_scalar_dense", 1, 6, inputs)
    c = b.runtime("cudaMemcpyAsync", 41, 2, 3, number, launches=True)
    copied = '"bytes": 4, "memory bandwidth (GB/s)": 0.0025'
    b.device("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", c, number, copied, COMPUTE_STREAM, "kernel")
    b.runtime("cudaStreamSynchronize", 131, 4, 5, number)
    spans = (8_000, 3_000, 3_000, 7_000, 1_500, 3_000, 2_000, 1_500)
    return b.cell("aten::item", spans, launch_at=3, kernel_ns=1_600, waits_at=5)


def device_synchronize() -> Cell:
    """The host waits for the whole device, as the profiler does when it stops."""
    b = Builder(MAIN)
    b.runtime("cudaDeviceSynchronize", 165, 0, 1, None)
    return b.cell("cudaDeviceSynchronize", (30_000, 10_000), waits_at=1)


def step_begin() -> Cell:
    """Python between two steps: where a ``ProfilerStep`` begins."""
    return Builder(MAIN).cell("step", (15_000, 60_000))


def moment(thread: str = MAIN) -> Cell:
    """A moment of Python, to hang the ends of ranges on."""
    return Builder(thread).cell("moment", (2_000, 3_000))


def pause(nanoseconds: int, thread: str) -> Cell:
    """The process is asleep or descheduled: nothing is recorded."""
    return Builder(thread).cell("asleep", (nanoseconds,), steady=True)


def garbage_collection(nanoseconds: int, thread: str) -> Cell:
    """Python's collector stops the thread."""
    b = Builder(thread, stacks=True)
    b.frame("Python GC", 0, 1)
    return b.cell("gc", (2_000, nanoseconds), steady=True)


def allocation_retry(nanoseconds: int, thread: str) -> Cell:
    """The allocator is out of cached memory: it frees what it holds and asks the driver again."""
    b = Builder(thread)
    number = b.operator("aten::empty", 0, 5, '"Concrete Inputs": ["[67108864]"], ')
    b.runtime("cudaFree", 22, 1, 2, number)
    b.runtime("cudaMalloc", 20, 3, 4, number)
    return b.cell("retry", (2_000, 3_000, nanoseconds * 3 // 5, 2_000, nanoseconds * 2 // 5, 2_000), steady=True)


PROFILER_STEP = f"ProfilerStep#{STEP}"
