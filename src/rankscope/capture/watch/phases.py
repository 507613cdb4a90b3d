"""The phases of a step without a profiler: data loading, forward, backward, optimizer.

Each is a sum of differences of clock readings in the thread of the training loop:

- data loading: inside ``next()`` of a ``DataLoader``'s iterator,
- backward: inside ``torch.autograd.backward``, which ``Tensor.backward`` calls,
- optimizer: from an optimizer's pre-step hook to its post-step hook,
- forward: from the last batch (or the beginning of the step, or the end of the backward pass before) to the backward
  pass.

What remains of the step is anything else. Of three stretches of the step, before, in and after the backward pass, it is
also known for how long the thread ran on a core and waited for one (`thread_clock`), and how long Python collected
garbage in it. A phase that did not occur in a step is not known: another kind of loader, a
loop without a backward pass. On an accelerator these are times of the host, which runs ahead of its device; those of
the device are in `device_marks`.

Nothing of it is traced by torch.compile: it would be a break in a graph of the job, and an error where that must not
have one. The optimizer's phase is not known if its step is compiled.

In: calls of torch in the loop's thread. Out: the phases of each step.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from rankscope.capture.dynamo import never_compile
from rankscope.capture.watch.device_marks import FORWARD, OPTIMIZER, OTHER, DeviceMarks
from rankscope.capture.watch.thread_clock import ThreadClock, ThreadTimes

_clock = time.perf_counter_ns


class StepRow(NamedTuple):
    """One step; readings of ``time.perf_counter_ns`` and differences of them."""

    step: int
    began: int
    ended: int
    loading: int | None
    forward: int | None
    backward: int | None
    optimizer: int | None
    backward_ended: int | None
    """When the last backward pass had ended."""
    profiled: bool
    """Whether a profiler recorded the step, or a trace was being written, or it is not one step of the loop."""
    device: DeviceMarks | None = None
    threads: tuple[ThreadTimes, ...] = ()
    """Of the loop's thread before, in, and after the backward pass; the first alone without one; empty if not known."""
    collecting: int = 0
    """Garbage, in the loop's thread."""


BEFORE, BACKWARD, AFTER = range(3)


class StepPhases:
    """The current step of one loop. Only the loop's thread calls it.

    Args:
        began: a reading of the clock: the beginning of the current step.
    """

    def __init__(self, began: int) -> None:
        self.thread = threading.get_ident()
        self._clock = ThreadClock()
        self._read = self._clock.read()
        self._began = began
        self.in_backward = False
        self.device = DeviceMarks.after(None)
        self._reset(began)

    def _reset(self, began: int) -> None:
        self._since = began
        self._loading = self._forward = self._backward = self._optimizer = 0
        self._loads = self._backwards = self._optimizers = 0
        self._backward_ended = 0
        self._threads = [ThreadTimes(0, 0)] * 3
        self._collecting = 0

    def close(self) -> None:
        """No more steps come."""
        self._clock.close()

    def _charge(self, stretch: int) -> None:
        """What the thread has done since the last call belongs to a stretch of the step."""
        before, now = self._read, self._clock.read()
        self._read = now
        if before is not None and now is not None:
            running, ready = self._threads[stretch]
            self._threads[stretch] = ThreadTimes(
                running + now.running - before.running, ready + now.ready - before.ready
            )

    def end_step(self, step: int, now: int, *, profiled: bool) -> StepRow:
        """The step that ends now; the next one begins."""
        self.device.mark(OTHER)
        self._charge(AFTER if self._backwards else BEFORE)
        threads = tuple(self._threads if self._backwards else self._threads[:1])
        row = StepRow(
            step,
            self._began,
            now,
            self._loading if self._loads else None,
            self._forward if self._backwards else None,
            self._backward if self._backwards else None,
            self._optimizer if self._optimizers else None,
            self._backward_ended if self._backwards else None,
            profiled,
            self.device,
            threads if self._read is not None else (),
            self._collecting,
        )
        self._began = now
        self._reset(now)
        self.device = DeviceMarks.after(self.device)
        if _open_optimizers:  # a step of an optimizer that raised does not call its post-step hook
            _open_optimizers.clear()
        return row

    def loaded(self, began: int, ended: int) -> None:
        """A batch was loaded."""
        self._loading += ended - began
        self._loads += 1
        self._since = ended

    def backward_begins(self, now: int, args: tuple[Any, ...] = (), options: Mapping[str, Any] | None = None) -> None:
        """The forward pass is over.

        Args:
            now: the time.
            args, options: those of ``torch.autograd.backward``.
        """
        self.in_backward = True
        self._forward += now - self._since
        self._charge(BEFORE)
        self.device.mark(FORWARD)
        self.device.mark_backward(args[0] if args else (options or {}).get("tensors"))

    def backward_ends(self, began: int, ended: int) -> None:
        """A backward pass is over."""
        self.in_backward = False
        self._charge(BACKWARD)
        self._backward += ended - began
        self._backwards += 1
        self._since = self._backward_ended = ended
        self.device.backward_ended()

    def collected(self, began: int, ended: int) -> None:
        """Python has collected garbage."""
        self._collecting += ended - began

    def optimized(self, began: int, ended: int) -> None:
        """The outermost step of an optimizer is over."""
        self._optimizer += ended - began
        self._optimizers += 1
        self.device.mark(OPTIMIZER)
        self._since = ended


_current: StepPhases | None = None
_installed: list[Callable[[], None]] = []
_open_optimizers: list[int] = []
_open_collections: list[int] = []


def watch_phases(phases: StepPhases) -> None:
    """Have torch's calls counted for ``phases``, until :func:`unwatch_phases`."""
    global _current
    _current = phases
    if _installed:
        return
    for each in (StepPhases.backward_begins, StepPhases.backward_ends, StepPhases.optimized, StepPhases.loaded):
        never_compile(each, callees=True)
    DeviceMarks.never_compile()
    never_compile(_on_collection)
    for install in (_watch_loaders, _watch_backward, _watch_optimizers, _watch_collections):
        with suppress(Exception):  # a torch that lacks one of them: the phase is not known
            _installed.append(install())


def unwatch_phases(phases: StepPhases) -> None:
    """Count no more for ``phases``, and put torch back as it was if it was the last."""
    global _current
    if _current is not phases:
        return
    _current = None
    while _installed:
        with suppress(Exception):
            _installed.pop()()


def _watch_loaders() -> Callable[[], None]:
    kinds = [sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter]
    with suppress(Exception):  # torchdata's loader has an iterator of its own
        kinds.append(sys.modules["torchdata.stateful_dataloader.stateful_dataloader"]._BaseDataLoaderIter)
    undo = [_replace(kind, "__next__", _timed_next) for kind in kinds]

    def restore() -> None:
        for each in undo:
            each()

    return restore


def _timed_next(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __next__(iterator: Any) -> Any:  # the name that tracebacks show
        phases = _current
        if torch.compiler.is_compiling() or phases is None or threading.get_ident() != phases.thread:
            return original(iterator)
        began = _clock()
        try:
            return original(iterator)
        finally:
            phases.loaded(began, _clock())

    return __next__


def _watch_backward() -> Callable[[], None]:
    return _replace(torch.autograd, "backward", _timed_backward)


def _timed_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(*args: Any, **options: Any) -> Any:
        phases = _current
        if torch.compiler.is_compiling() or phases is None or threading.get_ident() != phases.thread:
            return original(*args, **options)
        if phases.in_backward:  # of a reentrant checkpoint
            return original(*args, **options)
        began = _clock()
        phases.backward_begins(began, args, options)
        try:
            return original(*args, **options)
        finally:
            phases.backward_ends(began, _clock())

    return backward


def _watch_optimizers() -> Callable[[], None]:
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    handles = [register_optimizer_step_pre_hook(_before_step), register_optimizer_step_post_hook(_after_step)]

    def restore() -> None:
        for handle in handles:
            handle.remove()

    return restore


def _before_step(*_optimizer: Any) -> None:
    phases = _current
    if not torch.compiler.is_compiling() and phases is not None and threading.get_ident() == phases.thread:
        if not _open_optimizers:
            phases.device.mark(OTHER)
        _open_optimizers.append(_clock())


def _after_step(*_optimizer: Any) -> None:
    phases = _current
    if torch.compiler.is_compiling() or phases is None or threading.get_ident() != phases.thread:
        return
    if _open_optimizers:
        began = _open_optimizers.pop()
        if not _open_optimizers:  # else an optimizer that another one wraps
            phases.optimized(began, _clock())


def _watch_collections() -> Callable[[], None]:
    gc.callbacks.append(_on_collection)

    def restore() -> None:
        gc.callbacks.remove(_on_collection)

    return restore


def _on_collection(phase: str, _info: Mapping[str, int]) -> None:
    phases = _current
    if phases is None or threading.get_ident() != phases.thread:
        return
    if phase == "start":
        _open_collections.append(_clock())
    elif _open_collections:
        phases.collected(_open_collections.pop(), _clock())


def _replace(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    """Replace an attribute; returns what restores it, unless someone has replaced it since."""
    original = getattr(owner, name)
    replaced = wrap(original)
    never_compile(replaced)
    setattr(owner, name, replaced)

    def restore() -> None:
        if getattr(owner, name) is replaced:
            setattr(owner, name, original)

    return restore


def _after_fork() -> None:
    global _current
    _current = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
