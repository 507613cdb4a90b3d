"""A job that torchrun restarts: each attempt has its own manifests and traces, and its own end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rankscope.ingest.manifests import capture_findings
from rankscope.jobs.gather.complete import completeness
from rankscope.rundir.manifest import read_rank_manifest

from .conftest import clean_environ, traces

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="signals of Linux")]

COMMAND = [sys.executable, "-m", "rankscope", "run"]

# Without a process group.
JOB = """
import os, time, torch
rank, first = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(8):
    optimizer.zero_grad(); model(torch.ones(2, 8)).square().sum().backward(); optimizer.step()
    if first and step == 5:
        if rank == "0":
            open("waiting", "w").close()
            time.sleep(600)  # torchrun ends this rank
        while not os.path.exists("waiting"): time.sleep(0.01)
        raise ValueError("theirs")
"""


def test_each_attempt_has_its_end(tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    options = ["--run-dir", "run", "--wait", "1", "--warmup", "1", "--active", "4"]
    done = subprocess.run(
        [*COMMAND, *options, "--nproc-per-node", "2", "--max-restarts", "1", "job.py"],
        cwd=tmp_path,
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    names = ["rank0_iter3_5", "rank0_restart1_iter3_6", "rank1_iter3_5", "rank1_restart1_iter3_6"]
    assert traces(tmp_path / "run") == [f"{name}.trace.json.gz" for name in names]
    manifests = [read_rank_manifest(path) for path in sorted((tmp_path / "run" / "ranks").iterdir())]
    ends = [
        (each.rank, each.restart_count, each.state, each.ended_by, each.steps, each.last_step) for each in manifests
    ]
    assert ends == [
        (0, 0, "interrupted", "SIGTERM", 6, 5),
        (0, 1, "finished", None, 8, 7),
        (1, 0, "interrupted", "ValueError", 6, 5),
        (1, 1, "finished", None, 8, 7),
    ]
    (found,) = capture_findings(manifests, traces(tmp_path / "run"))
    assert found.title == "Attempt 1 of 2 was interrupted on 2 ranks: SIGTERM, ValueError"
    wanted = [(0, "SIGTERM"), (1, "ValueError")]
    assert completeness(tmp_path / "run").interrupted == tuple(
        (rank, f"{cause} after step 5, 3 of 4 requested steps recorded (attempt 1 of 2)") for rank, cause in wanted
    )


WITH_GLOO = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(8):
    optimizer.zero_grad(); model(torch.ones(2, 8)).square().sum().backward(); optimizer.step()
    if step == 5 and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0": exit(3)
del model
dist.destroy_process_group()
"""


def test_the_second_attempt_of_a_gloo_job_does_not_meet_the_addresses_of_the_first(tmp_path):
    """With torch's store for all attempts, nine of ten such jobs do not restart."""
    (tmp_path / "job.py").write_text(WITH_GLOO)
    options = ["--run-dir", "run", "--wait", "0", "--warmup", "1", "--active", "2"]
    done = subprocess.run(
        [*COMMAND, *options, "--nproc-per-node", "2", "--max-restarts", "1", "job.py"],
        cwd=tmp_path, env=clean_environ(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    names = ["rank0_iter2_3", "rank0_restart1_iter2_3", "rank1_iter2_3", "rank1_restart1_iter2_3"]
    assert traces(tmp_path / "run") == [f"{name}.trace.json.gz" for name in names]
