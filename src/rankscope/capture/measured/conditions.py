"""The conditions of an experiment: changes to a running job from one block of steps to the next.

========================  ============================================================================================
``none``                  nothing
``gradient_sync``         ``on``: whether DDP, FSDP1 or FSDP2 reduce gradients; on leaves the script as it is
``profile``               recording with the given switches; ``waiting``: a profiler that waits for its window
``reshard``               FSDP2: ``after_forward``, whether parameters are freed between forward and backward
``prefetch``              FSDP2: ``forward`` and ``backward``, how many modules ahead parameters are gathered
========================  ============================================================================================

In: a condition's name and values, and the model. Out: the changed job, and how to undo the change.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from rankscope.capture import environment
from rankscope.capture.measured.model import DDP, FSDP1, FSDP2, Model
from rankscope.errors import ConfigError
from rankscope.rundir.config import CaptureConfig


class Condition:
    """A condition that changes nothing; the base of the others."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.measured: dict[str, int | None] = {}
        """Results besides the times of the steps, by field of ``Block``."""

    def enter(self) -> None:
        """Called before the settling steps, which do not count."""

    def start(self) -> None:
        """Called before the first step that counts."""

    def before_optimizer(self, parameters: list[torch.Tensor]) -> None:
        """Called before each step of the optimizer."""

    def after_optimizer(self, parameters: list[torch.Tensor]) -> None:
        """Called after each step of the optimizer."""

    def leave(self) -> None:
        """Called after the last step."""


class NoSync(Condition):
    """Gradients are not synchronized.

    A sharded model would then have no gradients for its shards, and the optimizer nothing to do. It gets zeros of the
    right shapes, so that its step costs the same; unsharded gradients that accumulate are released.

    Args:
        kept: zero gradients by the parameter's id, in the shapes of reduced gradients.
    """

    def __init__(self, model: Model, kept: dict[int, torch.Tensor]) -> None:
        super().__init__(model)
        self._kept = kept
        self._opened: list[Any] = []

    def enter(self) -> None:
        """Switch it off."""
        if self.model.wrapper == FSDP2:
            for module in self.model.wrappers:
                module.set_requires_gradient_sync(False)
            return
        for module in self.model.wrappers:
            context = module.no_sync()
            context.__enter__()
            self._opened.append(context)

    def leave(self) -> None:
        """Switch it on again."""
        if self.model.wrapper == FSDP2:
            for module in self.model.wrappers:
                module.set_requires_gradient_sync(True)
        while self._opened:
            self._opened.pop().__exit__(None, None, None)

    def before_optimizer(self, parameters: list[torch.Tensor]) -> None:
        """Give a sharded model gradients."""
        if self.model.wrapper == DDP or not self._kept:
            return
        self._release_unsharded()
        for parameter in parameters:
            given = self._kept.get(id(parameter))
            if given is not None and given.shape == parameter.shape:
                parameter.grad = given
            elif parameter.grad is not None and parameter.grad.shape != parameter.shape:
                # This rank has no shard of it: the gradient is unsharded, and not for the optimizer.
                parameter.grad = None

    def after_optimizer(self, parameters: list[torch.Tensor]) -> None:
        """Remove them."""
        if self.model.wrapper != DDP and self._kept:
            for parameter in parameters:
                parameter.grad = None

    def _release_unsharded(self) -> None:
        # Neither has a public name. Without them, unsharded gradients accumulate, which costs an addition per step.
        for module in self.model.wrappers:
            for inner in module.modules():
                with suppress(Exception):
                    if self.model.wrapper == FSDP1:
                        handle = getattr(inner, "_handle", None)
                        if handle is not None:
                            handle.flat_param.grad = None
                    elif hasattr(inner, "_get_fsdp_state"):
                        _release_unsharded_fsdp2(inner)


def _release_unsharded_fsdp2(module: Any) -> None:
    state = module._get_fsdp_state()
    for group in getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]:
        for parameter in group.fsdp_params if group is not None else ():
            parameter.unsharded_accumulated_grad = None
            unsharded = getattr(parameter, "_unsharded_param", None)
            if unsharded is not None:
                unsharded.grad = None


class Profiled(Condition):
    """Steps are recorded with torch's profiler, as rankscope does it.

    Args:
        switches: the switches of ``CaptureConfig`` that are on.
        folder: where the trace is saved to measure its size and duration; it is deleted.
    """

    def __init__(self, model: Model, switches: list[str], folder: Path) -> None:
        super().__init__(model)
        self._config = CaptureConfig(**dict.fromkeys(switches, True))  # type: ignore[arg-type]  # names of switches
        self._folder = folder
        self._recording: Any = None

    def enter(self) -> None:
        """Warm up, as before each window."""
        from rankscope.capture.recording import Recording, load_torch_parts

        load_torch_parts()
        self._recording = Recording(self._config, environment.default_activities(), "measure")
        self._recording.prepare()

    def start(self) -> None:
        """Record."""
        self._recording.start()

    def leave(self) -> None:
        """Stop and save, and time both."""
        recording, self._recording = self._recording, None
        if not recording.started:
            recording.abandon()
            return
        began = time.perf_counter_ns()
        recording.end({})
        recording.stop()
        stopped = time.perf_counter_ns()
        path = self._folder / f".rank-{os.getpid()}.json"
        try:
            recording.save(path)
            saved = time.perf_counter_ns()
            self.measured = {
                "stop_ns": stopped - began,
                "save_ns": saved - stopped,
                "trace_bytes": path.stat().st_size if path.exists() else None,
            }
        finally:
            path.unlink(missing_ok=True)
            recording.free()


class Waiting(Condition):
    """A profiler counts the steps and waits for a window that never comes.

    Args:
        folder: its run directory.
    """

    def __init__(self, model: Model, folder: Path) -> None:
        super().__init__(model)
        self._folder = folder
        self._profile: Any = None

    def enter(self) -> None:
        """Start the profiler; it is the same one in all blocks."""
        if self._profile is None:
            from rankscope.capture.profiler import Profiler

            self._profile = Profiler(self._folder / "waiting", wait=10**9)
            self._profile.start(first_began_ns=time.perf_counter_ns())

    def after_optimizer(self, parameters: list[torch.Tensor]) -> None:
        """Count a step."""
        self._profile.step()


class Reshard(Condition):
    """FSDP2's parameters are freed after the forward and gathered again for the backward, or stay unsharded.

    Args:
        after_forward: whether they are freed.
    """

    def __init__(self, model: Model, after_forward: bool) -> None:
        super().__init__(model)
        if model.wrapper != FSDP2:
            raise ConfigError(
                f"reshard_after_forward can be set in a running job only with FSDP2; this job has {model.wrapper}"
            )
        self._after_forward = after_forward
        self._before: list[tuple[Any, Any, Any]] = []

    def enter(self) -> None:
        """Set it in every module."""
        for module in self.model.wrappers:
            for inner in module.modules():
                if hasattr(inner, "_get_fsdp_state"):
                    state = inner._get_fsdp_state()
                    for group in getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]:
                        if group is not None:
                            self._before.append((state, group, group.post_forward_mesh_info))
            module.set_reshard_after_forward(self._after_forward)

    def leave(self) -> None:
        """Restore what the script had, which torch has no public way to read."""
        for _, group, before in self._before:
            group.post_forward_mesh_info = before
        self._before.clear()


class Prefetch(Condition):
    """FSDP2 gathers the parameters of the next modules while one computes.

    Args:
        forward: how many modules ahead in the forward; 0 for torch's default.
        backward: the same in the backward.
    """

    def __init__(self, model: Model, forward: int, backward: int) -> None:
        super().__init__(model)
        if model.wrapper != FSDP2:
            raise ConfigError(f"prefetch can be set in a running job only with FSDP2; this job has {model.wrapper}")
        self._counts = {"forward": forward, "backward": backward}

    def enter(self) -> None:
        """Set it, in the order in which the modules are defined."""
        self._set(self._counts)

    def leave(self) -> None:
        """Restore torch's default."""
        self._set({"forward": 0, "backward": 0})

    def _set(self, counts: Mapping[str, int]) -> None:
        for wrapper in self.model.wrappers:
            modules = [m for m in wrapper.modules() if hasattr(m, "_get_fsdp_state") and m is not wrapper]
            for direction, count in counts.items():
                order = modules if direction == "forward" else modules[::-1]
                for index, module in enumerate(order):
                    getattr(module, f"set_modules_to_{direction}_prefetch")(order[index + 1 : index + 1 + count])


def make(
    given: Mapping[str, Mapping[str, Any]], model: Model, parameters: list[torch.Tensor], out: Path
) -> dict[str, Condition]:
    """The conditions of a plan.

    Args:
        given: the plan's conditions, by name.
        model: the model that is trained.
        parameters: the optimizer's parameters, which still have the gradients of its last step.
        out: the job's directory.

    Raises:
        ConfigError: a condition that is not possible with this model, or not known.
    """
    kept = {id(p): torch.zeros_like(p.grad) for p in parameters if p.grad is not None} if model.wrapper != DDP else {}
    conditions: dict[str, Condition] = {}
    for name, values in given.items():
        kind = values.get("kind", "none")
        if kind == "none":
            conditions[name] = Condition(model)
        elif kind == "gradient_sync":
            if model.wrapper is None and not values["on"] and not values.get("optional"):
                raise ConfigError(NO_WRAPPER)
            conditions[name] = Condition(model) if values["on"] or model.wrapper is None else NoSync(model, kept)
        elif kind == "profile":
            conditions[name] = Profiled(model, list(values.get("switches", ())), out)
        elif kind == "waiting":
            conditions[name] = Waiting(model, out)
        elif kind == "reshard":
            conditions[name] = Reshard(model, bool(values["after_forward"]))
        elif kind == "prefetch":
            conditions[name] = Prefetch(model, int(values.get("forward", 0)), int(values.get("backward", 0)))
        else:
            raise ConfigError(f"{kind!r} is not a condition of an experiment")
    return conditions


NO_WRAPPER = (
    "no DistributedDataParallel, FullyShardedDataParallel or fully_shard module was found: there is no gradient "
    "synchronization to switch off"
)
