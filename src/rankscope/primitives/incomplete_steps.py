"""Find steps without an iteration: the ranges at the start and the end of a recording that hold other work, or none.

`torch.profiler` opens the range of the next step in every `prof.step()`. If the loop then ends, the last range contains
only what comes after that call: a value that is printed, a checkpoint, an evaluation. If `prof.step()` comes first in
the loop, the first range contains only what comes before it. Averages over steps must leave them out. A step is judged
by its work, never by its duration, against the other steps of its rank, in all windows:

1. Its work is its top-level operators (by start) and device events (by launch), without those inside data loading: the
   loader is asked once more after its last batch.
2. Only the first and the last step of a file may be incomplete; if one is, its neighbor may be, too, and so on.
3. An incomplete step lacks an iteration's work: it has less than half of the names that more than half of the other
   steps have, or only names on which they spend less than half of their operators' time.
4. It is no iteration of another kind, either: if most of the other steps have a backward pass, it has none. Otherwise
   it has less than a quarter of their median number of events, or of their median time in device events (in operators
   where there are none); of both if there is only one other step.
5. No step is left out if most steps are empty, or if a step between the remaining ones is as empty: then the loop has
   such steps, or the trace does not record their work.

Source of the shares: in 45 recordings of A100, H100, V100, MI300X and CPUs, complete steps have at least 0.94 of the
work and 0.93 of the names; incomplete last steps have at most 0.2 and 0.27 (if the loop was left within a step). A
last step of fewer or smaller batches has all names, and one that runs other kernels (a decode step after prefill) has
as many events. Time counts by operators' names, as the names of kernels change with the size of a batch.

In: per file the steps, operators, device events and ranges. Out: what the steps of a file hold, and of a rank's files
the steps that are incomplete.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median, median_high
from typing import Any

import numpy as np
import polars as pl

from rankscope.primitives.activity import data_loading_time
from rankscope.primitives.intervals import Int64
from rankscope.primitives.steps import host_steps, owning_steps

SMALL_SHARE = 0.25
"""An incomplete step has less than this share of the median work of the other steps, if they have no backward pass."""
LACKING_SHARE = 0.5
"""An incomplete step has less than this share of the names that the other steps have in common, or of their time."""

_BACKWARD = re.compile(r"^autograd::|Backward\d*$")
_MOST_WAITING = 1 << 15


@dataclass(frozen=True)
class IncompleteStep:
    """A step that holds no iteration.

    Attributes:
        step: N of `ProfilerStep#N`.
        events: its operators and device events, outside data loading.
        usual_events: the median of the other steps.
        duration_ns: length of its range on the host.
    """

    step: int
    events: int
    usual_events: int
    duration_ns: int


@dataclass(frozen=True)
class StepWork:
    """What a step holds.

    Attributes:
        names: bit i is set if it has an event with the file's i-th name.
        backward: whether an operator is of a backward pass.
        step: N of `ProfilerStep#N`.
        duration_ns: length of its range on the host.
        events: its operators and device events, outside data loading.
        device_ns: the summed time of these device events.
        operators_ns: that of the operators.
    """

    names: int
    backward: bool
    step: int
    duration_ns: int
    events: int
    device_ns: int
    operators_ns: int


@dataclass(frozen=True)
class FileWork:
    """What the steps of a file hold, small enough to be kept with its metadata.

    Attributes:
        steps: in the order of their starts.
        names: CRC-32 of the names of their events, comparable between files.
        times: for each name the summed time of its operators; 0 for names of device events.
    """

    steps: tuple[StepWork, ...] = ()
    names: tuple[int, ...] = ()
    times: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        steps = [[f"{step.names:x}", *list(vars(step).values())[1:]] for step in self.steps]
        return {"steps": steps, "names": list(self.names), "times": list(self.times)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> FileWork:
        """The reverse of `to_json`; an empty object is a file without steps."""
        steps = tuple(StepWork(int(names, 16), *numbers) for names, *numbers in values.get("steps", ()))
        return cls(steps, tuple(values.get("names", ())), tuple(values.get("times", ())))


class StepContents:
    """The work of a file's steps, collected from its tables part by part.

    Args:
        annotations: start_ns, end_ns, name, pid, tid, on_device, step.
    """

    def __init__(self, annotations: pl.DataFrame) -> None:
        self._steps = host_steps(annotations)
        self._start, self._end = self._steps["start_ns"].to_numpy(), self._steps["end_ns"].to_numpy()
        self._loading = data_loading_time(annotations)
        number = self._steps.height
        self._events, self._device, self._operators = (np.zeros(number, dtype=np.int64) for _ in range(3))
        self._names = [0] * number
        self._place: dict[str | None, int] = {}
        self._times: list[int] = []
        # Grouping by name costs more than the rest: it waits until there is much to group.
        self._waiting: list[pl.DataFrame] = []
        self._rows_waiting = 0

    def add(self, instants: Int64, durations: Int64, names: pl.Series, *, on_device: bool) -> None:
        """Count events.

        Args:
            instants: starts of operators or launches of device events, ns.
            durations: of the operators or device events, ns.
            names: their names.
            on_device: whether they are device events.
        """
        if not self._steps.height or not instants.size:
            return
        owner = owning_steps(self._start, self._end, instants, np.ones(instants.size, dtype=np.bool_))
        owner[self._loading.before(instants + 1) > self._loading.before(instants)] = -1
        inside = owner >= 0
        owner, durations = owner[inside], durations[inside]
        self._events += np.bincount(owner, minlength=self._events.size)
        np.add.at(self._device if on_device else self._operators, owner, durations)
        of_operators = np.zeros_like(durations) if on_device else durations
        found = pl.DataFrame(
            [pl.Series("owner", owner), names.filter(pl.Series(inside)).alias("name"), pl.Series("ns", of_operators)]
        )
        self._waiting.append(found)
        self._rows_waiting += found.height
        if self._rows_waiting > _MOST_WAITING:
            self._collect_names()

    def _collect_names(self) -> None:
        if not self._waiting:
            return
        for owner, name, ns in pl.concat(self._waiting).group_by("owner", "name").sum().iter_rows():
            place = self._place.setdefault(name, len(self._place))
            if place == len(self._times):
                self._times.append(0)
            self._times[place] += ns
            self._names[owner] |= 1 << place
        self._waiting.clear()
        self._rows_waiting = 0

    def work(self) -> FileWork:
        """What the steps hold."""
        self._collect_names()
        names = sorted(self._place, key=lambda name: name or "")  # the order of events at one instant is arbitrary
        bits = {1 << self._place[name]: 1 << number for number, name in enumerate(names)}
        in_order = {held: sum(new for old, new in bits.items() if held & old) for held in set(self._names)}
        backward = sum(1 << number for number, name in enumerate(names) if _BACKWARD.search(name or ""))
        lengths = self._end - self._start
        measured = (self._steps["step"].to_numpy(), lengths, self._events, self._device, self._operators)
        numbers = zip(*(each.tolist() for each in measured), strict=True)
        return FileWork(
            tuple(
                StepWork(in_order[held], bool(in_order[held] & backward), *each)
                for each, held in zip(numbers, self._names, strict=True)
            ),
            tuple(zlib.crc32((name or "").encode("utf-8", "surrogatepass")) for name in names),
            tuple(self._times[self._place[name]] for name in names),
        )


def incomplete_steps(files: Sequence[FileWork]) -> list[list[IncompleteStep]]:
    """For each of a rank's files the steps that hold no iteration, in their order."""
    times: Counter[int] = Counter()
    for file in files:
        times.update(dict(zip(file.names, file.times, strict=True)))
    remaining = [[_Step(step, file) for step in file.steps] for file in files]
    found: list[list[IncompleteStep]] = [[] for _ in files]

    def is_incomplete(step: _Step) -> bool:
        return _is_incomplete(step, [other for steps in remaining for other in steps if other is not step], times)

    while True:
        edges = ((steps, edge) for steps in remaining for edge in (*steps[-1:], *steps[:1]))
        steps, edge = next(((steps, edge) for steps, edge in edges if is_incomplete(edge)), ([], None))
        if edge is None:
            break
        number = next(number for number, each in enumerate(remaining) if each is steps)
        steps.remove(edge)
        usual = median_high(other.work.events for steps in remaining for other in steps)
        work = edge.work
        found[number].append(IncompleteStep(work.step, work.events, usual, work.duration_ns))
    if any(found) and any(is_incomplete(step) for steps in remaining for step in steps):
        return [[] for _ in files]
    return [sorted(each, key=lambda incomplete: incomplete.step) for each in found]


@dataclass(eq=False)
class _Step:
    work: StepWork
    file: FileWork

    @cached_property
    def names(self) -> set[int]:
        """The names of its events."""
        return {name for place, name in enumerate(self.file.names) if self.work.names >> place & 1}


def _is_incomplete(step: _Step, others: Sequence[_Step], times: Mapping[int, int]) -> bool:
    if not others:
        return False
    own, usual = step.work, [other.work for other in others]
    if 2 * sum(other.backward for other in usual) > len(usual):
        if own.backward:
            return False
    else:
        on_device = any(other.device_ns for other in usual)
        few = own.events < SMALL_SHARE * median(other.events for other in usual)
        short = _time(own, on_device) < SMALL_SHARE * median(_time(other, on_device) for other in usual)
        if not (few and short if len(others) == 1 else few or short):
            return False
    shared = Counter(name for other in others for name in other.names)
    common = {name for name, number in shared.items() if 2 * number > len(others)}
    has = common & step.names
    spent, all_time = sum(times[name] for name in has), sum(times[name] for name in common)
    return len(has) < LACKING_SHARE * len(common) or spent < LACKING_SHARE * all_time


def _time(work: StepWork, on_device: bool) -> int:
    return work.device_ns if on_device else work.operators_ns
