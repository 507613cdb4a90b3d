"""The score of the plain jobs: python -m tests.plain_jobs.score [--times 3] [--json FILE] [--keep DIR] [NAME …]."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.plain_jobs.jobs import JOBS, PlainJob
from tests.plain_jobs.running import PARTS, Outcome, run_plain_job

_MARKS = {True: "yes", False: "NO", None: "-"}


def main(arguments: list[str]) -> int:
    """Run jobs and print their score; 1 if any is not as expected."""
    parser = argparse.ArgumentParser(prog="python -m tests.plain_jobs.score", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="jobs to run; all by default")
    parser.add_argument("--times", type=int, help="runs of each job; by default, as the table has it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the results")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where to leave scripts and run directories")
    options = parser.parse_args(arguments)
    known = {job.name: job for job in JOBS}
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"no such job: {', '.join(unknown)}; there are {', '.join(known)}")
    jobs = [known[name] for name in options.names] or list(JOBS)
    with tempfile.TemporaryDirectory() as temporary:
        outcomes = [
            outcome
            for job in jobs
            for outcome in _runs(job, options.times or job.times, options.keep or Path(temporary))
        ]
    print(table(outcomes))
    for outcome in outcomes:
        if outcome.wrong:
            print(f"\n--- {outcome.name}", *outcome.wrong, "", outcome.summary.rstrip(), sep="\n")
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in outcomes], indent=1) + "\n", encoding="utf-8")
    return int(any(outcome.wrong for outcome in outcomes))


def _runs(job: PlainJob, times: int, folder: Path) -> list[Outcome]:
    found = []
    for number in range(1, times + 1):
        print(f"{job.name} ({number} of {times})", file=sys.stderr, flush=True)
        found.append(run_plain_job(job, folder / (job.name if times == 1 else f"{job.name}.{number}")))
    return found


def table(outcomes: list[Outcome]) -> str:
    """Job × part, and how many of each part are as expected."""
    width = max(len("as expected"), *(len(each.name) for each in outcomes))
    rows = [("", *PARTS), *((each.name, *(_MARKS[each.parts[part]] for part in PARTS)) for each in outcomes)]
    sums = []
    for part in PARTS:
        judged = [each.parts[part] for each in outcomes if each.parts[part] is not None]
        sums.append(f"{sum(map(bool, judged))} of {len(judged)}")
    rows.append(("as expected", *sums))
    return "\n".join(f"{name:<{width}}" + "".join(f"  {cell:>16}" for cell in cells) for name, *cells in rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
