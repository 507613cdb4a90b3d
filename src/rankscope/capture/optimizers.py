"""Notices the steps of a process's optimizers, and decides which count as steps of the training if there are several.

Torch wraps the ``step`` of every optimizer with ``Optimizer.profile_hook_step``, which is wrapped once more here: the
public hook runs inside torch's own range of the step, which would cross a ``ProfilerStep#`` range. Of nested steps
(ZeRO, a wrapper around an optimizer) only the outermost counts. With gradient accumulation, a step is the optimizer's.

In: the optimizers that the process creates and steps. Out: a call for each step of the training.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

OTHERS_UNTIL_CHANGE = 16
"""After this many steps of other optimizers in a row, the next of these is counted from then on: the first belonged to
an earlier phase of the training."""


class PrimaryOptimizer:
    """The optimizer that is counted: the first to make a step, until it makes no more."""

    def __init__(self) -> None:
        self._chosen: weakref.ref[Any] | None = None
        self._others = 0

    def counts(self, optimizer: object) -> bool:
        """Whether this finished step counts as a step of the training."""
        chosen = self._chosen() if self._chosen is not None else None
        if chosen is not optimizer:
            self._others += 1
            if chosen is not None and self._others < OTHERS_UNTIL_CHANGE:
                return False
            self._chosen = weakref.ref(optimizer)
        self._others = 0
        return True


class _Depth:
    """How many nested steps are open."""

    now = 0

    def clear(self) -> None:
        self.now = 0


def _must_be_one_graph() -> bool:
    """Whether torch.compile(fullgraph=True) traces the caller: asked while it traces, and a constant in its graph."""
    try:
        from torch._dynamo.symbolic_convert import InstructionTranslator

        return bool(InstructionTranslator.current_tx().one_graph)
    except Exception:
        return False


setattr(_must_be_one_graph, "_dynamo_marked_constant", True)  # noqa: B010 (functions have no such attribute)


def watch_steps(
    module: Any,
    after: Callable[[Any], object],
    before: Callable[[Any], object] = lambda _optimizer: None,
    wrapped: Callable[[], object] = lambda: None,
) -> None:
    """Watch the steps of all optimizers of this process, and of processes forked from it.

    Args:
        module: ``torch.optim.optimizer``.
        after: called with the optimizer after its outermost step; not after one that raised.
        before: called with it before that step.
        wrapped: called when torch wraps the steps of another optimizer class: when the first of it is created.
    """
    kind = module.Optimizer
    original: Callable[..., Any] = kind.profile_hook_step
    depth = _Depth()
    # Where torch.compile traces a step, it would trace the capture as well: with its warnings in the job's output, and
    # our compiled frames. (Torch protects its optimizers' own methods in the same way.)
    torch: Any = sys.modules["torch"]
    untraced: Callable[[Callable[[Any], None]], Callable[[Any], None]] = getattr(
        torch, "_disable_dynamo", lambda function: function
    )

    @untraced
    def begin(optimizer: Any) -> None:
        before(optimizer)

    @untraced
    def end(optimizer: Any) -> None:
        after(optimizer)

    if hasattr(os, "register_at_fork"):
        # A process forked inside a step does not return from it.
        os.register_at_fork(after_in_child=depth.clear)

    @functools.wraps(original)
    def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
        step = original(func)
        wrapped()

        @functools.wraps(step)
        def counted(*args: Any, **options: Any) -> Any:
            if torch.compiler.is_compiling() and _must_be_one_graph():
                return step(*args, **options)  # not counted: a call that is not traced would end the job
            depth.now += 1
            if depth.now == 1:
                begin(args[0])
            try:
                result = step(*args, **options)
            finally:
                depth.now -= 1
            if depth.now == 0:
                end(args[0])
            return result

        return counted

    kind.profile_hook_step = staticmethod(profile_hook_step)
