"""Options of a capture on a command line, and the environment that they come to."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rankscope.errors import ConfigError, LaunchError
from rankscope.jobs.exec import exec_command, leading_options, profiled_environment, take_options
from rankscope.jobs.torchrun import FLAGS
from rankscope.rundir.capture_files import HOOK_FOLDER


@pytest.mark.parametrize(
    ("arguments", "variables", "rest"),
    [
        (["python", "t.py", "--wait", "3"], {}, ["python", "t.py", "--wait", "3"]),
        (["--wait", "3", "t.py"], {"RANKSCOPE_WAIT": "3"}, ["t.py"]),
        (["--ranks=0-3", "--with-stack", "t.py"], {"RANKSCOPE_RANKS": "0-3", "RANKSCOPE_WITH_STACK": "1"}, ["t.py"]),
        (["--keep_windows", "4", "--", "t.py"], {"RANKSCOPE_KEEP_WINDOWS": "4"}, ["--", "t.py"]),
        (["--nproc-per-node", "2", "--active", "1", "-m", "pkg"], {"RANKSCOPE_ACTIVE": "1"},
         ["--nproc-per-node", "2", "-m", "pkg"]),
        (["--standalone", "--run-id", "x", "t.py", "--run-id", "y"], {"RANKSCOPE_RUN_ID": "x"},
         ["--standalone", "t.py", "--run-id", "y"]),
    ],
)  # fmt: skip
def test_options_of_the_capture_are_taken_before_the_script(arguments, variables, rest):
    assert take_options(arguments, FLAGS) == (variables, rest)


@pytest.mark.parametrize(
    ("arguments", "options", "script"),
    [
        (["train.py"], [], ["train.py"]),
        (["--nproc-per-node", "2", "train.py", "--lr", "1"], ["--nproc-per-node", "2"], ["train.py", "--lr", "1"]),
        (["--nproc_per_node=2", "--standalone", "t.py"], ["--nproc_per_node=2", "--standalone"], ["t.py"]),
        (["-m", "pkg.train", "--help"], ["-m"], ["pkg.train", "--help"]),
        (["-t", "3", "-r", "0:1", "t.py", "-x"], ["-t", "3", "-r", "0:1"], ["t.py", "-x"]),
        (["--nnodes", "2", "--", "t.py", "--", "x"], ["--nnodes", "2"], ["--", "t.py", "--", "x"]),
        (["-t3", "t.py"], ["-t3"], ["t.py"]),
        ([], [], []),
    ],
)
def test_options_before_the_script(arguments, options, script):
    found, rest = leading_options(arguments, FLAGS)
    assert ([word for words in found for word in words], rest) == (options, script)


def test_the_run_directory_is_that_of_the_caller(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert take_options(["--run-dir", "", "--staging-dir=", "train.py"]) == ({}, ["train.py"])
    assert take_options(["--run-dir", "here"])[0] == {"RANKSCOPE_RUN_DIR": str(tmp_path / "here")}
    url = (tmp_path / "my run").as_uri()
    assert take_options(["--run-dir", url])[0] == {"RANKSCOPE_RUN_DIR": str(tmp_path / "my run")}
    with pytest.raises(ConfigError, match="not a directory that a job can write to"):
        take_options(["--staging-dir", "s3://bucket/run"])


@pytest.mark.parametrize(("arguments", "error"), [(["--wait", "many", "t.py"], ConfigError), (["--wait"], LaunchError)])
def test_nonsense_is_refused_before_the_job(arguments, error):
    with pytest.raises(error, match=r"(?i)wait"):
        take_options(arguments)


def test_the_hook_comes_first_and_once():
    folder = str(HOOK_FOLDER)
    environ = profiled_environment(profiled_environment({"PYTHONPATH": "/a", "X": "1"}))
    assert environ["PYTHONPATH"] == os.pathsep.join([folder, "/a"])
    assert (environ["X"], environ["RANKSCOPE_HOOK"]) == ("1", "1")


@pytest.mark.parametrize(
    ("arguments", "says"), [([], "no command"), (["--wait", "1"], "no command"), (["--rank", "0", "python"], "--rank")]
)
def test_what_exec_cannot_run(arguments, says):
    with pytest.raises(LaunchError, match=says):
        exec_command(arguments)


def test_exec_becomes_the_command(monkeypatch):
    seen = []
    monkeypatch.setattr(os, "execvpe", lambda *given: seen.append(given))
    exec_command(["--ranks", "0", "train.py", "--help"])
    file, command, environ = seen[0]
    assert command[1:] == ["train.py", "--help"]
    assert command[0] == file
    assert environ["RANKSCOPE_RANKS"] == "0"
    exec_command(["--", "mytrainer", "x"])
    assert seen[1][1] == ["mytrainer", "x"]


def test_the_allocator_of_the_analysis_is_not_set_in_a_job(tmp_path):
    script = tmp_path / "job.py"
    script.write_text("import os\nprint(*(name for name in os.environ if 'MALLOC' in name), 'end')\n")
    command = [sys.executable, "-m", "rankscope", "exec", sys.executable, str(script)]
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300)
    assert done.stdout.splitlines()[0] == "end", done.stderr


@pytest.mark.parametrize(
    ("body", "named", "launch"),
    [
        ("import os; os.environ['RANK']", "RANK", "rankscope run --nproc-per-node 2 train.py"),
        (
            "raise ValueError('environment variable WORLD_SIZE expected, but not set')",
            "WORLD_SIZE",
            "rankscope run --nproc-per-node 2 train.py",
        ),
        ("{}['SLURM_PROCID']", "SLURM_PROCID", "srun --ntasks=2 rankscope exec python train.py"),
        ("{}['PMI_RANK']", "PMI_RANK", "mpiexec -n 2 rankscope exec python train.py"),
        ("{}['FRANK']", None, None),
        ("raise SystemExit(3)", None, None),
    ],
)
def test_a_script_without_its_launcher_is_told_how_to_get_one(tmp_path, body, named, launch):
    script = tmp_path / "train.py"
    script.write_text(body)
    wanted = ("RANK", "WORLD_SIZE", "SLURM_PROCID", "PMI_RANK")
    environ = {name: value for name, value in os.environ.items() if name not in wanted}
    command = [sys.executable, "-m", "rankscope", "exec", str(script)]
    ran = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert ran.returncode == (3 if "SystemExit" in body else 1)
    said = [line for line in ran.stderr.splitlines() if line.startswith("rankscope: the script expects")]
    assert [line.split()[4] for line in said] == ([f"{named},"] if named else [])
    assert all(launch in line for line in said)


def test_a_launched_script_that_fails_alike_is_told_nothing(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("{}['RANK']")
    command = [sys.executable, "-m", "rankscope", "exec", str(script)]
    ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "RANK": "0"}, check=False)
    assert ran.returncode == 1
    assert "rankscope:" not in ran.stderr
