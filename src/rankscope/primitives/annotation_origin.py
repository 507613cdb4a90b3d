"""Named ranges of the host: whose they are, the user's or PyTorch's."""

from __future__ import annotations

import re
from collections.abc import Iterable

# What PyTorch and its libraries name of their own accord. Everything else is a `record_function` of somebody's code.
_OWN = re.compile(
    r"ProfilerStep[#*]|Optimizer\.|enumerate\(Data(Loader|Pipe)\)|DistributedDataParallel\.|FSDP::|FullyShardedDataParallel\."
    r"|(nccl|gloo|mpi|ucc|xccl|hccl|rccl):|c10d::|torch\.distributed|Reducer::|autograd::|torch::"
    r"|## Call CompiledFxGraph |Torch-Compiled Region|CompiledFunction|CompiledFxGraph|TorchDynamo|Pregraph bytecode"
    r"|AOTDispatcher|Inductor|dynamo_timed|_compile\.|compile_fx|pipeline_parallel|(PP|DP|TP|CP)::"
    r"|gc: generation \d"  # rankscope's own, around Python's garbage collections
    r"|PyTorch Profiler|Iteration Start|Record Window End",
)
# Ranges in which a compiled graph runs, or is looked for.
_COMPILED = re.compile(
    r"## Call CompiledFxGraph |Torch-Compiled Region|CompiledFunction|CompiledFxGraph|TorchDynamo Cache"
)

USER, TORCH = "user", "torch"


def annotation_origins(names: Iterable[str]) -> dict[str, str]:
    """For each name of a range whose it is: `user` or `torch`."""
    return {name: TORCH if _OWN.match(name) else USER for name in names}


def compiled_ranges(names: Iterable[str]) -> set[str]:
    """Those of the names that say that a compiled graph ran."""
    return {name for name in names if _COMPILED.match(name)}
