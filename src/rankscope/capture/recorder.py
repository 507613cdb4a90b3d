"""One recording with ``torch.profiler``: warm up, record steps, stop, save as plain JSON.

The profiler is driven by its own prepare, start and stop, not by a ``torch.profiler.schedule``: then the
numbers of ``ProfilerStep#`` are the training's, each window's result is freed by itself, and what is in the
file is known before it is written. Torch numbers the steps of a schedule from 0, and a trace made in
``on_trace_ready`` is numbered one higher than its last step.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from rankscope.capture.config import CaptureConfig

STEP_NAME = "ProfilerStep#"
PARTIAL_STEP_NAME = "PartialStep#"
"""What the writer names the range of a step that had begun when the recording ended: torch writes unfinished
ranges as if they ended there, and a step that was not finished must not count as one."""

_held_by: list[object] = []
"""The recording of this process that is warming up or running: torch can run one at a time, and sees no other
that is in its warm-up."""


def another_profiler_runs() -> bool:
    """Whether a profiler that is not ours records in this thread or process."""
    if _held_by:
        return True
    # Neither has a public name. Where they are gone, a second profiler is found out by torch itself.
    in_thread = getattr(torch.autograd, "_profiler_enabled", None)
    in_process = getattr(torch.autograd.profiler, "_is_profiler_enabled", False)
    return bool(in_process) or bool(callable(in_thread) and in_thread())


def load_torch_parts() -> None:
    """Load what torch loads at the first warm-up, a second or more, before the loop instead of in its middle."""
    # What fails to load here fails there again, if it is needed at all, and is reported then.
    with suppress(Exception):
        if hasattr(torch, "_inductor"):
            import_module("torch._inductor.config")


class Recording:
    """One window. Each method is called once, in the order prepare, start, (begin_step, end_step)…, save.

    Args:
        config: the switches.
        activities: what to record.
        trace_id: what all ranks' traces of this run share.
    """

    def __init__(
        self, config: CaptureConfig, activities: Sequence[torch.profiler.ProfilerActivity], trace_id: str
    ) -> None:
        options: dict[str, Any] = {}
        if "custom_trace_id_callback" in inspect.signature(torch.profiler.profile.__init__).parameters:
            options["custom_trace_id_callback"] = lambda: trace_id
        self._profile: Any = torch.profiler.profile(
            activities=list(activities),
            record_shapes=config.record_shapes,
            profile_memory=config.profile_memory,
            with_stack=config.with_stack,
            with_flops=config.with_flops,
            with_modules=config.with_modules,
            **options,
        )
        self._range: Any = None
        self.started = self.stopped = False

    def prepare(self) -> None:
        """Begin the warm-up."""
        _held_by.append(self)
        try:
            self._profile.prepare_trace()
        except BaseException:
            self._release()
            raise

    def start(self) -> None:
        """Begin to record."""
        self.started = True
        self._profile.start_trace()

    def begin_step(self, step: int) -> None:
        """Open the range of a step."""
        self._range = torch.profiler.record_function(f"{STEP_NAME}{step}")
        self._range.__enter__()

    def end_step(self) -> None:
        """Close the range of the step."""
        opened, self._range = self._range, None
        if opened is not None:
            opened.__exit__(None, None, None)

    def stop(self, metadata: Mapping[str, str]) -> None:
        """Put the metadata into the trace and end the recording.

        Args:
            metadata: JSON text by top-level key. It must come before the stop: what is added later is not
                written.
        """
        self.end_step()
        for key, text in metadata.items():
            self._profile.add_metadata_json(key, text)
        self._stop()

    def save(self, path: Path) -> None:
        """Write the trace as plain JSON: anything else would be compressed by torch, while the loop stands
        still."""
        self._profile.export_chrome_trace(str(path))

    def abandon(self) -> None:
        """End without a trace, from any state; harmless where it has ended already.

        A profiler that is left running crashes the process at its exit.
        """
        if self.stopped:
            return
        try:
            if not self.started:
                self.start()
            self.end_step()
        finally:
            self._stop()

    def result(self) -> object:
        """What holds the recorded events. Freeing it takes long: the writer's thread does it."""
        held, self._profile = self._profile, None
        return held

    def _stop(self) -> None:
        self.stopped = True
        try:
            self._profile.stop_trace()
        finally:
            self._release()

    def _release(self) -> None:
        if self in _held_by:
            _held_by.remove(self)
