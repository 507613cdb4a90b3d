"""Jobs as newcomers write them, run with defaults: their summaries say what is so, and nothing that is not."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest
from tests.plain_jobs.jobs import JOBS, PlainJob
from tests.plain_jobs.running import first_finding, judge, run_plain_job


def marked(job: PlainJob) -> tuple[pytest.MarkDecorator, ...]:
    return (pytest.mark.slow, pytest.mark.timing) if job.timing else (pytest.mark.slow,)


@pytest.mark.parametrize("job", [pytest.param(job, id=job.name, marks=marked(job)) for job in JOBS])
def test_summary(job: PlainJob, tmp_path: Path) -> None:
    if "sched_setaffinity" in job.script() and len(getattr(os, "sched_getaffinity", lambda _: ())(0)) < 2:
        pytest.skip("needs two cores")
    for number in range(job.times):
        outcome = run_plain_job(job, tmp_path / str(number))
        assert not outcome.wrong, "\n".join([*outcome.wrong, "", outcome.summary])


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_script_is_whole_and_short(job: PlainJob) -> None:
    script = job.script()
    ast.parse(script)
    assert script.count("\n") <= 40
    assert not re.search(r"# (imports|group|sizes|model|setup|loading|forward|after step)$", script, re.MULTILINE)
    assert all(re.compile(job.pattern(each)) for each in (*job.says, *job.never))


@pytest.mark.parametrize(
    "job", [job for job in JOBS if job.late is not None and not job.hangs], ids=lambda job: job.name
)
def test_its_cause_can_be_removed(job: PlainJob) -> None:
    alike = job.without_cause()
    ast.parse(alike)
    assert alike.count("rank == -1") >= 1
    assert not re.search(rf"rank == {job.late}\b", alike)


def test_names_are_unique() -> None:
    assert len({job.name for job in JOBS}) == len(JOBS)


SAID = """run
stragglers  rank 1: it sleeps or is blocked at job.py:%s, costs up to 50.1 ms per step
memory      not recorded

warning Rank 1 delays the other ranks: it sleeps or is blocked at job.py:%s,
        50 ms per step
      → Look there.
info    Something else
"""


def test_the_first_finding_is_it_and_its_advice() -> None:
    assert first_finding(SAID).splitlines()[0].startswith("warning Rank 1")
    assert first_finding(SAID).splitlines()[-1] == "      → Look there."
    assert first_finding("stragglers  none\nmemory  none\n") == "stragglers  none"


def test_parts_are_judged_one_by_one() -> None:
    asleep = next(job for job in JOBS if job.name == "asleep")
    (line,) = (n for n, text in enumerate(asleep.script().splitlines(), 1) if "time.sleep" in text)
    assert not judge(asleep, "", SAID % (line, line)).wrong
    other = judge(asleep, "", (SAID % (line - 1, line - 1)).replace("Rank 1", "Rank 0"))
    assert other.parts == {
        "rank named": True, "cause named": False, "first line helps": False, "nothing false": False,
    }  # fmt: skip
