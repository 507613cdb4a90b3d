"""Find the model that an unmodified script trains, among all objects: its wrappers, root modules and device.

In: the objects of this process. Out: the model's parts, or an error.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

import torch
from torch import nn

DDP, FSDP1, FSDP2 = "ddp", "fsdp1", "fsdp2"
_KINDS = (
    (DDP, "torch.nn.parallel.distributed", "DistributedDataParallel"),
    (FSDP1, "torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"),
    (FSDP2, "torch.distributed.fsdp._fully_shard._fully_shard", "FSDPModule"),
    (FSDP2, "torch.distributed._composable.fsdp.fully_shard", "FSDPModule"),
)


class Model:
    """The model whose parameters an optimizer updates.

    Args:
        parameters: those of the optimizer.
    """

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        modules: list[Any] = [item for item in gc.get_objects() if _is_module(item)]
        inner = {id(child) for module in modules for child in module.children()}
        parameter_ids = {id(parameter) for parameter in parameters}
        kinds: list[tuple[str, Any]] = [
            (name, getattr(sys.modules.get(where), kind, None)) for name, where, kind in _KINDS
        ]
        wrapped: dict[str, list[nn.Module]] = {}
        for name, kind in kinds:
            if isinstance(kind, type):
                wrapped.setdefault(name, []).extend(m for m in modules if kind in type(m).__mro__)
        wrapped = {name: _outermost(of_kind) for name, of_kind in wrapped.items() if of_kind}
        self.wrapper = next(iter(wrapped), None)
        """The kind of wrapper, if any."""
        self.wrappers: list[Any] = wrapped.get(self.wrapper, []) if self.wrapper else []
        """The outermost modules of that kind."""
        roots = [m for m in modules if id(m) not in inner]
        trained = [m for m in roots if any(id(p) in parameter_ids for p in m.parameters())]
        seen = parameters or [p for module in self.wrappers or roots for p in module.parameters()]
        self.device = seen[0].device if seen else torch.device("cpu")
        compiled = [m for m in trained if type(m).__name__ == "OptimizedModule"]
        # A compiled module is timed from outside: a hook in it would be compiled too.
        self.called: list[Any] = compiled or self.wrappers or trained
        """The modules whose calls are the forward pass."""

    def bucket_bytes(self) -> list[int]:
        """DDP's buckets in the order in which they are reduced."""
        if self.wrapper != DDP:
            return []
        from rankscope.capture.parallelism import Wrappers

        wrappers = Wrappers()
        wrappers.find()
        entries: list[Any] = [entry for entry in wrappers.describe() if entry.get("kind") == DDP]
        return [int(bucket["bytes"]) for entry in entries for bucket in entry["buckets"]]


def _is_module(item: object) -> bool:
    # `isinstance` may run an object's own code; the MRO of its type does not.
    return nn.Module in type(item).__mro__


def _outermost(modules: list[Any]) -> list[Any]:
    nested = {id(inner) for module in modules for inner in module.modules() if inner is not module}
    return [module for module in modules if id(module) not in nested]


def first_size(arguments: tuple[Any, ...], options: dict[str, Any]) -> int | None:
    """The first dimension of the first tensor among a call's arguments: the batch size, in nearly all models."""
    for value in (*arguments, *options.values()):
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            return int(value.shape[0])
        if isinstance(value, list | tuple | dict) and value:
            inner = tuple(value.values()) if isinstance(value, dict) else tuple(value)
            found = first_size(inner[:8], {})
            if found is not None:
                return found
    return None
