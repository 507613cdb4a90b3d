"""Measure what profiling costs on a job: each switch of the profiler alone, all together, and while it waits.

In: a script. Out: ``profiler.json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankscope.experiments.measure.experiment import Experiment, Job, Jobs, settings_of
from rankscope.experiments.measure.files import save
from rankscope.experiments.measure.jobs import ProgressCallback, Start, Target, no_progress
from rankscope.experiments.measure.results import ProfiledVariant, ProfilerCost
from rankscope.experiments.measure.sampling import Sampling, setting_of
from rankscope.experiments.measure.stability import job_to_job_notes
from rankscope.experiments.measure.statistics import simple_time
from rankscope.experiments.measure.variants import compare_conditions
from rankscope.rundir.measurement import Block

NONE, WAITING, RECORDING, ALL = "none", "waiting", "recording", "all"
SWITCHES = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules")


CONDITIONS: dict[str, dict[str, Any]] = {
    NONE: {"kind": "none"},
    WAITING: {"kind": "waiting"},
    RECORDING: {"kind": "profile", "switches": []},
    **{switch: {"kind": "profile", "switches": [switch]} for switch in SWITCHES},
    ALL: {"kind": "profile", "switches": list(SWITCHES)},
}
"""By name: no profiler, a waiting one, a recording one, each switch alone, and all switches."""
SAMPLING = Sampling(blocks=10, block_steps=3, limit_s=600)
"""The default."""


def measure_profiler(
    target: Target, out: Path, start: Start, sampling: Sampling = SAMPLING, on_progress: ProgressCallback = no_progress
) -> ProfilerCost:
    """Measure it, and write ``profiler.json`` and the jobs' folders into ``out``.

    Raises:
        LaunchError: the job failed.
    """
    sampling = replace(sampling, settle_steps=max(1, sampling.settle_steps))  # the profiler's warm-up
    experiment = Experiment("profiler", target, out, sampling, on_progress, settings_of(start))

    def job(_name: str, repeat: int, folder: Path) -> Job:
        return Job(start, sampling.plan(folder, CONDITIONS, repeat))

    def result(jobs: Jobs) -> ProfilerCost:
        cost = _cost(jobs, CONDITIONS, target, sampling, experiment.load)
        save(cost, out)
        return cost

    return result(experiment.run(sampling.job_order(["job"]), job, on_result=result, go_on_after_failure=False))


def _cost(
    jobs: Jobs, conditions: Mapping[str, Mapping[str, Any]], target: Target, sampling: Sampling, load: float | None
) -> ProfilerCost:
    outcomes = jobs.all_outcomes
    compared = compare_conditions(outcomes, list(conditions), NONE, sampling.seed)
    ranks = [rank for outcome in outcomes for rank in outcome.ranks]
    notes = [*jobs.notes(), *job_to_job_notes(jobs.outcomes, NONE)]
    variants = []
    for name, comparison in compared.items():
        blocks = [block for rank in ranks for block in rank.blocks if block.condition == name]
        variants.append(
            ProfiledVariant(
                name=name,
                base=name == NONE,
                switches=list(conditions[name].get("switches", [])),
                step=comparison.step,
                cost=comparison.difference,
                beyond_chance=comparison.beyond_chance,
                stop=simple_time([b.stop_ns for b in blocks if b.stop_ns is not None]),
                save=simple_time([b.save_ns for b in blocks if b.save_ns is not None]),
                bytes_per_step=_bytes(blocks),
            )
        )
    return ProfilerCost(
        setting=setting_of(sampling, target, outcomes, load, notes), world_size=ranks[0].world_size, variants=variants
    )


def _bytes(blocks: list[Block]) -> int | None:
    sizes = [block.trace_bytes / len(block.step_ns) for block in blocks if block.trace_bytes]
    return round(sum(sizes) / len(sizes)) if sizes else None
