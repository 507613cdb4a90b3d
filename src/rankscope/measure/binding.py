"""Which CPUs the ranks of a host are best bound to: the same job under each affinity, repeated and interleaved."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rankscope.errors import ConfigError, LaunchError
from rankscope.measure.binding_policies import LIST, NONE, bind, flags
from rankscope.measure.experiment import Experiment, Job, Jobs, no_job, settings_of
from rankscope.measure.files import save
from rankscope.measure.jobs import THREADS_NOTE, Outcome, Start, Target, Told, silent
from rankscope.measure.results import Binding, BoundVariant
from rankscope.measure.sampling import Sampling, setting_of
from rankscope.measure.stability import from_job_to_job
from rankscope.measure.statistics import simple_time
from rankscope.measure.topology import Host, read_host
from rankscope.measure.variants import compare_jobs, recommend

_CONDITION = "step"
_CONDITIONS = {_CONDITION: {"kind": "none"}}

SAMPLING = Sampling(blocks=8, repeats=3, traced_steps=0, limit_s=120)
"""What is measured where nothing else is asked for."""


def measure_binding(
    target: Target,
    out: Path,
    start: Start,
    names: Sequence[str],
    *,
    given: str | None = None,
    cores: int | None = None,
    sampling: Sampling = SAMPLING,
    told: Told = silent,
    host: Host | None = None,
) -> Binding:
    """Measure it, and write ``binding.json`` and the jobs' folders into ``out``.

    Args:
        target: what is run.
        out: the output directory.
        start: how; all its ranks are on this host.
        names: the affinities; ``none`` is always among them.
        given: the list of ``list``.
        cores: cores of a rank; by default all are shared out.
        sampling: how often.
        told: is told how far it is.
        host: the host; read by default.

    Raises:
        LaunchError: no job went through.
        ConfigError: an affinity that this host cannot give.
    """
    if start.nodes != 1:
        raise ConfigError("bindings are measured on one host", hint="leave out --nnodes; one node's best is another's")
    found_host = host if host is not None else read_host()
    wanted = [NONE, *(name for name in names if name != NONE)]
    if given is not None and LIST not in wanted:
        wanted.append(LIST)
    cpus: dict[str, list[str]] = {}
    notes: list[str] = []
    for name in wanted:
        lists = bind(name, found_host, start.ranks, cores, given)
        same = next((other for other, theirs in cpus.items() if theirs == lists), None)
        if same is not None:
            notes.append(f"{name} is the same as {same} on this host")
            continue
        cpus[name] = lists
    if start.ranks * (cores or 1) > len(found_host.cores):
        of = f" of {cores} cores each" if cores is not None and cores > 1 else ""
        notes.append(f"{start.ranks} ranks{of} share {len(found_host.cores)} cores")
    experiment = Experiment(
        "binding", target, out, sampling, told, {**settings_of(start), "--cores": cores, "--list": given}
    )

    def job(name: str, repeat: int, folder: Path) -> Job:
        return Job(start, sampling.plan(folder, _CONDITIONS, repeat, cpus=tuple(cpus[name]), latency=True))

    def result(jobs: Jobs) -> Binding:
        made = _result(jobs, cpus, found_host, target, start, sampling, experiment.load, notes)
        save(made, out)
        return made

    jobs = experiment.run(
        sampling.job_order(list(cpus)), job, so_far=result, check=lambda name, outcome: _check(outcome, cpus[name])
    )
    if not jobs.every:
        raise no_job(jobs, out, "no job went through")
    return result(jobs)


def _result(
    jobs: Jobs,
    cpus: Mapping[str, list[str]],
    host: Host,
    target: Target,
    start: Start,
    sampling: Sampling,
    load: float | None,
    notes: Sequence[str],
) -> Binding:
    compared = compare_jobs(jobs.outcomes, _CONDITION, NONE, sampling.seed)
    variants = []
    for name, lists in cpus.items():
        each = compared.get(name)
        latencies = [ns for outcome in jobs.outcomes[name] for rank in outcome.ranks for ns in rank.latency_ns]
        variants.append(
            BoundVariant(
                name=name,
                base=name == NONE,
                cpus=lists,
                state=jobs.state_of(name, sampling.repeats),
                error=jobs.errors.get(name),
                step=each.step if each else None,
                difference=each.difference if each else None,
                beyond_chance=each.beyond_chance if each else None,
                launch_latency=simple_time(latencies),
                flags=flags(lists, host),
            )
        )
    ranks = [rank for outcome in jobs.every for rank in outcome.ranks]
    said = [*jobs.notes(), *notes, *([THREADS_NOTE] if ranks[0].clock == "host" else [])]
    said += from_job_to_job(jobs.outcomes, _CONDITION)
    return Binding(
        setting=setting_of(sampling, target, sys.argv, ranks, load, said),
        world_size=start.ranks,
        topology=host.topology(),
        variants=variants,
        recommendation=recommend(compared, NONE, {name: f"bind {name}" for name in cpus}),
    )


def _check(outcome: Outcome, lists: Sequence[str]) -> None:
    """A launcher that binds by itself, or a container that forbids it, would measure something else."""
    for rank in outcome.ranks:
        if lists and rank.cpus != lists[rank.local_rank]:
            raise LaunchError(
                f"rank {rank.rank} ran on CPUs {rank.cpus}, not on {lists[rank.local_rank]}",
                path=outcome.folder,
                hint="does the script bind itself, or the launcher?",
            )
