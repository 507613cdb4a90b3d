"""`rankscope exec` under the launchers that Debian has, each started for real: Open MPI, MPICH, Slurm on one host."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest
from tests.capture.conftest import clean_environ, read_trace, steps_in
from tests.jobs.launchers import program, slurm_cluster
from tests.ports import free_port

from rankscope.rundir.manifest import read_rank_manifest, read_run_manifest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="Debian's launchers")]
RANKS = 3

# The script knows nothing of rankscope. Where the launcher says no rendezvous, the test does.
TRAIN = """
import json, os, sys, torch, torch.distributed as dist
rank, size = int(os.environ[sys.argv[1]]), int(os.environ[sys.argv[2]])
dist.init_process_group("gloo", rank=rank, world_size=size, init_method="tcp://127.0.0.1:" + sys.argv[3])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(8):
    model(torch.ones(2, 4)).sum().backward(); optimizer.step()
open(f"metadata{rank}.json", "w").write(json.dumps([dist.get_rank(), dist.get_world_size(), os.getpid()]))
del model; import gc; gc.collect()
dist.destroy_process_group()
"""


def launched(cwd, launcher, variables, environ=None):
    """Run the job under a launcher, and check what it left; the rank manifests."""
    (cwd / "train.py").write_text(TRAIN)
    settings = ["--run-dir", "run", "--wait", "1", "--warmup=1", "--active", "2"]
    line = [sys.executable, "-c", "from rankscope.cli import main; main()", "exec", *settings]
    script = [sys.executable, "train.py", *variables, str(free_port())]
    done = subprocess.run(
        [*launcher, *line, *script],
        cwd=cwd,
        env={**clean_environ(), **(environ or {})},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = sorted(p.name for p in (cwd / "run").glob("*.trace.json.gz"))
    assert found == [f"rank{r}_iter3_4.trace.json.gz" for r in range(RANKS)], done.stderr
    manifests = [read_rank_manifest(cwd / "run" / "ranks" / f"rank{r}.json") for r in range(RANKS)]
    run = read_run_manifest(cwd / "run" / "run.json")
    for rank, manifest in enumerate(manifests):
        # What torch itself says of this process, by its process id.
        assert json.loads((cwd / f"metadata{rank}.json").read_text()) == [rank, RANKS, manifest.pid]
        trace = read_trace(cwd / "run" / f"rank{rank}_iter3_4.trace.json.gz")
        assert steps_in(trace) == [3, 4]
        metadata = trace["rankscope"]
        assert (metadata["rank"], metadata["world_size"], metadata["local_rank"], metadata["run_id"]) == (
            rank, RANKS, rank, run.run_id
        )  # fmt: skip
        assert (manifest.rank, manifest.local_rank, manifest.run_id) == (rank, rank, run.run_id)
        assert manifest.host == socket.gethostname()
        assert manifest.launcher == metadata["launcher"]
    assert not list((cwd / "run").rglob(".*"))
    assert "Warning: rankscope" not in done.stderr
    return manifests


def test_open_mpi(tmp_path):
    mpiexec = program("mpiexec.openmpi", "openmpi-bin")
    variables = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"]
    options = ["--oversubscribe", *(["--allow-run-as-root"] if os.getuid() == 0 else [])]
    manifests = launched(tmp_path, [mpiexec, *options, "-n", str(RANKS)], variables)
    assert {m.launcher for m in manifests} == {"openmpi"}
    assert manifests[0].run_id.startswith("openmpi-")


def test_mpich(tmp_path):
    mpiexec = program("mpiexec.mpich", "mpich")
    manifests = launched(tmp_path, [mpiexec, "-n", str(RANKS)], ["PMI_RANK", "PMI_SIZE"])
    # Its Hydra sets the local ranks of Intel MPI too.
    assert {m.launcher for m in manifests} == {"pmi"}


# --- Slurm --------------------------------------------------------------------------------------------------


def test_slurm(tmp_path):
    # Paths of sockets are short.
    folder = tmp_path / "slurm"
    folder.mkdir()
    with slurm_cluster(folder) as environ:
        manifests = launched(tmp_path, ["srun", "-n", str(RANKS)], ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS"], environ)
        assert {m.launcher for m in manifests} == {"slurm"}
        # The scheduler's job and step.
        assert {m.run_id for m in manifests} == {"slurm-1-0"}
