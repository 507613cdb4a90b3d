"""The numbers of a watched job for monitoring systems, under one name each.

The same names and units go to Prometheus, OpenTelemetry and the loggers of experiments. All are gauges: what the log
says of the latest steps. A number that is not known is left out.

In: a `JobState`. Out: `Number`s; `METRICS` describes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rankscope.answers.watch.status import significance_of
from rankscope.primitives.statistics import Significance
from rankscope.show.monitor.job import JobState

PREFIX = "rankscope_"


@dataclass(frozen=True)
class Metric:
    """What a number means.

    Attributes:
        name: with its unit, without `PREFIX`.
        help: one sentence.
        labels: the names of its labels.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()


METRICS = (
    Metric("job_running", "1 while a rank of the job runs, else 0."),
    Metric("job_restarting", "1 while torchrun is to start the job again after a failure, else 0."),
    Metric("job_attempts", "Attempts of an elastic job that have a log."),
    Metric("job_step", "The latest step that a rank has completed."),
    Metric("job_step_seconds", "Duration of a step on the slowest rank: median of the latest steps."),
    Metric("job_step_max_seconds", "Duration of a step on the slowest rank: maximum of the latest steps."),
    Metric("rank_state", "1 for the state that the rank is in: running, silent, dead, interrupted, finished.",
           ("rank", "state")),
    Metric("rank_step", "The latest step that the rank has completed.", ("rank",)),
    Metric("rank_step_seconds", "Duration of a step on the rank: median of the latest steps.", ("rank",)),
    Metric("rank_local_seconds", "Of a step, how long the rank was busy by itself: median.", ("rank",)),
    Metric("rank_waiting_seconds", "Of a step, how long the rank waited for others: median.", ("rank",)),
    Metric("straggler", "1 if the rank delays the others significantly, else 0.", ("rank",)),
    Metric("straggler_excess_seconds", "By how much a straggler is slower than the others, per step.", ("rank",)),
    Metric("stall_seconds", "How long the rank stalled in a single one of the latest steps, while the others waited.",
           ("rank",)),
    Metric("last_arrival_share", "Of a group's collectives, in how many its most frequent last rank comes last.",
           ("group", "rank")),
    Metric("last_arrival_seconds", "How long after the first rank of the group the last one arrives: median.",
           ("group", "rank")),
    Metric("hang", "1 while the job hangs, else 0."),
    Metric("hang_culprit", "1 for each rank at fault, with the class of cause, while the job hangs.",
           ("rank", "cause")),
    Metric("log_missed_collectives", "Collectives missing from the log because there was no time to read them."),
    Metric("log_damaged_lines", "Lines of the log that cannot be read."),
)  # fmt: skip
"""All of them, in the order of the documentation."""


@dataclass(frozen=True)
class Number:
    """One value of a metric."""

    name: str
    value: float
    labels: dict[str, str] = field(default_factory=dict)


def numbers_of(state: JobState) -> list[Number]:
    """The numbers of a job."""
    return [*_job(state), *_ranks(state), *_hang(state)]


def by_metric(numbers: list[Number]) -> Iterator[tuple[Metric, list[Number]]]:
    """Each metric with its values, also one that has none now."""
    for metric in METRICS:
        yield metric, [each for each in numbers if each.name == metric.name]


def _job(state: JobState) -> Iterator[Number]:
    status = state.status
    yield Number("job_running", float(status.running))
    yield Number("job_restarting", float(status.restarting))
    yield Number("job_attempts", float(status.attempts))
    steps = [each.last_step for each in status.ranks if each.last_step is not None]
    if steps:
        yield Number("job_step", float(max(steps)))
    if status.step_time is not None:
        yield Number("job_step_seconds", status.step_time.median_ns / 1e9)
        yield Number("job_step_max_seconds", status.step_time.most_ns / 1e9)
    for each in status.last_arrivals:
        labels = {"group": each.group, "rank": str(each.rank)}
        yield Number("last_arrival_share", each.share, labels)
        yield Number("last_arrival_seconds", each.late_ns / 1e9, labels)
    yield Number("log_missed_collectives", float(sum(each.missed for each in status.ranks)))
    yield Number("log_damaged_lines", float(sum(each.damaged for each in status.ranks)))


def _ranks(state: JobState) -> Iterator[Number]:
    status = state.status
    excess = {each.rank: each.found.excess_ns for each in status.late_ranks if not each.found.once}
    for each in status.ranks:
        labels = {"rank": str(each.rank)}
        yield Number("rank_state", 1.0, {**labels, "state": each.state})
        if each.last_step is not None:
            yield Number("rank_step", float(each.last_step), labels)
        if each.rank in status.verdicts and significance_of(status) is not Significance.TOO_FEW:
            yield Number("straggler", float(each.rank in excess), labels)
    for rank, ns in excess.items():
        yield Number("straggler_excess_seconds", ns / 1e9, {"rank": str(rank)})
    for late in status.late_ranks:
        if late.found.once:
            yield Number("stall_seconds", late.found.excess_ns * late.found.compared / 1e9, {"rank": str(late.rank)})
    for times in status.rank_times:
        labels = {"rank": str(times.rank)}
        yield Number("rank_step_seconds", times.step_ns / 1e9, labels)
        if times.local_ns is not None:
            yield Number("rank_local_seconds", times.local_ns / 1e9, labels)
        if times.waiting_ns is not None:
            yield Number("rank_waiting_seconds", times.waiting_ns / 1e9, labels)


def _hang(state: JobState) -> Iterator[Number]:
    # A job that an exception has ended has dumps as well.
    hangs = state.hangs
    yield Number("hang", float(hangs))
    if hangs and state.verdict is not None:
        for rank in state.verdict.culprits:
            yield Number("hang_culprit", 1.0, {"rank": str(rank), "cause": state.verdict.cause.value})
