"""Steps and collectives as lines of a rank's log; `rundir/watch_files.py` lists the kinds of lines.

A step::

    {"step":120,"start_ns":…,"ns":…,"loading_ns":…,"forward_ns":…,"backward_ns":…,"optimizer_ns":…,"backward_end_ns":…}

``start_ns`` is of the wall clock, ``backward_end_ns`` counted from there; what is not known is left out. ``profiled``
marks a step that a profiler recorded. With CUDA or ROCm, ``device_ns`` is the step on the device (`device_marks`), and
``device_forward_ns``, ``device_backward_ns``, ``device_waiting_ns`` and ``device_optimizer_ns`` are its phases;
``device_unknown`` says that the job uses such a device, and this step's times are not known.
Collectives::

    {"group":"0","ranks":"0-7"}
    {"kind":3,"group":"0","op":"allreduce","dtype":"float32","bytes":361200}
    {"calls":[[3,41,0],[3,42,1250,310]],"base_ns":…}

A call is its kind, its sequence number in the group, when this rank called it (µs after ``base_ns``), and how long its
kernel ran on the device (µs) if that is known. ``missed`` says how many calls before these could not be read.

In: rows of steps, and calls. Out: lines.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable

from rankscope.capture.flight_recorder import FlightCall
from rankscope.capture.process import process_groups
from rankscope.capture.watch.phases import StepRow
from rankscope.capture.watch.stack_samples import Place, Sample
from rankscope.rundir.ranges import as_ranges

STEPS_PER_S = 20
"""Of a faster job, only some steps have lines: the same ones on all ranks, and slow ones."""
ALL_STEPS = 2000
"""All of the first steps have lines: a short job has no others."""
_KEPT_SPANS = 8192


def one_line(value: dict[str, object]) -> str:
    """A line of the log."""
    return json.dumps(value, separators=(",", ":"))


def stride_of(usual_ns: int, step: int) -> int:
    """Of so many steps two successive ones have lines, so that what is between two steps is known too; 1: all have."""
    if not usual_ns or usual_ns * STEPS_PER_S >= 10**9 or step < ALL_STEPS:
        return 1
    stride = 4
    while usual_ns * STEPS_PER_S * stride < 2 * 10**9:
        stride *= 2
    return stride


class LogLines:
    """Makes the lines of one rank."""

    def __init__(self) -> None:
        self._spans: deque[tuple[int, int]] = deque(maxlen=_KEPT_SPANS)
        self._kinds: dict[tuple[object, ...], int] = {}
        self._groups: set[str] = set()
        # Kept from the start: a short job may have destroyed its groups before their calls are read.
        self._ranks = _ranks_of_groups()
        self._thinned = False
        self._left_out: tuple[StepRow, int] | None = None
        self._missed = 0
        self.definitions: list[str] = []
        """Lines that others refer to, new since the caller has cleared them."""

    def step(self, row: StepRow, wall_offset_ns: int, usual_ns: int, *, slow: bool) -> str | None:
        """The line of a step; ``None`` if it has none.

        Args:
            row: the step.
            wall_offset_ns: the wall clock less ``time.perf_counter_ns``.
            usual_ns: how long steps usually take.
            slow: whether this one took longer.
        """
        stride = stride_of(usual_ns, row.step)
        self._thinned = self._thinned or stride > 1
        self._left_out = None
        if not slow and row.step % stride not in (0, stride - 1):
            self._left_out = row, wall_offset_ns
            return None
        span = row.began + wall_offset_ns, row.ended + wall_offset_ns
        if self._spans and span < self._spans[-1]:
            self._spans.clear()  # the clock was set back: calls are compared with later ones
        self._spans.append(span)
        return _step_line(row, wall_offset_ns)

    def latest_step(self) -> str | None:
        """The line of the latest step if it has none: where no further step comes, it says how far this rank is."""
        left, self._left_out = self._left_out, None
        return _step_line(*left) if left is not None else None

    def calls(self, calls: Iterable[FlightCall], missed: int = 0) -> str | None:
        """The line of calls in the order in which they were made; ``None`` if there are none.

        Where only some steps have lines, only their calls are in it.

        Args:
            calls: the calls.
            missed: how many before them could not be read.
        """
        self._missed += missed
        wanted = [call for call in calls if not self._thinned or self._in_a_step(call.at_ns)]
        if not wanted:
            return None
        base = wanted[0].at_ns
        found = [[self._kind(call), call.sequence, (call.at_ns - base) // 1000, *_device_us(call)] for call in wanted]
        line: dict[str, object] = {"calls": found, "base_ns": base}
        if self._missed:
            line["missed"], self._missed = self._missed, 0
        return one_line(line)

    def samples(self, places: Iterable[tuple[int, Place]], samples: Iterable[Sample]) -> str | None:
        """The line of samples of the loop's stack; ``None`` if there are none. Defines their places."""
        for number, frames in places:
            self.definitions.append(one_line({"place": number, "frames": frames}))
        found = [[sample.step, sample.place] for sample in samples]
        return one_line({"samples": found}) if found else None

    def _in_a_step(self, at_ns: int) -> bool:
        # Calls arrive in order: spans that have ended before the first of them are not needed any more.
        while len(self._spans) > 1 and self._spans[0][1] < at_ns:
            self._spans.popleft()
        return bool(self._spans) and at_ns >= self._spans[0][0]

    def _kind(self, call: FlightCall) -> int:
        key = (call.group, call.operation, call.dtype, call.bytes)
        number = self._kinds.get(key)
        if number is None:
            number = self._kinds[key] = len(self._kinds)
            if call.group not in self._groups:
                self._groups.add(call.group)
                self._ranks |= _ranks_of_groups()
                ranks = self._ranks.get(call.group, ())
                self.definitions.append(one_line({"group": call.group, "ranks": as_ranges(ranks)}))
            kind = {"kind": number, "group": call.group, "op": call.operation, "dtype": call.dtype, "bytes": call.bytes}
            self.definitions.append(one_line(kind))
        return number


def _step_line(row: StepRow, wall_offset_ns: int) -> str:
    fields: dict[str, object] = {
        "step": row.step,
        "start_ns": row.began + wall_offset_ns,
        "ns": row.ended - row.began,
        "loading_ns": row.loading,
        "forward_ns": row.forward,
        "backward_ns": row.backward,
        "optimizer_ns": row.optimizer,
        "backward_end_ns": row.backward_ended - row.began if row.backward_ended is not None else None,
        "profiled": row.profiled or None,
        "running_us": [each.running // 1000 for each in row.threads] or None,
        "ready_us": [each.ready // 1000 for each in row.threads] if any(each.ready for each in row.threads) else None,
        "gc_ns": row.collecting or None,
    }
    if row.device is not None and (device := row.device.phases()) is not None:
        fields["device_ns"] = device.total
        fields |= {f"device_{name}_ns": value for name, value in device._asdict().items() if name != "total"}
    elif row.device is not None and row.device.in_use:
        fields["device_unknown"] = True
    return one_line({name: value for name, value in fields.items() if value is not None})


def _device_us(call: FlightCall) -> tuple[int, ...]:
    return () if call.device_ns is None else (call.device_ns // 1000,)


def _ranks_of_groups() -> dict[str, tuple[int, ...]]:
    return {each.name: tuple(each.ranks) for each in process_groups()}
