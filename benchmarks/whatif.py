"""Is the replay right? Published jobs, recorded steps, and simulated jobs without their fault.

`python -m benchmarks whatif`: the slowdowns of StragglerAnalysis' three public jobs, how far the replay of simulated
jobs and of the real sets is from their recorded steps, and what it says a repair saves, compared with the same
simulated job without the fault. `RANKSCOPE_SHARED` names the folder of the shared sets.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import rankscope
from benchmarks.diagnosis.simulated import job_of
from rankscope.simulate import Job, simulate
from rankscope.whatif.plain_graphs import PlainGraph

PUBLISHED = ("AR", "SE", "ST")
SEEDS = range(*map(int, os.environ.get("RANKSCOPE_SEEDS", "960000:960050").split(":")))
"""Not used while the replay was made; 910000 to 910015, 930000 to 930007, 940000 to 940026 and 950000
to 950025 were."""
LARGEST = 64
"""Ranks."""
LEAST_COST = 0.02
"""Of a step: smaller faults have no meaningful relative error."""


def shared() -> Path | None:
    """The folder of the shared sets, if there is one."""
    named = os.environ.get("RANKSCOPE_SHARED")
    folders = [Path(named)] if named else [parent / "shared" for parent in Path(__file__).resolve().parents]
    return next((folder for folder in folders if (folder / "whatif").is_dir()), None)


def largest_difference(folder: Path, name: str) -> tuple[float, float, int]:
    """Of a published job: S, the largest difference of S and of all S of its parts, and how many there are."""
    job = PlainGraph.read(folder / f"published-{name}.npz")
    published = json.loads((folder / f"published-{name}.json").read_text())
    slowdown = job.slowdown()
    differences = [slowdown - published["blocking_slowdown"]]
    shape = job.recorded.shape[:2]
    for kind, value in published["blocking_decompose_by_optype"].items():
        # Both ends of a pipeline's transfers count as one type.
        kinds = [kind.replace("pp-comm", end) for end in ("send", "recv")] if kind.endswith("pp-comm") else [kind]
        differences.append(job.slowdown(np.broadcast_to(np.isin(job.kind, kinds)[:, None], shape)) - value)
    for stage, value in published["blocking_decompose_by_stage"].items():
        differences.append(job.slowdown(np.broadcast_to((job.stage == int(stage))[:, None], shape)) - value)
    for replica, value in published["blocking_decompose_by_dp_rank"].items():
        differences.append(job.slowdown(np.broadcast_to(np.arange(shape[1]) == int(replica), shape)) - value)
    return slowdown, float(np.abs(differences).max()), len(differences)


@dataclass(frozen=True)
class Outcome:
    """A simulated job.

    Attributes:
        error: of the replay, |T / T recorded − 1|.
        step_ns: the mean step, without the first.
        true_ns: by how much it is shorter without the faults.
        predicted_ns: what the replay says; None if no finding names the fault's rank.
        finding_ns: what the finding says.
        cause: of the fault.
        seconds: CPU time of the replay and its scenarios.
    """

    name: str
    ranks: int
    error: float
    step_ns: float
    true_ns: float
    predicted_ns: float | None
    finding_ns: float | None
    cause: str
    seconds: float


def error_of(run: rankscope.Run) -> float:
    """The replay's error on a run's mean step; infinite if it cannot be replayed."""
    findings = run.analyze("whatif")["whatif"].findings
    errors = [each.value for finding in findings for each in finding.evidence if each.name == "error of the mean step"]
    return float(errors[0]) if errors else float("inf")


def outcome_of(seed: int, job: Job, folder: Path) -> Outcome:
    """Simulate, replay, and compare with the job without its faults."""
    truth = simulate(folder / "run", job)
    run = rankscope.open(folder / "run", executor="serial")
    error = error_of(run)
    begun = time.process_time()
    run.whatif(overlap=True)
    seconds = time.process_time() - begun
    step, clean = np.array(truth.step_ns)[1:], np.array(truth.clean_step_ns or truth.step_ns)[1:]
    predicted = said = None
    run.stragglers()
    at_fault = {rank for fault in job.faults for rank in fault.ranks}
    for finding in run.findings:
        if finding.id in ("straggler", "stall", "slow-network") and at_fault & set(finding.ranks) and finding.saving_ns:
            ranks = ",".join(map(str, finding.ranks))
            steps = "@" + ",".join(map(str, finding.steps)) if finding.steps else ""
            option = f"group={ranks}" if finding.id == "slow-network" else f"rank={ranks}{steps}"
            said = float(finding.saving_ns)
            try:
                frame = run.whatif(fix=option)
            except rankscope.errors.ConfigError:
                break
            predicted = float(frame["gain_alone_ns"][1]) if frame.height > 1 else None
            break
    cause = ", ".join(f"{fault.kind} {fault.magnitude:.2f}" for fault in job.faults)
    return Outcome(
        f"seed {seed}", job.ranks, error, float(step.mean()), float(step.mean() - clean.mean()), predicted, said, cause,
        seconds,
    )  # fmt: skip


def outcomes() -> Iterator[Outcome]:
    """The simulated jobs of all seeds, one after another."""
    for seed in SEEDS:
        job = job_of(seed, lean=True)
        if job.ranks > LARGEST:
            continue
        folder = Path(tempfile.mkdtemp())
        os.environ["RANKSCOPE_CACHE"] = str(folder / "cache")
        try:
            yield outcome_of(seed, job, folder)
        finally:
            shutil.rmtree(folder)


def real_runs(traces: Path) -> Iterator[tuple[str, list[Path]]]:
    """The shared sets with several ranks."""
    for name in ("modded-nanogpt-h100-8ranks", "tensorboard-plugin/ddp_gloo_torch213_3ranks"):
        yield name, [traces / name]
    for folder in sorted((traces / "torchrec").iterdir()):
        yield f"torchrec/{folder.name}", [folder]
    for first in sorted((traces / "gloo-2ranks").glob("*.rank0.json.gz")):
        yield f"gloo-2ranks/{first.name.split('.')[0]}", [first, first.with_name(first.name.replace("rank0", "rank1"))]


def quantiles(values: list[float]) -> str:
    """Median, 90 %, 95 % and the largest."""
    found = [*np.quantile(values, (0.5, 0.9, 0.95)), max(values)] if values else []
    return " | ".join(f"{value:.3f}" for value in found)


def main() -> None:
    """Print the tables of docs/what_a_fix_would_save.md."""
    folder = shared()
    if folder is not None:
        print("| published job | S | slowdowns compared | largest difference |\n|---|---|---|---|")
        for name in PUBLISHED:
            slowdown, difference, count = largest_difference(folder / "whatif", name)
            print(f"| {name} | {slowdown:.6f} | {count} | {difference:.1e} |")
        print("\n| real run | error of the replay |\n|---|---|")
        for name, paths in real_runs(folder / "traces"):
            print(f"| {name} | {error_of(rankscope.open(paths, executor='serial')):.2%} |", flush=True)
    print("\n| simulated job | ranks | error | fault | true, ms | replay, ms | finding, ms | CPU, s |")
    print("|---|---|---|---|---|---|---|---|")
    every = []
    for each in outcomes():
        every.append(each)
        shown = [
            f"{ns / 1e6:.3f}" if ns is not None else "–" for ns in (each.true_ns, each.predicted_ns, each.finding_ns)
        ]
        about = f"{each.name} | {each.ranks} | {each.error:.3f} | {each.cause}"
        print(f"| {about} | {' | '.join(shown)} | {each.seconds:.2f} |", flush=True)
    print("\n| | median | 90 % | 95 % | largest |\n|---|---|---|---|---|")
    print(f"| error of the replay, {len(every)} jobs | {quantiles([each.error for each in every])} |")
    named = [each for each in every if each.predicted_ns is not None and each.true_ns >= LEAST_COST * each.step_ns]
    for what, values in (
        ("replay", [each.predicted_ns for each in named]),
        ("finding", [each.finding_ns for each in named]),
    ):
        errors = [abs((value or 0) / each.true_ns - 1) for value, each in zip(values, named, strict=True)]
        print(f"| error of the saving, {what}, {len(named)} faults | {quantiles(errors)} |")
