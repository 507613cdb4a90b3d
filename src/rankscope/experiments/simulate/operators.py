"""The model's operators: their names on the host and the device, their durations, and their cells.

In: a name and sizes. Out: cells.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.experiments.simulate.cells import Args, Cell, CellBuilder, launch_shape
from rankscope.experiments.simulate.identity import AUTOGRAD, MAIN
from rankscope.experiments.simulate.jitter import LAUNCH_CALL_NS


@dataclass(frozen=True, eq=False)
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
    launch_shape: Args
    dims: list[list[int]]

    @property
    def inputs(self) -> Args:
        """The recorded inputs."""
        count = len(self.dims)
        types = ["c10::BFloat16"] * count
        return {"Concrete Inputs": [""] * count, "Input type": types, "Input Dims": self.dims}


_ROWS = launch_shape(32, 24, 31.030304, 124.121216, (4096, 1, 1), 128, 100)
_POINTS = launch_shape(26, 0, 62.060608, 248.242432, (8192, 1, 1), 128, 100)
_FLASH = launch_shape(255, 81920, 3.878788, 15.515152, (32, 1, 16), 128, 12)
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
        launch_shape(168, 214016, blocks / 132, blocks * 12 / 132, (blocks, 1, 1), 384, 19),
        [[columns], [4096, rows], [rows, columns]],
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
        [[4096, 2048], [2048], [2048]],
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
        [[2, 16, 2048, 128], [2, 16, 2048, 128], [2, 16, 2048, 128]],
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
        [[2, 2048, 8192]],
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
    launch_shape(48, 0, 7.757576, 124.121216, (1024, 1, 1), 512, 94),
    [[2048, 2048], [2048, 2048], [2048, 2048]],
)


def forward(work: Work, *, stacks: bool) -> Cell:
    """An operator of the forward pass."""
    b = CellBuilder(MAIN, stacks)
    b.frame(work.module, 0, 5)
    b.operator(work.outer, 0, 5, work.inputs)
    external = b.operator(work.inner, 1, 4, work.inputs, forward_thread=0)
    b.autograd_flow("s", 1)
    launch = b.runtime("cudaLaunchKernel", 211, 2, 3, external, launches=True)
    b.device("kernel", work.kernel, launch, external, work.launch_shape)
    spans = (4_000, 3_500, 5_000, LAUNCH_CALL_NS, 2_000, 1_500)
    return b.cell(work.outer, spans, launch_at=3, kernel_ns=work.forward_ns)


def backward(work: Work, *, stacks: bool) -> Cell:
    """The same operator's part of the backward pass, on autograd's thread."""
    b = CellBuilder(AUTOGRAD, stacks)
    b.operator(f"autograd::engine::evaluate_function: {work.backward}", 0, 7, forward_thread=1)
    b.operator(work.backward, 1, 6, work.inputs, forward_thread=1)
    b.autograd_flow("f", 1)
    external = b.operator(work.backward_op, 2, 5, work.inputs)
    launch = b.runtime("cudaLaunchKernel", 211, 3, 4, external, launches=True)
    b.device("kernel", work.backward_kernel, launch, external, work.launch_shape)
    spans = (2_500, 1_500, 2_500, 4_500, LAUNCH_CALL_NS, 1_500, 1_200, 1_000)
    return b.cell(work.backward, spans, launch_at=4, kernel_ns=2 * work.forward_ns)


def plain(work: Work, thread: str, *, stacks: bool, kernel_ns: int | None = None) -> Cell:
    """An operator outside autograd (the optimizer's, the extra work of a fault)."""
    b = CellBuilder(thread, stacks)
    b.frame(work.module, 0, 3)
    external = b.operator(work.inner, 0, 3, work.inputs)
    launch = b.runtime("cudaLaunchKernel", 211, 1, 2, external, launches=True)
    b.device("kernel", work.kernel, launch, external, work.launch_shape)
    spans = (6_000, 9_000, LAUNCH_CALL_NS, 3_000)
    return b.cell(work.inner, spans, launch_at=2, kernel_ns=work.forward_ns if kernel_ns is None else kernel_ns)
