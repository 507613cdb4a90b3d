"""How a job scales: the same step at several sizes, each repeated, all sizes interleaved.

What is finished is kept in ``scaling.json`` and the jobs' folders: the same command goes on where it was ended. A size
that fails is reported, and the others go on.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.errors import ConfigError, LaunchError, RankscopeError
from rankscope.measure import formulas
from rankscope.measure.files import save
from rankscope.measure.jobs import THREADS_NOTE, Outcome, Start, Target, Told, begun, run, series, silent
from rankscope.measure.losses import lost_at
from rankscope.measure.overhead import NO_SYNC, SYNC, overhead_share, phases_of, plan_of
from rankscope.measure.projection import project
from rankscope.measure.results import Scaling, Size, Traced
from rankscope.measure.sampling import Sampling, load_average, setting_of
from rankscope.measure.statistics import Float, Series, replicates, share_of
from rankscope.measure.traced import read_traced
from rankscope.rundir.measurement import RankMeasurement, read_measurements

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
        each = {nodes * ranks: (nodes, ranks) for nodes in sorted(self.nodes, reverse=True) for ranks in self.ranks}
        starts = [
            Start(ranks=total, nodes=each[total][0], launcher=self.launcher, torchrun=self.torchrun)
            for total in sorted(each)
        ]
        return ([Start(plain=True)] if self.plain else []) + starts


def name_of(start: Start) -> str:
    """``plain``, else the number of ranks."""
    return PLAIN if start.plain else str(start.ranks)


def measure_scaling(
    target: Target,
    out: Path,
    study: Study,
    sampling: Sampling = Sampling(),  # noqa: B008  # frozen
    told: Told = silent,
) -> Scaling:
    """Measure it, and write ``scaling.json`` and the jobs' folders into ``out``, after each job anew.

    Raises:
        ConfigError: ``out`` holds another study.
        LaunchError: no size could be measured.
    """
    _claim(out, target, study, sampling)
    load = load_average()
    starts = {name_of(start): start for start in study.sizes()}
    errors = {name: why for name, start in starts.items() if (why := _refused(start, study)) is not None}
    found: dict[str, dict[int, Outcome]] = {name: {} for name in starts}
    traces: dict[str, Traced] = {}
    order = sampling.job_order([name for name in starts if name not in errors])
    # The plain process says whether the script runs without a launcher, and the base of all is wanted early.
    order.sort(key=lambda each: (each[0], each[0] == 0 and each[1] != PLAIN))
    for number, (repeat, name) in enumerate(order):
        if name in errors:
            continue
        folder = out / "jobs" / f"{name}-{repeat}"
        outcome = _finished(folder)
        if outcome is None:
            where = f"{'1 rank' if name == '1' else name if name == PLAIN else f'{name} ranks'}, repeat {repeat + 1}"
            within = begun(told, where, number, len(order))
            try:
                outcome = _run(target, study, starts[name], sampling, folder, repeat, within)
            except (LaunchError, RankscopeError) as error:
                # The rest of this size would fail as well, and what is measured of it would be an odd sample.
                errors[name] = str(error)
                found[name] = {}
                told(
                    f"{name} failed: {error.what.splitlines()[0].removesuffix('; its last lines:')}",
                    number,
                    len(order),
                    "",
                )
                continue
        found[name][repeat] = outcome
        if name not in traces and sampling.traced_steps and (folder / "ranks").is_dir():
            traced, _ = read_traced(folder, out)
            if traced is not None:
                traces[name] = traced
        save(_result(found, starts, errors, traces, target, study, sampling, load), out)
    told("", len(order), len(order), "")
    result = _result(found, starts, errors, traces, target, study, sampling, load)
    save(result, out)
    if not any(found.values()):
        raise LaunchError(
            "no size could be measured:\n" + "\n".join(f"{name}: {why}" for name, why in errors.items()), path=out
        )
    return result


def _run(
    target: Target,
    study: Study,
    start: Start,
    sampling: Sampling,
    folder: Path,
    repeat: int,
    within: Callable[[str], None],
) -> Outcome:
    words = target.words
    if study.mode == formulas.STRONG and study.global_batch is not None:
        batch = str(study.global_batch // start.ranks)
        words = tuple(word.replace(BATCH, batch) for word in words)
    sized = Target(words, target.module, target.label)
    if not start.plain and target.words[0] in WRAPPABLE:
        # At one rank as well, so that what the wrapper itself costs is seen.
        sized = sized.with_arguments("--wrap-alone")
    plan = plan_of(sampling, folder, repeat, traced=repeat == 0, wrapped=start.ranks > 1, optional=True)
    outcome = run(sized, start, plan, timeout_s=sampling.timeout_s, within=within)
    if start.plain and outcome.ranks[0].world_size != 1:
        raise LaunchError(f"the plain process became a job of {outcome.ranks[0].world_size} ranks", path=folder)
    (folder / "done").touch()
    return outcome


def _finished(folder: Path) -> Outcome | None:
    if not (folder / "done").exists():
        return None
    try:
        ranks = read_measurements(folder)
    except RankscopeError:
        return None
    return Outcome(folder, tuple(ranks)) if ranks else None


def _refused(start: Start, study: Study) -> str | None:
    per_node = -(-start.ranks // start.nodes)
    if study.accelerators and study.devices is not None and per_node > study.devices and not study.oversubscribe:
        return (
            f"{per_node} ranks on a node of {study.devices} devices\n"
            "  → choose smaller sizes, or give --oversubscribe if the script shares devices or runs on the CPU"
        )
    return None


def _claim(out: Path, target: Target, study: Study, sampling: Sampling) -> None:
    """Results of two studies must not be mixed: what is measured is written down beside them."""
    chosen, how = asdict(study), asdict(sampling)
    # More repeats and further sizes may be added to a study; time limits change nothing of what is measured.
    for field in ("ranks", "nodes", "devices", "accelerators", "oversubscribe", "plain"):
        chosen.pop(field)
    for field in ("repeats", "limit_s", "timeout_s"):
        how.pop(field)
    text = json.dumps({"target": [*target.words], "study": chosen, "sampling": how}, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = out / "study"
    try:
        out.mkdir(parents=True, exist_ok=True)
        before = path.read_text(encoding="utf-8").strip() if path.exists() else digest
        path.write_text(digest + "\n", encoding="utf-8")
    except OSError as error:
        raise RankscopeError(f"cannot be written: {error.strerror}", path=path, hint="choose another -o") from error
    if before != digest:
        path.write_text(before + "\n", encoding="utf-8")
        raise ConfigError(
            "holds a study of something else: another script, other arguments, or other numbers of steps",
            hint=f"give a new directory with -o, or the arguments with which {out} was begun",
        )


def _result(
    found: Mapping[str, Mapping[int, Outcome]],
    starts: Mapping[str, Start],
    errors: Mapping[str, str],
    traces: Mapping[str, Traced],
    target: Target,
    study: Study,
    sampling: Sampling,
    load: float | None,
) -> Scaling:
    outcomes = {name: [by_repeat[r] for r in sorted(by_repeat)] for name, by_repeat in found.items()}
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
    notes = _notes(sizes, base, errors, ranks, study)
    t1 = times.get(base) if base is not None else None
    return Scaling(
        setting=setting_of(sampling, target, sys.argv, ranks, load, notes),
        mode=study.mode,
        base=base,
        sizes=sizes,
        projection=project(sizes, t1[0].median(), t1[1], times, study.mode) if t1 is not None else None,
    )


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
            shares[field] = share_of(value, spread)
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
