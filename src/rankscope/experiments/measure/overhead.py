"""Measure what gradient synchronization costs: the same job with and without it, in blocks in random order.

In: a script. Out: ``overhead.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankscope.errors import LaunchError
from rankscope.experiments.measure.experiment import Experiment, Job, Jobs, settings_of
from rankscope.experiments.measure.files import save
from rankscope.experiments.measure.jobs import Outcome, ProgressCallback, Start, Target, no_progress, series
from rankscope.experiments.measure.results import Overhead, Phases, RankTimes, Share, Time
from rankscope.experiments.measure.sampling import Sampling, setting_of
from rankscope.experiments.measure.stability import job_to_job_notes
from rankscope.experiments.measure.statistics import (
    Float,
    Series,
    affine,
    difference_of,
    ratio_of,
    replicates,
    time_of,
    widening,
)
from rankscope.experiments.measure.step_work import unequal_work_notes
from rankscope.experiments.measure.trace_summary import summarize_trace
from rankscope.rundir.measurement import Plan

SYNC, NO_SYNC = "sync", "no_sync"
CONDITIONS: dict[str, dict[str, Any]] = {
    SYNC: {"kind": "gradient_sync", "on": True},
    NO_SYNC: {"kind": "gradient_sync", "on": False},
}
_PARTS = ("forward", "backward", "optimizer")
SHORT_JOBS = Sampling(blocks=20, block_steps=3, repeats=5, limit_s=10)
"""Several short jobs: a single job, however long, does not show the variation between jobs. A job of slow steps has 5
blocks, and its first interval after half a minute."""
PRECISION = 0.02
"""Of the overhead: a share of the step."""
LEAST_JOBS = 3
"""Below this number of jobs the measurement does not stop: two jobs that are alike by chance say nothing of a third."""
FSDP_NOTE = (
    "FSDP: only the reduction of gradients is switched off; parameters are gathered in both conditions. The traced "
    "overhead includes both"
)


def plan_of(
    sampling: Sampling, out: Path, repeat: int, *, traced: bool, wrapped: bool = True, optional: bool = False
) -> Plan:
    """The plan of a job whose steps are measured with and without synchronization.

    Args:
        sampling: blocks, steps and limits.
        out: the job's directory.
        repeat: the number of the repetition.
        traced: whether a window is recorded at the end.
        wrapped: whether there are other ranks to synchronize with; if not, there is one condition.
        optional: whether to measure a job without a wrapper.
    """
    conditions = CONDITIONS if wrapped else {SYNC: CONDITIONS[SYNC]}
    if optional:
        conditions = {name: {**condition, "optional": True} for name, condition in conditions.items()}
    return sampling.plan(
        out, conditions, repeat, traced_steps=sampling.traced_steps if traced else 0, traced_condition=SYNC
    )


def measure_overhead(
    target: Target,
    out: Path,
    start: Start,
    sampling: Sampling = SHORT_JOBS,
    on_progress: ProgressCallback = no_progress,
    *,
    precision: float = PRECISION,
    on_result: Callable[[Overhead], object] = lambda _: None,
) -> Overhead:
    """Measure it, and write ``overhead.json`` and the job's folders into ``out``, again after each job.

    Args:
        target: what is run.
        out: the output directory.
        start: how the ranks are started.
        sampling: blocks, steps and limits; ``repeats`` is the largest number of jobs.
        on_progress: called with the progress.
        precision: no further job starts, after at least :data:`LEAST_JOBS`, once the interval of the overhead extends
            no further than this on either side; 0 for all jobs.
        on_result: called with the result so far after each new job but the last.

    Raises:
        LaunchError: the job failed, or synchronizes nothing.
    """
    looks = max(1, sampling.repeats - LEAST_JOBS + 1) if precision > 0 else 1

    def enough(jobs: Jobs) -> bool:
        return precision > 0 and is_enough(jobs.all_outcomes, sampling, looks, precision)

    experiment = Experiment("overhead", target, out, sampling, on_progress, settings_of(start), enough)

    def job(_name: str, repeat: int, folder: Path) -> Job:
        return Job(start, plan_of(sampling, folder, repeat, traced=repeat == 0))

    def result(jobs: Jobs) -> Overhead:
        notes = jobs.notes()
        if jobs.enough:
            jobs_run = f"{len(jobs.all_outcomes)} of at most {sampling.repeats} jobs"
            notes.append(f"stopped after {jobs_run}: the interval is within {100 * precision:g} points of the overhead")
        overhead = overhead_of(jobs.all_outcomes, target, sampling, out, experiment.load, notes, looks)
        save(overhead, out)
        return overhead

    jobs = experiment.run(
        sampling.job_order(["job"]),
        job,
        on_result=lambda jobs: on_result(result(jobs)),
        go_on_after_failure=False,
    )
    return result(jobs)


def is_enough(outcomes: Sequence[Outcome], sampling: Sampling, looks: int, precision: float) -> bool:
    """Whether the interval of the overhead is narrow enough to stop.

    Args:
        outcomes: the jobs so far.
        sampling: how they were sampled.
        looks: after how many jobs this may be asked; the intervals hold for all of them together.
        precision: how far the interval may extend on either side.
    """
    on, off = series(outcomes, SYNC, looks=looks), series(outcomes, NO_SYNC, looks=looks)
    if on is None or off is None or not LEAST_JOBS <= len(outcomes) < sampling.repeats:
        return False
    return is_narrow(share_of(on, off, sampling.seed), precision)


def is_narrow(share: Share, precision: float) -> bool:
    """Whether an interval extends no further than the precision on either side."""
    if share.low is None or share.high is None:
        return False
    return max(share.high - share.value, share.value - share.low) <= precision


def overhead_of(
    outcomes: Sequence[Outcome],
    target: Target,
    sampling: Sampling,
    out: Path,
    load: float | None,
    further_notes: Sequence[str] = (),
    looks: int = 1,
) -> Overhead:
    """The overhead from the jobs' measurements.

    Raises:
        LaunchError: a condition is missing.
    """
    on, off = series(outcomes, SYNC, looks=looks), series(outcomes, NO_SYNC, looks=looks)
    if on is None or off is None:
        raise LaunchError("one of the conditions was never measured", path=outcomes[0].folder)
    first = outcomes[0].ranks[0]
    notes = [*further_notes]
    if first.wrapper != "ddp":
        notes.append(FSDP_NOTE)
    if first.world_size == 1:
        notes.append("one rank: nothing to synchronize with; the difference is the overhead of the wrapper itself")
    notes += unequal_work_notes(outcomes, SYNC, NO_SYNC)
    notes += job_to_job_notes({"": outcomes}, SYNC)
    drawn = replicates({SYNC: on, NO_SYNC: off}, sampling.seed)
    traced, why = (None, None) if not sampling.traced_steps else summarize_trace(outcomes[0].folder, out)
    if why is not None:
        notes.append(why)
    both = [series(outcomes, condition, "forward_backward", looks) for condition in (SYNC, NO_SYNC)]
    forward_backward = None if both[0] is None or both[1] is None else share_of(both[0], both[1], sampling.seed)
    setting = setting_of(sampling, target, outcomes, load, notes)
    if looks > 1:
        stop = f"it may stop after {LEAST_JOBS} to {sampling.repeats} jobs"
        stated = f"{100 * on.confidence:.4g} % at whichever it does, which is 99 % over all of them"
        setting = replace(setting, method=f"{setting.method}; {stop}: an interval has {stated}")
    return Overhead(
        setting=replace(setting, repeats=len(outcomes)),
        wrapper=first.wrapper or "",
        world_size=first.world_size,
        sync=phases_of(outcomes, SYNC, drawn[SYNC], sampling.seed, looks),
        no_sync=phases_of(outcomes, NO_SYNC, drawn[NO_SYNC], sampling.seed, looks),
        sync_cost=difference_of(on, off, drawn[SYNC], drawn[NO_SYNC]),
        measured_overhead=overhead_share(on, off, drawn[SYNC], drawn[NO_SYNC]),
        forward_backward_overhead=forward_backward,
        traced=traced,
        ranks=[
            RankTimes(rank.rank, rank.host, round(float(a)), round(float(b)))
            for rank, a, b in zip(outcomes[0].ranks, on.by_rank(), off.by_rank(), strict=True)
        ],
    )


def share_of(on: Series, off: Series, seed: int) -> Share:
    """(T_sync - T_no_sync) / T_sync with its interval, from replicates of its own."""
    drawn = replicates({SYNC: on, NO_SYNC: off}, seed)
    return overhead_share(on, off, drawn[SYNC], drawn[NO_SYNC])


def overhead_share(on: Series, off: Series, drawn_on: Float, drawn_off: Float) -> Share:
    """(T_sync - T_no_sync) / T_sync with its interval."""
    remaining = ratio_of(off.median() / on.median(), drawn_off / drawn_on, widening(on, off))
    return affine(remaining, -1, 1)


def phases_of(outcomes: Sequence[Outcome], condition: str, drawn: Float, seed: int, looks: int = 1) -> Phases:
    """The times of a step and its parts.

    Raises:
        LaunchError: the condition was never measured.
    """
    steps = series(outcomes, condition, looks=looks)
    if steps is None:
        raise LaunchError(f"{condition} was never measured", path=outcomes[0].folder)
    names = (*_PARTS, "forward_backward")
    parts = {name: part for name in names if (part := series(outcomes, condition, name, looks)) is not None}
    rest = None
    if all(name in parts for name in _PARTS):
        rest = Series(
            tuple(step - sum(parts[name].jobs[number] for name in _PARTS) for number, step in enumerate(steps.jobs)),
            looks,
        )
    times: dict[str, Time] = {}
    for name, part in {**parts, **({"rest": rest} if rest is not None else {})}.items():
        times[name] = time_of(part, replicates({name: part}, seed)[name])
    return replace(Phases(step=time_of(steps, drawn)), **times)
