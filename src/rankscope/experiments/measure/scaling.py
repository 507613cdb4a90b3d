"""Measure how a job scales: the same step at several sizes, each repeated, all sizes interleaved.

In: a script and the sizes. Out: ``scaling.json``. A size that fails is reported, and the others are still measured.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.errors import ConfigError, LaunchError
from rankscope.experiments.measure import formulas
from rankscope.experiments.measure.efficiency_loss import efficiency_loss_at
from rankscope.experiments.measure.experiment import Experiment, Job, Jobs, no_job
from rankscope.experiments.measure.files import save
from rankscope.experiments.measure.jobs import Outcome, ProgressCallback, Start, Target, no_progress, series
from rankscope.experiments.measure.overhead import NO_SYNC, SYNC, overhead_share, phases_of, plan_of
from rankscope.experiments.measure.projection import project
from rankscope.experiments.measure.results import EfficiencyLoss, Scaling, Size, TraceSummary
from rankscope.experiments.measure.sampling import Sampling, setting_of
from rankscope.experiments.measure.stability import job_to_job_notes
from rankscope.experiments.measure.statistics import Float, Series, affine, ratio_of, replicates, widening
from rankscope.rundir.plurals import ranks_on

PLAIN = "plain"
BATCH = "{batch}"
"""Placeholder in the script's arguments for the batch per rank."""
WRAPPABLE = ("rankscope.capture.workloads.resnet18", "rankscope.capture.workloads.transformer")


@dataclass(frozen=True)
class Study:
    """The sizes and how they are compared."""

    ranks: tuple[int, ...]
    """Ranks per node."""
    nodes: tuple[int, ...] = (1,)
    mode: str = formulas.WEAK
    global_batch: int | None = None
    """Strong scaling: divided among the ranks, and substituted for ``{batch}`` in the script's arguments."""
    plain: bool = True
    """Whether to run the script as a plain process, too."""
    devices: int | None = None
    """Devices, or cores, per node; None if unknown."""
    accelerators: bool = False
    """Whether those are accelerators: a node cannot run more ranks than accelerators."""
    oversubscribe: bool = False
    """Whether to run sizes with more ranks than devices."""
    launcher: str | None = None
    torchrun: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.ranks or min(self.ranks) < 1 or not self.nodes or min(self.nodes) < 1:
            raise ConfigError("sizes must be whole numbers of at least 1", hint="--nproc 1,2,4")
        if max(self.nodes) > 1 and self.launcher is None:
            raise ConfigError(
                "several hosts need a launcher that starts ranks on all of them",
                hint="--launcher 'srun -N {nodes} -n {ranks}', within an allocation, with -o on shared storage",
            )
        if self.mode == formulas.STRONG and self.global_batch is not None:
            for size in self.sizes():
                if self.global_batch % size.ranks:
                    raise ConfigError(
                        f"a global batch of {self.global_batch} does not spread evenly over {size.ranks} ranks",
                        hint="choose a batch that every size divides",
                    )

    def sizes(self) -> list[Start]:
        """How each size is started: the plain process, then the smallest size first."""
        totals = sorted({(nodes * ranks, nodes) for nodes in self.nodes for ranks in self.ranks})
        starts = [
            Start(ranks=total, nodes=nodes, launcher=self.launcher, torchrun=self.torchrun) for total, nodes in totals
        ]
        return ([Start(plain=True)] if self.plain else []) + starts


SAMPLING = Sampling(blocks=8, repeats=3, limit_s=120)
"""Several jobs per size with fewer rounds: a single job does not show the variation between jobs."""


def name_of(start: Start) -> str:
    """``plain``, or the number of ranks, with the number of hosts if there are several: ``8 on 2 nodes``."""
    if start.plain:
        return PLAIN
    return str(start.ranks) if start.nodes == 1 else f"{start.ranks} on {start.nodes} nodes"


def _label(start: Start) -> str:
    """The name in messages."""
    return PLAIN if start.plain else ranks_on(start.ranks, start.nodes)


def measure_scaling(
    target: Target, out: Path, study: Study, sampling: Sampling = SAMPLING, on_progress: ProgressCallback = no_progress
) -> Scaling:
    """Measure it, and write ``scaling.json`` and the jobs' folders into ``out``, again after each job.

    Raises:
        ConfigError: ``out`` holds another study.
        LaunchError: no size could be measured.
    """
    settings = {
        "--strong": True if study.mode == formulas.STRONG else None,
        "--global-batch": study.global_batch,
        "--launcher": study.launcher,
        "--torchrun": shlex.join(study.torchrun) or None,
    }
    experiment = Experiment("scaling", target, out, sampling, on_progress, settings)
    starts = {name_of(start): start for start in study.sizes()}
    refused = {name: why for name, start in starts.items() if (why := _refused(start, study)) is not None}
    order = sampling.job_order([name for name in starts if name not in refused])
    # First the plain process: it shows whether the script runs without a launcher, and is the base of all sizes.
    order.sort(key=lambda job: (job[0], job[0] == 0 and job[1] != PLAIN))

    def job(name: str, repeat: int, folder: Path) -> Job:
        start = starts[name]
        plan = plan_of(sampling, folder, repeat, traced=repeat == 0, wrapped=start.ranks > 1, optional=True)
        return Job(start, plan, _sized(target, start, study))

    def result(jobs: Jobs) -> Scaling:
        scaling = _result(jobs, refused, experiment, starts, target, study)
        save(scaling, out)
        return scaling

    jobs = experiment.run(
        order,
        job,
        on_result=result,
        check=lambda name, outcome: _check(starts[name], outcome),
        label=lambda name: _label(starts[name]),
    )
    scaling = result(jobs)
    if not jobs.all_outcomes:
        jobs.errors.update(refused)
        raise no_job(jobs, out, "no size could be measured")
    return scaling


def _sized(target: Target, start: Start, study: Study) -> Target:
    """The target at a size."""
    words = target.words
    if study.mode == formulas.STRONG and study.global_batch is not None:
        batch = str(study.global_batch // start.ranks)
        words = tuple(word.replace(BATCH, batch) for word in words)
    sized = Target(words, target.module, target.label)
    # At one rank as well, to show the cost of the wrapper itself.
    return sized.with_arguments("--wrap-alone") if not start.plain and target.words[0] in WRAPPABLE else sized


def _check(start: Start, outcome: Outcome) -> None:
    if start.plain and outcome.ranks[0].world_size != 1:
        raise LaunchError(f"the plain process became a job of {outcome.ranks[0].world_size} ranks", path=outcome.folder)


def _refused(start: Start, study: Study) -> str | None:
    per_node = -(-start.ranks // start.nodes)
    if study.accelerators and study.devices is not None and per_node > study.devices and not study.oversubscribe:
        return (
            f"{per_node} ranks on a node of {study.devices} devices\n"
            "  → choose smaller sizes, or give --oversubscribe if the script shares devices or runs on the CPU"
        )
    return None


def _result(
    jobs: Jobs,
    refused: Mapping[str, str],
    experiment: Experiment,
    starts: Mapping[str, Start],
    target: Target,
    study: Study,
) -> Scaling:
    sampling = experiment.sampling
    outcomes = {name: jobs.outcomes.get(name, []) for name in starts}
    errors = {**refused, **jobs.errors}
    times: dict[str, tuple[Series, Float]] = {}
    overheads = {}
    for salt, (name, of_size) in enumerate(outcomes.items()):
        on = series(of_size, SYNC) if of_size else None
        if on is None:
            continue
        off = series(of_size, NO_SYNC)
        drawn = replicates({SYNC: on, **({NO_SYNC: off} if off is not None else {})}, sampling.seed, salt)
        times[name] = on, drawn[SYNC]
        if off is not None and of_size[0].ranks[0].wrapper is not None:
            overheads[name] = overhead_share(on, off, drawn[SYNC], drawn[NO_SYNC])
    base = next((name for name in (PLAIN, "1") if name in times), None)
    measured = _Measured(study, sampling, times, base, _traces(experiment, outcomes))
    sizes = [measured.size(name, start, outcomes[name], errors.get(name)) for name, start in starts.items()]
    sizes = [replace(size, measured_overhead=overheads.get(size.name)) for size in sizes]
    by_label = {_label(starts[name]): of_size for name, of_size in outcomes.items()}
    notes = [*jobs.notes(), *_notes(sizes, base, errors, study), *job_to_job_notes(by_label, SYNC)]
    t1 = times.get(base) if base is not None else None
    return Scaling(
        setting=setting_of(sampling, target, jobs.all_outcomes, experiment.load, notes),
        mode=study.mode,
        base=base,
        sizes=sizes,
        projection=project(sizes, t1[0].median(), t1[1], times, study.mode) if t1 is not None else None,
    )


def _traces(experiment: Experiment, outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, TraceSummary]:
    """The trace summary of the first job of each size, if it recorded a window."""
    if not experiment.sampling.traced_steps:
        return {}
    read = {name: experiment.traced(jobs[0])[0] for name, jobs in outcomes.items() if jobs}
    return {name: traced for name, traced in read.items() if traced is not None}


@dataclass(frozen=True)
class _Measured:
    """What the jobs of all sizes measured."""

    study: Study
    sampling: Sampling
    times: Mapping[str, tuple[Series, Float]]
    """The steps and their replicates, by name of the size."""
    base: str | None
    traces: Mapping[str, TraceSummary]

    def size(self, name: str, start: Start, jobs: Sequence[Outcome], error: str | None) -> Size:
        """The result of one size."""
        per_node = -(-start.ranks // start.nodes)
        size = Size(
            name,
            start.ranks,
            start.nodes,
            "pending" if error is None else "failed",
            error=error,
            oversubscribed=self.study.devices is not None and per_node > self.study.devices,
        )
        if name not in self.times:
            return size
        phases = phases_of(jobs, SYNC, self.times[name][1], self.sampling.seed)
        first = jobs[0].ranks[0]
        return replace(
            size,
            state="done" if len(jobs) >= self.sampling.repeats else "pending",
            error=None,
            wrapper=first.wrapper,
            batch_per_rank=first.batch,
            repeats=len(jobs),
            step=phases.step,
            phases=phases,
            traced=self.traces.get(name),
            lost=self._loss(name, start),
            **self._shares(name, start),
        )

    def _shares(self, name: str, start: Start) -> dict[str, Any]:
        """Speed-up, efficiency and derived overhead against the base."""
        if self.base is None:
            return {}
        (on, drawn), (t1, drawn1) = self.times[name], self.times[self.base]
        count = min(len(drawn1), len(drawn))
        spread = np.empty(0)
        if count and name != self.base:
            spread = formulas.speed_up(drawn1[:count], drawn[:count], start.ranks, self.study.mode)
        value = formulas.speed_up(t1.median(), on.median(), start.ranks, self.study.mode)
        speed_up = ratio_of(value, spread, max(widening(t1), widening(on)))
        efficiency = affine(speed_up, 1 / start.ranks, 0)
        return {"speed_up": speed_up, "efficiency": efficiency, "derived_overhead": affine(efficiency, -1, 1)}

    def _loss(self, name: str, start: Start) -> EfficiencyLoss | None:
        base, traces = self.base, self.traces
        if base is None or name == base or name not in traces or base not in traces:
            return None
        step, base_step = self.times[name][0].median(), self.times[base][0].median()
        return efficiency_loss_at(traces[name], traces[base], step, base_step, start.ranks, self.study.mode)


def _notes(sizes: Sequence[Size], base: str | None, errors: Mapping[str, str], study: Study) -> list[str]:
    notes = []
    if PLAIN in errors:
        notes.append("the script does not run as a plain process, without a launcher: T1 is the job with one rank")
    if base is None and any(size.step is not None for size in sizes):
        notes.append("neither the plain process nor one rank was measured: there is no T1, and no speed-up")
    plain = next((size for size in sizes if size.name == PLAIN and size.step is not None), None)
    if plain is not None and plain.wrapper is not None:
        notes.append(f"the plain process wraps its model, too ({plain.wrapper}): T1 includes its overhead")
    if any(size.ranks > 1 and size.step is not None and size.wrapper is None for size in sizes):
        notes.append(
            "no DDP or FSDP was found at several ranks: without communication they scale unlike a distributed job"
        )
    one = next((size for size in sizes if size.name == "1" and size.step is not None), None)
    if one is not None and one.wrapper is None:
        notes.append("the job with one rank does not wrap its model: it is the same as the plain job")
    if any(size.oversubscribed for size in sizes):
        notes.append(
            f"sizes above {study.devices} ranks per node are oversubscribed: their ranks share devices, so "
            "their times do not show how the job scales"
        )
    batches = {size.name: size.batch_per_rank for size in sizes if size.batch_per_rank is not None}
    seen = ", ".join(f"{name}: {batch}" for name, batch in batches.items())
    totals = {size.batch_per_rank * size.ranks for size in sizes if size.batch_per_rank is not None}
    if study.mode == formulas.WEAK and len(set(batches.values())) > 1:
        notes.append(f"weak scaling keeps the batch per rank, but the model was given batches of {seen}")
    if study.mode == formulas.STRONG and len(totals) > 1:
        notes.append(f"strong scaling keeps the global batch, but the model was given batches per rank of {seen}")
    return notes
