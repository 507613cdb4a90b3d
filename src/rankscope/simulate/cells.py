"""The smallest piece of a simulated job: one operator (or call) with all the events that Kineto writes for it.

A cell has up to twelve moments on the host, told as the spans between them (the first is the gap before it), and at
most one piece of device work. Its events say between which of these moments they lie. Texts hold marks for what
differs from one use of the cell to the next:

- ``\\x01t3\\x01`` time of moment 3, ``\\x01d0,5\\x01`` time from moment 0 to 5, ``\\x01e1\\x01`` its second
  External id, ``\\x01v1\\x01`` that one's Ev Idx, ``\\x01c0\\x01`` its first correlation id, ``\\x01q0\\x01`` its
  sequence number, ``\\x01s0\\x01`` the step's number: filled in for each use;
- ``\\x02pid\\x02``, ``\\x02ranks:dp\\x02`` and so on: the same throughout one rank's file.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rankscope.simulate.jitter import LAUNCH_CALL_NS

HOST_MOMENTS = 12
DEVICE_START, DEVICE_END = HOST_MOMENTS, HOST_MOMENTS + 1
MOMENTS = HOST_MOMENTS + 2

MAIN, AUTOGRAD = "main", "autograd"
AUTOGRAD_HOST, MAIN_HOST, DEVICE_AND_RUNTIME = 0, 1, 2
"""Sections of a file: Kineto writes host events thread by thread, then what CUPTI recorded."""

COMPUTE_STREAM = 7


@dataclass(frozen=True)
class Event:
    """One event of a cell."""

    phase: str
    """X, or s and f for the two ends of a flow."""
    category: str
    name: str
    start: int
    end: int
    pid: str
    tid: str
    args: str
    section: int
    loses: str = ""
    """As what it can be lost (``operator``, ``launch``, ``kernel``, ``collective``, ``other``); empty: it cannot."""
    on_device: bool = False
    flow_id: str = ""


@dataclass(frozen=True, eq=False)
class Cell:
    """An operator with its events; two cells are the same only if they are one object."""

    name: str
    spans_ns: tuple[int, ...]
    """Between the moments; the first is the gap before the cell."""
    events: tuple[Event, ...]
    launch_at: int = -1
    """Which of the spans is the launch call, drawn for itself; -1: none."""
    kernel_ns: int = 0
    """0: no device work, or (communication) device work whose length the engine finds."""
    external_ids: int = 0
    correlations: int = 0
    steady: bool = False
    """Lasts exactly as long as it says."""
    waits_at: int = -1
    """Which of the spans waits for the device (a synchronisation) or the loader; -1: none."""


def t(moment: int) -> str:
    """The mark for a moment's time."""
    return f"\x01t{moment}\x01"


def rank_text(name: str) -> str:
    """The mark for what is the same throughout a rank's file."""
    return f"\x02{name}\x02"


EXT, EV, CORR, SEQ, STEP = "\x01e{}\x01", "\x01v{}\x01", "\x01c{}\x01", "\x01q0\x01", "\x01s0\x01"
PID, DEVICE = rank_text("pid"), rank_text("device")


@dataclass
class Builder:
    """Collects a cell's events; ids count up as they are taken."""

    thread: str
    stacks: bool = False
    events: list[Event] = field(default_factory=list)
    external_ids: int = 0
    correlations: int = 0

    @property
    def section(self) -> int:
        """Where this thread's host events go."""
        return MAIN_HOST if self.thread == MAIN else AUTOGRAD_HOST

    def host(
        self,
        category: str,
        name: str,
        start: int,
        end: int,
        more: str = "",
        *,
        sequence: str = "",
        loses: str = "other",
    ) -> int:
        """A host range; gives its External id's number within the cell."""
        number = self.external_ids
        self.external_ids += 1
        if sequence == "forward":
            head = f'"Sequence number": {SEQ}, "Fwd thread id": 0, "Record function id": 0'
        elif sequence == "engine":
            head = f'"Record function id": 0, "Sequence number": {SEQ}, "Fwd thread id": 1'
        elif sequence == "backward":
            head = f'"Sequence number": {SEQ}, "Fwd thread id": 1, "Record function id": 0'
        else:
            head = '"Record function id": 0'
        args = f'"External id": {EXT.format(number)},{head}, {more}"Ev Idx": {EV.format(number)}'
        self._add("X", category, name, start, end, args, self.section, loses=loses)
        return number

    def operator(self, name: str, start: int, end: int, inputs: str = "", *, sequence: str = "") -> int:
        """A ``cpu_op``."""
        return self.host("cpu_op", name, start, end, inputs, sequence=sequence, loses="operator")

    def frame(self, name: str, start: int, end: int) -> None:
        """A Python frame, if they are recorded."""
        if self.stacks:
            number = self.external_ids
            self.external_ids += 1
            ev = EV.format(number)
            args = f'"Python parent id": null, "Python id": {ev}, "Ev Idx": {ev}'
            self._add("X", "python_function", name, start, end, args, self.section, loses="other")

    def flow(self, phase: str, name: str, flow_id: str, at: int, section: int, *, on_device: bool = False) -> None:
        """One end of an arrow."""
        stream = str(COMPUTE_STREAM)
        pid, tid = (DEVICE, stream) if on_device else (PID, rank_text(self.thread))
        self.events.append(Event(phase, name, name, at, at, pid, tid, "", section, "", on_device, flow_id))

    def runtime(
        self, name: str, cbid: int, start: int, end: int, external: int | None, *, launches: bool = False
    ) -> int:
        """A call into the device's runtime; gives its correlation's number within the cell."""
        number = self.correlations
        self.correlations += 1
        head = f'"External id": {EXT.format(external)},      ' if external is not None else "            "
        args = f'{head}"cbid": {cbid}, "correlation": {CORR.format(number)}'
        loses = "launch" if launches else "other"
        self._add("X", "cuda_runtime", name, start, end, args, DEVICE_AND_RUNTIME, loses=loses)
        if launches:
            self.flow("s", "ac2g", CORR.format(number), start, DEVICE_AND_RUNTIME)
        return number

    def device(
        self, category: str, name: str, correlation: int, external: int | None, args: str, stream: int, loses: str
    ) -> None:
        """Device work launched by ``correlation``."""
        c = CORR.format(correlation)
        head = f'"External id": {EXT.format(external)},      ' if external is not None else "            "
        queued = '"queued": 0, ' if category == "kernel" else ""
        text = (
            f'{head}{queued}"device": {DEVICE}, "context": 1,      "stream": {stream}, "correlation": {c},      {args}'
        )
        self.events.append(
            Event(
                "X",
                category,
                name,
                DEVICE_START,
                DEVICE_END,
                DEVICE,
                str(stream),
                text,
                DEVICE_AND_RUNTIME,
                loses,
                True,
            )
        )
        self.events.append(
            Event(
                "f",
                "ac2g",
                "ac2g",
                DEVICE_START,
                DEVICE_START,
                DEVICE,
                str(stream),
                "",
                DEVICE_AND_RUNTIME,
                "",
                True,
                c,
            )
        )

    def _add(
        self, phase: str, category: str, name: str, start: int, end: int, args: str, section: int, *, loses: str
    ) -> None:
        tid = rank_text(self.thread)
        self.events.append(Event(phase, category, name, start, end, PID, tid, args, section, loses))

    def cell(
        self, name: str, spans_ns: tuple[int, ...], *, launch_at: int = -1, kernel_ns: int = 0, **more: int | bool
    ) -> Cell:
        """What has been collected."""
        spans = tuple(spans_ns) + (0,) * (HOST_MOMENTS - len(spans_ns))
        return Cell(
            name,
            spans,
            tuple(self.events),
            launch_at,
            kernel_ns,
            self.external_ids,
            self.correlations,
            steady=bool(more.get("steady", False)),
            waits_at=int(more.get("waits_at", -1)),
        )


@dataclass(frozen=True)
class Work:
    """An operator of the model and its kernel."""

    module: str
    outer: str
    inner: str
    backward: str
    backward_op: str
    kernel: str
    backward_kernel: str
    forward_ns: int
    launch_shape: str
    dims: str

    @property
    def inputs(self) -> str:
        """The recorded inputs."""
        count = self.dims.count("], [") + 1
        types = ", ".join(['"c10::BFloat16"'] * count)
        empty = ", ".join(['""'] * count)
        return f'"Concrete Inputs": [{empty}], "Input type": [{types}], "Input Dims": {self.dims}, '


def launch_shape(
    registers: int, shared: int, blocks: float, warps: float, grid: str, block: int, occupancy: int
) -> str:
    """A kernel's launch shape as Kineto writes it."""
    return (
        f'"registers per thread": {registers},      "shared memory": {shared},      '
        f'"blocks per SM": {blocks:.6f},      "warps per SM": {warps:.6f},      '
        f'"grid": [{grid}],      "block": [{block}, 1, 1],      '
        f'"est. achieved occupancy %": {occupancy}'
    )


_ROWS = launch_shape(32, 24, 31.030304, 124.121216, "4096, 1, 1", 128, 100)
_POINTS = launch_shape(26, 0, 62.060608, 248.242432, "8192, 1, 1", 128, 100)
_FLASH = launch_shape(255, 81920, 3.878788, 15.515152, "32, 1, 16", 128, 12)
_NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, false>(int, float, "
_NORM_BACK = "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float>("
_TRAITS = "Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t>"
_POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::"


def _linear(name: str, rows: int, columns: int, nanoseconds: int) -> Work:
    # A grid of its own: kernels of one name and one grid do the same work.
    blocks = columns // 192 * 16 + rows // 2048
    return Work(
        f"nn.Module: Linear_{name}",
        "aten::linear",
        "aten::addmm",
        "AddmmBackward0",
        "aten::mm",
        "nvjet_tst_256x128_64x4_2x1_v_bz_coopA_bias_TNN",
        "nvjet_tst_192x192_64x3_2x1_v_bz_coopB_NTN",
        nanoseconds,
        launch_shape(168, 214016, blocks / 132, blocks * 12 / 132, f"{blocks}, 1, 1", 384, 19),
        f"[[{columns}], [4096, {rows}], [{rows}, {columns}]]",
    )


ATTENTION: tuple[Work, ...] = (
    Work(
        "nn.Module: LayerNorm_0",
        "aten::layer_norm",
        "aten::native_layer_norm",
        "NativeLayerNormBackward0",
        "aten::native_layer_norm_backward",
        _NORM + "c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)",
        _NORM_BACK + "c10::BFloat16 const*, c10::BFloat16 const*, float const*, float const*, c10::BFloat16*, int)",
        14_000,
        _ROWS,
        "[[4096, 2048], [2048], [2048]]",
    ),
    _linear("qkv", 2048, 6144, 96_000),
    Work(
        "nn.Module: Attention_0",
        "aten::scaled_dot_product_attention",
        "aten::_flash_attention_forward",
        "ScaledDotProductFlashAttentionBackward0",
        "aten::_flash_attention_backward",
        f"void flash_fwd_kernel<{_TRAITS}, false, true, false, false, true, true, false>(Flash_fwd_params)",
        f"void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<{_TRAITS}, false, true>(Flash_bwd_params)",
        120_000,
        _FLASH,
        "[[2, 16, 2048, 128], [2, 16, 2048, 128], [2, 16, 2048, 128]]",
    ),
    _linear("proj", 2048, 2048, 48_000),
)

MLP: tuple[Work, ...] = (
    ATTENTION[0],
    _linear("fc1", 2048, 8192, 130_000),
    Work(
        "nn.Module: GELU_0",
        "aten::gelu",
        "aten::_to_copy",
        "GeluBackward0",
        "aten::gelu_backward",
        _POINTWISE + "GeluCUDAKernelImpl(at::TensorIteratorBase&)::{lambda()#1}, std::array<char*, 2ul> >(int)",
        _POINTWISE + "GeluBackwardCUDAKernelImpl(at::TensorIteratorBase&)::{lambda()#1}, std::array<char*, 3ul> >(int)",
        22_000,
        _POINTS,
        "[[2, 2048, 8192]]",
    ),
    _linear("fc2", 8192, 2048, 130_000),
)

OPTIMIZER = Work(
    "torch/optim/adamw.py(214): step",
    "aten::_fused_adamw_",
    "aten::_fused_adamw_",
    "",
    "",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>, "
    "FusedAdamMathFunctor<float, 4, (ADAM_MODE)1, false> >(TensorListMetadata<4>)",
    "",
    210_000,
    launch_shape(48, 0, 7.757576, 124.121216, "1024, 1, 1", 512, 94),
    "[[2048, 2048], [2048, 2048], [2048, 2048]]",
)


def forward(work: Work, *, stacks: bool) -> Cell:
    """An operator of the forward pass."""
    b = Builder(MAIN, stacks)
    b.frame(work.module, 0, 5)
    number = b.operator(work.outer, 0, 5, work.inputs)
    number = b.operator(work.inner, 1, 4, work.inputs, sequence="forward")
    b.flow("s", "fwdbwd", SEQ, 1, b.section)
    c = b.runtime("cudaLaunchKernel", 211, 2, 3, number, launches=True)
    b.device("kernel", work.kernel, c, number, work.launch_shape, COMPUTE_STREAM, "kernel")
    spans = (4_000, 3_500, 5_000, LAUNCH_CALL_NS, 2_000, 1_500)
    return b.cell(work.outer, spans, launch_at=3, kernel_ns=work.forward_ns)


def backward(work: Work, *, stacks: bool) -> Cell:
    """The same operator's part of the backward pass, on autograd's thread."""
    b = Builder(AUTOGRAD, stacks)
    b.operator(f"autograd::engine::evaluate_function: {work.backward}", 0, 7, sequence="engine")
    b.operator(work.backward, 1, 6, work.inputs, sequence="backward")
    b.flow("f", "fwdbwd", SEQ, 1, b.section)
    number = b.operator(work.backward_op, 2, 5, work.inputs)
    c = b.runtime("cudaLaunchKernel", 211, 3, 4, number, launches=True)
    b.device("kernel", work.backward_kernel, c, number, work.launch_shape, COMPUTE_STREAM, "kernel")
    spans = (2_500, 1_500, 2_500, 4_500, LAUNCH_CALL_NS, 1_500, 1_200, 1_000)
    return b.cell(work.backward, spans, launch_at=4, kernel_ns=2 * work.forward_ns)


def plain(work: Work, thread: str, *, stacks: bool, kernel_ns: int | None = None) -> Cell:
    """An operator that autograd knows nothing of (the optimizer's, a fault's extra work)."""
    b = Builder(thread, stacks)
    b.frame(work.module, 0, 3)
    number = b.operator(work.inner, 0, 3, work.inputs)
    c = b.runtime("cudaLaunchKernel", 211, 1, 2, number, launches=True)
    b.device("kernel", work.kernel, c, number, work.launch_shape, COMPUTE_STREAM, "kernel")
    spans = (6_000, 9_000, LAUNCH_CALL_NS, 3_000)
    return b.cell(work.inner, spans, launch_at=2, kernel_ns=work.forward_ns if kernel_ns is None else kernel_ns)
