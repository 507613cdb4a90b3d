"""The files of capture that jobs and doctor use by path; nothing else reaches into another package."""

from __future__ import annotations

import re
from pathlib import Path

from rankscope.rundir.capture_files import HOOK_FOLDER, PROBE_SCRIPT

SOURCES = Path(__file__).resolve().parents[2] / "src" / "rankscope"


def test_they_are_there():
    assert PROBE_SCRIPT == SOURCES / "capture" / "probe.py"
    assert PROBE_SCRIPT.is_file()
    assert (HOOK_FOLDER / "sitecustomize.py").is_file()
    # Python loads it by that name from PYTHONPATH; another module there would shadow a module of the job.
    assert [file.name for file in HOOK_FOLDER.glob("*.py")] == ["sitecustomize.py"]


def test_no_module_of_the_job_climbs_into_another_package():
    climbs = re.compile(r"__file__\)[^\n]*\.parents\b")
    files = [
        f for package in ("capture", "jobs", "rundir", "experiments/measure") for f in (SOURCES / package).rglob("*.py")
    ]
    assert files
    assert [f.name for f in files if climbs.search(f.read_text(encoding="utf-8"))] == []
