"""The plain jobs of `tests/plain_jobs`: what is said of them, and what is saved where the cause is really removed.

1. How large a delay the step log of a job shows, and in how many steps. Real jobs with equal ranks (Gloo) give local
   times that vary as those of a machine do. In windows of them one rank is made late by a part of the usual step, and
   the ranks are judged as `rankscope watch` and `summary` do. Without a delay no rank is to be named.
2. Each plain job runs with defaults: rank named, cause named, first line helps, nothing false. A job with a late rank
   then runs with that rank like the others: by so much its mean step becomes shorter.
3. The same runs, scored by their findings like those of `benchmarks diagnosis`.

`python -m benchmarks plain` runs each job three times, which takes an hour on two idle cores;
`python -m benchmarks.plain --times 1 --keep DIR asleep equal` only these jobs, once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tests.plain_jobs.jobs import JOBS, SMALL, PlainJob
from tests.plain_jobs.running import PARTS, Outcome, run_plain_job, run_script

import rankscope
from benchmarks.diagnosis import show
from benchmarks.diagnosis.scoring import Case, Done, said_of
from rankscope.answers.watch.judgment import judge
from rankscope.answers.watch.local_times import LocalTimes, local_times
from rankscope.answers.watch.log import WatchLogs

STEPS = 600
WINDOWS = (15, 30, 50, 100)
DELAYS = (0.0, 0.05, 0.1, 0.2, 0.5)
WARM_UP = 5
FIRST = 20
"""The steps before warm up, and some of them are recorded."""
COLUMNS = (*PARTS, "step, ms", "reported, ms", "saved, ms", "difference, of a step")


def equal_ranks(ranks: int, folder: Path) -> LocalTimes:
    """The local times of a job whose ranks are alike."""
    job = PlainJob("equal", "ddp", {"sizes": SMALL} if ranks > 2 else {})
    code, text = run_script(job.script().replace("range(60)", f"range({STEPS})"), ranks, folder)
    found = local_times(WatchLogs(folder / "run").latest(), STEPS)
    if code or found is None:
        raise SystemExit(f"the log of the job has no steps that all ranks have:\n{text}")
    return found


def part(times: LocalTimes, first: int, number: int, rank: int, delay: float) -> LocalTimes:
    """Some successive steps, in which a rank is late by a part of the usual one."""
    chosen = slice(first, first + number)
    local = times.local_ns[:, chosen].copy()
    local[rank] += round(delay * float(np.median(times.step_ns)))
    phases = {name: value[:, chosen] for name, value in times.phases.items()}
    ready = None if times.ready_ns is None else times.ready_ns[:, chosen]
    part_of = replace(times, steps=times.steps[chosen], step_ns=times.step_ns[:, chosen])
    return replace(part_of, local_ns=local, phases=phases, ready_ns=ready)


def named(times: LocalTimes, number: int, delay: float) -> tuple[int, int]:
    """In how many windows the right rank is named, or without a delay any rank, and how many there are."""
    hits = tries = 0
    for first in range(FIRST, times.steps.size - number + 1, max(number // 3, 1)):
        for rank in range(len(times.ranks) if delay else 1):
            found = [each.ranks for each in judge(part(times, first, number, rank, delay)).stragglers if not each.once]
            hits += bool(found) if not delay else found[:1] == [(times.ranks[rank],)]
            tries += 1
    return hits, tries


def delays(ranks: int) -> str:
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


@dataclass(frozen=True)
class Ran:
    """One run of a plain job.

    Attributes:
        job: the job.
        outcome: how its summary compares with what is expected of it.
        case: its findings, and what was done to it.
        step_ns: its mean step, of those that are not recorded; None if it has none.
        reported_ns: the saving that is reported of the late rank.
        saved_ns: by how much its mean step is shorter without the cause.
    """

    job: PlainJob
    outcome: Outcome
    case: Case
    step_ns: int | None = None
    reported_ns: int | None = None
    saved_ns: int | None = None


def mean_step(run: Path) -> int | None:
    """Of a run's log, ns, without the steps that warm up."""
    times = local_times(WatchLogs(run).latest(), STEPS)
    return None if times is None or times.steps.size <= WARM_UP else int(times.step_ns[:, WARM_UP:].max(axis=0).mean())


def ran(job: PlainJob, folder: Path) -> Ran:
    """Run a job, and without its cause; leaves the run directories in a folder."""
    outcome = run_plain_job(job, folder)
    findings = rankscope.open(folder / "run").diagnosis().findings
    if job.late is None or job.hangs:
        return Ran(job, outcome, Case(job.name, (), said_of(findings)), mean_step(folder / "run"))
    run_script(job.without_cause(), job.ranks, folder / "without", job.options)
    step, alike = mean_step(folder / "run"), mean_step(folder / "without" / "run")
    of_rank = next((each for each in findings if each.id == "straggler" and each.ranks == (job.late,)), None)
    saved = None if step is None or alike is None else step - alike
    cost = 0.0 if saved is None or not alike else max(saved / alike, 0.0)
    done = Done(frozenset({job.late}), job.classes, cost, job.name)
    case = Case(job.name, (done,), said_of(findings))
    return Ran(job, outcome, case, step, (of_rank.saving_ns or 0) if of_rank is not None else 0, saved)


def row(runs: Sequence[Ran]) -> str:
    """The runs of a job as a row of Markdown: how many are as expected, and medians."""
    cells = []
    for name in PARTS:
        judged = [each.outcome.parts[name] for each in runs if each.outcome.parts[name] is not None]
        cells.append(f"{sum(map(bool, judged))} of {len(judged)}" if judged else "–")
    step, reported, saved = (
        [value for value in (getattr(each, name) for each in runs) if value is not None]
        for name in ("step_ns", "reported_ns", "saved_ns")
    )
    cells += [f"{statistics.median(each) / 1e6:.1f}" if each else "–" for each in (step, reported, saved)]
    off = [
        (each.reported_ns - each.saved_ns) / each.step_ns
        for each in runs
        if each.reported_ns is not None and each.saved_ns is not None and each.step_ns
    ]
    cells.append(f"{100 * statistics.median(off):+.0f} %" if off else "–")
    return f"| {runs[0].job.name} | {' | '.join(cells)} |"


def score(jobs: Sequence[PlainJob], times: int, folder: Path) -> list[Ran]:
    """Run jobs, and print a row for each, the sums, and what was not as expected."""
    print(f"| job | {' | '.join(COLUMNS)} |\n|---|{'---|' * len(COLUMNS)}", flush=True)
    every: list[Ran] = []
    for job in jobs:
        runs = [ran(job, folder / f"{job.name}.{number}") for number in range(1, times + 1)]
        print(row(runs), flush=True)
        every += runs
    sums = []
    for name in PARTS:
        judged = [each.outcome.parts[name] for each in every if each.outcome.parts[name] is not None]
        sums.append(f"{sum(map(bool, judged))} of {len(judged)}")
    print(f"| **all** | {' | '.join([*sums, *[''] * (len(COLUMNS) - len(PARTS))])} |")
    for each in every:
        if each.outcome.wrong:
            print(f"\n--- {each.job.name}", *each.outcome.wrong, "", each.outcome.summary.rstrip(), sep="\n")
    return every


def main(arguments: Sequence[str] = ()) -> None:
    """Print the tables."""
    known = {job.name: job for job in JOBS}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plain", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="jobs to run, without the first table; all by default")
    parser.add_argument("--times", type=int, default=3, help="runs of each job")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4], help="of the first table")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where to leave scripts and run directories")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.names if name not in known]:
        parser.error(f"no such job: {', '.join(unknown)}; there are {', '.join(known)}")
    for number in [] if given.names else given.ranks:
        print(delays(number), end="\n\n", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        jobs = [known[name] for name in given.names] or JOBS
        every = score(jobs, given.times, given.keep or Path(temporary))
    show("Plain jobs", [each.case for each in every], least=0.0)


if __name__ == "__main__":
    main(sys.argv[1:])
