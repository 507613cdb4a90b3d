"""Time forward, backward and the optimizer's step in an unmodified script.

Forward is the outermost call of the model, backward the outermost ``torch.autograd.backward`` (``Tensor.backward``
calls it; DDP waits for its all-reduces before it returns), the optimizer's step is what torch wraps with
``Optimizer.profile_hook_step``. The host sets the marks; on a device they are events in the stream, which give the time
at which the device reaches them.

In: calls of the model, of backward and of the optimizer. Out: marks for a clock.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from rankscope.capture.dynamo import never_compile
from rankscope.capture.measured.clocks import Clock
from rankscope.capture.measured.model import first_size

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
FORWARD_BACKWARD = "forward_backward"
PASSES = "passes"


class Phases:
    """The marks of the steps in a block.

    Args:
        clock: sets and reads the marks.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open = dict.fromkeys((FORWARD, BACKWARD, OPTIMIZER), 0)
        self._marks: list[tuple[str, bool, Any]] = []
        self.on = False
        """Whether marks are kept."""
        self.batch: int | None = None

    def begin(self, phase: str) -> None:
        """A phase begins; a nested one of the same kind is ignored."""
        self._open[phase] += 1
        if self.on and self._open[phase] == 1:
            self._marks.append((phase, True, self._clock.now()))

    def end(self, phase: str) -> None:
        """A phase ends."""
        self._open[phase] = max(0, self._open[phase] - 1)
        if self.on and self._open[phase] == 0:
            self._marks.append((phase, False, self._clock.now()))

    def boundary(self) -> None:
        """A step ends and the next one begins."""
        if self.on:
            self._marks.append(("", True, self._clock.now()))

    def take(self) -> dict[str, list[int]]:
        """Per step: nanoseconds of ``step`` and of each phase that occurred, those of forward and backward with what is
        between them, the loss (``forward_backward``), and the number of backward passes (``passes``).

        The marks are cleared.
        """
        marks, self._marks = self._marks, []
        times = self._clock.read([mark for _, _, mark in marks]) if marks else []
        steps: list[dict[str, int]] = []
        opened: dict[str, int] = {}
        last: int | None = None
        forward_ended: int | None = None
        for (phase, begins, _), at in zip(marks, times, strict=True):
            if phase == "":
                if last is not None:
                    steps[-1]["step"] = at - last
                last, forward_ended = at, None
                steps.append({})
            elif begins:
                opened[phase] = at
                if phase == BACKWARD and steps:
                    steps[-1][PASSES] = steps[-1].get(PASSES, 0) + 1
                    if forward_ended is not None:
                        # A second backward of the same forward is no second loss.
                        loss, forward_ended = at - forward_ended, None
                        steps[-1][FORWARD_BACKWARD] = steps[-1].get(FORWARD_BACKWARD, 0) + loss
            elif phase in opened and steps:
                duration = at - opened.pop(phase)
                steps[-1][phase] = steps[-1].get(phase, 0) + duration
                if phase == FORWARD:
                    forward_ended = at
                if phase != OPTIMIZER and OPTIMIZER in opened:
                    # A closure (LBFGS calls it inside its step) must not count as the optimizer's work too.
                    steps[-1][OPTIMIZER] = steps[-1].get(OPTIMIZER, 0) - duration
        steps = steps[:-1]  # the last one has only begun
        for step in steps:
            if FORWARD_BACKWARD in step:
                step[FORWARD_BACKWARD] += step[FORWARD] + step.get(BACKWARD, 0)
        phases = (FORWARD, BACKWARD, FORWARD_BACKWARD, OPTIMIZER)
        seen = [phase for phase in phases if steps and all(phase in step for step in steps)]
        if BACKWARD in seen:
            seen.append(PASSES)
        return {name: [step[name] for step in steps] for name in ("step", *seen)}

    # -- hooks ----------------------------------------------------------------------------------------------------

    def watch_forward(self, modules: list[Any]) -> None:
        """Time calls of these modules."""
        never_compile(Phases._before_forward)
        never_compile(Phases._after_forward)
        for module in modules:
            compiled = getattr(module, "_compiled_call_impl", None)
            if compiled is not None:
                # A hook would be compiled with the module.
                object.__setattr__(module, "_compiled_call_impl", self._timed(compiled, FORWARD))
                continue
            module.register_forward_pre_hook(self._before_forward, prepend=True, with_kwargs=True)
            module.register_forward_hook(self._after_forward)

    def watch_backward(self) -> None:
        """Time ``torch.autograd.backward``."""
        torch.autograd.backward = self._timed(torch.autograd.backward, BACKWARD)

    def _before_forward(self, _module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            return  # the model is called in a compiled function of the script's: what it takes is not known
        if self.batch is None:
            self.batch = first_size(arguments, options)
        self.begin(FORWARD)

    def _after_forward(self, _module: Any, _arguments: Any, _result: Any) -> None:
        if not torch.compiler.is_compiling():
            self.end(FORWARD)

    def _timed(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def marked(*args: Any, **options: Any) -> Any:
            if torch.compiler.is_compiling():
                return function(*args, **options)
            self.begin(phase)
            try:
                return function(*args, **options)
            finally:
                self.end(phase)

        never_compile(marked)
        return marked
