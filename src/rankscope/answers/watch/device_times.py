"""From the logs of a job on CUDA or ROCm devices: how long each rank was busy by itself in each step, on its device.

A step on the device is from one event on the loop's stream to the next; of that the rank waited for others

- at the end of its backward pass, where DDP waits for the collectives that ran in the background: the time between two
  events (`device_waiting_ns`);
- in collectives outside of the backward pass (a loss that is averaged), and in all collectives of groups with some
  before it (tensor parallelism, FSDP): the time of their kernels. NCCL has it if ``TORCH_NCCL_ENABLE_TIMING`` is set.

Both have the transfers, too: a slow network is no work of a rank. What overlaps with compute is subtracted as well, on
all ranks of a group alike: only differences between ranks say something then.

The rest is the local time. The clocks of hosts play no part.

In: logs. Out: local times, or why there are none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rankscope.answers.watch.local_times import FEW, Arrivals, Int64, LocalTimes
from rankscope.answers.watch.log import Call, RankLog, StepLine
from rankscope.answers.watch.steps_read import Lines, steps_read
from rankscope.primitives.stragglers.with_log import LOADING

BASIS = "device"
NO_COLLECTIVES = "the log has no collectives (they follow within half a minute); if the job calls none, no rank waits"
_SPAN = 10
"""Of so many times the wanted steps, those are taken that can be compared."""
_NO_WAIT = 1e-3
"""Of a step: less is no wait for a collective."""
_OVERLAPPED = 0.05
"""Of all steps and ranks: in so many collectives may take longer than the step."""
_RECORD = "record a window: rankscope trigger"
_TIMING = f"with NCCL set TORCH_NCCL_ENABLE_TIMING=1, or {_RECORD}"
BEFORE, WITHIN, AFTER = "before", "within", "after"
"""The backward pass, as the host calls it."""

Matched = Mapping[tuple[str, int], Mapping[int, Call]]
"""By group and sequence number the call of each rank."""


def device_times(logs: Mapping[int, RankLog], most_steps: int) -> LocalTimes | str:
    """The times of the latest steps that all ranks have; a reason if they are not known.

    Args:
        logs: by rank, of two ranks at least.
        most_steps: how many steps.
    """
    first = max(log.clock_set_at for log in logs.values())
    lines = {
        rank: {line.step: line for line in log.steps if line.step >= first and line.device_ns and not line.profiled}
        for rank, log in logs.items()
    }
    steps = sorted(set.intersection(*(set(of_rank) for of_rank in lines.values())))[-_SPAN * most_steps :]
    if not steps:
        return (
            "hosts run ahead of their accelerators, and the log has no times of the devices (no step is complete on all"
            f" ranks yet, or they are none of CUDA and ROCm); {_RECORD}"
        )
    if not any(log.calls for log in logs.values()):
        return NO_COLLECTIVES
    groups = _groups(logs, lines, steps)
    matched = _matched(logs)
    waited: Int64 | None = None
    if groups.outside:
        blocking = {group: [calls for key, calls in matched.items() if key[0] == group] for group in groups.outside}
        untimed = [group for group, calls in blocking.items() if 2 * sum(map(_timed, calls)) <= len(calls)]
        if untimed:
            named = f"group{'s' if len(untimed) > 1 else ''} {', '.join(sorted(untimed))}"
            return f"ranks wait for each other outside of the backward pass ({named}), for an unknown time: {_TIMING}"
        steps = steps_read(logs, lines, steps, _SPAN * most_steps)
        steps = _without_untimed(matched, groups.outside, lines, steps)
    if groups.background:
        steps = [
            step for step in steps if all(of_rank[step].device_waiting_ns is not None for of_rank in lines.values())
        ]
    steps = steps[-most_steps:]
    if not steps:
        return f"it is not known when the backward pass itself ended; {_RECORD}"
    total, at_end = _field(lines, steps, "device_ns"), _field(lines, steps, "device_waiting_ns")
    if groups.background and np.median(at_end, axis=1).max() < _NO_WAIT * np.median(total):
        return f"no rank waits at the end of its backward pass, so it is not known where ranks wait; {_RECORD}"
    if groups.outside:
        waited, inside = _kernel_times(matched, groups, lines, steps)
        at_end = np.maximum(at_end, inside)
    local = total - at_end - (0 if waited is None else waited)
    if np.mean(local < 0) > _OVERLAPPED:
        return f"collectives overlap with so much of the computation that the wait in them is not known; {_RECORD}"
    local = np.maximum(local, 0)
    numbers = np.array(steps, dtype=np.int64)
    phases = _phases(lines, steps, local, only_loading=waited is not None)
    return LocalTimes(tuple(logs), numbers, total, local, phases, BASIS, _arrivals(matched, lines, numbers), False)


class _Groups(NamedTuple):
    """Groups by where a step calls their collectives, in more than a few steps of a rank."""

    before: frozenset[str]
    """Before the backward pass, and perhaps within it: ranks wait in each call."""
    outside: frozenset[str]
    """These, and those with calls after the backward pass."""
    background: frozenset[str]
    """Within it, and not before: DDP's buckets."""


def _groups(logs: Mapping[int, RankLog], lines: Lines, steps: list[int]) -> _Groups:
    found: dict[str, set[str]] = defaultdict(set)
    starts = _starts(lines, steps)
    for rank, log in logs.items():
        where: dict[tuple[str, str], set[int]] = defaultdict(set)
        for call in log.calls:
            column, place = _place(call, starts[rank], lines[rank], steps)
            if column >= 0 and call.sequence:
                where[place, call.kind.group].add(column)
        for (place, group), columns in where.items():
            if len(columns) > FEW * len(steps):
                found[place].add(group)
    before = frozenset(found[BEFORE])
    return _Groups(before, before | found[AFTER], frozenset(found[WITHIN] - before))


def _place(call: Call, starts: Int64, lines: Mapping[int, StepLine], steps: list[int]) -> tuple[int, str]:
    """The step in which a rank makes a call, as an index or −1, and where in it."""
    column = int(np.searchsorted(starts, call.at_ns, side="right")) - 1
    since = call.at_ns - int(starts[column])
    if column < 0 or since > lines[steps[column]].ns:
        return -1, ""
    begin, end = _backward(lines[steps[column]])
    return column, BEFORE if since < begin else WITHIN if since <= end else AFTER


def _backward(row: StepLine) -> tuple[int, int]:
    """Begin and end of the backward pass on the host, ns after the step's begin; past its end if there is none."""
    if row.backward_end_ns is None or row.backward_ns is None:
        return row.ns + 1, row.ns + 1
    return row.backward_end_ns - row.backward_ns, row.backward_end_ns


def _matched(logs: Mapping[int, RankLog]) -> Matched:
    """The collectives that all ranks of their group have in their logs."""
    found: dict[tuple[str, int], dict[int, Call]] = defaultdict(dict)
    members: dict[str, set[int]] = defaultdict(set)
    for rank, log in logs.items():
        for call in log.calls:
            if call.sequence:
                found[call.kind.group, call.sequence][rank] = call
                members[call.kind.group].add(rank)
    return {
        key: calls
        for key, calls in found.items()
        if len(calls) > 1 and len(calls) == len(members[key[0]]) and len({call.kind.op for call in calls.values()}) == 1
    }


def _timed(calls: Mapping[int, Call]) -> bool:
    return all(call.device_ns is not None for call in calls.values())


def _waits(calls: Mapping[int, Call]) -> dict[int, int]:
    """By rank, what a collective took longer than on the rank that came last."""
    times = {rank: call.device_ns or 0 for rank, call in calls.items()}
    least = min(times.values())
    return {rank: ns - least for rank, ns in times.items()}


def _kernel_times(matched: Matched, groups: _Groups, lines: Lines, steps: list[int]) -> tuple[Int64, Int64]:
    """(ranks, steps) The time in the kernels of collectives in which ranks wait, outside of the backward pass and in
    it."""
    starts = _starts(lines, steps)
    rows = {rank: row for row, rank in enumerate(lines)}
    outside: Int64 = np.zeros((len(rows), len(steps)), dtype=np.int64)
    inside = np.zeros_like(outside)
    for (group, _), calls in matched.items():
        if group in groups.outside:
            for rank, call in calls.items():
                column, place = _place(call, starts[rank], lines[rank], steps)
                if column >= 0 and place != WITHIN:
                    outside[rows[rank], column] += call.device_ns or 0
                elif column >= 0 and group in groups.before:
                    inside[rows[rank], column] += call.device_ns or 0
    return outside, inside


def _without_untimed(matched: Matched, groups: Set[str], lines: Lines, steps: list[int]) -> list[int]:
    """The steps of which all these groups' kernels were timed: the latest of a job may not have been read in time."""
    starts = _starts(lines, steps)
    found = set()
    for (group, _), calls in matched.items():
        if group in groups and not _timed(calls):
            found |= {_place(call, starts[rank], lines[rank], steps)[0] for rank, call in calls.items()}
    return [step for column, step in enumerate(steps) if column not in found]


def _starts(lines: Lines, steps: list[int]) -> dict[int, Int64]:
    return {
        rank: np.array([of_rank[step].start_ns for step in steps], dtype=np.int64) for rank, of_rank in lines.items()
    }


def _field(lines: Lines, steps: list[int], name: str) -> Int64:
    """(ranks, steps) of a field; 0 where it is not known."""
    values = [[getattr(of_rank[step], name) or 0 for step in steps] for of_rank in lines.values()]
    return np.array(values, dtype=np.int64)


def _phases(lines: Lines, steps: list[int], local: Int64, *, only_loading: bool) -> dict[str, Int64]:
    """The phases of the local time. Where ranks wait in any of them, only data loading is known, on the host."""
    loading = _field(lines, steps, "loading_ns")
    has_loading = bool(loading.any())
    if only_loading:
        return {LOADING: np.minimum(loading, local)} if has_loading else {}
    forward = _field(lines, steps, "device_forward_ns")
    loading = np.minimum(loading, forward)
    found = {LOADING: loading} if has_loading else {}
    found["forward" if has_loading else "loading or forward"] = forward - loading
    found["backward"] = _field(lines, steps, "device_backward_ns")
    found["optimizer"] = _field(lines, steps, "device_optimizer_ns")
    found["other"] = np.maximum(local - np.sum(list(found.values()), axis=0), 0)
    return found


def _arrivals(matched: Matched, lines: Lines, steps: npt.NDArray[np.int64]) -> tuple[Arrivals, ...]:
    """Who comes last, of the collectives whose kernels were timed: they all end together."""
    first = next(iter(lines))
    starts = _starts(lines, steps.tolist())
    by_group: dict[str, list[tuple[int, dict[int, int]]]] = defaultdict(list)
    for (group, _), calls in matched.items():
        rank = first if first in calls else next(iter(calls))
        column = int(np.searchsorted(starts[rank], calls[rank].at_ns, side="right")) - 1
        if _timed(calls) and column >= 0:
            by_group[group].append((int(steps[column]), _waits(calls)))
    found = []
    for group, each in sorted(by_group.items()):
        ranks = tuple(sorted(each[0][1]))
        waits = np.array([[waited[rank] for rank in ranks] for _, waited in each], dtype=np.int64)
        late = waits.max(axis=1, keepdims=True) - waits
        found.append(Arrivals(group, ranks, np.array([step for step, _ in each], dtype=np.int64), late))
    return tuple(found)
