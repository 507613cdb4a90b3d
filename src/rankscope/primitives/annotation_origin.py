"""The origin of named host ranges: the user, or PyTorch and its libraries.

In: names of ranges. Out: the origin of each; those of compiled code and of garbage collections.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import polars as pl

# Ranges that PyTorch and its libraries create. Everything else is a `record_function` in user code.
_TORCH_RANGES = re.compile(
    r"ProfilerStep[#*]|Optimizer\.|enumerate\(Data(Loader|Pipe)\)|DistributedDataParallel\.|FSDP::|FullyShardedDataParallel\."
    r"|(nccl|gloo|mpi|ucc|xccl|hccl|rccl):|c10d::|torch\.distributed|Reducer::|autograd::|torch::"
    r"|## Call CompiledFxGraph |Torch-Compiled Region|CompiledFunction|CompiledFxGraph|TorchDynamo|Pregraph bytecode"
    r"|AOTDispatcher|Inductor|dynamo_timed|_compile\.|compile_fx|pipeline_parallel|(PP|DP|TP|CP)::"
    r"|gc: generation \d|Python GC$"  # created by rankscope and by torch around Python's garbage collections
    r"|PyTorch Profiler|Iteration Start|Record Window End"
)
# Ranges in which a compiled graph runs, or is looked up.
_COMPILED = re.compile(
    r"## Call CompiledFxGraph |Torch-Compiled Region|CompiledFunction|CompiledFxGraph|TorchDynamo Cache"
)

COMPILER_RANGES = (
    r"^(TorchDynamo Cache Lookup|AOTDispatcher Runtime Wrapper Prologue|Pregraph bytecode)"
    r"| \(dynamo_timed\)$|^entire_(frame|backward)_compile|^inductor_compile$"
)
"""Ranges in which the compiler works on the host: it looks up graphs, checks guards, or compiles."""

USER, TORCH = "user", "torch"
# Python's garbage collections: as rankscope's capture names them, and torch (`record_python_gc_info`).
_GC_RANGES, _GC_FRAME = "gc: generation ", "Python GC"
_GC = f"^{_GC_RANGES}|^{_GC_FRAME}$"


def annotation_origins(names: Iterable[str]) -> dict[str, str]:
    """The origin of each range name: `user` or `torch`."""
    return {name: TORCH if _TORCH_RANGES.match(name) else USER for name in names}


def garbage_collections(ranges: pl.DataFrame) -> pl.DataFrame:
    """The rows of Python's garbage collections: rankscope's ranges, and torch's on ranks without them.

    Args:
        ranges: rank, name.
    """
    if not ranges["name"].str.contains(_GC).any():
        return ranges.clear()
    is_range = pl.col("name").str.starts_with(_GC_RANGES)
    return ranges.filter(is_range | ((pl.col("name") == _GC_FRAME) & ~is_range.any().over("rank")))


def compiled_ranges(names: Iterable[str]) -> set[str]:
    """The names that show that a compiled graph ran."""
    return {name for name in names if _COMPILED.match(name)}
