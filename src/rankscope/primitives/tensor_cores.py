"""Decide by names which operators could run on tensor cores (matrix cores), and which kernels did: yes, no or unknown.

A name shows tensor cores by the instruction (`s16816gemm`, `wgmma`, `mfma`), the instruction's shape (`MI16x16x1`), the
library's term (`tensorop`, CUTLASS 3's `MainloopSm90TmaGmma…` and `MainloopSm100TmaUmma…`, also in mangled names) or a
library that uses only tensor cores (nvjet, DeepGEMM, Marlin, flash attention, `xdl` in CK). It shows ordinary cores by
`sgemm`, `simt`, `ffma` and the like, or because the kernel multiplies no matrices: elementwise operations, reductions,
copies, normalization. Everything else is unknown: Triton's kernels are named after their source, a mangled name may be
cut before its instruction, and Tensile omits what all its kernels have in common.

Sources: the lists of the TensorBoard plugin (after NVIDIA's PyProf); names in recordings of torch 1.8 to 2.13, vLLM,
SGLang and TensorRT-LLM; the dispatch policies of CUTLASS 3.

In: names of operators and kernels. Out: whether each could use tensor cores, and whether it did.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

_KERNELS = re.compile(
    r"[a-z]884|[a-z]1688|16816|16832|16864|884gemm|[hid]mma(?![a-z])|i8816|tensorop_|tensor\d+x\d+x\d+|nvjet"
    r"|xmma_(implicit_|sparse_|warp_specialized_)*gemm|xmma_sparse_conv|xmma_[a-z]+_implicit_gemm"
    r"|dgrad_1x1_stride_2x2|first_layer_wgrad_kernel|conv1x1|conv2d_c1_k1|direct_group"
    r"|flash::|flash_?attn(fwd|bwd)|flash_(fwd|bwd)|FlashAttention(Forward|Backward)Sm"
    r"|fmha_cutlass[fb]_(bf16|f16)|fmha_v2_|fmhaSm\d+|cudnn_\w*sdpa|sdpa_sm\d"
    # CUTLASS: its operator class, the main loop of its kernels for Hopper and Blackwell, CuTe's atoms (not `FMA`).
    r"|OpClass\w*TensorOp|MmaTensorOp|MainloopSm(9|1[0-9])\d(?!\w*Fma)\w*(Mma|Gmma|Umma)|KernelTmaWarpSpecialized"
    r"|SM(70|75|80|89|90)_\d+x\d+x\d+|SM1\d\d_(MMA|\d+x\d+x\d+)|wgmma|umma|tcgen05|m16n8k(8|16|32)"
    r"|deep_gemm\w*::\w*(gemm|mqa|mla|logits)|(sm90|sm100)_(fp8|bf16|fp4)_\w*gemm|marlin\w*::\w*marlin"
    r"|(^|[^a-z])(bmm|gemm)_(bfloat16|fp16|e4m3|e2m1)_\w+"
    r"|mfma|wmma|_MI\d+x\d+x\d+|xdl|gtcx\d"
    # AOTriton's flash attention, as ROCm's scaled_dot_product_attention runs it: products on matrix cores.
    r"|^attn_(fwd|bwd)|^bwd_kernel_(dk_dv|dq|fuse)",
    re.IGNORECASE,
)
# CUTLASS and cuDNN kernels with a name as above, but on ordinary cores.
_FMA = re.compile(r"_ffma|simt_", re.IGNORECASE)
# Products and convolutions on the ordinary cores.
_ORDINARY = re.compile(
    r"(maxwell|pascal|volta|turing|ampere|hopper|blackwell|sm\d+)_([a-z]+\d+_)?[sdcz]gemm_"
    r"|(maxwell|pascal|volta|turing|ampere)_([a-z]+\d+_)?[sd]cudnn_|(^|[^a-z])[sd]gemm_(largek|kernel)"
    r"|(implicit|explicit|precomputed)_convolve_[sd]gemm|gemmSN_[NT]+_kernel"
    r"|winograd_nonfused|winograd\w*_\d+x\d+|fft2d_[rc]2[rc]_|(wgrad|dgrad)_(alg\d_)?engine",
    re.IGNORECASE,
)
# CUTLASS's and CuTe's terms for ordinary cores: a fused kernel may use both kinds.
_ORDINARY_PART = re.compile(r"MmaSimt|OpClassSimt|UniversalFMA")
# Kernels that multiply no matrices, by the name before its template arguments. Inductor's pointwise kernels and
# reductions contain no product unless the name lists a fused one.
_NO_PRODUCT = re.compile(
    r"at::native::|^(void )?(at_cuda_detail::)?cub::|rocprim::|elementwise|multi_tensor_apply|reduce_(kernel|1Block)"
    r"|nchwToNhwc|nhwcToNchw|OffsetsKernel|cudnn::(bn|ops)|(batch|layer|rms)_?norm|softmax|dot_kernel"
    r"|rotary_embedding|reshape_and_cache|CatArrayBatchedCopy|SubTensorOp|^triton_(poi|per|red)_",
    re.IGNORECASE,
)
_PRODUCT = re.compile(r"mm|conv|attn|attention|^triton_tem|int4|m16n8k", re.IGNORECASE)
# Kernels before and after flash attention or after a split product; and products with vectors, which are limited by
# memory, so that tensor cores would not make them faster.
_AROUND = re.compile(
    r"flash[\w:]*(preprocess|postprocess|combine|convert_d|dot_do_o|prepare_varlen)|splitKreduce|ReduceSplitK"
    r"|gemv|gemmk1_kernel",
    re.IGNORECASE,
)
_TEMPLATE = re.compile(r"[<(]")

_OPERATORS = re.compile(
    r"(aten::)?_?(c?u?dnn_|miopen_|mkldnn_)?(convolution|conv)(_nogroup|_tbc|_overrideable|_transpose)?([123]d)?"
    r"(_relu|_add_relu|_transpose)?(_backward(_input|_weight)?)?"
    r"|aten::_?(add|badd)?b?mm_?|aten::_addmm_activation|aten::addbmm_?|aten::_(scaled|int|grouped|scaled_grouped)_mm"
    r"|aten::(matmul|linear|addmv_?|mv|addr|chain_matmul|linalg_multi_dot|prelu|einsum)"
    r"|aten::(lstm_cell|gru_cell|rnn_tanh_cell|rnn_relu_cell|_thnn_fused_(lstm|gru)_cell|_cudnn_rnn|lstm|gru)"
    r"|aten::_?scaled_dot_product_\w*attention\w*|aten::_(flash|efficient|cudnn)_attention_(forward|backward)"
    r"|flash_attn\w*::\w+"
    r"|(Cudnn)?Convolution(Transpose)?Backward\d*|(Addmm|Mm|Bmm|Addbmm|Baddbmm|Addmv|Mv)Backward\d*"
)


def tensor_core_use(names: Iterable[str]) -> dict[str, bool | None]:
    """Whether each kernel runs on tensor cores: yes, no, or None if its name does not show it."""
    return {name: _use(name) for name in names}


@lru_cache(1 << 14)
def _use(name: str) -> bool | None:
    head = _TEMPLATE.split(name.replace("(anonymous namespace)::", ""), maxsplit=1)[0]
    if _AROUND.search(name) or (_NO_PRODUCT.search(head) and not _PRODUCT.search(head)) or _FMA.search(name):
        return False
    if _KERNELS.search(name):
        return None if _ORDINARY_PART.search(name) else True
    return False if _is_ordinary(name) else None


@lru_cache(1 << 14)
def _is_ordinary(name: str) -> bool:
    return any(pattern.search(name) for pattern in (_FMA, _ORDINARY, _ORDINARY_PART))


def ordinary_products(names: Iterable[str]) -> set[str]:
    """The names of kernels that certainly multiply matrices, or convolve, on ordinary cores."""
    return {
        name
        for name, use in tensor_core_use(names).items()
        if use is False and _is_ordinary(name) and not _AROUND.search(name)
    }


def eligible_operators(names: Iterable[str]) -> set[str]:
    """The names of operators that tensor cores can run."""
    return {name for name in names if _is_eligible(name)}


@lru_cache(1 << 14)
def _is_eligible(name: str) -> bool:
    return _OPERATORS.fullmatch(name) is not None
