"""The phases of a step on the device's clock: events that the training loop's stream records where a phase ends.

An event costs the loop about 6 µs, which nothing waits for: the control thread reads its time once the device has
passed it. A phase is from one event to the next, also where the device had nothing to do meanwhile.

In DDP a rank waits for the others at the end of its backward pass. An event before that wait separates the two: a
callback of autograd's engine, which runs before the one that DDP queues later in the same pass.

Nothing is recorded while the stream is captured in a graph, where an event has no time.

In: the ends of phases, in the loop's thread. Out: how long each took on the device.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from rankscope.capture.dynamo import never_compile
from rankscope.capture.environment import device_in_use
from rankscope.capture.graph_capture import queries_beside_capture

FORWARD, BACKWARD, WAITING, OPTIMIZER, OTHER = "forward", "backward", "waiting", "optimizer", "other"


class DevicePhases(NamedTuple):
    """One step on the device, ns; a phase that did not occur is None."""

    total: int
    forward: int | None = None
    backward: int | None = None
    """Without `waiting`, where that is known."""
    waiting: int | None = None
    """From the end of the backward pass itself to where the stream goes on: DDP's communication that is left, and the
    waiting for other ranks."""
    optimizer: int | None = None


class DeviceMarks:
    """The events of one step."""

    def __init__(self) -> None:
        self._marks: list[tuple[str, Any]] = []
        self._hook: Any = None
        self._usable = self._in_use = device_in_use() == "cuda"

    @classmethod
    def never_compile(cls) -> None:
        """Keep these functions out of compiled code."""
        for each in (cls.mark, cls.mark_backward, cls.backward_ended):
            never_compile(each)

    @classmethod
    def after(cls, before: DeviceMarks | None) -> DeviceMarks:
        """A step that begins now: at the last event of the one before, if that has one."""
        found = cls()
        if before is not None and before._usable and before._marks:
            found._marks.append(("", before._marks[-1][1]))
        else:
            found.mark("")
        return found

    def mark(self, ended: str) -> None:
        """A phase ends here on the current stream; the first mark is where the step begins."""
        if not self._usable:
            return
        try:
            if torch.cuda.is_current_stream_capturing():
                self._usable = False
                return
            event: Any = _event()
            event.record()
            self._marks.append((ended, event))
        except Exception:  # the step is known without the device's times
            self._usable = False

    def mark_backward(self, tensors: Any) -> None:
        """Have the end of the backward pass that begins now marked, before DDP waits in it.

        Args:
            tensors: what ``torch.autograd.backward`` gets.
        """
        if not self._usable or _compiles_backward():
            return
        with suppress(Exception):
            # Not of an iterator, which torch takes too; and no edge of a graph, whose hooks are others.
            first = tensors[0] if isinstance(tensors, (list, tuple)) else tensors
            if not isinstance(first, torch.Tensor):
                return
            engine: Any = torch.autograd.Variable._execution_engine

            def begins(_gradient: torch.Tensor) -> None:
                with suppress(Exception):
                    engine.queue_callback(lambda: self.mark(BACKWARD))

            register: Any = first.register_hook
            self._hook = register(begins)

    def backward_ended(self) -> None:
        """The backward pass is over, and the stream goes on."""
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()
        self.mark(WAITING if self._marks and self._marks[-1][0] == BACKWARD else BACKWARD)

    def is_over(self) -> bool:
        """Whether the device has passed the last mark; may be called from any thread."""
        with suppress(Exception), queries_beside_capture() as allowed:
            return not allowed or not self._marks or self._marks[-1][1].query()
        return True

    @property
    def in_use(self) -> bool:
        """Whether the job uses such a device."""
        return self._in_use

    def phases(self) -> DevicePhases | None:
        """The times, once the step is over; None if they are not known."""
        if not self._usable or len(self._marks) < 2:
            return None
        with suppress(Exception), queries_beside_capture() as allowed:
            if not allowed or not self._marks[-1][1].query():
                return None
            found: dict[str, int] = defaultdict(int)
            for (_, begin), (name, end) in zip(self._marks, self._marks[1:], strict=False):
                took = round(begin.elapsed_time(end) * 1e6)
                if took < 0:  # of two streams that do not wait for each other
                    return None
                found[name] += took
            total = sum(found.values())
            return DevicePhases(total, *(found.get(name) for name in (FORWARD, BACKWARD, WAITING, OPTIMIZER)))
        return None


def _event() -> Any:
    kind: Any = torch.cuda.Event  # torch's stubs have no types for it
    return kind(enable_timing=True)


def _compiles_backward() -> bool:
    """Whether the backward pass is compiled: a hook would become part of its graph."""
    with suppress(Exception):
        module = sys.modules.get("torch._dynamo.compiled_autograd")
        return bool(getattr(module, "compiled_autograd_enabled", False))
    return False
