"""Find the best CPU binding for the ranks of a host: the same job with each binding, repeated and interleaved.

In: a script and the names of bindings. Out: ``binding.json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankscope.errors import ConfigError, LaunchError
from rankscope.experiments.measure.binding_policies import LIST, NONE, bind, flags
from rankscope.experiments.measure.experiment import Experiment, Job, Jobs, no_job, settings_of
from rankscope.experiments.measure.files import save
from rankscope.experiments.measure.jobs import Outcome, ProgressCallback, Start, Target, no_progress
from rankscope.experiments.measure.results import Binding, BoundVariant
from rankscope.experiments.measure.sampling import Sampling, setting_of
from rankscope.experiments.measure.stability import job_to_job_notes
from rankscope.experiments.measure.statistics import simple_time
from rankscope.experiments.measure.topology import Host, read_host
from rankscope.experiments.measure.variants import compare_jobs, recommend

_CONDITION = "step"
_CONDITIONS = {_CONDITION: {"kind": "none"}}

SAMPLING = Sampling(blocks=8, repeats=3, traced_steps=0, limit_s=120)
"""The default."""


@dataclass(frozen=True)
class Bindings:
    """The bindings to compare.

    Attributes:
        names: their names; ``none`` is always included.
        cpus: the CPU lists of the binding ``list``.
        cores: cores per rank; by default all cores are divided among the ranks.
    """

    names: Sequence[str]
    cpus: str | None = None
    cores: int | None = None


def measure_binding(
    target: Target,
    out: Path,
    start: Start,
    bindings: Bindings,
    *,
    sampling: Sampling = SAMPLING,
    on_progress: ProgressCallback = no_progress,
    host: Host | None = None,
) -> Binding:
    """Compare bindings, and write ``binding.json`` and the jobs' folders into ``out``.

    Args:
        target: the job to run.
        out: the output directory.
        start: how the job is started; all its ranks are on this host.
        bindings: the bindings to compare.
        sampling: blocks, repeats and limits.
        on_progress: called with the progress.
        host: the host; detected by default.

    Raises:
        LaunchError: no job succeeded.
        ConfigError: a binding that is not possible on this host.
    """
    if start.nodes != 1:
        raise ConfigError(
            "bindings are measured on a single host",
            hint="leave out --nnodes; the result applies to hosts of the same kind",
        )
    found_host = host if host is not None else read_host()
    cores = bindings.cores
    names = [NONE, *(name for name in bindings.names if name != NONE)]
    if bindings.cpus is not None and LIST not in names:
        names.append(LIST)
    cpus: dict[str, list[str]] = {}
    notes: list[str] = []
    for name in names:
        lists = bind(name, found_host, start.ranks, cores, bindings.cpus)
        same = next((other for other, known in cpus.items() if known == lists), None)
        if same is not None:
            notes.append(f"{name} is the same as {same} on this host")
            continue
        cpus[name] = lists
    if start.ranks * (cores or 1) > len(found_host.cores):
        per_rank = f" of {cores} cores each" if cores is not None and cores > 1 else ""
        notes.append(f"{start.ranks} ranks{per_rank} share {len(found_host.cores)} cores")
    experiment = Experiment(
        "binding", target, out, sampling, on_progress, {**settings_of(start), "--cores": cores, "--list": bindings.cpus}
    )

    def job(name: str, repeat: int, folder: Path) -> Job:
        return Job(start, sampling.plan(folder, _CONDITIONS, repeat, cpus=tuple(cpus[name]), latency=True))

    def result(jobs: Jobs) -> Binding:
        binding = _result(jobs, cpus, found_host, experiment, start, notes)
        save(binding, out)
        return binding

    jobs = experiment.run(
        sampling.job_order(list(cpus)), job, on_result=result, check=lambda name, outcome: _check(outcome, cpus[name])
    )
    if not jobs.all_outcomes:
        raise no_job(jobs, out, "no job succeeded")
    return result(jobs)


def _result(
    jobs: Jobs, cpus: Mapping[str, list[str]], host: Host, experiment: Experiment, start: Start, notes: Sequence[str]
) -> Binding:
    sampling = experiment.sampling
    compared = compare_jobs(jobs.outcomes, _CONDITION, NONE, sampling.seed)
    variants = []
    for name, lists in cpus.items():
        comparison = compared.get(name)
        latencies = [ns for outcome in jobs.outcomes[name] for rank in outcome.ranks for ns in rank.latency_ns]
        variants.append(
            BoundVariant(
                name=name,
                base=name == NONE,
                cpus=lists,
                state=jobs.state_of(name, sampling.repeats),
                error=jobs.errors.get(name),
                step=comparison.step if comparison else None,
                difference=comparison.difference if comparison else None,
                beyond_chance=comparison.beyond_chance if comparison else None,
                launch_latency=simple_time(latencies),
                flags=flags(lists, host),
            )
        )
    all_notes = [*jobs.notes(), *notes, *job_to_job_notes(jobs.outcomes, _CONDITION)]
    return Binding(
        setting=setting_of(sampling, experiment.target, jobs.all_outcomes, experiment.load, all_notes),
        world_size=start.ranks,
        topology=host.topology(),
        variants=variants,
        recommendation=recommend(compared, NONE, {name: f"bind {name}" for name in cpus}),
    )


def _check(outcome: Outcome, lists: Sequence[str]) -> None:
    """A launcher that sets its own binding, or a container that forbids one, would distort the result."""
    for rank in outcome.ranks:
        if lists and rank.cpus != lists[rank.local_rank]:
            raise LaunchError(
                f"rank {rank.rank} ran on CPUs {rank.cpus}, not on {lists[rank.local_rank]}",
                path=outcome.folder,
                hint="does the script or the launcher set its own binding?",
            )
