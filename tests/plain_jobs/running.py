"""Runs a plain job as its author would, and holds its summary against what is expected of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.environment import without_launcher
from tests.plain_jobs.jobs import PlainJob

SOURCE = Path(__file__).resolve().parents[2] / "src"
PARTS = ("rank named", "cause named", "first line helps", "nothing false")
LIMIT_S = 240
_LAST_LINES = 12
_FINDING = re.compile(r"^(error|warning|info)\b")


@dataclass
class Outcome:
    """What a job's run gave: each part of `PARTS` is right, wrong, or None where nothing is expected."""

    name: str
    run_text: str
    summary: str
    parts: dict[str, bool | None] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def run_script(script: str, ranks: int, folder: Path, options: Sequence[str] = ()) -> tuple[int, str]:
    """Run a script with rankscope's defaults in a folder, which then holds `job.py` and the run directory `run`.

    Returns:
        The exit status and what the command printed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.py").write_text(script, encoding="utf-8")
    run = _rankscope(folder, "run", "--run-dir", "run", *options, "--nproc-per-node", str(ranks), "job.py")
    (folder / "checkpoint.pt").unlink(missing_ok=True)
    return run


def run_plain_job(job: PlainJob, folder: Path) -> Outcome:
    """Run a job in a folder and summarize it; the folder then also holds what both commands printed."""
    code, run_text = run_script(job.script(), job.ranks, folder, job.options)
    _, summary = _rankscope(folder, "summary", "run")
    (folder / "run.txt").write_text(run_text, encoding="utf-8")
    (folder / "summary.txt").write_text(summary, encoding="utf-8")
    outcome = judge(job, run_text, summary)
    if (code != 0) is not job.hangs:
        outcome.wrong.append(f"rankscope run ended with {code}:\n{run_text[-3000:]}")
    return outcome


def judge(job: PlainJob, run_text: str, summary: str) -> Outcome:
    """Hold what a job's commands printed against what is expected."""
    whole, first = _one_line(summary), _one_line(first_finding(summary))
    texts = {"summary": whole}
    if job.hangs:
        texts["run"] = _one_line("\n".join(run_text.splitlines()[-_LAST_LINES:]))
    expected_first = job.cause[:1] if job.first is None else job.first
    outcome = Outcome(job.name, run_text, summary)
    for part, patterns, places in (
        ("rank named", job.rank, texts),
        ("cause named", job.cause, texts),
        ("first line helps", (*job.rank, *expected_first), {"first finding": first}),
    ):
        missing = [
            f"{part}: the {place} lacks {job.pattern(pattern)}"
            for place, text in places.items()
            for pattern in patterns
            if not re.search(job.pattern(pattern), text)
        ]
        outcome.parts[part] = not missing if patterns else None
        outcome.wrong += missing
    said = [found[0] for pattern in job.never if (found := re.search(pattern, whole))]
    outcome.parts["nothing false"] = not said
    outcome.wrong += [f"false: {each}" for each in said]
    return outcome


def first_finding(summary: str) -> str:
    """The first finding of a summary with its advice; what it says about stragglers where it has no finding."""
    lines = summary.splitlines()
    for begins in (_FINDING, re.compile(r"^stragglers\b")):
        for number, line in enumerate(lines):
            if begins.match(line):
                more = next((n for n in range(number + 1, len(lines)) if not lines[n].startswith(" ")), len(lines))
                return "\n".join(lines[number:more])
    return ""


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _rankscope(folder: Path, *arguments: str) -> tuple[int, str]:
    """The status and all output of a command, which is ended where it does not end by itself."""
    environment = without_launcher(os.environ) | {"NO_COLOR": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
    started = subprocess.Popen(
        [sys.executable, "-m", "rankscope", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        text, _ = started.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGTERM)  # torchrun ends its ranks
        try:
            text, _ = started.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            text, _ = started.communicate()
        return -1, f"{text}\nended after {LIMIT_S} s"
    return started.returncode, text
