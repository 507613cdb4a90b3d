"""How often the right rank and the right cause are named: simulated jobs, perturbed real traces, real jobs.

`python -m benchmarks diagnosis` runs all four; `python -m benchmarks.diagnosis simulated --seeds 0:100 --keep DIR`
one of them, with options. What counts as right stands in `scoring`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.diagnosis.scoring import Case, clean_by_steps, misses, summary, table, table_by_set

TRACES = "RANKSCOPE_TRACES"


def show(title: str, cases: Sequence[Case], *, least: float = 0.05) -> None:
    """A part's figures; those by kind for what costs ``least`` of a step or more."""
    print(f"\n### {title}\n")
    print("\n".join(summary(cases, least)))
    print("\nBy what the fault costs of a step:\n")
    print("\n".join(table(cases)))
    print(f"\nBy kind, where it costs {least:.0%} or more:\n")
    print("\n".join(table(cases, by=lambda done: done.kind, least=least)))
    print("\nWhere it failed:\n")
    print("\n".join(misses(cases, least)) or "  nowhere")
    print(f"\n{len(cases)} cases, {sum(case.seconds for case in cases):.0f} s of CPU", flush=True)


def main(arguments: Sequence[str] | None = ()) -> None:
    """Run the given parts; ``None``: those of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnosis", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", default=[], choices=["simulated", "stages", "perturbed", "jobs", "ablation", []]
    )
    parser.add_argument("--seeds", default="5000:5200", help="simulated: from:to")
    parser.add_argument("--clean", default="5000:5120", help="simulated: seeds run without their faults")
    parser.add_argument("--lean", action="store_true", help="simulated: steps leaner than those of any real set")
    parser.add_argument("--largest", type=int, help="simulated: only jobs of so many ranks x steps x layers at most")
    parser.add_argument("--steps", type=int, help="simulated: so many recorded steps; fewer than 4: clean runs only")
    parser.add_argument("--host-bound", action="store_true", help="simulated: devices that wait for launches")
    parser.add_argument("--ranks", type=int, help="simulated: jobs of so many ranks instead of those that seeds draw")
    parser.add_argument("--launches", type=int, default=6, help="jobs: how many torchrun launches")
    parser.add_argument("--nccl", action="store_true", help="jobs: on a GPU, with NCCL instead of Gloo")
    parser.add_argument(
        "--traces", default=os.environ.get(TRACES, ""), help=f"perturbed: where the real sets are ({TRACES})"
    )
    parser.add_argument(
        "--draw", type=int, help="perturbed: magnitudes drawn by this seed; stages: seeds from 1000 times this"
    )
    parser.add_argument("--sets", nargs="+", help="perturbed: only these sets")
    parser.add_argument("--keep", type=Path, help="where files are kept, to be used again")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args(arguments)
    # Imported on use: each needs different things (torch, the real traces).
    from benchmarks.diagnosis.ablation import ablation
    from benchmarks.diagnosis.jobs import run_jobs
    from benchmarks.diagnosis.perturbed import SETS, run_sets
    from benchmarks.diagnosis.simulated import job_of, run_seeds, size_of
    from benchmarks.diagnosis.stages import run_stages

    if given.parts == ["ablation"]:
        for line in ablation(given.keep, given.workers):
            print(line, flush=True)
        return
    wanted = given.parts or ["simulated", "stages", "perturbed", "jobs"]
    with tempfile.TemporaryDirectory() as temporary:
        if "simulated" in wanted:
            drawn = {name: getattr(given, name) for name in ("lean", "host_bound", "steps", "ranks")}
            faulty, clean = (
                [
                    seed
                    for seed in _seeds(text)
                    if given.largest is None or size_of(job_of(seed, clean=free, **drawn)) <= given.largest
                ]
                for text, free in ((given.seeds, False), (given.clean, True))
            )
            # A seed that draws no fault is a clean run already.
            clean = [seed for seed in clean if seed not in faulty or job_of(seed, **drawn).faults]
            cases = [
                *run_seeds(faulty, given.keep, given.workers, **drawn),
                *run_seeds(clean, given.keep, given.workers, clean=True, **drawn),
            ]
            show("Simulated jobs", sorted(cases, key=lambda case: case.name))
            print("\nBy how many steps it strikes, where it costs 5% or more:\n")
            print("\n".join(table(cases, by=lambda done: done.when, least=0.05)))
            print("\nClean runs:\n")
            print("\n".join(clean_by_steps(cases)))
        if "stages" in wanted:
            show("Simulated pipelines", [*run_stages(given.keep, given.workers, given.draw or 0)])
        if "perturbed" in wanted and given.traces:
            traces, keep = Path(given.traces), given.keep or Path(temporary)
            cases = [*run_sets(traces, keep, given.workers, given.sets or SETS, given.draw)]
            show("Perturbed real traces", sorted(cases, key=lambda case: case.name))
            print("\nBy set, where it costs 5% or more:\n")
            print("\n".join(table_by_set(cases)))
        elif "perturbed" in wanted:
            print(f"perturbed: no traces; say where they are with {TRACES}")
        if "jobs" in wanted:
            title = "Real NCCL jobs" if given.nccl else "Real Gloo jobs"
            show(title, [*run_jobs(given.launches, given.keep, given.nccl)], least=0.0)


def _seeds(text: str) -> range:
    first, _, last = text.partition(":")
    return range(int(first), int(last or first))
