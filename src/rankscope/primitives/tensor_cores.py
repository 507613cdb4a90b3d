"""Which operators could run on tensor cores (matrix cores), and which kernels did, by their names.

The lists of the TensorBoard plugin (after NVIDIA's PyProf), and what has come since: Ampere's and Hopper's cuBLAS and
CUTLASS, flash attention, and AMD's matrix cores (MFMA, in CK's and MIOpen's names xdlops, in Tensile's the
instruction's shape, `MI16x16x1`), and AOTriton's attention. Other Triton kernels are named after their source: whether
one used them is not seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_KERNELS = re.compile(
    r"[a-z]884|[a-z]1688|16816|16832|16864|884gemm|[hid]mma(?![a-z])|i8816|wgmma|tensorop_|tensor\d+x\d+x\d+|nvjet"
    r"|xmma_(implicit_|sparse_|warp_specialized_)*gemm|xmma_sparse_conv|xmma_[a-z]+_implicit_gemm"
    r"|dgrad_1x1_stride_2x2|first_layer_wgrad_kernel|conv1x1|conv2d_c1_k1|direct_group"
    r"|flash::|flash_(fwd|bwd)|fmha_cutlass[fb]_(bf16|f16)|cudnn_\w*sdpa|sdpa_sm\d"
    r"|mfma|_MI\d+x\d+x\d+|xdl|gtcx\d"
    # AOTriton's flash attention, as ROCm's scaled_dot_product_attention runs it: products on matrix cores.
    r"|^attn_(fwd|bwd)|^bwd_kernel_(dk_dv|dq|fuse)",
    re.IGNORECASE,
)
# CUTLASS and cuDNN say where a kernel of such a name does its sums on the ordinary cores.
_ORDINARY = re.compile(r"_ffma|_simt_|_g1_ffma", re.IGNORECASE)

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


def tensor_core_kernels(names: Iterable[str]) -> set[str]:
    """The names of kernels that run on tensor cores."""
    return {name for name in names if _KERNELS.search(name) and not _ORDINARY.search(name)}


def eligible_operators(names: Iterable[str]) -> set[str]:
    """The names of operators that tensor cores can run."""
    return {name for name in names if _OPERATORS.fullmatch(name)}
