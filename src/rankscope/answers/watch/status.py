"""The state of a watched job, from its logs: step time, who arrives last, the straggler, and since when.

The straggler is found by the engine that finds it in traces (`primitives/stragglers`), from the same `Observations`;
where a rank spends the time is what the log has of its phases.

In: logs. Out: a `WatchStatus`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rankscope.answers.watch.changes import find_change
from rankscope.answers.watch.device_times import NO_COLLECTIVES, device_times
from rankscope.answers.watch.judgment import ENOUGH_STEPS, LONG, LONG_SHARE, Judgment, judge
from rankscope.answers.watch.local_times import FEW, Arrivals, Int64, LocalTimes, local_times
from rankscope.answers.watch.log import RankLog, WatchLogs
from rankscope.answers.watch.restarts import is_restarting
from rankscope.answers.watch.state import LastArrival, LongStep, RankState, RankTimes, StepTime, WatchStatus
from rankscope.answers.watch.thread_excess import thread_excess
from rankscope.primitives.statistics import Significance, Verdict
from rankscope.primitives.stragglers.step_log import LateRank, StepLog
from rankscope.primitives.stragglers.stragglers import Straggler
from rankscope.primitives.stragglers.thresholds import Thresholds
from rankscope.primitives.stragglers.with_log import LOADING
from rankscope.rundir.manifest import RankManifest, read_rank_manifest
from rankscope.rundir.names import rank_manifest_name
from rankscope.rundir.processes import is_dead
from rankscope.rundir.ranges import named_ranks

JUDGED_STEPS = 100
"""The latest steps, from which the straggler is found."""
_HISTORY_STEPS = 2000
"""The latest steps, in which long steps and the begin of a change are looked for."""
_MANY_CALLS = 1_000_000
"""Of all ranks together: above that, since when a rank is late is looked for in the judged steps only."""
_MOST_LONG = 5
"""Long steps that are shown."""
SENDS = (
    "ranks send to each other, as pipeline stages do, and how long one waits for another's data is not in the log; "
    "record a window: rankscope trigger"
)
UNDECIDED = (
    "these steps do not show whether ranks wait for each other between some collectives; "
    "record a window: rankscope trigger"
)
_MOST_NOTES = 5
_EXPLAINS = 0.5
"""Of a delay: a phase with at least this share of it is named as the reason."""
_FIRST_STEPS = 5
"""Of a job: they compile and fill caches."""
_SILENT_S = 60.0
"""Seconds, and usual steps (`_SILENT_STEPS`), without a line in the log after which a rank is silent."""
_SILENT_STEPS = 10


def read_status(
    run_dir: str | Path, logs: WatchLogs, judged_steps: int = JUDGED_STEPS, now: float | None = None
) -> WatchStatus:
    """The state now.

    Args:
        run_dir: the run directory, for the manifests.
        logs: what was read of it.
        judged_steps: how many of the latest steps the straggler is found from.
        now: seconds since 1970.
    """
    by_rank = logs.latest()
    header = next(iter(by_rank.values())).header
    now = time.time() if now is None else now
    states = tuple(_state(Path(run_dir), log, now) for log in by_rank.values())
    many = sum(len(log.calls) for log in by_rank.values()) > _MANY_CALLS
    history, unknown = _times(by_rank, judged_steps if many else _HISTORY_STEPS)
    times = history if history is None or many else _times(by_rank, judged_steps)[0]
    late: tuple[LateRank, ...] = ()
    verdicts: dict[int, Verdict] = {}
    least_delay_ns: int | None = None
    step_time = _step_time(by_rank, judged_steps)
    if not unknown and times is not None and history is not None:
        judgment = judge(times)
        late, verdicts = _late_ranks(judgment, times, history, step_time, by_rank), dict(judgment.verdicts)
        late = tuple(each for each in late if not (each.found.once and _is_early(by_rank, each.since_step)))
        least_delay_ns = judgment.least_delay_ns
        enough = times.steps.size >= ENOUGH_STEPS
        if enough and times.basis == "phases":
            # Any other phase may contain the waiting for a rank that is late elsewhere.
            late = tuple(each for each in late if each.found.lasting and each.phase == LOADING)
            verdicts, least_delay_ns = {each.rank: each.found.verdict for each in late}, None
            unknown = "" if late else _why_no_rank(times)
        elif enough and not late and times.undecided_ns > Thresholds().enough * float(np.median(times.step_ns)):
            verdicts, least_delay_ns, unknown = {}, None, UNDECIDED
    notes = dict.fromkeys(note for _, note in sorted(note for log in by_rank.values() for note in log.notes))
    return WatchStatus(
        header.run_id,
        header.world_size,
        logs.attempts(),
        states,
        step_time,
        _rank_times(by_rank, times, judged_steps),
        late,
        verdicts,
        unknown,
        tuple(_last_arrival(each) for each in times.arrivals) if times is not None else (),
        _long_steps(by_rank, history),
        tuple(notes)[-_MOST_NOTES:],
        tuple(_warnings(by_rank, states, times)),
        least_delay_ns,
        is_restarting(by_rank, states),
    )


def step_log(status: WatchStatus) -> StepLog:
    """What the log says of stragglers, for the analysis of the job's traces."""
    compared = [each.found.compared for each in status.late_ranks]
    compared += [verdict.n[0] for verdict in status.verdicts.values() if verdict.n]
    step_ns = status.step_time.median_ns if status.step_time is not None else 0
    return StepLog(max(compared, default=0), step_ns, status.late_ranks, status.verdicts, status.least_delay_ns)


def _state(run_dir: Path, log: RankLog, now: float) -> RankState:
    header = log.header
    manifest = manifest_of(run_dir, log)
    # The manifest also knows of an end in which the log could not be written.
    state = manifest.state if manifest is not None else log.ended or "running"
    silent_s = max(now - log.grew_at, 0.0)
    usual_s = np.median([each.ns for each in list(log.steps)[-_SILENT_STEPS:]] or [0]) / 1e9
    if state == "running" and silent_s > max(_SILENT_S, _SILENT_STEPS * usual_s):
        state = "silent"
    if state in ("running", "silent") and is_dead(header):
        state = "dead"
    return RankState(header.rank, log.last_step, state, silent_s, log.missed, log.damaged)


def manifest_of(run_dir: Path, log: RankLog) -> RankManifest | None:
    """The manifest of the process that writes a log; None if it is not there."""
    header = log.header
    wanted = run_dir / rank_manifest_name(header.rank, header.world_size, header.restart_count)
    for path in (wanted, *sorted(wanted.parent.glob(f"{wanted.stem}.*{wanted.suffix}"))):
        found = read_rank_manifest(path)
        if found is not None and found.pid == header.pid and found.run_id == header.run_id:
            return found
    return None


def _times(logs: Mapping[int, RankLog], most_steps: int) -> tuple[LocalTimes | None, str]:
    """The local times of the latest steps, and why they allow no verdict; empty if they do."""
    if len(logs) < 2:
        return None, "one rank alone has a log: there is no other to compare it with"
    if any(map(_sends_often, logs.values())):
        return None, SENDS
    if any(map(_on_device, logs.values())):
        on_device = device_times(logs, most_steps)
        return (None, on_device) if isinstance(on_device, str) else (on_device, "")
    times = local_times(logs, most_steps)
    if times is None:
        return None, "the ranks have no steps in common yet"
    if all(log.header.has_all_calls and not log.calls and not log.missed for log in logs.values()):
        return times, NO_COLLECTIVES
    return times, ""


def _on_device(log: RankLog) -> bool:
    """Whether a rank computes on an accelerator. That of the header may only be there; XPU's steps do not say."""
    kind = log.header.device
    return kind is not None and (kind != "CUDA" or any(line.device_ns or line.device_unknown for line in log.steps))


def _sends_often(log: RankLog) -> bool:
    """Whether a rank sends to another one, or receives, in more than a few of its steps."""
    since = log.calls[0].at_ns if log.calls else 0
    steps = sum(line.start_ns >= since for line in log.steps)
    return sum(not call.sequence for call in log.calls) > FEW * max(steps, 1)


def _why_no_rank(times: LocalTimes) -> str:
    """Why no rank can be ruled out where it is not known who waits for whom."""
    why = "the job calls more collectives than can be read" if times.unread else "the log has no collectives"
    compared = "only data loading was compared, and no rank stands out in it"
    known = compared if LOADING in times.phases else "so it is not known who waits for whom"
    return f"{why}: {known}; record a window: rankscope trigger"


def _late_ranks(
    judgment: Judgment,
    times: LocalTimes,
    history: LocalTimes,
    step_time: StepTime | None,
    logs: Mapping[int, RankLog],
) -> tuple[LateRank, ...]:
    found = []
    for each in judgment.stragglers:
        (rank,) = each.ranks
        row = times.ranks.index(rank)
        phase, phase_ns = _phase(times, row, np.isin(times.steps, each.steps), each)
        since = _since(history, row, step_time) if each.lasting else each.steps[0]
        thread = thread_excess(logs, rank, each.steps, each.compared, each.excess_ns)
        found.append(LateRank(each, rank, phase, phase_ns, since, thread))
    return tuple(found)


def _excess(value: Int64, row: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """A rank's values less the median of the others."""
    others = np.median(np.delete(value, row, axis=0), axis=0)
    return np.asarray(value[row] - others, dtype=np.float64)


def _phase(
    times: LocalTimes, row: int, late: np.ndarray[tuple[int], np.dtype[np.bool_]], found: Straggler
) -> tuple[str | None, int]:
    """The phase with most of a rank's excess in its late steps, and how much; None if none explains it.

    Like the excess, it is the mean over the compared steps, and no more than that: other phases may be shorter.
    """
    more = {name: float(_excess(value, row)[late].sum()) / found.compared for name, value in times.phases.items()}
    name = max(more, key=lambda each: more[each], default=None)
    if name is None or more[name] < _EXPLAINS * found.excess_ns:
        return None, 0
    return name, min(round(more[name]), found.excess_ns)


def _is_early(logs: Mapping[int, RankLog], step: int | None) -> bool:
    """Whether a step is one of the first, in which a rank that allocates or compiles is not stalled."""
    first = max((log.steps[0].step for log in logs.values() if log.steps), default=0)
    return step is not None and step < first + _FIRST_STEPS


def _since(history: LocalTimes, row: int, step_time: StepTime | None) -> int | None:
    change = find_change(_excess(history.local_ns, row), float(np.median(history.step_ns)))
    if change is None or not change.verdict.significant or change.after <= change.before:
        return None
    before, first = history.steps[change.index - 1], int(history.steps[change.index])
    # Between these two, some steps may not be known; the duration of steps is known of all.
    longer = step_time is not None and step_time.change is not None and step_time.change.verdict.significant
    at = step_time.changed_at if step_time is not None and longer else None
    return at if at is not None and before < at <= first else first


def _slowest(logs: Mapping[int, RankLog]) -> tuple[Int64, Int64]:
    """The steps that no profiler recorded and all ranks have, and how long each took on the rank on which it was
    longest."""
    by_rank = [{line.step: line for line in log.steps} for log in logs.values()]
    common = sorted(set.intersection(*(set(each) for each in by_rank)))
    common = [step for step in common if not any(each[step].profiled for each in by_rank)]
    longest = [max(each[step].ns for each in by_rank) for step in common]
    return np.array(common, dtype=np.int64), np.array(longest, dtype=np.int64)


def _step_time(logs: Mapping[int, RankLog], judged_steps: int) -> StepTime | None:
    steps, ns = _slowest(logs)
    if not steps.size:
        return None
    latest = ns[-judged_steps:]
    change = find_change(ns[-_HISTORY_STEPS:])
    at = int(steps[-_HISTORY_STEPS:][change.index]) if change is not None else None
    return StepTime(latest.size, int(np.median(latest)), int(latest.max()), change, at)


def _rank_times(logs: Mapping[int, RankLog], times: LocalTimes | None, judged_steps: int) -> tuple[RankTimes, ...]:
    found = []
    for rank, log in logs.items():
        ns = [line.ns for line in log.steps if not line.profiled][-judged_steps:]
        local = waiting = None
        if times is not None and rank in times.ranks:
            row = times.ranks.index(rank)
            local = int(np.median(times.local_ns[row]))
            if times.basis != "phases":
                waiting = int(np.median(np.maximum(times.step_ns[row] - times.local_ns[row], 0)))
        if ns:
            found.append(RankTimes(rank, int(np.median(ns)), local, waiting))
    return tuple(found)


def _long_steps(logs: Mapping[int, RankLog], history: LocalTimes | None) -> tuple[LongStep, ...]:
    steps, ns = _slowest(logs)
    steps, ns = steps[-_HISTORY_STEPS:], ns[-_HISTORY_STEPS:]
    if steps.size < 2 * _MOST_LONG:
        return ()
    # A lasting change is none of its steps' fault.
    change = find_change(ns)
    usual = np.full(ns.size, float(np.median(ns)))
    if change is not None and change.verdict.significant:
        usual[: change.index], usual[change.index :] = change.before, change.after
    deviation = 1.4826 * float(np.median(np.abs(ns - usual)))
    long = np.flatnonzero(ns - usual > np.maximum(LONG * deviation, LONG_SHARE * usual))
    longest = sorted(long.tolist(), key=lambda at: -ns[at])[:_MOST_LONG]
    return tuple(_long_step(int(steps[at]), int(ns[at]), history) for at in longest)


def _long_step(step: int, ns: int, history: LocalTimes | None) -> LongStep:
    if history is None or history.basis == "phases" or step not in history.steps:
        return LongStep(step, ns, known=False)
    column = int(np.flatnonzero(history.steps == step)[0])
    local = history.local_ns[:, column]
    row = int(np.argmax(local))
    excess = int(local[row] - np.median(np.delete(local, row)))
    if 2 * excess < ns - int(np.median(history.step_ns)):
        return LongStep(step, ns)  # all ranks took long, or the network did
    return LongStep(step, ns, history.ranks[row], excess)


def _last_arrival(arrivals: Arrivals) -> LastArrival:
    late = arrivals.late_ns
    last = np.bincount(late.argmax(axis=1), minlength=late.shape[1])
    row = int(last.argmax())
    return LastArrival(
        arrivals.group,
        arrivals.ranks,
        arrivals.ranks[row],
        float(last[row] / late.shape[0]),
        int(np.median(late[:, row])),
        int(late.shape[0]),
    )


def _warnings(logs: Mapping[int, RankLog], states: Sequence[RankState], times: LocalTimes | None) -> list[str]:
    found = []
    size = next(iter(logs.values())).header.world_size
    if size is not None and len(logs) < size:
        found.append(f"{len(logs)} of {size} ranks have a log: the others may be the cause of what these wait for")
    what = {
        "silent": "not logged a step for long",
        "dead": "died without having noted its end: killed by a signal, or out of memory",
        "interrupted": "been interrupted",
    }
    for state, text in what.items():
        if ranks := [each.rank for each in states if each.state == state]:
            has = "has" if len(ranks) == 1 else "have"
            found.append(f"{named_ranks(ranks)} {has} {text}")
    if missed := sum(each.missed for each in states):
        found.append(f"{missed} collectives were not read, to disturb the job less: steps with them are not compared")
    if damaged := sum(each.damaged for each in states):
        found.append(f"{damaged} lines of the logs cannot be read")
    can_lack = not all(log.header.has_all_calls for log in logs.values())
    if times is not None and times.basis == "phases" and not times.unread and can_lack:
        found.append("the log has no collectives: only data loading is compared")
    if times is not None and times.unaligned:
        found.append("the clocks of the hosts could not be aligned: arrivals are compared as the clocks are set")
    return found


def significance_of(status: WatchStatus) -> Significance:
    """One answer for the job: whether a rank is a straggler."""
    found = {verdict.significance for verdict in status.verdicts.values()}
    if Significance.SIGNIFICANT in found:
        return Significance.SIGNIFICANT
    return Significance.TOO_FEW if Significance.TOO_FEW in found or not found else Significance.NOT_SIGNIFICANT
