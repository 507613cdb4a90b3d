"""What is changed in a running job from one block of steps to the next.

========================  ============================================================================================
``none``                  nothing
``gradient_sync``         ``on``: whether DDP, FSDP1 or FSDP2 reduce gradients; on is the script's own way
``profile``               recording with the given switches; ``waiting``: a profiler that waits for its window
``reshard``               FSDP2: ``after_forward``, whether parameters are freed between forward and backward
``prefetch``              FSDP2: ``forward`` and ``backward``, how many modules ahead parameters are gathered
========================  ============================================================================================
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from rankscope.capture import process as facts
from rankscope.errors import ConfigError
from rankscope.measure.injob.model import DDP, FSDP1, FSDP2, Model
from rankscope.rundir.config import CaptureConfig


class Condition:
    """As the script is."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.measured: dict[str, int | None] = {}
        """What was learnt besides the times of the steps, by field of ``Block``."""

    def enter(self) -> None:
        """Before the first step that does not count."""

    def start(self) -> None:
        """Before the first step that counts."""

    def before_optimizer(self, parameters: list[torch.Tensor]) -> None:
        """Before each step of the optimizer."""

    def after_optimizer(self, parameters: list[torch.Tensor]) -> None:
        """After it."""

    def leave(self) -> None:
        """After the last step."""


class NoSync(Condition):
    """Gradients stay on their rank.

    A sharded model would then have no gradients of its shards, and the optimizer nothing to do. It gets zeros of the
    right shapes, so that its step costs what it costs; what was accumulated in whole gradients is let go.

    Args:
        kept: gradients by the parameter's id, as they were when they were reduced.
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
        self._let_go()
        for parameter in parameters:
            given = self._kept.get(id(parameter))
            if given is not None and given.shape == parameter.shape:
                parameter.grad = given
            elif parameter.grad is not None and parameter.grad.shape != parameter.shape:
                # Of this one the rank has no shard: its gradient is whole, and not the optimizer's.
                parameter.grad = None

    def after_optimizer(self, parameters: list[torch.Tensor]) -> None:
        """Take them back."""
        if self.model.wrapper != DDP and self._kept:
            for parameter in parameters:
                parameter.grad = None

    def _let_go(self) -> None:
        # Neither has a public name. Where they are gone, whole gradients are added up, which costs an addition a step.
        for module in self.model.wrappers:
            for inner in module.modules():
                with suppress(Exception):
                    if self.model.wrapper == FSDP1:
                        handle = getattr(inner, "_handle", None)
                        if handle is not None:
                            handle.flat_param.grad = None
                    elif hasattr(inner, "_get_fsdp_state"):
                        _let_go_fsdp2(inner)


def _let_go_fsdp2(module: Any) -> None:
    state = module._get_fsdp_state()
    for group in getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]:
        for parameter in group.fsdp_params if group is not None else ():
            parameter.unsharded_accumulated_grad = None
            whole = getattr(parameter, "_unsharded_param", None)
            if whole is not None:
                whole.grad = None


class Profiled(Condition):
    """Steps are recorded by torch's profiler, as rankscope drives it.

    Args:
        switches: names of ``CaptureConfig``'s that are on.
        folder: where the trace is written to learn its size and time; it is deleted.
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
        self._recording = Recording(self._config, facts.activities(), "measure")
        self._recording.prepare()

    def start(self) -> None:
        """Record."""
        self._recording.start()

    def leave(self) -> None:
        """Stop and save: what the loop would have to wait for, where both are done in it."""
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
    """A profiler counts the steps and waits for its window, which does not come.

    Args:
        folder: its run directory.
    """

    def __init__(self, model: Model, folder: Path) -> None:
        super().__init__(model)
        self._folder = folder
        self._profile: Any = None

    def enter(self) -> None:
        """Begin to wait; the same profiler waits in all blocks."""
        if self._profile is None:
            from rankscope.capture.profiler import Profiler

            self._profile = Profiler(self._folder / "waiting", wait=10**9)
            self._profile.start(first_began_ns=time.perf_counter_ns())

    def after_optimizer(self, parameters: list[torch.Tensor]) -> None:
        """Count a step."""
        self._profile.step()


class Reshard(Condition):
    """FSDP2's parameters are freed after the forward, and gathered again for the backward, or stay whole.

    Args:
        after_forward: whether they are freed.
    """

    def __init__(self, model: Model, after_forward: bool) -> None:
        super().__init__(model)
        if model.wrapper != FSDP2:
            raise ConfigError(
                f"reshard_after_forward can be set while a job runs for FSDP2 alone; this job has {model.wrapper}"
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
        """As the script had it: torch has no public way to ask."""
        for _, group, before in self._before:
            group.post_forward_mesh_info = before
        self._before.clear()


class Prefetch(Condition):
    """FSDP2 gathers the parameters of modules that come next while one computes.

    Args:
        forward: how many modules ahead in the forward; 0 for torch's own way.
        backward: the same in the backward.
    """

    def __init__(self, model: Model, forward: int, backward: int) -> None:
        super().__init__(model)
        if model.wrapper != FSDP2:
            raise ConfigError(f"prefetch can be set while a job runs for FSDP2 alone; this job has {model.wrapper}")
        self._counts = {"forward": forward, "backward": backward}

    def enter(self) -> None:
        """Set it, in the order in which modules are defined."""
        self._set(self._counts)

    def leave(self) -> None:
        """As torch does it by itself."""
        self._set({"forward": 0, "backward": 0})

    def _set(self, counts: Mapping[str, int]) -> None:
        for wrapper in self.model.wrappers:
            modules = [m for m in wrapper.modules() if hasattr(m, "_get_fsdp_state") and m is not wrapper]
            for direction, count in counts.items():
                order = modules if direction == "forward" else modules[::-1]
                for place, module in enumerate(order):
                    getattr(module, f"set_modules_to_{direction}_prefetch")(order[place + 1 : place + 1 + count])


def make(
    given: Mapping[str, Mapping[str, Any]], model: Model, parameters: list[torch.Tensor], out: Path
) -> dict[str, Condition]:
    """The conditions of a plan.

    Args:
        given: the plan's.
        model: what is trained.
        parameters: the optimizer's, which has just made a step with their gradients.
        out: the job's directory.

    Raises:
        ConfigError: one that this model cannot be put in.
    """
    kept = {id(p): torch.zeros_like(p.grad) for p in parameters if p.grad is not None} if model.wrapper != DDP else {}
    made: dict[str, Condition] = {}
    for name, each in given.items():
        kind = each.get("kind", "none")
        if kind == "none":
            made[name] = Condition(model)
        elif kind == "gradient_sync":
            if model.wrapper is None and not each["on"] and not each.get("optional"):
                raise ConfigError(NO_WRAPPER)
            made[name] = Condition(model) if each["on"] or model.wrapper is None else NoSync(model, kept)
        elif kind == "profile":
            made[name] = Profiled(model, list(each.get("switches", ())), out)
        elif kind == "waiting":
            made[name] = Waiting(model, out)
        elif kind == "reshard":
            made[name] = Reshard(model, bool(each["after_forward"]))
        elif kind == "prefetch":
            made[name] = Prefetch(model, int(each.get("forward", 0)), int(each.get("backward", 0)))
        else:
            raise ConfigError(f"{kind!r} is no condition of an experiment")
    return made


NO_WRAPPER = (
    "no DistributedDataParallel, FullyShardedDataParallel or fully_shard module was found: there is no gradient "
    "synchronization to switch off"
)
