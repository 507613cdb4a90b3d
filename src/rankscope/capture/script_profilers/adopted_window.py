"""One recording by a torch profiler of the script, as the trace queue needs it.

Torch saves a result only once. So it is saved when the recording stops, for rankscope, and what the script exports
later is a copy of that file: a second link to it, which goes once the script has exported the trace or has dropped the
profiler.

In: a profiler of the script, and its steps. Out: a saved trace, for rankscope and for the script.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
import weakref
from pathlib import Path
from typing import Any

from rankscope.capture.collectives import CollectiveCalls
from rankscope.capture.environment import clock_anchor
from rankscope.capture.inflight import InFlight
from rankscope.capture.notices import warn
from rankscope.capture.packing import verify_json
from rankscope.capture.recording import SETTLE_AT_STOP_S
from rankscope.capture.trace_edits import StepRange
from rankscope.rundir.staging import remove_saved, staging_path

_SWITCHES = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules")


class AdoptedWindow:
    """What a profiler of the script records between its warm-up and its stop.

    Args:
        profile: the ``torch.autograd.profiler.profile`` that records.
        owner: the ``torch.profiler.profile`` that drives it, if there is one.
        source: what the manifest calls it: its class, and where it was created.
        step: the step of the training at which the warm-up begins.
    """

    off_loop = False
    """It is stopped by the script."""

    def __init__(self, profile: Any, owner: Any, source: str, step: int) -> None:
        self._profile, self._owner = weakref.ref(profile), weakref.ref(owner) if owner is not None else None
        self.source = source
        self.warmup = self.began_at = step
        self._in_flight = InFlight()
        self.calls = CollectiveCalls(self._in_flight)
        self.stall_ns = 0
        self.started = self.stopped = self.lost = False
        self.began_in: object = None
        """The call of the script's profiler in which it began."""
        self._first: int | None = None
        self._began = self._ended = clock_anchor()
        self._marks: list[int] = []
        self._thread = threading.get_native_id()
        self._served: Path | None = None
        self.settings = {name: bool(getattr(profile, name, False)) for name in _SWITCHES}

    def begin(self, step: int) -> None:
        """The recording begins.

        Args:
            step: the current step of the training.
        """
        owner = self._owner() if self._owner is not None else None
        if getattr(owner, "record_steps", False):
            self._first = int(getattr(owner, "step_num", 0))
        self.started, self.began_at = True, step
        self._began, self._thread = clock_anchor(), threading.get_native_id()
        self.calls.begin()

    def mark(self) -> None:
        """A step of the training has ended."""
        self._marks.append(time.perf_counter_ns())

    def end(self) -> None:
        """Before the script's profiler stops: wait for what gloo still writes into the recording (see `inflight`)."""
        self.calls.end()
        self._ended = clock_anchor()
        self._in_flight.wait(SETTLE_AT_STOP_S)

    def steps(self, *, in_step_call: bool) -> tuple[int, int]:
        """The first and the last step in the file: ``ProfilerStep#`` of the script, else steps of the training.

        Args:
            in_step_call: whether the script's ``step()`` ended the window: the current step is not in it.
        """
        if self._first is None:
            return self.began_at, max(self.began_at + len(self._marks) - 1, self.began_at)
        owner = self._owner() if self._owner is not None else None
        now = int(getattr(owner, "step_num", self._first))
        return self._first, max(now - 1 if in_step_call else now, self._first)

    def step_ranges(self) -> tuple[StepRange, ...]:
        """The ranges of the steps that the file lacks: those of a profiler that marks none."""
        if self._first is not None:
            return ()
        begin_ns = [int(self._began.perf_ns or 0), *self._marks[:-1]]
        return tuple(
            StepRange(self.began_at + n, self._wall(begin), self._wall(end), os.getpid(), self._thread)
            for n, (begin, end) in enumerate(zip(begin_ns, self._marks, strict=False))
        )

    def _wall(self, perf_ns: int) -> int:
        """A reading of ``time.perf_counter_ns`` on the wall clock, between the readings at the beginning and end."""
        began, ended = self._began, self._ended
        span = int(ended.perf_ns or 0) - int(began.perf_ns or 0)
        elapsed = perf_ns - int(began.perf_ns or 0)
        return began.wall_ns + (elapsed * (ended.wall_ns - began.wall_ns) // span if span > 0 else elapsed)

    # --- what the trace queue calls -------------------------------------------------------------------------

    def stop(self) -> None:
        """Does nothing: the script has stopped it."""

    def save(self, path: Path) -> None:
        """Write the trace as plain JSON, and keep it for the script.

        Raises:
            OSError: it is not complete, as on a full disk.
            RuntimeError: there is nothing to save.
        """
        profile = self._profile()
        if profile is None:
            raise OSError("the script's profiler is gone")
        if not profile.kineto_results.trace_start_ns():
            # Torch has one session: the stop of a nested profiler ends that of the outer one, whose result is then
            # empty. Torch crashes when it saves such a result.
            raise RuntimeError("another torch profiler was started inside it, and has ended its recording")
        self.lost = True  # torch saves a result once: a second attempt of the script's would fail
        profile.kineto_results.save(str(path))
        verify_json(path)
        served = staging_path(str(path.parent), "exported")
        try:
            os.link(path, served)
        except OSError:  # a file system without links
            shutil.copyfile(path, served)
        self._served, self.lost = served, False
        weakref.finalize(profile, remove_saved, served)

    def free(self) -> None:
        """Does nothing: the script still uses it."""

    def abandon(self) -> None:
        """Stop collecting calls; the script's profiler goes on."""
        self.calls.end()

    # --- what the script calls ------------------------------------------------------------------------------

    def export(self, path: str) -> bool:
        """Write the saved trace to ``path``, once, as torch does.

        Returns:
            Whether it was done; if not, torch's own method is to be called.
        """
        served, self._served = self._served, None
        if served is None:
            return False
        try:
            shutil.copyfile(served, path)
        except OSError as error:  # torch prints a line and goes on
            warn(f"the script's trace could not be written to {path}: {error}")
        finally:
            remove_saved(served)
        return True
