"""What the loop's thread of a late rank does for longer than its peers': it runs, waits for a core, sleeps, collects
garbage; and where in the job's code.

In: the logs of all ranks, a rank, the steps in which it is late, and the phase. Out: a `ThreadExcess`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rankscope.primitives.stragglers.thread_excess import CodePlace, ThreadExcess
from rankscope.watch.log import Frames, RankLog, StepLine

_STRETCHES = {
    "data loading": (0, 0),
    "forward": (0, 0),
    "loading or forward": (0, 0),
    "forward and backward": (0, 1),
    "loading, forward and backward": (0, 1),
    "backward": (1, 1),
    "optimizer": (2, 2),
    "other": (2, 2),
}
"""The stretches of a step's line that a phase is in, first and last: before, in, and after the backward pass."""
_AFTER = ("optimizer", "other")
"""Phases of the step before: a local time begins after its last collective."""
_MOST = 0.8
"""Of the largest excess: the innermost function with so much explains it."""
_ONE_LINE = 0.6
"""Of a function's excess: a line with so much is where it is."""
_LEAST_SAMPLES = 5

Of = Callable[[StepLine], float]
Function = tuple[str, str]
"""File and name."""


def thread_excess(
    logs: Mapping[int, RankLog],
    rank: int,
    late: Sequence[int],
    compared: int,
    phase: str | None,
    excess_ns: int,
    *,
    first_of_all: bool = False,
) -> ThreadExcess:
    """What a late rank's thread did for longer than its peers'.

    Args:
        logs: by rank.
        rank: the late one.
        late: the steps in which it is late.
        compared: how many steps were compared: values are means over these.
        phase: where its excess is.
        excess_ns: its excess local time.
        first_of_all: whether a phase after the backward pass is of the step itself, not of the one before.
    """
    shift = 1 if phase in _AFTER and not first_of_all else 0
    lines = {each: {line.step: line for line in log.steps} for each, log in logs.items()}
    steps = [step - shift for step in late if all(step - shift in of_rank for of_rank in lines.values())]
    if not steps:
        return ThreadExcess()

    def more(of: Of) -> float:
        values = {each: sum(of(of_rank[step]) for step in steps) for each, of_rank in lines.items()}
        others = [value for each, value in values.items() if each != rank]
        return (values[rank] - float(np.median(others))) / compared

    collecting = max(round(more(lambda line: line.gc_ns)), 0)
    place, place_ns = _place(logs, rank, steps, compared, lines)
    stretches = _STRETCHES.get(phase or "")
    known = all(lines[each][step].running_us for each in lines for step in steps)
    if stretches is None or not known:
        return ThreadExcess(collecting_ns=collecting, place=place, place_ns=min(place_ns, excess_ns))

    def of(name: str) -> int:
        first, last = stretches
        return round(1000 * more(lambda line: sum(getattr(line, name)[first : last + 1])))

    running, ready = (min(max(of(name), 0), excess_ns) for name in ("running_us", "ready_us"))
    ready = min(ready, excess_ns - running)
    return ThreadExcess(running, ready, excess_ns - running - ready, collecting, place, min(place_ns, excess_ns))


def _place(
    logs: Mapping[int, RankLog],
    rank: int,
    steps: Sequence[int],
    compared: int,
    lines: Mapping[int, Mapping[int, StepLine]],
) -> tuple[CodePlace | None, int]:
    """The innermost function of the job in which the rank is for longer than its peers, and how much longer.

    A sample counts for the time of the late steps divided by the number of samples in them. Lines of one function are
    compared with the same lines of the peers: a rank that is late at one waits less at another.
    """
    wanted = set(steps)
    by_line: dict[int, dict[tuple[Function, int], float]] = {}
    depth: dict[Function, int] = defaultdict(int)
    for each, log in logs.items():
        found: dict[tuple[Function, int], float] = defaultdict(float)
        samples = [place for step, place in log.samples if step in wanted]
        taken_ns = sum(lines[each][step].ns for step in steps)
        weight = taken_ns / max(len(samples), 1)
        if each == rank and len(samples) < _LEAST_SAMPLES:
            return None, 0
        for place, count in Counter(samples).items():
            for function, line, inside in _functions(log.places.get(place, ())):
                found[function, line] += count * weight
                depth[function] = max(depth[function], inside)
        by_line[each] = found
    others = [of_rank for each, of_rank in by_line.items() if each != rank]
    excess: dict[Function, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for (function, line), value in by_line[rank].items():
        usual = float(np.median([of_rank.get((function, line), 0.0) for of_rank in others]))
        if value > usual:
            excess[function][line] += value - usual
    if not excess:
        return None, 0
    most = max(sum(of_lines.values()) for of_lines in excess.values())
    explains = [each for each, of_lines in excess.items() if sum(of_lines.values()) >= _MOST * most]
    function = max(explains, key=lambda each: (depth[each], sum(excess[each].values())))
    of_lines = excess[function]
    total = sum(of_lines.values())
    line, value = max(of_lines.items(), key=lambda each: each[1])
    shown = line if value >= _ONE_LINE * total else min(of_lines)
    return CodePlace(function[0], shown, function[1]), round(total / compared)


def _functions(frames: Frames) -> list[tuple[Function, int, int]]:
    """Each function of a stack once, at its innermost frame: with its line, and how many frames are outside of it."""
    found: dict[Function, tuple[int, int]] = {}
    for inside, (file, line, name) in enumerate(frames):
        found.setdefault((file, name), (line, len(frames) - inside))
    return [(function, line, depth) for function, (line, depth) in found.items()]
