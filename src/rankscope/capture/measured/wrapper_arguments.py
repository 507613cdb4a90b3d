"""Override arguments of DDP and FSDP1 for an experiment, when the script creates the wrapper.

In: arguments by wrapper. Out: changed calls of the wrappers.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from rankscope.capture.notices import warn

FIRST_BUCKET = "first_bucket_mb"
"""Not an argument of DDP: the bucket that is reduced first has its own limit."""
_DDP = ("torch.nn.parallel.distributed", "DistributedDataParallel")
_FSDP1 = ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel")
_FSDP1_ARGUMENTS = ("forward_prefetch", "limit_all_gathers", "backward_prefetch", "sharding_strategy")


def install(settings: Mapping[str, Any]) -> None:
    """Create every wrapper with these arguments.

    Args:
        settings: ``bucket_cap_mb``, ``gradient_as_bucket_view``, ``static_graph``, ``first_bucket_mb``, and
            those of FSDP1: ``forward_prefetch``, ``limit_all_gathers``, ``backward_prefetch`` and
            ``sharding_strategy`` (by name).
    """
    if not settings:
        return
    _once_loaded(_DDP[0], lambda module: _patch(module, _DDP[1], settings))
    _once_loaded(_FSDP1[0], lambda module: _patch(module, _FSDP1[1], settings))


def _patch(module: ModuleType, name: str, settings: Mapping[str, Any]) -> None:
    kind: Any = getattr(module, name)
    original: Callable[..., None] = kind.__init__
    fsdp = name == _FSDP1[1]
    arguments = {
        key: value for key, value in settings.items() if (key in _FSDP1_ARGUMENTS) is fsdp and key != FIRST_BUCKET
    }
    if fsdp:
        for key, enum in (("backward_prefetch", "BackwardPrefetch"), ("sharding_strategy", "ShardingStrategy")):
            if isinstance(arguments.get(key), str):
                arguments[key] = getattr(getattr(module, enum), arguments[key])

    @functools.wraps(original)
    def patched(self: Any, *args: Any, **options: Any) -> None:
        dist: Any = import_module("torch.distributed")

        first = settings.get(FIRST_BUCKET)
        before = getattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES", None)
        if first is not None and not fsdp:
            if before is None:
                warn("this torch has no limit for the first bucket")
            else:
                # Torch has no argument for it; it is read when the wrapper is created.
                dist._DEFAULT_FIRST_BUCKET_BYTES = int(float(first) * 1024 * 1024)
        try:
            original(self, *args, **{**options, **arguments})
        finally:
            if first is not None and before is not None:
                dist._DEFAULT_FIRST_BUCKET_BYTES = before

    kind.__init__ = patched


def _once_loaded(name: str, change: Callable[[ModuleType], None]) -> None:
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        change(module)
        return
    if module is None:
        sys.meta_path.insert(0, _Finder(name, change))


class _Finder(MetaPathFinder):
    """Finds one module with the other finders, and calls ``change`` once it is loaded."""

    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self._name, self._change = name, change

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find that module and nothing else."""
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                self._change_after(spec.loader)
                return spec
        return None

    def _change_after(self, loader: Any) -> None:
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            run(module)
            self._change(module)

        loader.exec_module = exec_module
