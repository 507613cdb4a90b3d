"""The steps of a process's optimizers, and which of them are the training's, where a job has several.

Torch wraps the ``step`` of every optimizer by ``Optimizer.profile_hook_step``. That is wrapped once more here: the
public hook runs inside torch's own range of the step, which would cross ours. Of steps within steps (ZeRO, a wrapper
around an optimizer) the outermost is one. With gradient accumulation a step is the optimizer's.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable
from typing import Any

OTHERS_UNTIL_CHANGE = 16
"""After so many steps of other optimizers alone, the next of these is the one that is counted: the first was of an
earlier phase of the training."""


class Primary:
    """The optimizer that is counted: the first to make a step, until it makes no more."""

    def __init__(self) -> None:
        self._chosen: weakref.ref[Any] | None = None
        self._others = 0

    def counts(self, optimizer: object) -> bool:
        """Whether this step, which is over, is one of the training's."""
        chosen = self._chosen() if self._chosen is not None else None
        if chosen is not optimizer:
            self._others += 1
            if chosen is not None and self._others < OTHERS_UNTIL_CHANGE:
                return False
            self._chosen = weakref.ref(optimizer)
        self._others = 0
        return True


class _Depth:
    """How many steps are open, one within the other."""

    now = 0

    def clear(self) -> None:
        self.now = 0


def watch_steps(
    module: Any,
    after: Callable[[Any], object],
    before: Callable[[Any], object] = lambda _optimizer: None,
    wrapped: Callable[[], object] = lambda: None,
) -> None:
    """Notice the steps of all optimizers of this process, and of those that are forked off it.

    Args:
        module: ``torch.optim.optimizer``.
        after: is called with the optimizer when its outermost step is over; not after one that raised.
        before: is called with it before that step.
        wrapped: is called whenever torch wraps the steps of another kind of optimizer: when the first of it is made.
    """
    kind = module.Optimizer
    original: Callable[..., Any] = kind.profile_hook_step
    depth = _Depth()
    if hasattr(os, "register_at_fork"):
        # Who is forked off within a step does not come back out of it.
        os.register_at_fork(after_in_child=depth.clear)

    @functools.wraps(original)
    def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
        step = original(func)
        wrapped()

        @functools.wraps(step)
        def counted(*args: Any, **options: Any) -> Any:
            depth.now += 1
            if depth.now == 1:
                before(args[0])
            try:
                result = step(*args, **options)
            finally:
                depth.now -= 1
            if depth.now == 0:
                after(args[0])
            return result

        return counted

    kind.profile_hook_step = staticmethod(profile_hook_step)
