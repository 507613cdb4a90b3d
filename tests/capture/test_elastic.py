"""A job that torchrun restarts: each attempt has its own manifests and traces, and its own end."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import types

import pytest
import torch.distributed as dist
from tests.ports import free_port

from rankscope.capture import attempts
from rankscope.capture import process as processes
from rankscope.ingest.manifests import capture_findings
from rankscope.jobs.exec import profiled_environment
from rankscope.jobs.gather.complete import completeness
from rankscope.rundir.manifest import RankManifest, read_rank_manifest, to_json

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


TWO_NODES = """
import os, time, torch
rank, first = os.environ["RANK"], not os.path.exists("failed")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(8):
    optimizer.zero_grad(); model(torch.ones(2, 8)).square().sum().backward(); optimizer.step()
    open(f"step{step}_{rank}", "w").close()
    if first and step == 5:
        while not all(os.path.exists(f"step5_{each}") for each in "01"): time.sleep(0.01)
        if os.environ["GROUP_RANK"] == "0": time.sleep(600)  # its agent restarts it when the other node comes back
        open("failed", "w").close()
        raise ValueError("theirs")
"""


def test_nodes_that_count_restarts_differently_agree_on_the_attempt(tmp_path):
    (tmp_path / "job.py").write_text(TWO_NODES)
    place = ["--nnodes=2", "--nproc-per-node=1", "--max-restarts=1", "--rdzv-backend=c10d"]
    place += ["--rdzv-id=one", f"--rdzv-endpoint=127.0.0.1:{free_port()}"]
    variables = {"RANKSCOPE_RUN_DIR": "run", "RANKSCOPE_WAIT": "1", "RANKSCOPE_WARMUP": "1", "RANKSCOPE_ACTIVE": "2"}
    jobs = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *place, "job.py"],
            cwd=tmp_path,
            env=profiled_environment(clean_environ() | variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [job.communicate(timeout=300)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], outputs
    manifests = [read_rank_manifest(path) for path in (tmp_path / "run" / "ranks").iterdir()]
    assert sorted((each.rank, each.restart_count, each.state) for each in manifests) == [
        (rank, attempt, state) for rank in (0, 1) for attempt, state in ((0, "interrupted"), (1, "finished"))
    ]
    names = ["rank0_iter3_4", "rank0_restart1_iter3_4", "rank1_iter3_4", "rank1_restart1_iter3_4"]
    assert traces(tmp_path / "run") == [f"{name}.trace.json.gz" for name in names]


def test_an_attempt_in_which_a_rank_left_nothing_is_counted(tmp_path, monkeypatch):
    """Rank 1 ended before its capture began, and its node's agent does not count: asking first, it has rank 0's number
    all the same."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    monkeypatch.setenv("LOCAL_RANK", "0")
    store = dist.HashStore()
    monkeypatch.setattr(processes, "job_store", lambda: store)
    installed = "from rankscope.capture.attempts import earlier_starts; print(earlier_starts(), earlier_starts())"
    line = [sys.executable, "-c", installed]
    for before in range(2):  # of this process, as its launcher
        assert subprocess.run(line, capture_output=True, text=True).stdout == f"{before} {before}\n"
    monkeypatch.setattr(attempts, "os", types.SimpleNamespace(**{**vars(os), "getppid": os.getpid}))

    def number(rank, counted):
        processes._attempts.clear()
        found = processes.agree_on_attempt(
            processes.Process(rank, 2, 0, "h", "torchrun", None, counted, None), str(tmp_path / "run"), "r"
        )
        processes._attempts.clear()
        return found.restart_count

    assert [number(1, 0), number(0, 2)] == [2, 2]


@pytest.mark.parametrize("kept", ["one store for all attempts", "the run directory alone"])
def test_the_number_of_an_attempt_is_one_for_all_ranks(tmp_path, monkeypatch, kept):
    """The node of ranks 0 and 1 counts its restarts, the other one does not."""
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    store = dist.HashStore()
    monkeypatch.setattr(processes, "job_store", lambda: store)
    for attempt in range(3):
        if kept == "the run directory alone":
            store = dist.HashStore()
        found = []
        for rank in (3, 0, 2, 1):
            processes._attempts.clear()
            before = processes.Process(rank, 4, rank, "h", "torchrun", None, attempt if rank < 2 else 0, None)
            process = processes.agree_on_attempt(before, str(tmp_path), "r")
            found.append(process.restart_count)
            if kept == "the run directory alone":
                manifest = RankManifest("r", rank, world_size=4, restart_count=process.restart_count)
                path = processes._manifest_path(str(tmp_path), process, process.restart_count)
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(to_json(manifest))
        assert found == [attempt] * 4
    processes._attempts.clear()
