"""One recording with ``torch.profiler``: warm up, record steps, end, stop, save as plain JSON.

The profiler is driven by its own prepare, start and stop, not by a ``torch.profiler.schedule``: so the numbers of
``ProfilerStep#`` are the training's, each window's result is freed separately, and what is in the file is known before
it is written. Torch numbers the steps of a schedule from 0, and a trace made in ``on_trace_ready`` is numbered one
higher than its last step.

In: the switches and a window of steps. Out: a JSON file on the local disk.
"""

from __future__ import annotations

import gc
import inspect
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from rankscope.capture.collectives import CollectiveCalls
from rankscope.capture.dynamo import never_compile
from rankscope.capture.inflight import InFlight
from rankscope.capture.script_profilers import conflicts
from rankscope.capture.stop_mode import experimental_config
from rankscope.rundir.config import CaptureConfig

STEP_NAME = "ProfilerStep#"
SETTLE_AT_STOP_S = 0.25
"""How long a stop that cannot be postponed waits for pending collectives."""
PARTIAL_STEP_NAME = "PartialStep#"
"""The name that the writer gives the range of a step that had begun when the recording ended: torch writes unfinished
ranges as if they ended there, and an unfinished step must not count as a step."""
GC_RANGE_NAME = "gc: generation "
_OLD_GENERATION = 1


def load_torch_parts() -> None:
    """Load before the loop what torch would load at the first warm-up, which takes a second or more."""
    # If this fails, the same import fails again later, if it is needed at all, and is reported then.
    with suppress(Exception):
        if hasattr(torch, "_inductor"):
            import_module("torch._inductor.config")


class Recording:
    """One window. Each method is called once, in the order prepare, start, (begin_step, end_step)…, end, stop, save.

    Args:
        config: the switches.
        activities: what to record.
        trace_id: the id that all ranks' traces of this run share.
        off_loop: whether ``stop`` is called in another thread than ``start``.
        on_preempted: called if another profiler takes this one's place.
    """

    def __init__(
        self,
        config: CaptureConfig,
        activities: Sequence[torch.profiler.ProfilerActivity],
        trace_id: str,
        *,
        off_loop: bool = False,
        on_preempted: Callable[[], None] = lambda: None,
    ) -> None:
        options: dict[str, Any] = {}
        if "custom_trace_id_callback" in inspect.signature(torch.profiler.profile.__init__).parameters:
            options["custom_trace_id_callback"] = lambda: trace_id
        # A recording of a single thread can be stopped only by that thread.
        experimental = experimental_config(config, off_loop=off_loop)
        if experimental is not None:
            options["experimental_config"] = experimental
        self._activities = list(activities)
        if all(kind == torch.profiler.ProfilerActivity.CPU for kind in self._activities):
            # Kineto prints a line when a recording begins and ends. Its only level that hides these hides its errors,
            # too; they are about devices.
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")
        self.off_loop = off_loop
        self._on_preempted = on_preempted
        self._profile: Any = torch.profiler.profile(
            activities=self._activities,
            record_shapes=config.record_shapes,
            profile_memory=config.profile_memory,
            with_stack=config.with_stack,
            with_flops=config.with_flops,
            with_modules=config.with_modules,
            **options,
        )
        conflicts.mark_own(self._profile)
        self._range: Any = None
        self._gc_ranges = GcRanges()
        self._in_flight = InFlight()
        self._ready_to_stop = False
        self.calls = CollectiveCalls(self._in_flight)
        self._stopping = threading.Lock()
        self.prepared = self.started = self.ended = self.stopped = False

    def prepare(self) -> None:
        """Begin the warm-up."""
        conflicts.acquire(self)
        try:
            conflicts.prepare(self._profile.prepare_trace)
        except BaseException:
            conflicts.release(self)
            raise
        self.prepared = True

    def start(self) -> None:
        """Begin to record."""
        self._profile.start_trace()
        self.started = True
        self._gc_ranges.begin()
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

    def ready_to_stop(self, limit_s: float) -> bool:
        """Whether no collective writes into the recording any more; waits up to ``limit_s`` seconds for that.

        Once true, it stays true: collectives that begin before the stop are not recorded.
        """
        self._ready_to_stop = self._ready_to_stop or self._in_flight.wait(limit_s)
        return self._ready_to_stop

    def end(self, metadata: Mapping[str, str]) -> None:
        """Put the user's metadata into the trace and stop collecting events.

        Args:
            metadata: JSON text by top-level key. Torch does not write what is added after the stop. Rankscope's own
                metadata is put into the file later.
        """
        self._gc_ranges.end()
        self.end_step()
        self.calls.end()
        self.ended = True
        for key, text in metadata.items():
            self._profile.add_metadata_json(key, text)
        if self.off_loop:
            self._profile.toggle_collection_dynamic(False, self._activities)

    def toggle(self, enable: bool, activities: Any) -> None:
        """Switch activities off or on while recording; does nothing if this torch cannot."""
        with suppress(Exception):
            self._profile.toggle_collection_dynamic(enable, activities)

    def stop(self) -> None:
        """Stop torch's profiler, which gathers the recorded events; harmless if that was done already."""
        with self._stopping:
            if self.stopped:
                return
            self.stopped = True
            self._gc_ranges.end()
            with suppress(Exception):  # a profiler that is left running would be worse
                self.ready_to_stop(SETTLE_AT_STOP_S)
            try:
                self._profile.stop_trace()
            finally:
                conflicts.release(self)

    def save(self, path: Path) -> None:
        """Write the trace as plain JSON: torch would compress anything else while it blocks every thread."""
        self._profile.export_chrome_trace(str(path))

    def abandon(self) -> None:
        """Stop without a trace, from any state; harmless if it has stopped already.

        A profiler that is left running crashes the process at its exit.
        """
        if self.stopped:
            return
        if not self.prepared:  # starting it would crash the process, and there is nothing to stop
            self.stopped = True
            return
        try:
            if not self.started:
                self._start_to_stop()
            self.calls.end()
            self.end_step()
        finally:
            self.stop()

    def _start_to_stop(self) -> None:
        """A warm-up ends by a stop, and stopping what has not started crashes."""
        try:
            self.start()
        except BaseException:
            enabled = getattr(torch.autograd, "_profiler_enabled", None)
            if enabled is None or not enabled():
                self.stopped = True
                conflicts.release(self)
            raise

    def preempt(self) -> None:
        """Another profiler starts: stop before it does. A recording that has ended already keeps its trace."""
        if self.ended:
            self.stop()
            return
        self.abandon()
        self._on_preempted()

    def free(self) -> None:
        """Free the recorded events, which takes a third of the time of the stop. Torch's object is part of a reference
        cycle: without this, a garbage collection in the training loop would free them."""
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.profiler = None


class GcRanges:
    """Ranges around Python's garbage collections, which torch's profiler does not show.

    A collection stops its process: no kernels are launched meanwhile, and the other ranks wait. Young generations are
    collected hundreds of times per second within microseconds and are left out; for the others a range costs some
    microseconds. ``begin`` and ``end`` may be called repeatedly, and in any thread.
    """

    def __init__(self) -> None:
        self._range: Any = None

    def begin(self) -> None:
        """Mark collections from now on."""
        never_compile(GcRanges._mark, callees=True)
        if self._mark not in gc.callbacks:
            gc.callbacks.append(self._mark)

    def end(self) -> None:
        """Stop marking."""
        with suppress(ValueError):
            gc.callbacks.remove(self._mark)

    def _mark(self, phase: str, info: dict[str, int]) -> None:
        # A collection begins and ends in one thread, and there is never more than one.
        with suppress(Exception):
            if phase == "start" and info.get("generation", 0) >= _OLD_GENERATION:
                self._range = torch.profiler.record_function(f"{GC_RANGE_NAME}{info['generation']}")
                self._range.__enter__()
            elif phase == "stop" and self._range is not None:
                opened, self._range = self._range, None
                opened.__exit__(None, None, None)
