"""A watched job under Open MPI, MPICH and Slurm, each started for real: the log, a request to record, and a hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
from tests.capture.conftest import clean_environ
from tests.capture.two_ranks import rankscope
from tests.jobs.launchers import program, slurm_cluster
from tests.ports import free_port

from rankscope.answers.watch.log import WatchLogs

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="Debian's launchers")]
RANKS = 3
LIMIT_S = 300

TRAIN = """
import gc, os, sys, time, torch, torch.distributed as dist
rank, size = int(os.environ[sys.argv[1]]), int(os.environ[sys.argv[2]])
dist.init_process_group("gloo", rank=rank, world_size=size, init_method="tcp://127.0.0.1:" + sys.argv[3])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.001)
ends = torch.zeros(1)
while not ends.item():
    time.sleep(0.03)
    while rank == 1 and os.path.exists("hang"):
        if all(os.path.exists(f"run/hang/rank{each}.json") for each in range(size)):
            break
        time.sleep(0.1)
    optimizer.zero_grad(); model(torch.ones(2, 4)).sum().backward(); optimizer.step()
    ends = torch.tensor([float(os.path.exists("stop"))])
    dist.all_reduce(ends)
del model; gc.collect(); dist.destroy_process_group()
"""


def wait_for(condition, job):
    until = time.monotonic() + LIMIT_S
    while not condition():
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.2)


def all_have_steps(folder, number):
    if not (folder / "run" / "watch").is_dir():
        return False
    logs = WatchLogs(folder / "run").latest() if list((folder / "run" / "watch").glob("*.jsonl")) else {}
    return len(logs) == RANKS and all((log.last_step or 0) >= number for log in logs.values())


def watched(folder, launcher, variables, environ=None):
    """The job from its start to its end, with a request and a hang between."""
    (folder / "train.py").write_text(TRAIN)
    settings = ["--run-dir", "run", "--watch", "--hang-timeout", "2", "--wait", "1", "--warmup=1", "--active", "2"]
    line = [sys.executable, "-c", "from rankscope.cli import main; main()", "exec", *settings]
    job = subprocess.Popen(
        [*launcher, *line, sys.executable, "train.py", *variables, str(free_port())],
        cwd=folder,
        env={**clean_environ(), **(environ or {}), "RANKSCOPE_WATCH_WINDOWS": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(lambda: all_have_steps(folder, 20), job)
        done = rankscope(folder, "trigger", "run", "--steps", "2")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "were recorded on ranks 0-2" in done.stdout
        (folder / "hang").touch()
        wait_for(lambda: len([*(folder / "run" / "hang").glob("rank?.json")]) == RANKS, job)
        verdict = json.loads(rankscope(folder, "hang", "run", "--format", "json").stdout)
        (folder / "stop").touch()
        output, errors = job.communicate(timeout=LIMIT_S)
        assert job.returncode == 0, output + errors
    finally:
        (folder / "stop").touch()  # a launcher that is killed leaves its ranks
        job.kill()
        job.communicate()
    assert (verdict["culprits"], verdict["cause"]) == ([1], "python_code")
    shown = json.loads(rankscope(folder, "watch", "run", "--format", "json").stdout)
    assert [each["state"] for each in shown["ranks"]] == ["finished"] * RANKS


def test_open_mpi(tmp_path):
    mpiexec = program("mpiexec.openmpi", "openmpi-bin")
    options = ["--oversubscribe", *(["--allow-run-as-root"] if os.getuid() == 0 else [])]
    watched(tmp_path, [mpiexec, *options, "-n", str(RANKS)], ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"])


def test_mpich(tmp_path):
    watched(tmp_path, [program("mpiexec.mpich", "mpich"), "-n", str(RANKS)], ["PMI_RANK", "PMI_SIZE"])


def test_slurm(tmp_path):
    folder = tmp_path / "slurm"  # paths of sockets are short
    folder.mkdir()
    with slurm_cluster(folder) as environ:
        watched(tmp_path, ["srun", "-n", str(RANKS)], ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS"], environ)
