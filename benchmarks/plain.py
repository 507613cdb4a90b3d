"""How large a delay the step log of a plain job shows, and in how many steps.

Real jobs with equal ranks (Gloo, the template of `tests/plain_jobs`) give local times that vary as those of a machine
do. In windows of them one rank is made late by a part of the usual step, and the ranks are judged as `rankscope watch`
and `summary` do. Without a delay no rank is to be named.

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
from tests.plain_jobs.jobs import SMALL, PlainJob

from rankscope.watch.judgment import judge
from rankscope.watch.local_times import LocalTimes, local_times
from rankscope.watch.log import WatchLogs

STEPS = 600
WINDOWS = (15, 30, 50, 100)
DELAYS = (0.0, 0.05, 0.1, 0.2, 0.5)
FIRST = 20
"""The steps before warm up, and some of them are recorded."""


def equal_ranks(ranks: int, folder: Path) -> LocalTimes:
    """The local times of a job whose ranks are alike."""
    job = PlainJob("equal", "ddp", {"sizes": SMALL} if ranks > 2 else {})
    script = folder / "job.py"
    script.write_text(job.script().replace("range(60)", f"range({STEPS})"))
    run = folder / "run"
    command = [sys.executable, "-m", "rankscope", "run", f"--nproc-per-node={ranks}", script.name]
    environ = {**os.environ, "RANKSCOPE_RUN_DIR": str(run)}
    subprocess.run(command, cwd=folder, env=environ, check=True, capture_output=True)
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


def main(ranks: tuple[int, ...] = (2, 4)) -> None:
    """Print the tables."""
    for number in ranks:
        print(table(number), end="\n\n", flush=True)


if __name__ == "__main__":
    main(tuple(int(each) for each in sys.argv[1:]) or (2, 4))
