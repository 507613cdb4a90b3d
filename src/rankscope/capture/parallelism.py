"""How the job is parallelized: DDP's buckets in order, what each FSDP module shards, and the mesh dimension of each
process group. Torch's traces contain none of this: a bucket's all-reduce has no number, and gloo's collectives have no
group.

Torch keeps no list of its wrappers, so they are searched for among all objects, once. Where torch has no public name
for something and the private one is missing or has changed, that part is left out.

In: the objects of this process. Out: entries for the trace's metadata.
"""

from __future__ import annotations

import gc
import itertools
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_DDP = ("torch.nn.parallel.distributed", "DistributedDataParallel")
_FSDP1 = ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel")
_FSDP2 = ("torch.distributed.fsdp._fully_shard._fully_shard", "FSDPModule")
_FSDP2_EARLY = ("torch.distributed._composable.fsdp.fully_shard", "FSDPModule")
_MESH = ("torch.distributed.device_mesh", "DeviceMesh")
MAX_MODULES = 500
MAX_BUCKETS = 1000
MAX_NAMES = 1000
"""Of parameters, in total; a name is cut to 200 characters."""


class Wrappers:
    """The DDP and FSDP modules and the meshes of this process."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[weakref.ref[Any]]] = {}

    @property
    def any(self) -> bool:
        """Whether any was found."""
        return bool(self._found)

    def find(self) -> None:
        """Search for them: takes some hundredths of a second for a million objects."""
        kinds = {kind: where for where in (_DDP, _FSDP1, _FSDP2, _FSDP2_EARLY, _MESH) if (kind := _loaded(*where))}
        if not kinds:
            return
        # Each type is checked once, not each of its objects: `isinstance` may run an object's own code.
        types = _all_types()
        known = {kind: where for kind in types for base, where in kinds.items() if base in kind.__mro__}
        found: dict[tuple[str, str], list[weakref.ref[Any]]] = {}
        for item in _all_of(set(known)):
            where = known[type(item)]
            if len(found.setdefault(where, [])) < MAX_MODULES:
                with suppress(TypeError):
                    found[where].append(weakref.ref(item))
        self._found = {where: items for where, items in found.items() if items}

    def mesh_dims(self) -> dict[str, str]:
        """The dimension of a DeviceMesh that a process group runs along, by the group's name."""
        dims: dict[str, str] = {}
        for mesh in self._alive(_MESH):
            dims |= {group: dim for group, dim in mesh_groups(mesh).items() if group not in dims}
        return dims

    def describe(self) -> tuple[dict[str, object], ...]:
        """One entry per wrapped module, sizes in bytes."""
        entries: list[dict[str, object]] = []
        names = [MAX_NAMES]
        for where, describe in ((_DDP, _ddp), (_FSDP1, _fsdp1), (_FSDP2, _fsdp2), (_FSDP2_EARLY, _fsdp2)):
            for module in self._alive(where):
                with suppress(Exception):
                    entries += describe(module, names)
        return tuple(entries[:MAX_MODULES])

    def _alive(self, where: tuple[str, str]) -> Iterator[Any]:
        return (item for ref in self._found.get(where, ()) if (item := ref()) is not None)


# A tuple that another thread is still building must have no second reference: `tuple(x for x in …)` and
# `f(*(x for x in …))` then fail with a SystemError, in the job. The list that `gc.get_objects` returns refers to every
# object. So that list is requested, filtered and released by iterators in C, which the interpreter runs to their end in
# a single step: no other thread runs in between. No garbage collection may run either, because finalizers are Python.


def _all_types() -> set[type]:
    with _no_collection():
        return {*map(type, itertools.chain.from_iterable(itertools.starmap(gc.get_objects, [()])))}


def _all_of(kinds: set[type]) -> list[Any]:
    held: list[Any] = []
    # Iterators that yield nothing: they are used for what runs when they are advanced.
    extend: Callable[[list[Any]], object] = held.extend
    clear: Callable[[], object] = held.clear
    fill: Iterator[Any] = filter(None, map(extend, itertools.starmap(gc.get_objects, [()])))
    choose = itertools.compress(held, map(kinds.__contains__, map(type, held)))
    empty: Iterator[Any] = filter(None, itertools.starmap(clear, [()]))
    with _no_collection():
        return [*itertools.chain(fill, choose, empty)]


@contextmanager
def _no_collection() -> Iterator[None]:
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def mesh_groups(mesh: Any) -> dict[str, str]:
    """The dimension's name, by the name of the group that runs along it."""
    found = {}
    for dim in getattr(mesh, "mesh_dim_names", None) or ():
        with suppress(Exception):  # a mesh with a single dimension, or one without this rank
            found[str(mesh.get_group(dim).group_name)] = str(dim)
    return found


def _loaded(module: str, name: str) -> type | None:
    kind = getattr(sys.modules.get(module), name, None)
    return kind if isinstance(kind, type) else None


def _ddp(module: Any, names: list[int]) -> Iterator[dict[str, object]]:
    """Buckets in the order in which they are reduced, as DDP's reducer has them now: it rebuilds them after the first
    step."""
    logged = module._get_ddp_logging_data()
    rebuilt = bool(logged.get("has_rebuilt_buckets"))
    sizes = _numbers(logged.get("rebuilt_bucket_sizes" if rebuilt else "bucket_sizes"))[:MAX_BUCKETS]
    parameters = [name for name, parameter in module.module.named_parameters() if parameter.requires_grad]
    held = str(logged.get("rebuilt_per_bucket_param_indices") or "").split(",") if rebuilt else []
    buckets: list[dict[str, object]] = []
    for index, size in enumerate(sizes):
        bucket: dict[str, object] = {"bytes": size}
        numbers = _numbers(held[index].replace(" ", ",")) if index < len(held) else []
        if numbers and names[0] >= len(numbers):
            names[0] -= len(numbers)
            bucket["parameters"] = [parameters[n][:200] for n in numbers if n < len(parameters)]
        buckets.append(bucket)
    yield {
        "kind": "ddp",
        "module": type(module.module).__name__[:200],
        "group": str(module.process_group.group_name),
        "backend": str(logged.get("backend_name", "")),
        "parameter_bytes": int(logged.get("total_parameter_size_bytes", 0)),
        "bucket_cap_bytes": int(logged.get("bucket_cap_bytes", 0)),
        "buckets_rebuilt": rebuilt,
        "buckets": buckets,
        "find_unused_parameters": bool(logged.get("find_unused_parameters")),
        "gradient_as_bucket_view": bool(logged.get("gradient_as_bucket_view")),
        "communication_hook": str(logged.get("comm_hook", "")) or None,
    }


def _fsdp1(module: Any, names: list[int]) -> Iterator[dict[str, object]]:
    handle = getattr(module, "_handle", None)
    if handle is None:
        return  # all its parameters are in inner modules
    flat = handle.flat_param
    item = flat.element_size()
    yield {
        "kind": "fsdp1",
        "module": type(module._fsdp_wrapped_module).__name__[:200],
        "group": str(module.process_group.group_name),
        "strategy": str(module.sharding_strategy).rpartition(".")[2],
        "dtype": str(flat.dtype).removeprefix("torch."),
        "bytes": int(flat._unpadded_unsharded_size.numel()) * item,
        "shard_bytes": int(flat._sharded_size.numel()) * item,
        "parameters": _names(flat._fqns, names),
    }


def _fsdp2(module: Any, names: list[int]) -> Iterator[dict[str, object]]:
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    for group in groups:
        if group is None:
            continue  # all its parameters are in inner modules
        parameters = group.fsdp_params
        full = sum(p._orig_size.numel() * p.orig_dtype.itemsize for p in parameters)
        shard = sum(p.sharded_size.numel() * p.orig_dtype.itemsize for p in parameters)
        info = group.mesh_info
        yield {
            "kind": "fsdp2",
            "module": str(group._module_fqn or type(module).__name__.removeprefix("FSDP"))[:200],
            "group": str(info.shard_process_group.group_name),
            "mesh": [int(n) for n in info.mesh.shape],
            "dtype": str(parameters[0].orig_dtype).removeprefix("torch.") if parameters else None,
            "bytes": int(full),
            "shard_bytes": int(shard),
            "reshard_after_forward": bool(group._reshard_after_forward),
            "parameters": _names([p._param_fqn or "" for p in parameters], names),
        }


def _names(given: Any, left: list[int]) -> list[str] | None:
    """The names, while the total is below the limit."""
    found = [str(name)[:200] for name in given]
    if len(found) > left[0]:
        return None
    left[0] -= len(found)
    return found


def _numbers(text: object) -> list[int]:
    return [int(part) for part in str(text or "").split(",") if part.strip().isdigit()]
