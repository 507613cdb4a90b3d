"""Job scripts for tests: requests, hostile values, and programs that stand in for launchers."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from rankscope.jobs.jobscript import JobRequest, job_script

if sys.version_info >= (3, 11):
    pass
else:
    pass

OURS = ("aurora", "lumi", "perlmutter", "polaris", "saga")
HOSTILE = (
    "$(touch pwned)",
    "`touch pwned`",
    "'; touch pwned; '",
    '"; touch pwned; "',
    "a\ntouch pwned\n",
    "END\ntouch pwned",
    "a b\tc",
    "${HOME}",
    "\\",
    "-n",
    "*",
    "ünï & <x> | y; z # q ! \x1b[31m",
    "{job}",
)


def script(**given) -> str:
    return job_script(JobRequest(**{"scheduler": "slurm", "command": ("train.py",), **given}))


def lines(text: str, mark: str) -> list[str]:
    return [line.removeprefix(mark).strip() for line in text.splitlines() if line.startswith(mark)]


SRUN = """#!{python}
import json, os, sys
with open({said!r}, "a") as file:
    file.write(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n")
"""


def stand_ins(folder: Path, names: tuple[str, ...]) -> Path:
    """Programs that write down how they were called, and nothing else."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for name in names:
        program = bin_folder / name
        program.write_text(SRUN.format(python=sys.executable, said=str(folder / f"{name}.jsonl")))
        program.chmod(0o755)
    (bin_folder / "scontrol").write_text("#!/bin/sh\nprintf 'node01\\nnode02\\n'\n")
    (bin_folder / "scontrol").chmod(0o755)
    return bin_folder


def called(folder: Path, name: str) -> list[tuple[list[str], dict[str, str]]]:
    return [tuple(json.loads(line)) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


needs_bash = pytest.mark.skipif(shutil.which("bash") is None or os.name != "posix", reason="no bash here")
