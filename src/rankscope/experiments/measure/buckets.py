"""Find the best settings of a wrapper: DDP's buckets and switches, FSDP's resharding and prefetching, one at a time.

In: a script and the settings to try. Out: ``buckets.json``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rankscope.errors import ConfigError, LaunchError
from rankscope.experiments.measure.experiment import Experiment, Job, Jobs, settings_of
from rankscope.experiments.measure.files import save
from rankscope.experiments.measure.jobs import Outcome, ProgressCallback, Start, Target, no_progress
from rankscope.experiments.measure.results import Buckets, Recommendation, TraceSummary, Variant
from rankscope.experiments.measure.sampling import Sampling, setting_of
from rankscope.experiments.measure.stability import job_to_job_notes
from rankscope.experiments.measure.variants import compare_conditions, compare_jobs, recommend
from rankscope.rundir.measurement import Plan

BASE = "as the script is"
_NONE: dict[str, dict[str, Any]] = {BASE: {"kind": "none"}}
Settings = dict[str, Any]

_FSDP1: dict[str, Settings] = {
    "forward_prefetch": {"forward_prefetch": True},
    "backward_prefetch BACKWARD_POST": {"backward_prefetch": "BACKWARD_POST"},
    "limit_all_gathers off": {"limit_all_gathers": False},
    "no reshard after forward": {"sharding_strategy": "SHARD_GRAD_OP"},
}
_FSDP2: dict[str, Settings] = {
    "reshard after forward": {"kind": "reshard", "after_forward": True},
    "no reshard after forward": {"kind": "reshard", "after_forward": False},
    "prefetch 1 in forward": {"kind": "prefetch", "forward": 1},
    "prefetch 2 in forward": {"kind": "prefetch", "forward": 2},
    "prefetch 2 in backward": {"kind": "prefetch", "backward": 2},
}


@dataclass(frozen=True)
class Factors:
    """The settings of DDP to try."""

    bucket_cap_mb: tuple[float, ...] = (1, 5, 25, 50, 100)
    """Bucket sizes in MiB, as DDP's argument."""
    first_bucket_mb: tuple[float, ...] = ()
    """Sizes of the bucket that is reduced first, with DDP's default for the others."""
    switches: tuple[str, ...] = ("gradient_as_bucket_view", "static_graph")

    def __post_init__(self) -> None:
        if not all(0 < size < math.inf for size in (*self.bucket_cap_mb, *self.first_bucket_mb)):
            raise ConfigError("a bucket size must be a finite number above 0 MiB", hint="--bucket-cap-mb 1,5,25")

    def variants(self) -> dict[str, Settings]:
        """Arguments of DDP by name."""
        variants: dict[str, Settings] = {}
        for size in self.bucket_cap_mb:
            variants[f"bucket_cap_mb {size:g}"] = {"bucket_cap_mb": int(size) if float(size).is_integer() else size}
        for size in self.first_bucket_mb:
            # DDP's limit for the first bucket applies only without bucket_cap_mb.
            variants[f"first bucket {size:g} MiB"] = {"first_bucket_mb": size, "bucket_cap_mb": None}
        for switch in self.switches:
            variants[switch] = {switch: True}
        return variants


SAMPLING = Sampling(blocks=8, repeats=3, limit_s=120)
"""The default."""


def measure_buckets(
    target: Target,
    out: Path,
    start: Start,
    factors: Factors = Factors(),  # frozen
    sampling: Sampling = SAMPLING,
    on_progress: ProgressCallback = no_progress,
) -> Buckets:
    """Measure it, and write ``buckets.json`` and the jobs' folders into ``out``.

    Raises:
        LaunchError: the unchanged script fails, or wraps no module.
    """
    experiment = Experiment("buckets", target, out, sampling, on_progress, settings_of(start))

    def unchanged(_name: str, repeat: int, folder: Path) -> Job:
        return Job(start, _plan(sampling, folder, {}, repeat))

    # The first job shows which wrapper the script uses, and so which settings to try.
    first = experiment.run([(0, BASE)], unchanged, go_on_after_failure=False, announce_kept=False).all_outcomes[0]
    wrapper = first.ranks[0].wrapper
    if wrapper is None:
        raise LaunchError(
            "no DistributedDataParallel, FullyShardedDataParallel or fully_shard module was found", path=first.folder
        )
    if wrapper == "fsdp2":
        return _in_one_job(experiment, target, start, first)
    return _in_jobs(experiment, target, start, wrapper, factors.variants() if wrapper == "ddp" else _FSDP1)


def _plan(sampling: Sampling, folder: Path, wrapper: Settings, repeat: int) -> Plan:
    traced = sampling.traced_steps if repeat == 0 else 0
    return sampling.plan(folder, _NONE, repeat, traced_steps=traced, wrapper=wrapper)


def _in_jobs(
    experiment: Experiment, target: Target, start: Start, wrapper: str, variants: Mapping[str, Settings]
) -> Buckets:
    all_variants: dict[str, Settings] = {BASE: {}, **variants}
    sampling = experiment.sampling
    how = {
        name: ", ".join(f"{k}={v}" for k, v in settings.items() if v is not None) for name, settings in variants.items()
    }

    def job(name: str, repeat: int, folder: Path) -> Job:
        return Job(start, _plan(sampling, folder, all_variants[name], repeat))

    def result(jobs: Jobs) -> Buckets:
        compared = compare_jobs(jobs.outcomes, BASE, BASE, sampling.seed)
        found = []
        for name, settings in all_variants.items():
            outcomes, comparison = jobs.outcomes[name], compared.get(name)
            traced: TraceSummary | None = None
            if outcomes and sampling.traced_steps:
                traced, _ = experiment.traced(outcomes[0])
            found.append(
                Variant(
                    name=name,
                    settings={key: value for key, value in settings.items() if value is not None},
                    base=name == BASE,
                    state=jobs.state_of(name, sampling.repeats),
                    error=jobs.errors.get(name),
                    step=comparison.step if comparison else None,
                    difference=comparison.difference if comparison else None,
                    beyond_chance=comparison.beyond_chance if comparison else None,
                    bucket_bytes=list(outcomes[0].ranks[0].buckets) if outcomes and wrapper == "ddp" else None,
                    traced=traced,
                )
            )
        return _saved(experiment, target, jobs, wrapper, found, recommend(compared, BASE, how))

    return result(experiment.run(sampling.job_order(list(all_variants)), job, on_result=result))


def _in_one_job(experiment: Experiment, target: Target, start: Start, first: Outcome) -> Buckets:
    """FSDP2 can be changed while the job runs, so all variants are conditions of the same jobs."""
    conditions = {**_NONE, **_FSDP2}
    # After two steps, no parameters are left that were gathered with the previous setting.
    sampling = replace(experiment.sampling, settle_steps=max(2, experiment.sampling.settle_steps))
    how = {
        "reshard after forward": "reshard_after_forward=True",
        "no reshard after forward": "reshard_after_forward=False (a rank keeps all parameters until the backward)",
        "prefetch 1 in forward": "set_modules_to_forward_prefetch with the next module",
        "prefetch 2 in forward": "set_modules_to_forward_prefetch with the next two modules",
        "prefetch 2 in backward": "set_modules_to_backward_prefetch with the next two modules",
    }

    def job(_name: str, repeat: int, folder: Path) -> Job:
        return Job(start, sampling.plan(folder, conditions, repeat))

    def result(jobs: Jobs) -> Buckets:
        compared = compare_conditions(jobs.all_outcomes, list(conditions), BASE, sampling.seed)
        traced = experiment.traced(first)[0] if sampling.traced_steps else None
        found = [
            Variant(
                name=name,
                settings={key: value for key, value in conditions[name].items() if key != "kind"},
                base=name == BASE,
                state="done",
                step=comparison.step,
                difference=comparison.difference,
                beyond_chance=comparison.beyond_chance,
                traced=traced if name == BASE else None,
            )
            for name, comparison in compared.items()
        ]
        return _saved(experiment, target, jobs, "fsdp2", found, recommend(compared, BASE, how), sampling)

    return result(
        experiment.run(sampling.job_order(["all variants"]), job, on_result=result, go_on_after_failure=False)
    )


def _saved(
    experiment: Experiment,
    target: Target,
    jobs: Jobs,
    wrapper: str,
    variants: list[Variant],
    recommendation: Recommendation,
    sampling: Sampling | None = None,
) -> Buckets:
    outcomes = jobs.all_outcomes
    notes = [*jobs.notes(), *job_to_job_notes(jobs.outcomes, BASE)]
    result = Buckets(
        setting=setting_of(sampling or experiment.sampling, target, outcomes, experiment.load, notes),
        wrapper=wrapper,
        world_size=outcomes[0].ranks[0].world_size,
        variants=variants,
        recommendation=recommendation,
    )
    save(result, experiment.out)
    return result
