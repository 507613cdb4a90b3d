"""The command that writes job scripts: files, errors, and the values that it refuses."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.jobs.job_scripts import OURS, called, needs_bash, script, stand_ins

from rankscope.cli import main
from rankscope.errors import ConfigError
from rankscope.jobs.jobscript import JobRequest, find_machine, job_script

if sys.version_info >= (3, 11):
    pass
else:
    pass


@pytest.fixture
def rankscope(tmp_path, monkeypatch, capfd):
    """The command line in this process: its exit code, and what it printed."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["rankscope", "job", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return int(left.value.code or 0), *capfd.readouterr()

    return run


def test_the_command_writes_a_file_and_overwrites_none(tmp_path, rankscope):
    options = ["slurm", "--wait", "3", "--nodes", "2", "--record-shapes", "-A", "acc", "-o", "job.sh"]
    command = ["train.py", "--wait", "9", "--help"]
    code, out, err = rankscope(*options, *command)
    assert (code, out) == (0, "")
    assert "sbatch job.sh" in err
    text = (tmp_path / "job.sh").read_text()
    capture = ("--wait", "3", "--record-shapes")
    assert text == job_script(JobRequest("slurm", tuple(command), nodes=2, account="acc", capture=capture))
    assert os.name != "posix" or os.access(tmp_path / "job.sh", os.X_OK)
    code, _, err = rankscope(*options, *command)
    assert code == 2
    assert "job.sh: exists already" in err
    assert rankscope(*options, "--force", *command)[0] == 0
    # Without -o it goes on into a pipe.
    assert rankscope("slurm", "train.py")[1] == job_script(JobRequest("slurm", ("train.py",)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["slurm"], "no training script"),
        (["slurm", "--color", "red", "train.py"], "is not an option of rankscope job slurm"),
        (["pbs", "--profile", "lumi", "train.py"], "rankscope job slurm --profile lumi"),
        (["slurm", "--profile", "summit", "train.py"], "no machine is known"),
        (["slurm", "--wait", "x", "train.py"], "must be a whole number, 0 or more"),
        (["slurm", "--activ", "2", "train.py"], "did you mean --active?"),
        (["slurm", "--acount=x", "train.py"], "did you mean --account?"),
        (["pbs", "--profile", "aurora", "--ranks-per-node", "13", "train.py"], "--ranks-per-node 12 or fewer"),
        (["slurm", "--nodes", "2", "--ranks", "2", "train.py"], "names rank 2, and the job has 2: 0 to 1"),
    ],
)
def test_the_command_says_what_is_wrong(rankscope, arguments, message):
    code, out, err = rankscope(*arguments)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
    assert "Traceback" not in err


def test_the_command_leaves_out_the_profiles_modules(rankscope):
    line = ["pbs", "--profile", "aurora", "--source", "env.sh"]
    assert "module load frameworks" in rankscope(*line, "train.py")[1]
    assert (
        "module"
        not in rankscope(*line, "--no-profile-modules", "train.py")[1].split("The run's name")[0].split("# Software")[1]
    )


def test_the_command_lists_machines(rankscope):
    code, out, _ = rankscope("machines")
    assert code == 0
    assert all(name in out for name in OURS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"filesystems": "home"}, "has no option for the file systems"),
        ({"directives": ("exclusive",)}, "is not an option of slurm"),
        ({"container": "image.sif", "container_command": "docker"}, "container command 'docker' is not known"),
    ],
)
def test_what_the_script_could_not_do_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        JobRequest("slurm", ("train.py",), **given).resolved()


@pytest.mark.parametrize(
    ("capture", "environment", "recorded"),
    [
        ((), (), "every rank: steps 16 to 18"),
        (("--wait", "1", "--warmup=1", "--active", "2"), (), "every rank: steps 3 to 4"),
        (("--repeat=2", "--ranks", "0-3"), (), "ranks 0-3: steps 16 to 18, 34 to 36"),
        (("--repeat", "0"), (), "every rank: steps 16 to 18, 34 to 36, 52 to 54, …"),
        (("--period-steps=100",), (), "every rank: steps 97 to 99, 197 to 199, 297 to 299, …"),
        (("--preset", "minimal"), ("RANKSCOPE_WAIT=4",), "every rank: steps 6 to 6"),
    ],
)
def test_a_script_names_the_steps_that_it_records(capture, environment, recorded):
    text = script(ranks_per_node=4, capture=capture, environment=environment)
    assert f"# Recorded on {recorded} (a rankscope.Profiler in the script counts them itself).\n" in text


def test_oneccls_workers_and_ranks_on_one_core_are_refused(tmp_path):
    (tmp_path / "ours.toml").write_text('[node]\ncores = ["0-3", "4-7"]\nccl_cores = ["8", "7"]\n')
    with pytest.raises(ConfigError, match="share 7"):
        find_machine(str(tmp_path / "ours.toml"))


@needs_bash
def test_a_sourced_script_reaches_the_ranks_and_the_name_knows_the_nodes(tmp_path):
    bin_folder = stand_ins(tmp_path, ("srun", "rankscope", "python"))
    (tmp_path / "my env.sh").write_text('export MINE="$UNSET"yes\n')
    job = JobRequest(
        "slurm", ("train.py",), nodes=2, ranks_per_node=2, source_files=("my env.sh",),
        run_name="n{nodes}x{ranks_per_node}",
    )  # fmt: skip
    (tmp_path / "job.sh").write_text(job_script(job))
    environ = {"PATH": f"{bin_folder}:/usr/bin:/bin", "HOME": str(tmp_path), "SLURM_JOB_ID": "7"}
    environ |= {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "node[01-02]"}
    done = subprocess.run(["bash", "job.sh"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    ((_, ranks),) = called(tmp_path, "srun")
    assert ranks["MINE"] == "yes"
    assert (tmp_path / "runs" / "n2x2").is_dir()
    (tmp_path / "my env.sh").unlink()
    again = subprocess.run(["bash", "job.sh"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)
    assert again.returncode != 0
    assert "my env.sh" in again.stderr
