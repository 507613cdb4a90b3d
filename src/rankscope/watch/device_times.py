"""From the logs of a job on CUDA or ROCm devices: how long each rank was busy by itself in each step, on its device.

A step on the device is from one event on the loop's stream to the next; of that the rank waited for others

- at the end of its backward pass, where DDP waits for the collectives that ran in the background: the time between two
  events (`device_waiting_ns`), which has the rest of the transfer too, the same on all ranks;
- in collectives outside of the backward pass (tensor parallelism, FSDP, a loss that is averaged): what the call's
  kernel took longer than on the rank where it was shortest, which came last. That needs the kernels' times, which NCCL
  has if ``TORCH_NCCL_ENABLE_TIMING`` is set. Of several groups the longest wait counts: they may be at one time.

The rest is the local time. The clocks of hosts play no part.

In: logs. Out: local times, or why there are none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from rankscope.watch.local_times import FEW, LOADING, Arrivals, Int64, LocalTimes
from rankscope.watch.log import Call, RankLog, StepLine
from rankscope.watch.steps_read import Lines, steps_read

BASIS = "device"
NO_COLLECTIVES = "the log has no collectives (they follow within half a minute); if the job calls none, no rank waits"
_SPAN = 10
"""Of so many times the wanted steps, those are taken that can be compared."""
_TIMING = "set TORCH_NCCL_ENABLE_TIMING=1, or record a window: rankscope trigger"

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
            " ranks yet, or they are none of CUDA and ROCm); record a window: rankscope trigger"
        )
    if not any(log.calls for log in logs.values()):
        return NO_COLLECTIVES
    outside = _groups_outside_backward(logs, lines, steps)
    matched = _matched(logs)
    waited: Int64 | None = None
    if outside:
        blocking = [key for key in matched if key[0] in outside]
        untimed = {key for key in blocking if not _timed(matched[key])}
        if 2 * len(untimed) >= len(blocking):
            groups = ", ".join(sorted(outside))
            return f"ranks wait for each other outside of the backward pass (group {groups}): {_TIMING}"
        steps = steps_read(logs, lines, steps, _SPAN * most_steps)
        steps = _without(untimed, matched, lines, steps)[-most_steps:]
        waited = _waited(matched, outside, lines, steps)
    else:
        steps = [
            step for step in steps if all(of_rank[step].device_waiting_ns is not None for of_rank in lines.values())
        ]
        steps = steps[-most_steps:]
    if not steps:
        return f"it is not known when the backward pass itself ended: {_TIMING}"
    total = _field(lines, steps, "device_ns")
    local = total - _field(lines, steps, "device_waiting_ns")
    if waited is not None:
        local = local - waited
    local = np.maximum(local, 0)
    numbers = np.array(steps, dtype=np.int64)
    phases = _phases(lines, steps, local, only_loading=waited is not None)
    return LocalTimes(tuple(logs), numbers, total, local, phases, BASIS, _arrivals(matched, lines, numbers), False)


def _groups_outside_backward(logs: Mapping[int, RankLog], lines: Lines, steps: list[int]) -> set[str]:
    """The groups with collectives outside of the backward pass, in more than a few steps of a rank."""
    found: set[str] = set()
    for rank, log in logs.items():
        rows = [lines[rank][step] for step in steps]
        starts = np.array([row.start_ns for row in rows], dtype=np.int64)
        backward = [_backward(row) for row in rows]
        counts: dict[str, set[int]] = defaultdict(set)
        for call in log.calls:
            row = int(np.searchsorted(starts, call.at_ns, side="right")) - 1
            if row < 0 or call.at_ns > starts[row] + rows[row].ns or not call.sequence:
                continue
            begin, end = backward[row]
            if not begin <= call.at_ns - int(starts[row]) <= end:
                counts[call.kind.group].add(row)
        found |= {group for group, where in counts.items() if len(where) > FEW * len(rows)}
    return found


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


def _waited(matched: Matched, groups: set[str], lines: Lines, steps: list[int]) -> Int64:
    """(ranks, steps) How long a rank waited in collectives of these groups: of the group where it was longest."""
    rows = {rank: row for row, rank in enumerate(lines)}
    starts = _starts(lines, steps)
    by_group: dict[str, Int64] = {group: np.zeros((len(rows), len(steps)), dtype=np.int64) for group in groups}
    for (group, _), calls in matched.items():
        if group in groups:
            for rank, ns in _waits(calls).items():
                column = int(np.searchsorted(starts[rank], calls[rank].at_ns, side="right")) - 1
                if column >= 0 and calls[rank].at_ns <= starts[rank][column] + lines[rank][steps[column]].ns:
                    by_group[group][rows[rank], column] += ns
    most: Int64 = np.max(list(by_group.values()), axis=0)
    return most


def _without(untimed: set[tuple[str, int]], matched: Matched, lines: Lines, steps: list[int]) -> list[int]:
    """The steps without these collectives: the latest of a job may have ended before their kernels' times were read."""
    starts = _starts(lines, steps)
    found = set()
    for key in untimed:
        for rank, call in matched[key].items():
            found.add(int(np.searchsorted(starts[rank], call.at_ns, side="right")) - 1)
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
