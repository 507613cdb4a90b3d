"""The origin of named host ranges: the user, or PyTorch and its libraries.

In: names of ranges. Out: the origin of each; which ones belong to compiled code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Ranges that PyTorch and its libraries create. Everything else is a `record_function` in user code.
_OWN = re.compile(
    r"ProfilerStep[#*]|Optimizer\.|enumerate\(Data(Loader|Pipe)\)|DistributedDataParallel\.|FSDP::|FullyShardedDataParallel\."
    r"|(nccl|gloo|mpi|ucc|xccl|hccl|rccl):|c10d::|torch\.distributed|Reducer::|autograd::|torch::"
    r"|## Call CompiledFxGraph |Torch-Compiled Region|CompiledFunction|CompiledFxGraph|TorchDynamo|Pregraph bytecode"
    r"|AOTDispatcher|Inductor|dynamo_timed|_compile\.|compile_fx|pipeline_parallel|(PP|DP|TP|CP)::"
    r"|gc: generation \d"  # created by rankscope around Python's garbage collections
    r"|PyTorch Profiler|Iteration Start|Record Window End",
)
# Ranges in which a compiled graph runs, or is looked up.
_COMPILED = re.compile(
    r"## Call CompiledFxGraph |Torch-Compiled Region|CompiledFunction|CompiledFxGraph|TorchDynamo Cache"
)

USER, TORCH = "user", "torch"


def annotation_origins(names: Iterable[str]) -> dict[str, str]:
    """The origin of each range name: `user` or `torch`."""
    return {name: TORCH if _OWN.match(name) else USER for name in names}


def compiled_ranges(names: Iterable[str]) -> set[str]:
    """The names that show that a compiled graph ran."""
    return {name for name in names if _COMPILED.match(name)}
