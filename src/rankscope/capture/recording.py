"""One recording with ``torch.profiler``: warm up, record steps, end, stop, save as plain JSON.

The profiler is driven by its own prepare, start and stop, not by a ``torch.profiler.schedule``: then the
numbers of ``ProfilerStep#`` are the training's, each window's result is freed by itself, and what is in the
file is known before it is written. Torch numbers the steps of a schedule from 0, and a trace made in
``on_trace_ready`` is numbered one higher than its last step.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from rankscope.capture import profiler_conflicts
from rankscope.capture.collectives import CollectiveCalls
from rankscope.capture.gc_ranges import GarbageRanges
from rankscope.capture.inflight import InFlight
from rankscope.capture.stop_mode import settings
from rankscope.rundir.config import CaptureConfig

STEP_NAME = "ProfilerStep#"
SETTLE_AT_STOP_S = 0.25
"""How long a stop that cannot be put off waits for collectives that are not over."""
PARTIAL_STEP_NAME = "PartialStep#"
"""What the writer names the range of a step that had begun when the recording ended: torch writes unfinished
ranges as if they ended there, and a step that was not finished must not count as one."""


def load_torch_parts() -> None:
    """Load what torch loads at the first warm-up, a second or more, before the loop instead of in its middle."""
    # What fails to load here fails there again, if it is needed at all, and is reported then.
    with suppress(Exception):
        if hasattr(torch, "_inductor"):
            import_module("torch._inductor.config")


class Recording:
    """One window. Each method is called once, in the order prepare, start, (begin_step, end_step)…, end, stop, save.

    Args:
        config: the switches.
        activities: what to record.
        trace_id: what all ranks' traces of this run share.
        off_loop: whether ``stop`` is called in another thread than ``start``.
        given_up: called when another profiler takes this one's place.
    """

    def __init__(
        self,
        config: CaptureConfig,
        activities: Sequence[torch.profiler.ProfilerActivity],
        trace_id: str,
        *,
        off_loop: bool = False,
        given_up: Callable[[], None] = lambda: None,
    ) -> None:
        options: dict[str, Any] = {}
        if "custom_trace_id_callback" in inspect.signature(torch.profiler.profile.__init__).parameters:
            options["custom_trace_id_callback"] = lambda: trace_id
        # A recording of one thread can be stopped by that thread alone.
        experimental = settings(config, off_loop=off_loop)
        if experimental is not None:
            options["experimental_config"] = experimental
        self._activities = list(activities)
        self._off_loop = off_loop
        self._given_up = given_up
        self._profile: Any = torch.profiler.profile(
            activities=self._activities,
            record_shapes=config.record_shapes,
            profile_memory=config.profile_memory,
            with_stack=config.with_stack,
            with_flops=config.with_flops,
            with_modules=config.with_modules,
            **options,
        )
        self._range: Any = None
        self._garbage = GarbageRanges()
        self._in_flight = InFlight()
        self._settled = False
        self.calls = CollectiveCalls(self._in_flight)
        self._stopping = threading.Lock()
        self.started = self.ended = self.stopped = False

    def prepare(self) -> None:
        """Begin the warm-up."""
        profiler_conflicts.hold(self)
        try:
            profiler_conflicts.prepare(self._profile.prepare_trace)
        except BaseException:
            profiler_conflicts.release(self)
            raise

    def start(self) -> None:
        """Begin to record."""
        self._profile.start_trace()
        self.started = True
        self._garbage.begin()
        self.calls.begin()

    def begin_step(self, step: int) -> None:
        """Open the range of a step."""
        self._range = torch.profiler.record_function(f"{STEP_NAME}{step}")
        self._range.__enter__()

    def end_step(self) -> None:
        """Close the range of the step."""
        opened, self._range = self._range, None
        if opened is not None:
            opened.__exit__(None, None, None)

    def settled(self, limit_s: float) -> bool:
        """Whether it may be stopped: no collective writes into it any more. Waits so long for it, in seconds. Once it
        was true it is not asked again: what begins between that and the stop is not recorded."""
        self._settled = self._settled or self._in_flight.settle(limit_s)
        return self._settled

    def end(self, metadata: Mapping[str, str]) -> None:
        """Put the user's metadata into the trace and record nothing further.

        Args:
            metadata: JSON text by top-level key. It must come before the stop: what is added later is not
                written. Ours is put into the file.
        """
        self._garbage.end()
        self.end_step()
        self.calls.end()
        self.ended = True
        for key, text in metadata.items():
            self._profile.add_metadata_json(key, text)
        if self._off_loop:
            self._profile.toggle_collection_dynamic(False, self._activities)

    def toggle(self, enable: bool, activities: Any) -> None:
        """Record less, or all again; nothing where this torch cannot."""
        with suppress(Exception):
            self._profile.toggle_collection_dynamic(enable, activities)

    def stop(self) -> None:
        """Gather what was recorded; harmless where that was done already."""
        with self._stopping:
            if self.stopped:
                return
            self.stopped = True
            self._garbage.end()
            with suppress(Exception):  # a profiler that is left running would be worse
                self.settled(SETTLE_AT_STOP_S)
            try:
                self._profile.stop_trace()
            finally:
                profiler_conflicts.release(self)

    def save(self, path: Path) -> None:
        """Write the trace as plain JSON: anything else would be compressed by torch, which holds every thread up."""
        self._profile.export_chrome_trace(str(path))

    def abandon(self) -> None:
        """End without a trace, from any state; harmless where it has ended already.

        A profiler that is left running crashes the process at its exit.
        """
        if self.stopped:
            return
        try:
            if not self.started:
                self._start_to_stop()
            self.calls.end()
            self.end_step()
        finally:
            self.stop()

    def _start_to_stop(self) -> None:
        """A warm-up ends by a stop, and a stop of what has not started crashes."""
        try:
            self.start()
        except BaseException:
            enabled = getattr(torch.autograd, "_profiler_enabled", None)
            if enabled is None or not enabled():
                self.stopped = True
                profiler_conflicts.release(self)
            raise

    def make_way(self) -> None:
        """Another profiler starts: stop before it does. What has ended already keeps its trace."""
        if self.ended:
            self.stop()
            return
        self.abandon()
        self._given_up()

    def free(self) -> None:
        """Let go of the recorded events, which takes a third of the time of the stop. Torch's object is part of a
        cycle: without this, a collection of garbage in the training loop would free them."""
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.profiler = None
