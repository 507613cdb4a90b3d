"""The kind of a job: training or inference, and how it is parallelized, as far as its traces show.

The absence of a name proves nothing: a file may contain only device events.

In: names of operators, ranges, kernels and Python frames; the mesh. Out: a `JobKind`, with None for what is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

import polars as pl

from rankscope.primitives.phases import MODULE_FRAME

TRAINING, INFERENCE = "training", "inference"
DDP, FSDP = "ddp", "fsdp"
TENSOR, CONTEXT, STAGES, EXPERT = "tensor", "context", "pipeline", "expert"

MARKS: dict[str, re.Pattern[str]] = {
    # Autograd's own operators, ranges of the backward, and kernels that compute gradients.
    "backward": re.compile(
        r"^autograd::engine::|^torch::autograd::|^_DDPSink|^CompiledFunctionBackward"
        r"|^FSDP::(pre|post|root_post)_backward|flash_?attn_bwd|flash_bwd|fmha_bwd|^triton_\w*_backward"
    ),
    "optimizer": re.compile(r"^Optimizer\.(step|zero_grad)#|FusedAdam|multi_tensor_adam|multi_tensor_sgd"),
    "serving": re.compile(r"(^|[/\s])(vllm|sglang|tensorrt_llm|lmdeploy|text_generation_server)/|^(vllm|sgl_kernel)::"),
    # A cache of keys and values in pages, which only generation has.
    "kv_cache": re.compile(r"reshape_and_cache|paged_?attention|paged_?kv|concat_and_cache|store_kv_?cache", re.I),
    DDP: re.compile(r"^DistributedDataParallel\.forward|^torch\.distributed\.ddp\.reducer|^_DDPSink"),
    FSDP: re.compile(r"^FSDP::|^FullyShardedDataParallel\."),
    "experts": re.compile(
        r"fused_?moe|(^|[_:/.\s(])moe(_|\b)|_moe_|deep_?ep|expert|grouped_(gemm|mm)\b|topk_?(softmax|gating)"
        r"|(?-i:^nn\.Module: \w*(MoE|Moe|MOE)(?![a-z]))",
        re.I,
    ),
    # DeepEP's kernels; libraries without metadata have no other name for an exchange between experts.
    "expert_exchange": re.compile(r"deep_?ep|(inter|intra)node(_ll)?::(dispatch|combine)", re.I),
    "embeddings": re.compile(r"KJTAllToAll|All2All_Pooled|^fbgemm::.*embedding|split_embedding"),
}
"""The marks that names of operators, ranges, kernels or Python frames carry."""
MATRIX = r"^aten::(linear|addmm|mm|bmm|matmul|convolution|_?scaled_dot_product\w*)$"

_DIMENSIONS = {
    **dict.fromkeys(("tp", "tensor", "model", "etp"), TENSOR),
    **dict.fromkeys(("cp", "context", "sp", "ulysses", "ring"), CONTEXT),
    **dict.fromkeys(("pp", "pipe", "pipeline", "stage"), STAGES),
    **dict.fromkeys(("ep", "expert"), EXPERT),
}


@dataclass(frozen=True)
class JobKind:
    """The kind of a job.

    Attributes:
        mode: `training` or `inference`; None if unknown.
        wrapper: `ddp` or `fsdp`; None if neither is seen.
        parallel: which of `tensor`, `context`, `pipeline` and `expert` are dimensions of more than one rank. Others may
            exist without showing in the traces.
        experts: whether the model has experts (MoE); None if nothing shows it.
        embeddings: whether it exchanges embeddings of sharded tables; None if nothing shows it.
    """

    mode: str | None = None
    wrapper: str | None = None
    parallel: frozenset[str] = field(default_factory=frozenset)
    experts: bool | None = None
    embeddings: bool | None = None

    @property
    def trains(self) -> bool:
        """Whether it may train: advice on backward and optimizer makes sense."""
        return self.mode != INFERENCE

    @property
    def infers(self) -> bool:
        """Whether it is known to be inference."""
        return self.mode == INFERENCE

    def trains_with(self, wrapper: str) -> bool:
        """Whether advice on a wrapper makes sense: it is seen, and the job is not known to be inference."""
        return self.trains and self.wrapper == wrapper

    @property
    def exchanges_activations(self) -> bool:
        """Whether parts of a layer, or its inputs, are on several ranks: what they exchange grows with the batch."""
        return not self.parallel.isdisjoint((TENSOR, CONTEXT, EXPERT)) or bool(self.embeddings)

    @property
    def exchanges_experts(self) -> bool:
        """Whether experts are known to be on several ranks."""
        return EXPERT in self.parallel


def marks_of(names: pl.Series, frames: pl.Series) -> dict[str, str]:
    """Which of `MARKS` any of the names carries, with the first name that does.

    Args:
        names: names of operators, ranges and kernels, repeated or null ones included.
        frames: names of Python frames. Only modules and the files of a serving engine count: every engine has code that
            asks whether a model has experts.
    """
    found: dict[str, str] = {}
    unique = names.drop_nulls().unique(maintain_order=True).to_list()
    called = frames.drop_nulls().unique(maintain_order=True)
    modules = called.filter(called.str.starts_with(MODULE_FRAME)).to_list()
    for mark, pattern in MARKS.items():
        searched = called if mark == "serving" else modules if mark == "experts" else ()
        first = next((name for name in (*unique, *searched) if pattern.search(name)), None)
        if first is not None:
            found[mark] = str(first)
    return found


def job_kind(marks: Collection[str], forward_only: bool, dimensions: Collection[str]) -> JobKind:
    """The kind of a job from the marks seen on any of its ranks.

    Args:
        marks: names of `MARKS`.
        forward_only: whether matrices are multiplied without gradients on all ranks: see `forward_only`.
        dimensions: names of the mesh's dimensions with more than one rank.
    """
    trains = "backward" in marks or "optimizer" in marks
    infers = "serving" in marks or "kv_cache" in marks or forward_only
    parallel = {_DIMENSIONS[name] for name in dimensions if name in _DIMENSIONS}
    if "expert_exchange" in marks:
        parallel.add(EXPERT)
    return JobKind(
        TRAINING if trains else INFERENCE if infers else None,
        FSDP if FSDP in marks else DDP if DDP in marks else None,
        frozenset(parallel),
        True if "experts" in marks or EXPERT in parallel else None,
        True if "embeddings" in marks else None,
    )


def forward_only(operators: pl.DataFrame) -> bool:
    """Whether a file multiplies matrices, always without autograd.

    With gradients enabled, autograd numbers the operators of the forward. Files of training jobs without such numbers
    contain the backward, which is a separate mark.

    Args:
        operators: host_ops: name, sequence.
    """
    products = operators.filter(pl.col("name").str.contains(MATRIX).fill_null(False))
    return not products.is_empty() and bool(operators["sequence"].is_null().all())
