"""Cells other than the model's operators: copies, synchronization, loading, communication, pauses.

In: a builder. Out: cells.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.experiments.simulate.cells import SEQUENCE_NUMBER, Args, Cell, CellBuilder, launch_shape
from rankscope.experiments.simulate.identity import MAIN, RankIdentity
from rankscope.experiments.simulate.jitter import LAUNCH_CALL_NS

_NCCL_SHAPE = launch_shape(96, 103808, 0.181818, 3.090909, (24, 1, 1), 544, 0)


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
    "send": Naming("c10d::send", "send", "nccl:send", "SendRecv"),
    "recv": Naming("c10d::recv_", "recv", "nccl:recv", "SendRecv"),
}

ARROWS = {"send": "->", "recv": "<-"}
"""The arrow in NCCL's annotation of a message, from this rank to the other."""


@dataclass(frozen=True)
class Message:
    """The payload of a collective, as one rank sees it."""

    kind: str
    dim: str
    stream: int
    in_elements: int
    out_elements: int
    dtype: str = "BFloat16"
    forward: bool = True
    """send and recv: toward the later stages."""

    @property
    def to_next(self) -> int:
        """send and recv: 1 if the other rank is of the next pipeline stage, -1 if of the one before."""
        return 1 if (self.kind == "send") == self.forward else -1

    @property
    def bytes(self) -> int:
        """The full size S: out for all_gather, in for the others."""
        elements = self.out_elements if self.kind == "all_gather" else self.in_elements
        return elements * (4 if self.dtype == "Float" else 2)


def communication(message: Message, thread: str, *, metadata: bool, sequence_numbers: bool) -> Cell:
    """A collective, or one half of a send and receive."""
    b = CellBuilder(thread)
    naming, dim, to_next = NAMES[message.kind], message.dim, message.to_next

    def annotation(rank: RankIdentity) -> str:
        if message.kind not in ARROWS:
            return naming.annotation
        return f"{naming.annotation} {rank.index_in('pp')}{ARROWS[message.kind]}{rank.neighbor(to_next)}"

    sizes: Args = {
        "Collective name": naming.recorded,
        "In msg nelems": message.in_elements,
        "Out msg nelems": message.out_elements,
        "Group size": lambda rank: len(rank.groups[dim].ranks),
        "dtype": message.dtype,
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": lambda rank: rank.groups[dim].name,
        "Process Group Description": lambda rank: rank.groups[dim].description,
        "Process Group Ranks": lambda rank: rank.ranks_text(dim),
    }
    if message.kind in ARROWS:
        peer = "Dst Rank" if message.kind == "send" else "Src Rank"
        sizes[peer] = lambda rank: rank.groups["pp"].ranks[rank.neighbor(to_next)]
    if sequence_numbers:
        sizes["Seq"] = SEQUENCE_NUMBER
    kind = "c10::BFloat16" if message.dtype == "BFloat16" else "float"
    inputs: Args = {"Input type": [kind], "Input Dims": [[message.in_elements]]}
    recorded: Args = {
        "Rank": lambda rank: rank.index_in(dim),
        "Global rank start": lambda rank: rank.groups[dim].ranks[0],
        "Global rank stride": lambda rank: rank.stride_in(dim),
    }
    b.operator(naming.operator, 0, 10, inputs)
    external = b.operator("record_param_comms", 1, 9, {**sizes, **recorded, **inputs} if metadata else inputs)
    b.host("user_annotation", annotation, 2, 8, inputs)
    b.runtime("cudaEventRecord", 135, 3, 4, external)
    b.runtime("cudaStreamWaitEvent", 147, 4, 5, external)
    launch = b.runtime("cudaLaunchKernelExC", 430, 6, 7, external, launches=True)
    kernel = naming.kernel.format("bf16" if message.dtype == "BFloat16" else "f32")
    name = f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)"
    b.device("kernel", name, launch, external, {**_NCCL_SHAPE, **sizes} if metadata else _NCCL_SHAPE, message.stream)
    spans = (6_000, 9_000, 6_000, 14_000, 530, 800, 12_000, LAUNCH_CALL_NS, 4_000, 3_000, 2_500)
    return b.cell(naming.operator, spans, launch_at=7)


def wait(thread: str) -> Cell:
    """The compute stream waits for a communication stream; the host continues."""
    b = CellBuilder(thread)
    b.runtime("cudaStreamWaitEvent", 147, 0, 1, None)
    return b.cell("wait", (900, 800))


def copy_in(*, stacks: bool) -> Cell:
    """The batch goes to the device."""
    b = CellBuilder(MAIN, stacks)
    b.frame("train.py(88): to_device", 0, 7)
    inputs: Args = {"Input type": ["long int"], "Input Dims": [[2, 2049]]}
    b.operator("aten::to", 0, 7, inputs)
    b.operator("aten::_to_copy", 1, 6, inputs)
    external = b.operator("aten::copy_", 2, 5, inputs)
    launch = b.runtime("cudaMemcpyAsync", 41, 3, 4, external, launches=True)
    copied: Args = {"bytes": 2097152, "memory bandwidth (GB/s)": 24.385488372093022}
    b.device("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", launch, external, copied)
    return b.cell("aten::to", (5_000, 3_000, 4_000, 3_000, 7_000, 2_000, 1_500, 1_000), launch_at=4, kernel_ns=86_000)


def copy_on_device(kernel_ns: int, thread: str) -> Cell:
    """An unnecessary copy on the device."""
    b = CellBuilder(thread)
    external = b.operator("aten::copy_", 0, 3, {"Input type": ["c10::BFloat16", "c10::BFloat16"]})
    launch = b.runtime("cudaMemcpyAsync", 41, 1, 2, external, launches=True)
    copied: Args = {"bytes": kernel_ns * 1200, "memory bandwidth (GB/s)": 1200}
    b.device("gpu_memcpy", "Memcpy DtoD (Device -> Device)", launch, external, copied)
    return b.cell("aten::copy_", (4_000, 4_000, 7_000, 1_500), launch_at=2, kernel_ns=kernel_ns)


def zero_gradients(*, stacks: bool) -> Cell:
    """The gradients are cleared."""
    b = CellBuilder(MAIN, stacks)
    b.host("user_annotation", "Optimizer.zero_grad#AdamW.zero_grad", 0, 7)
    external = b.operator("aten::zero_", 1, 6, {"Input type": ["float"], "Input Dims": [[16777216]]})
    launch = b.runtime("cudaMemsetAsync", 51, 3, 4, external, launches=True)
    cleared: Args = {"bytes": 67108864, "memory bandwidth (GB/s)": 2796.2026666666666}
    b.device("gpu_memset", "Memset (Device)", launch, external, cleared)
    return b.cell("zero_grad", (9_000, 25_000, 0, 4_000, 3_400, 0, 3_000, 12_000), launch_at=4, kernel_ns=24_000)


def load_batch(*, stacks: bool) -> Cell:
    """The next batch comes from the loader's workers."""
    b = CellBuilder(MAIN, stacks)
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    b.host("user_annotation", name, 0, 2)
    b.frame("torch/utils/data/dataloader.py(1458): _next_data", 1, 2)
    return b.cell("load", (20_000, 10_000, 75_000), waits_at=2)


def read_loss(*, stacks: bool) -> Cell:
    """``loss.item()``: the host waits for the device."""
    b = CellBuilder(MAIN, stacks)
    b.frame("train.py(97): log", 0, 7)
    inputs: Args = {"Input type": ["float"], "Input Dims": [[]]}
    b.operator("aten::item", 0, 7, inputs)
    external = b.operator("aten::_local_scalar_dense", 1, 6, inputs)
    launch = b.runtime("cudaMemcpyAsync", 41, 2, 3, external, launches=True)
    copied: Args = {"bytes": 4, "memory bandwidth (GB/s)": 0.0025}
    b.device("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", launch, external, copied)
    b.runtime("cudaStreamSynchronize", 131, 4, 5, external)
    spans = (8_000, 3_000, 3_000, 7_000, 1_500, 3_000, 2_000, 1_500)
    return b.cell("aten::item", spans, launch_at=3, kernel_ns=1_600, waits_at=5)


def device_synchronize() -> Cell:
    """The host waits for the entire device, as the profiler does when it stops."""
    b = CellBuilder(MAIN)
    b.runtime("cudaDeviceSynchronize", 165, 0, 1, None)
    return b.cell("cudaDeviceSynchronize", (30_000, 10_000), waits_at=1)


def step_begin() -> Cell:
    """Python between two steps: where a ``ProfilerStep`` begins."""
    return CellBuilder(MAIN).cell("step", (15_000, 60_000))


def moment(thread: str = MAIN) -> Cell:
    """A moment of Python, at which ranges start and end."""
    return CellBuilder(thread).cell("moment", (2_000, 3_000))


def pause(nanoseconds: int, thread: str) -> Cell:
    """The process is asleep or descheduled: nothing is recorded."""
    return CellBuilder(thread).cell("asleep", (nanoseconds,), steady=True)


def garbage_collection(nanoseconds: int, thread: str) -> Cell:
    """Python's collector stops the thread."""
    b = CellBuilder(thread, stacks=True)
    b.frame("Python GC", 0, 1)
    return b.cell("gc", (2_000, nanoseconds), steady=True)


def allocation_retry(nanoseconds: int, thread: str) -> Cell:
    """The allocator is out of cached memory: it frees its cache and asks the driver again."""
    b = CellBuilder(thread)
    external = b.operator("aten::empty", 0, 5, {"Concrete Inputs": ["[67108864]"]})
    b.runtime("cudaFree", 22, 1, 2, external)
    b.runtime("cudaMalloc", 20, 3, 4, external)
    return b.cell("retry", (2_000, 3_000, nanoseconds * 3 // 5, 2_000, nanoseconds * 2 // 5, 2_000), steady=True)


PROFILER_STEP = "ProfilerStep#"
