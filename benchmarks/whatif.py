"""Is the replay right? Published jobs, recorded steps, and simulated jobs without their fault.

`python -m benchmarks whatif`: the slowdowns of StragglerAnalysis' three public jobs, how far the replay of simulated
jobs and of the real sets is from their recorded steps, and what it says a repair saves, compared with the same
simulated job without the fault. `RANKSCOPE_SHARED` names the folder of the shared sets.

`python -m benchmarks.whatif cost`: CPU seconds and memory of the graph, the replay and the waterfall, against reading.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

import rankscope
from benchmarks.diagnosis.simulated import job_of
from rankscope.engine.pipeline.tasks import analysis_key
from rankscope.errors import ConfigError
from rankscope.experiments.simulate import Job, simulate, simulate_timing
from rankscope.whatif.plain_graphs import PlainGraph

PUBLISHED = ("AR", "SE", "ST")
SEEDS = range(*map(int, os.environ.get("RANKSCOPE_SEEDS", "974000:974060").split(":")))
"""Not used while the replay was made; 910000 to 910015, 930000 to 930007, 940000 to 940026, 950000 to 950032, 960000 to
960060, 970000 to 970025 and 972000 to 973030 were."""
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
class Repair:
    """A fault of a simulated job; ns per step, without the first.

    Attributes:
        cause: the fault.
        true_ns: by how much the step is shorter in the same job without this fault.
        predicted_ns: what the replay says of the ranks of the finding; None without one, or if it is not judged.
    """

    cause: str
    true_ns: float
    predicted_ns: float | None


@dataclass(frozen=True)
class Outcome:
    """A simulated job.

    Attributes:
        name: its seed.
        ranks: how many.
        error: of the replay, |T / T recorded − 1|.
        step_ns: the mean step, without the first.
        repairs: one for each fault.
        stragglers: ranks in the waterfall.
        seconds: CPU time of the graph, the replay and the waterfall.
    """

    name: str
    ranks: int
    error: float
    step_ns: float
    repairs: tuple[Repair, ...]
    stragglers: int
    seconds: float


def error_of(run: rankscope.Run) -> float:
    """The replay's error on a run's mean step; infinite if it cannot be replayed."""
    explained = run.whatif()["explained"][0]
    return float("inf") if explained is None else 1 - float(explained)


def outcome_of(seed: int, job: Job, folder: Path) -> Outcome:
    """Simulate, replay, and compare with the job without each of its faults."""
    truth = simulate(folder / "run", job, costs=False)
    run = rankscope.open(folder / "run", executor="serial")
    error = error_of(run)
    begun = time.process_time()
    run._results.pop(analysis_key("whatif"))  # the ranks' parts are kept
    frame = run.whatif()
    seconds = time.process_time() - begun
    run.stragglers()
    step = float(np.mean(truth.step_ns[1:]))
    repairs = tuple(_repair(run, job, number, step) for number in range(len(job.faults)))
    stragglers = frame.filter((pl.col("order") > 0) & pl.col("command").str.contains("--fix rank", literal=True)).height
    return Outcome(f"seed {seed}", job.ranks, error, step, repairs, stragglers, seconds)


def _repair(run: rankscope.Run, job: Job, number: int, step: float) -> Repair:
    fault = job.faults[number]
    without = simulate_timing(job.without(number), costs=False).step_ns[1:]
    cause, true = f"{fault.kind} {fault.magnitude:.2f}", step - float(np.mean(without))
    kinds = ("slow-network",) if fault.kind == "slow_network" else ("straggler", "stall")
    named = [
        each for each in run.findings if each.id in kinds and set(fault.ranks) & set(each.ranks) and each.weight_ns
    ]
    if not named:
        return Repair(cause, true, None)
    finding = named[0]
    ranks, steps = (",".join(map(str, numbers)) for numbers in (finding.ranks, finding.steps))
    option = f"group={ranks}" if finding.id == "slow-network" else f"rank={ranks}{'@' if steps else ''}{steps}"
    try:
        frame = run.whatif(fix=option)
    except ConfigError:
        return Repair(cause, true, None)
    return Repair(cause, true, float(frame["gain_alone_ns"][1]) if frame.height > 1 else None)


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


COST_JOBS = (
    Job(8, 4, layers=4, kernels_per_layer=8, seed=3),
    Job(64, 3, mesh={"dp": 4, "tp": 8, "pp": 2}, layers=2, kernels_per_layer=4, seed=3),
    Job(1024, 3, mesh={"dp": 64, "tp": 8, "pp": 2}, layers=2, kernels_per_layer=4, seed=3),
    Job(1024, 3, mesh={"dp": 64, "tp": 8, "pp": 2}, layers=8, kernels_per_layer=4, seed=3),
)
_COST = """
import json, resource, sys, time
import rankscope
from rankscope.whatif.gains import candidates, waterfall
from rankscope.whatif.scenarios import AsPeers
def timed(work):
    begun = time.process_time()
    return work(), time.process_time() - begun
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
run = rankscope.open(sys.argv[1], executor="serial")
_, reading = timed(run.load)
run.analyze("segments")
before = peak()
replayed, graph = timed(run.replayed)
_, replay = timed(lambda: replayed.fidelity)
_, fall = timed(lambda: waterfall(replayed, candidates(replayed, [AsPeers((rank,)) for rank in range(8)])))
print(json.dumps({"json": sum(info.json_bytes for info in run.traces), "nodes": int(replayed.graph.line.size),
                  "reading": reading, "graph": graph, "replay": replay, "waterfall": fall, "before": before,
                  "peak": peak()}))
"""


def cost() -> None:
    """What the replay of simulated jobs costs: each in a process of its own, with one thread, without a cache."""
    print(
        "| ranks | JSON, MB per rank | nodes | reading, CPU s | graph | replay | waterfall | together / reading | MB |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for job in COST_JOBS:
        with tempfile.TemporaryDirectory() as folder:
            simulate(Path(folder) / "run", job, costs=False)
            done = subprocess.run(
                [sys.executable, "-c", _COST, str(Path(folder) / "run")],
                capture_output=True,
                text=True,
                check=True,
                env=dict(os.environ, RANKSCOPE_CACHE=str(Path(folder) / "cache"), POLARS_MAX_THREADS="1"),
            )
        found = json.loads(done.stdout)
        parts = [found[name] for name in ("graph", "replay", "waterfall")]
        print(
            f"| {job.ranks:,} | {found['json'] / job.ranks / 1e6:.2f} | {found['nodes']:,} | {found['reading']:.2f} | "
            f"{' | '.join(f'{part:.2f}' for part in parts)} | {sum(parts) / found['reading']:.2f} | "
            f"{found['before'] / 1e6:.0f} → {found['peak'] / 1e6:.0f} |",
            flush=True,
        )


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
    print("\n| simulated job | ranks | error | ranks named | CPU, s | fault | true, ms | replay, ms |")
    print("|---|---|---|---|---|---|---|---|")
    every = []
    for each in outcomes():
        every.append(each)
        about = f"{each.name} | {each.ranks} | {each.error:.4f} | {each.stragglers} | {each.seconds:.2f}"
        for repair in each.repairs or (Repair("none", 0.0, None),):
            values = (repair.true_ns, repair.predicted_ns)
            shown = ["–" if ns is None else f"{ns / 1e6:.3f}" for ns in values]
            print(f"| {about} | {repair.cause} | {' | '.join(shown)} |", flush=True)
    print("\n| | median | 90 % | 95 % | largest |\n|---|---|---|---|---|")
    print(f"| error of the replay, {len(every)} jobs | {quantiles([each.error for each in every])} |")
    clean = [each for each in every if not each.repairs]
    print(f"clean jobs with a rank in the waterfall: {sum(each.stragglers > 0 for each in clean)} of {len(clean)}")
    errors = [
        abs(repair.predicted_ns / repair.true_ns - 1)
        for each in every
        for repair in each.repairs
        if repair.predicted_ns is not None and repair.true_ns >= LEAST_COST * each.step_ns
    ]
    print(f"| error of the saving, {len(errors)} faults | {quantiles(errors)} |")


if __name__ == "__main__":
    cost() if sys.argv[1:] == ["cost"] else main()
