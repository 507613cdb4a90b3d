"""Detects the steps of a process's optimizers, and decides which of them count as steps of the training.

Torch wraps the ``step`` of every optimizer with ``Optimizer.profile_hook_step``, which is wrapped once more here: the
public hook runs inside torch's own range of the step, which would cross a ``ProfilerStep#`` range. Of nested steps
(ZeRO, a wrapper around an optimizer) only the outermost counts. With gradient accumulation, a step is the optimizer's.

In: the optimizers that the process creates and steps. Out: a call for each step of the training.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from rankscope.capture import dynamo
from rankscope.capture.notices import warn

OTHERS_UNTIL_CHANGE = 16
"""After this many consecutive steps of other optimizers, the one that steps next is counted from then on: the previous
one belonged to an earlier phase of the training."""


class PrimaryOptimizer:
    """The optimizer whose steps are counted: the first one to step, until it stops stepping."""

    def __init__(self) -> None:
        self._chosen: weakref.ref[Any] | None = None
        self._others = 0
        self.changed = False
        """Whether the step that was counted last is the first of another optimizer: several before it were not."""

    def counts(self, optimizer: object) -> bool:
        """Whether this finished step counts as a step of the training."""
        chosen = self._chosen() if self._chosen is not None else None
        self.changed = False
        if chosen is not optimizer:
            self._others += 1
            if chosen is not None and self._others < OTHERS_UNTIL_CHANGE:
                return False
            self._chosen, self.changed = weakref.ref(optimizer), self._others > 1
        self._others = 0
        return True


class _Loop:
    """The thread of the training loop, and how many steps are open in it, one inside the other.

    It is the thread that makes the first step; once that has ended, the thread that makes the next one.
    """

    def __init__(self) -> None:
        self.open_steps = 0
        self._thread: threading.Thread | None = None
        self._warned = False

    def is_here(self) -> bool:
        """Whether the calling thread is that of the loop.

        Other threads may train something else at the same time, and a torch profiler must be stopped by the thread
        that started it.
        """
        this = threading.current_thread()
        if self._thread is None or not (self._thread is this or self._thread.is_alive()):
            self._thread, self.open_steps = this, 0
        if self._thread is this:
            return True
        if this is threading.main_thread() and not self._warned:
            self._warned = True
            warn(
                f"the steps of thread {self._thread.name} are counted, which made the first one, and not those of the "
                "main thread; to record these, put a rankscope.Profiler around the main thread's loop"
            )
        return False

    def forget(self) -> None:
        """Start afresh in a forked child, whose only thread never returns from a step that it was forked in."""
        self.open_steps, self._thread = 0, None


def watch_steps(
    module: Any,
    after: Callable[[Any], object],
    before: Callable[[Any], object] = lambda _optimizer: None,
    wrapped: Callable[[], object] = lambda: None,
) -> None:
    """Watch the steps of all optimizers in this process and in those forked from it.

    Args:
        module: ``torch.optim.optimizer``.
        after: called with the optimizer after its outermost step, unless the step raised.
        before: called with the optimizer before that step.
        wrapped: called when torch wraps the step of an optimizer class, when the first instance of it is created.
    """
    kind = module.Optimizer
    original: Callable[..., Any] = kind.profile_hook_step
    loop = _Loop()
    # When torch.compile traces a step, it would trace the capture, too: its warnings would reach the job's output, and
    # our frames would be compiled. (Torch protects its optimizers' own methods in the same way.)
    torch: Any = sys.modules["torch"]
    untraced: Callable[..., Callable[..., Any]] = getattr(torch, "_disable_dynamo", lambda function, **_: function)

    @untraced
    def begin(optimizer: Any) -> None:
        before(optimizer)

    @untraced
    def end(optimizer: Any) -> None:
        after(optimizer)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=loop.forget)

    @functools.wraps(original)
    def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
        step = original(func)
        wrapped()

        @functools.wraps(step)
        def counted(*args: Any, **options: Any) -> Any:
            if torch.compiler.is_compiling() and dynamo.must_be_one_graph():
                return step(*args, **options)  # a call that is not traced would end the job: see compiled_step
            return nested(args[0], step, args, options)

        return counted

    def nested(optimizer: Any, step: Callable[..., Any], args: Any, options: Any) -> Any:
        if not loop.is_here():
            return step(*args, **options)
        loop.open_steps += 1
        if loop.open_steps == 1:
            begin(optimizer)
        try:
            result = step(*args, **options)
        finally:
            loop.open_steps -= 1
        if loop.open_steps == 0:
            end(optimizer)
        return result

    nested = untraced(nested, recursive=False)  # what it calls is compiled all the same

    def compiled_step(optimizer: Any, graph: Callable[..., Any]) -> Callable[..., Any]:
        """Count the calls of a compiled graph that contains a step of this optimizer."""
        weak = weakref.ref(optimizer)

        @functools.wraps(graph)
        def counted(*args: Any, **options: Any) -> Any:
            optimizer = weak()
            return graph(*args, **options) if optimizer is None else nested(optimizer, graph, args, options)

        return counted

    dynamo.wrap_graphs_with_steps(compiled_step)
    kind.profile_hook_step = staticmethod(profile_hook_step)
