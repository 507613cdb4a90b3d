"""Jobs in an environment whose Python or torch is older than capture supports: they run as they would have."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.jobs.exec import profiled_environment
from rankscope.rundir.capture_files import HOOK_FOLDER
from rankscope.rundir.config import OPTIONS, SWITCH_FIELDS
from rankscope.rundir.versions import OLDEST_PYTHON, OLDEST_TORCH, release

from .conftest import clean_environ

SOURCE = HOOK_FOLDER.parents[2]
HOOK = HOOK_FOLDER / "sitecustomize.py"
WARNING = re.compile(
    r"rankscope: this job runs without rankscope: it has Python [\d.]+ and torch (\S+), "
    r"and capture needs Python 3\.10 and torch 2\.4, or newer\n"
)
OLD = "1.14.0a0+410ce96"
TRAINS = "import torch.optim.optimizer, sys; print('trained', *sys.argv[1:])"
TORCHRUN = """
import itertools, os, subprocess, sys
options = list(itertools.takewhile(lambda word: word.startswith("--"), sys.argv[1:]))
command = [sys.executable, *sys.argv[1 + len(options):]]
print(*options, flush=True)
sys.exit(max(subprocess.run(command, env={**os.environ, "RANK": rank, "WORLD_SIZE": "2"}).returncode for rank in "01"))
"""
"""Two ranks, one after the other."""
VALUES = {
    "ranks": "0-3",
    "upload_to": "s3://bucket/run",
    "preset": "memory",
    "compression": "tar.gz",
    "name_template": "d9d",
    "when_busy": "wait",
    "stop_off_loop": "never",
    "period_steps": "40",
}


def python_of(version):
    """An interpreter of that version: on PATH, or installed next to this one."""
    name = f"python{version}"
    for found in (shutil.which(name), *sorted(Path(sys.base_prefix).parent.glob(f"*{version}*/bin/{name}"))):
        # One on PATH can be a stand-in that starts whichever version is chosen elsewhere.
        if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
            return str(found)
    return pytest.skip(f"no Python {version} on this machine")


def fake_torch(folder, version):
    optim = folder / "torch" / "optim"
    optim.mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(f"__version__ = {version!r}\nfrom torch import optim\n")
    (optim / "__init__.py").write_text("from torch.optim import optimizer\n")
    (optim / "optimizer.py").write_text("")
    (folder / "torch" / "version.py").write_text(f"__version__ = {version!r}\n")
    (folder / "torch" / "distributed").mkdir()
    (folder / "torch" / "distributed" / "__init__.py").write_text("")
    (folder / "torch" / "distributed" / "run.py").write_text(TORCHRUN)
    return folder


def run(python, folder, *command, version=OLD, **variables):
    torch = folder / version
    fake_torch(torch, version)
    environ = clean_environ() | {"PYTHONPATH": f"{torch}:{SOURCE}", "PYTHONDONTWRITEBYTECODE": "1"} | variables
    return subprocess.run(
        [python, *command],
        env=profiled_environment(environ) if command[0] == "-c" else environ,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_what_is_loaded_before_the_versions_are_known_is_python_3_8():
    code = (
        "import sys, rankscope.rundir.launcher, rankscope.rundir.versions, rankscope.jobs.torchrun, "
        "rankscope.__main__\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.partition('.')[0] == 'rankscope'), sep='\\n')"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert len(loaded) > 8
    for path in (HOOK, *map(Path, loaded)):
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 8))


def test_the_oldest_versions_are_those_of_the_package():
    metadata = (SOURCE.parent / "pyproject.toml").read_text(encoding="utf-8")
    python, torch = (re.search(p, metadata)[1] for p in (r'requires-python = ">=([\d.]+)"', r'"torch>=([\d.]+)"'))
    assert (release(python), release(torch)) == (OLDEST_PYTHON, OLDEST_TORCH)


@pytest.mark.parametrize(
    ("version", "torch"), [("3.8", OLD), ("3.9", "2.4.1"), ("", OLD), ("", "1.9"), ("", "2.3.1+cu118")]
)
def test_the_job_runs_with_one_warning(tmp_path, version, torch):
    python = python_of(version) if version else sys.executable
    # A process that starts another one, as torchrun does.
    starts = TRAINS + f"; import subprocess; subprocess.run([sys.executable, '-c', {TRAINS!r}, 'too'])"
    done = run(python, tmp_path, "-c", starts, version=torch)
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["trained", "trained too"]
    warning = WARNING.fullmatch(done.stderr)
    assert warning is not None, done.stderr
    assert warning[1] == torch
    assert [path.name for path in tmp_path.iterdir()] == [torch]


@pytest.mark.parametrize("rank", ["RANK", "SLURM_PROCID"])
def test_only_the_first_rank_warns(tmp_path, rank):
    size = {"RANK": "WORLD_SIZE", "SLURM_PROCID": "SLURM_NTASKS"}[rank]
    done = run(sys.executable, tmp_path, "-c", TRAINS, **{rank: "1", size: "2"})
    assert (done.stdout, done.stderr) == ("trained\n", "")


def test_a_process_without_torch_does_not_warn(tmp_path):
    done = run(python_of("3.8"), tmp_path, "-c", "print('no torch')")
    assert (done.stdout, done.stderr) == ("no torch\n", "")


@pytest.mark.parametrize("version", ["3.8", "3.9"])
def test_exec_starts_the_job_on_an_old_python(tmp_path, version):
    python = python_of(version)
    options = [
        word
        for option, name in OPTIONS.items()
        for word in ((option,) if name in SWITCH_FIELDS else (option, VALUES.get(name, "20")))
    ]
    done = run(python, tmp_path, "-m", "rankscope.jobs.exec", *options, python, "-c", TRAINS)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert WARNING.fullmatch(done.stderr), done.stderr
    wrong = run(python, tmp_path, "-m", "rankscope.jobs.exec", "--wait", "x", python, version="2.3")
    assert (wrong.returncode, wrong.stderr) == (1, "error: --wait='x' must be a whole number, 0 or more\n")


def test_the_end_of_a_job_script_on_an_old_python(tmp_path):
    done = run(python_of("3.8"), tmp_path, "-m", "rankscope.jobs.gather", "run")
    assert (done.returncode, done.stderr) == (1, "error: gathering traces needs Python 3.10 or newer\n")


@pytest.mark.parametrize("version", ["3.8", "3.9", ""])
@pytest.mark.parametrize("status", [0, 3])
def test_run_starts_the_job_plainly(tmp_path, version, status):
    (tmp_path / "job.py").write_text(f"{TRAINS}\nsys.exit({status})")
    command = ["-m", "rankscope", "run", "--wait", "5", "--nproc_per_node=2", "job.py", "--lr", "1"]
    done = run(python_of(version) if version else sys.executable, tmp_path, *command)
    assert done.returncode == status
    assert done.stdout == "--standalone --nproc_per_node=2 --\n" + "trained --lr 1\n" * 2
    assert WARNING.fullmatch(done.stderr), done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["summary", "run"], 1, "error: rankscope needs Python 3.10 or newer; with an older one, run and"),
        (["run", "--wait", "x", "job.py"], 1, "error: --wait='x' must be a whole number, 0 or more\n"),
        (["exec"], 1, "error: no command\n"),
    ],
)  # fmt: skip
def test_the_command_line_on_an_old_python(tmp_path, arguments, code, said):
    done = run(python_of("3.8"), tmp_path, "-m", "rankscope", *arguments)
    assert done.returncode == code
    assert done.stderr.startswith(said)
