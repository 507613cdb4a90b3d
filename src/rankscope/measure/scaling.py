"""How a job scales: the same step at several sizes, each repeated, all sizes interleaved.

A size that fails is reported, and the others go on.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.errors import ConfigError, LaunchError
from rankscope.measure import formulas
from rankscope.measure.efficiency_loss import lost_at
from rankscope.measure.experiment import Experiment, Job, Jobs, no_job
from rankscope.measure.files import save
from rankscope.measure.jobs import THREADS_NOTE, Outcome, Start, Target, Told, series, silent
from rankscope.measure.overhead import NO_SYNC, SYNC, overhead_share, phases_of, plan_of
from rankscope.measure.projection import project
from rankscope.measure.results import Scaling, Size, Traced
from rankscope.measure.sampling import Sampling, setting_of
from rankscope.measure.stability import from_job_to_job
from rankscope.measure.statistics import Float, Series, replicates, share_of, widening
from rankscope.rundir.measurement import RankMeasurement
from rankscope.rundir.plurals import ranks_on

PLAIN = "plain"
BATCH = "{batch}"
"""In the script's arguments: the batch of a rank."""
WRAPPABLE = ("rankscope.workloads.resnet18", "rankscope.workloads.transformer")


@dataclass(frozen=True)
class Study:
    """What is compared."""

    ranks: tuple[int, ...]
    """Ranks of a node."""
    nodes: tuple[int, ...] = (1,)
    mode: str = formulas.WEAK
    global_batch: int | None = None
    """Strong scaling: what is divided among the ranks, and put for ``{batch}`` in the script's arguments."""
    plain: bool = True
    """Whether the script is run as a plain process, too."""
    devices: int | None = None
    """Devices, or cores, of a node; None where nobody knows."""
    accelerators: bool = False
    """Whether those are accelerators: more ranks than these cannot be run."""
    oversubscribe: bool = False
    """Run them all the same."""
    launcher: str | None = None
    torchrun: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.ranks or min(self.ranks) < 1 or not self.nodes or min(self.nodes) < 1:
            raise ConfigError("sizes are whole numbers from 1", hint="--nproc 1,2,4")
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
        """How each size is started, the smallest first; the plain process before all."""
        each = sorted({(nodes * ranks, nodes) for nodes in self.nodes for ranks in self.ranks})
        starts = [
            Start(ranks=total, nodes=nodes, launcher=self.launcher, torchrun=self.torchrun) for total, nodes in each
        ]
        return ([Start(plain=True)] if self.plain else []) + starts


SAMPLING = Sampling(blocks=8, repeats=3, limit_s=120)
"""Several jobs of each size, of fewer rounds: one job does not know by how much the next would differ from it."""


def name_of(start: Start) -> str:
    """``plain``, else the number of ranks, and of hosts where these are several: ``8 on 2 nodes``."""
    if start.plain:
        return PLAIN
    return str(start.ranks) if start.nodes == 1 else f"{start.ranks} on {start.nodes} nodes"


def _label(start: Start) -> str:
    """What people call it."""
    return PLAIN if start.plain else ranks_on(start.ranks, start.nodes)


def measure_scaling(
    target: Target,
    out: Path,
    study: Study,
    sampling: Sampling = SAMPLING,
    told: Told = silent,
) -> Scaling:
    """Measure it, and write ``scaling.json`` and the jobs' folders into ``out``, after each job anew.

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
    experiment = Experiment("scaling", target, out, sampling, told, settings)
    starts = {name_of(start): start for start in study.sizes()}
    refused = {name: why for name, start in starts.items() if (why := _refused(start, study)) is not None}
    order = sampling.job_order([name for name in starts if name not in refused])
    # The plain process says whether the script runs without a launcher, and the base of all is wanted early.
    order.sort(key=lambda each: (each[0], each[0] == 0 and each[1] != PLAIN))

    def job(name: str, repeat: int, folder: Path) -> Job:
        start = starts[name]
        plan = plan_of(sampling, folder, repeat, traced=repeat == 0, wrapped=start.ranks > 1, optional=True)
        return Job(start, plan, _sized(target, start, study))

    def result(jobs: Jobs) -> Scaling:
        made = _result(jobs, refused, experiment, starts, target, study)
        save(made, out)
        return made

    jobs = experiment.run(
        order,
        job,
        so_far=result,
        check=lambda name, outcome: _check(starts[name], outcome),
        label=lambda name: _label(starts[name]),
    )
    made = result(jobs)
    if not jobs.every:
        jobs.errors.update(refused)
        raise no_job(jobs, out, "no size could be measured")
    return made


def _sized(target: Target, start: Start, study: Study) -> Target:
    """What is run at a size."""
    words = target.words
    if study.mode == formulas.STRONG and study.global_batch is not None:
        batch = str(study.global_batch // start.ranks)
        words = tuple(word.replace(BATCH, batch) for word in words)
    sized = Target(words, target.module, target.label)
    # At one rank as well, so that what the wrapper itself costs is seen.
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
    traces = _traces(experiment, outcomes)
    times: dict[str, tuple[Series, Float]] = {}
    overheads = {}
    for salt, (name, each) in enumerate(outcomes.items()):
        on = series(each, SYNC) if each else None
        if on is None:
            continue
        off = series(each, NO_SYNC)
        drawn = replicates({SYNC: on, **({NO_SYNC: off} if off is not None else {})}, sampling.seed, salt)
        times[name] = on, drawn[SYNC]
        if off is not None and each[0].ranks[0].wrapper is not None:
            overheads[name] = overhead_share(on, off, drawn[SYNC], drawn[NO_SYNC])
    base = next((name for name in (PLAIN, "1") if name in times), None)
    sizes = [
        _size(name, start, outcomes[name], errors.get(name), times, base, traces, study, sampling)
        for name, start in starts.items()
    ]
    sizes = [replace(size, measured_overhead=overheads.get(size.name)) for size in sizes]
    ranks = [each for jobs in outcomes.values() for job in jobs for each in job.ranks]
    called = {_label(starts[name]): each for name, each in outcomes.items()}
    notes = [*jobs.notes(), *_notes(sizes, base, errors, ranks, study), *from_job_to_job(called, SYNC)]
    t1 = times.get(base) if base is not None else None
    return Scaling(
        setting=setting_of(sampling, target, sys.argv, ranks, experiment.load, notes),
        mode=study.mode,
        base=base,
        sizes=sizes,
        projection=project(sizes, t1[0].median(), t1[1], times, study.mode) if t1 is not None else None,
    )


def _traces(experiment: Experiment, outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, Traced]:
    """What the first job of each size recorded, as far as it did."""
    if not experiment.sampling.traced_steps:
        return {}
    read = {name: experiment.traced(jobs[0])[0] for name, jobs in outcomes.items() if jobs}
    return {name: traced for name, traced in read.items() if traced is not None}


def _size(
    name: str,
    start: Start,
    jobs: Sequence[Outcome],
    error: str | None,
    times: Mapping[str, tuple[Series, Float]],
    base: str | None,
    traces: Mapping[str, Traced],
    study: Study,
    sampling: Sampling,
) -> Size:
    per_node = -(-start.ranks // start.nodes)
    over = study.devices is not None and per_node > study.devices
    if name not in times:
        return Size(
            name,
            start.ranks,
            start.nodes,
            "failed" if error is not None else "pending",
            error=error,
            oversubscribed=over,
        )
    on, drawn = times[name]
    shares: dict[str, Any] = {}
    if base is not None:
        t1, drawn1 = times[base]
        some = min(len(drawn1), len(drawn))
        for field in ("speed_up", "efficiency", "derived_overhead"):
            formula = getattr(formulas, field)
            value = formula(t1.median(), on.median(), start.ranks, study.mode)
            spread = np.empty(0)
            if some and name != base:
                spread = formula(drawn1[:some], drawn[:some], start.ranks, study.mode)
            # No time is below 0: nor is a speed-up, and more than all is not lost.
            within = {"most": 1.0} if field == "derived_overhead" else {"least": 0.0}
            shares[field] = share_of(value, spread, max(widening(t1), widening(on)), **within)
    lost = None
    if base is not None and name in traces and base in traces and name != base:
        lost = lost_at(traces[name], traces[base], on.median(), times[base][0].median(), start.ranks, study.mode)
    phases = phases_of(jobs, SYNC, drawn, sampling.seed)
    first = jobs[0].ranks[0]
    return Size(
        name,
        start.ranks,
        start.nodes,
        "done" if len(jobs) >= sampling.repeats else "pending",
        oversubscribed=over,
        wrapper=first.wrapper,
        batch_per_rank=first.batch,
        repeats=len(jobs),
        step=phases.step,
        phases=phases,
        traced=traces.get(name),
        lost=lost,
        **shares,
    )


def _notes(
    sizes: Sequence[Size], base: str | None, errors: Mapping[str, str], ranks: Sequence[RankMeasurement], study: Study
) -> list[str]:
    notes = []
    if ranks and ranks[0].clock == "host":
        notes.append(THREADS_NOTE)
    if PLAIN in errors:
        notes.append("the script does not run as a plain process, without a launcher: T1 is the job of one rank")
    if base is None and any(size.step is not None for size in sizes):
        notes.append("neither the plain process nor one rank was measured: there is no T1, and no speed-up")
    plain = next((size for size in sizes if size.name == PLAIN and size.step is not None), None)
    if plain is not None and plain.wrapper is not None:
        notes.append(f"the plain process wraps its model, too ({plain.wrapper}): T1 holds the wrapper's own work")
    if any(size.ranks > 1 and size.step is not None and size.wrapper is None for size in sizes):
        notes.append(
            "no DDP or FSDP was seen at several ranks: if they exchange nothing, a distributed job scales otherwise"
        )
    one = next((size for size in sizes if size.name == "1" and size.step is not None), None)
    if one is not None and one.wrapper is None:
        notes.append("the job of one rank does not wrap its model: it is the plain job again")
    if any(size.oversubscribed for size in sizes):
        notes.append(
            f"sizes above {study.devices} ranks a node are oversubscribed: their ranks take turns, and their times say "
            "nothing on how the job scales"
        )
    batches = {size.name: size.batch_per_rank for size in sizes if size.batch_per_rank is not None}
    seen = ", ".join(f"{name}: {batch}" for name, batch in batches.items())
    totals = {size.batch_per_rank * size.ranks for size in sizes if size.batch_per_rank is not None}
    if study.mode == formulas.WEAK and len(set(batches.values())) > 1:
        notes.append(f"weak scaling keeps the batch of a rank, and the model was given batches of {seen}")
    if study.mode == formulas.STRONG and len(totals) > 1:
        notes.append(f"strong scaling keeps the global batch, and the model was given batches a rank of {seen}")
    return notes
