"""What the loop's thread of a late rank does for longer than its peers': it runs, waits for a core, sleeps, collects
garbage; and where in the job's code.

In: the logs of all ranks, a rank, and the steps in which it is late. Out: a `ThreadExcess`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace

import numpy as np

from rankscope.answers.watch.local_times import in_local_time
from rankscope.answers.watch.log import Frames, RankLog, StepLine
from rankscope.primitives.stragglers.thread_excess import CodePlace, ThreadExcess

_MOST = 0.8
"""Of the largest excess: the innermost function with so much explains it."""
_ONE_LINE = 0.6
"""Of a function's excess: a line with so much is where it is."""
_LEAST_SAMPLES = 5
_LEAST_RUNNING_NS = 10_000_000
"""Of a late step: a thread that runs Python gives the interpreter's lock to another one after 5 ms."""

Of = Callable[[Mapping[int, StepLine], int], int]
"""Of a rank's steps, a value of one."""
Function = tuple[str, str]
"""File and name."""


def thread_excess(
    logs: Mapping[int, RankLog], rank: int, late: Sequence[int], compared: int, excess_ns: int
) -> ThreadExcess:
    """What a late rank's thread did for longer than its peers'.

    While its peers wait for it, their threads sleep: only that it runs, or waits for a core, shows more work. What
    remains of its excess it slept, or was blocked. On a busy machine every thread waits for a core in proportion to
    what it runs, so that only what exceeds the peers' proportion is a wait for its core; the rest counts as running.

    Args:
        logs: by rank.
        rank: the late one.
        late: the steps in which it is late.
        compared: how many steps were compared: values are means over these.
        excess_ns: its excess local time.
    """
    lines = {each: {line.step: line for line in log.steps} for each, log in logs.items()}
    steps = [step for step in late if all({step - 1, step} <= of_rank.keys() for of_rank in lines.values())]
    if not steps:
        return ThreadExcess()

    def totals(of: Of) -> dict[int, int]:
        return {each: sum(of(of_rank, step) for step in steps) for each, of_rank in lines.items()}

    def more(values: Mapping[int, int]) -> int:
        others = [value for each, value in values.items() if each != rank]
        return max(round((values[rank] - float(np.median(others))) / compared), 0)

    collecting = more(totals(lambda of_rank, step: of_rank[step].gc_ns))
    place, place_ns, in_loop = _place(logs, rank, steps, lines)
    at = ThreadExcess(
        collecting_ns=collecting, place=place, place_ns=min(place_ns // compared, excess_ns), in_loop=in_loop
    )
    if not all(of_rank[each].running_us for of_rank in lines.values() for step in steps for each in (step - 1, step)):
        return at
    runs = totals(lambda of_rank, step: in_local_time(of_rank, step, "running_us"))
    waits = totals(lambda of_rank, step: in_local_time(of_rank, step, "ready_us"))
    proportion = float(np.median([waits[each] / max(runs[each], 1) for each in lines if each != rank]))
    of_core = max(round((waits[rank] - proportion * runs[rank]) / compared), 0)
    ready = min(of_core, more(waits), excess_ns)
    running = min(more(runs) + more(waits) - ready, excess_ns - ready)
    asleep = excess_ns - running - ready
    found = replace(at, running_ns=running, ready_ns=ready, asleep_ns=asleep)
    # While it runs Python, a sample waits for the interpreter's lock, and is taken where that is given up.
    if 2 * asleep < excess_ns and place_ns < len(steps) * _LEAST_RUNNING_NS:
        return replace(found, place=None, place_ns=0)
    return found


def _place(
    logs: Mapping[int, RankLog], rank: int, steps: Sequence[int], lines: Mapping[int, Mapping[int, StepLine]]
) -> tuple[CodePlace | None, int, bool]:
    """The innermost function of the job in which the rank is for longer than its peers, how much longer in all steps,
    and whether the peers are mostly in it, too.

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
            return None, 0, False
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
        return None, 0, False
    # By one line: a function that calls it is at the line of the call, and by chance at others.
    most = max(value for of_lines in excess.values() for value in of_lines.values())
    explains = [each for each, of_lines in excess.items() if sum(of_lines.values()) >= _MOST * most]
    function = max(explains, key=lambda each: (depth[each], sum(excess[each].values())))
    of_lines = excess[function]
    total = min(sum(of_lines.values()), most / _MOST)
    line, value = max(of_lines.items(), key=lambda each: each[1])
    shown = line if value >= _ONE_LINE * total else min(of_lines)
    return CodePlace(function[0], shown, function[1]), round(total), _are_mostly_in(function, rank, logs, wanted)


def _are_mostly_in(function: Function, rank: int, logs: Mapping[int, RankLog], steps: Set[int]) -> bool:
    """Whether a function is the innermost in most samples of the other ranks."""
    inner = [
        _functions(log.places.get(place, ()))[:1]
        for each, log in logs.items()
        if each != rank
        for step, place in log.samples
        if step in steps
    ]
    return 2 * sum(bool(first) and first[0][0] == function for first in inner) > len(inner)


def _functions(frames: Frames) -> list[tuple[Function, int, int]]:
    """Each function of a stack once, at its innermost frame: with its line, and how many frames are outside of it."""
    found: dict[Function, tuple[int, int]] = {}
    for inside, (file, line, name) in enumerate(frames):
        if not name.startswith("<") or name == "<module>":  # a comprehension is its function's
            found.setdefault((file, name), (line, len(frames) - inside))
    return [(function, line, depth) for function, (line, depth) in found.items()]
