"""How large a delay the step log of a plain job shows, and in how many steps.

Then: what is said to be saved, and what is saved where the cause is really removed.

Real jobs with equal ranks (Gloo, the template of `tests/plain_jobs`) give local times that vary as those of a machine
do. In windows of them one rank is made late by a part of the usual step, and the ranks are judged as `rankscope watch`
and `summary` do. Without a delay no rank is to be named.

For the savings, plain jobs whose rank 1 is late run as they are, and with that rank like the others.

`python -m benchmarks plain`, or `python -m benchmarks.plain 2 4 8` for other numbers of ranks. Several minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from tests.plain_jobs.jobs import JOBS, SMALL, PlainJob

import rankscope
from rankscope.watch.judgment import judge
from rankscope.watch.local_times import LocalTimes, local_times
from rankscope.watch.log import WatchLogs
from rankscope.watch.status import read_status

STEPS = 600
WINDOWS = (15, 30, 50, 100)
DELAYS = (0.0, 0.05, 0.1, 0.2, 0.5)
REMOVED = (
    "asleep", "asleep-3-ranks", "asleep-a-little", "four-times-the-batch", "longer-sequences", "tokenize",
    "loader-on-one-rank", "gc-collect", "asleep-fsdp2", "tokenize-tensor-parallel", "asleep-accumulating",
)  # fmt: skip
"""Jobs whose rank 1 can be made like the others."""
FIRST = 20
"""The steps before warm up, and some of them are recorded."""


def run_script(text: str, ranks: int, folder: Path) -> Path:
    """Run a job in a new folder; returns its run directory."""
    folder.mkdir(parents=True)
    (folder / "job.py").write_text(text)
    run = folder / "run"
    command = [sys.executable, "-m", "rankscope", "run", f"--nproc-per-node={ranks}", "job.py"]
    environ = {**os.environ, "RANKSCOPE_RUN_DIR": str(run)}
    subprocess.run(command, cwd=folder, env=environ, check=True, capture_output=True)
    return run


def equal_ranks(ranks: int, folder: Path) -> LocalTimes:
    """The local times of a job whose ranks are alike."""
    job = PlainJob("equal", "ddp", {"sizes": SMALL} if ranks > 2 else {})
    run = run_script(job.script().replace("range(60)", f"range({STEPS})"), ranks, folder / "equal")
    found = local_times(WatchLogs(run).latest(), STEPS)
    if found is None:
        raise SystemExit("the log of the job has no steps that all ranks have")
    return found


def part(times: LocalTimes, first: int, number: int, rank: int, delay: float) -> LocalTimes:
    """Some successive steps, in which a rank is late by a part of the usual one."""
    chosen = slice(first, first + number)
    local = times.local_ns[:, chosen].copy()
    local[rank] += round(delay * float(np.median(times.step_ns)))
    phases = {name: value[:, chosen] for name, value in times.phases.items()}
    return replace(times, steps=times.steps[chosen], step_ns=times.step_ns[:, chosen], local_ns=local, phases=phases)


def named(times: LocalTimes, number: int, delay: float) -> tuple[int, int]:
    """In how many windows the right rank is named, or without a delay any rank, and how many there are."""
    hits = tries = 0
    for first in range(FIRST, times.steps.size - number + 1, max(number // 3, 1)):
        for rank in range(len(times.ranks) if delay else 1):
            found = [each.ranks for each in judge(part(times, first, number, rank, delay)).stragglers if not each.once]
            hits += bool(found) if not delay else found[:1] == [(times.ranks[rank],)]
            tries += 1
    return hits, tries


def table(ranks: int) -> str:
    """Lines of Markdown: a row for each number of steps."""
    with tempfile.TemporaryDirectory() as folder:
        times = equal_ranks(ranks, Path(folder))
    usual = float(np.median(times.step_ns)) / 1e6
    spread = float((np.percentile(times.local_ns, 90) - np.percentile(times.local_ns, 10)) / np.median(times.step_ns))
    lines = [
        f"{ranks} ranks on {os.cpu_count()} cores, {usual:.0f} ms per step; eight tenths of the local times are within "
        f"{100 * spread:.0f} % of a step",
        "",
        "| steps | " + " | ".join("equal ranks" if not delay else f"late by {delay:.0%}" for delay in DELAYS) + " |",
        "|---|" + "---|" * len(DELAYS),
    ]
    for number in WINDOWS:
        cells = [named(times, number, delay) for delay in DELAYS]
        lines.append(
            f"| {number} | " + " | ".join(f"{100 * hit / tries:.0f} % of {tries}" for hit, tries in cells) + " |"
        )
    return "\n".join(lines)


def saved(job: PlainJob) -> str:
    """A row: what is said to be saved per step, and by how much shorter the median step is where rank 1 is like the
    others; of the steps that are not recorded, ms."""
    with tempfile.TemporaryDirectory() as folder:
        late = run_script(job.script(), job.ranks, Path(folder, "late"))
        alike = run_script(job.script().replace("rank == 1", "rank == -1"), job.ranks, Path(folder, "alike"))
        with_it, without = (read_status(each, WatchLogs(each)).step_time for each in (late, alike))
        findings = rankscope.open(late).diagnosis().findings
        said = next((each.saving_ns or 0 for each in findings if each.id == "straggler"), 0)
    assert with_it is not None and without is not None
    measured = with_it.median_ns - without.median_ns
    off = (said - measured) / with_it.median_ns
    return (
        f"| {job.name} | {with_it.median_ns / 1e6:.1f} | {said / 1e6:.1f} | {measured / 1e6:.1f} | {100 * off:+.0f} % |"
    )


def main(ranks: tuple[int, ...] = (2, 4)) -> None:
    """Print the tables."""
    for number in ranks:
        print(table(number), end="\n\n", flush=True)
    print("| job | step, ms | said to be saved | saved | difference, of a step |\n|---|---|---|---|---|")
    for job in JOBS:
        if job.name in REMOVED:
            print(saved(job), flush=True)


if __name__ == "__main__":
    main(tuple(int(each) for each in sys.argv[1:]) or (2, 4))
