"""Job scripts run as a cluster runs them, to a report: Slurm and Open MPI of Debian on this host, PALS and Flux by
stand-ins that start real processes, and two hosts as network namespaces that meet by torchrun's rendezvous."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.capture.conftest import clean_environ
from tests.jobs.test_real_launchers import program, slurm_cluster
from tests.mpich import mpich
from tests.ports import free_port

import rankscope
from rankscope.jobs.gather import completeness
from rankscope.jobs.jobscript import JobRequest, Machine, job_script
from rankscope.rundir.manifest import read_run_manifest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="Debian's launchers")]

# A script as people write them: it knows of no launcher, only of torch's own variables.
TRAIN = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
inner = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 8))
model = torch.nn.parallel.DistributedDataParallel(inner)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    loss = model(torch.ones(16, 64)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
said = "rank", dist.get_rank(), "of", dist.get_world_size(), "local", os.environ["LOCAL_RANK"], *sys.argv[1:]
sys.stdout.write(" ".join(map(str, said)) + "\\n"); sys.stdout.flush()
del model, inner; import gc; gc.collect()
dist.destroy_process_group()
"""


def software(folder: Path) -> Path:
    """What `--venv` activates: this Python, and rankscope as a program."""
    bin_folder = folder / "env" / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "rankscope").write_text(f'#!/bin/sh\nexec {sys.executable} -m rankscope "$@"\n')
    (bin_folder / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (bin_folder / "dask").write_text(f'#!/bin/sh\nexec {sys.executable} -m dask "$@"\n')
    for name in ("rankscope", "python", "dask"):
        (bin_folder / name).chmod(0o755)
    source = Path(rankscope.__file__).parents[1]
    lines = [f'export PATH="{bin_folder}:$PATH"', f'export PYTHONPATH="{source}${{PYTHONPATH:+:$PYTHONPATH}}"']
    # Its own, as a login shell knows nothing of this test's; and no messages of Kineto.
    lines += ["export OMP_NUM_THREADS=1 KINETO_LOG_LEVEL=6", f'export RANKSCOPE_CACHE="{folder}/cache"']
    (bin_folder / "activate").write_text("\n".join(lines) + "\n")
    return folder / "env"


def job(folder: Path, name: str, **given) -> Path:
    """A script in the folder, and the training script beside it."""
    (folder / "train.py").write_text(TRAIN)
    request = JobRequest(
        **{
            "command": ("train.py", "--epochs", "2", "a b"),
            "ranks_per_node": 2,
            "venv": str(folder / "env") if (folder / "env").exists() else str(software(folder)),
            "capture": ("--wait", "1", "--warmup=1", "--active", "2"),
            "runs_dir": f"runs {name}",
            **given,
        }
    )
    path = folder / f"{name}.sh"
    path.write_text(job_script(request))
    path.chmod(0o755)
    return path


def reported(folder: Path, name: str, printed: str, *, launcher: str, ranks: int = 2, nodes: int = 1) -> Path:
    """Check what a job left: names, traces, manifests, report, and that an analysis comes out; its run directory."""
    (run,) = (folder / f"runs {name}").iterdir()
    assert re.fullmatch(rf"E2_N{nodes}_R{ranks}_\d{{8}}-\d{{6}}", run.name), printed
    for rank in range(ranks):
        assert f"rank {rank} of {ranks} local {rank % 2} --epochs 2 a b" in printed, printed
    found = completeness(run)
    assert found.whole, (found, printed)
    assert found.runs == (read_run_manifest(run / "run.json").run_id,)
    assert found.runs[0].startswith(f"{run.name}.")
    assert f"run {found.runs[0]}: {ranks} of {ranks} ranks" in printed
    assert {json.loads(path.read_text())["launcher"] for path in (run / "ranks").iterdir()} == {launcher}
    assert (run / "report.html").read_bytes().startswith(b"<!doctype html")
    opened = rankscope.open(run, executor="serial")
    assert sorted(opened.device_time()["rank"].to_list()) == list(range(ranks))
    # The script's comment has the steps that are recorded.
    first, last = re.search(r"# Recorded on every rank: steps (\d+) to (\d+) ", (run / "job.sh").read_text()).groups()
    assert {path.name for path in run.rglob("*.gz")} == {
        f"rank{rank}_iter{first}_{last}.trace.json.gz" for rank in range(ranks)
    }
    return run


def ran(line: list[str], folder: Path, **environ: str) -> str:
    done = subprocess.run(
        line, cwd=folder, env={**clean_environ(), **environ}, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_slurm(tmp_path):
    (tmp_path / "slurm").mkdir()
    with slurm_cluster(tmp_path / "slurm") as environ:
        outputs = {}
        for name, given in (
            ("srun", {"nccl_debug": "INFO"}),
            ("torchrun", {"launcher": "torchrun", "traces": "local", "local_dir": str(tmp_path / "disk")}),
        ):
            path = job(tmp_path, name, scheduler="slurm", **given)
            ran(["sbatch", "--wait", f"--output={name}.out", str(path)], tmp_path, **environ)
            outputs[name] = (tmp_path / f"{name}.out").read_text()
    run = reported(tmp_path, "srun", outputs["srun"], launcher="env")
    assert (run / "nccl").is_dir()
    run = reported(tmp_path, "torchrun", outputs["torchrun"], launcher="torchrun")
    # The traces went to the host's own disk first.
    (part,) = (tmp_path / "disk").iterdir()
    assert f"{part}: " in outputs["torchrun"]
    assert sorted(p.name for p in part.glob("*.gz")) == sorted(p.name for p in run.glob("*.gz"))


def test_slurm_analyzes_on_the_nodes_of_the_job(tmp_path):
    pytest.importorskip("distributed")
    (tmp_path / "slurm").mkdir()
    with slurm_cluster(tmp_path / "slurm") as environ:
        path = job(tmp_path, "dask", scheduler="slurm", analysis="dask")
        ran(["sbatch", "--wait", "--output=dask.out", str(path)], tmp_path, **environ)
    run = reported(tmp_path, "dask", (tmp_path / "dask.out").read_text(), launcher="env")
    scheduled = (run / "scheduler.log").read_text()
    # Two workers came, and the command that read the traces was the scheduler's client.
    assert scheduled.count("Register worker") == 2, scheduled
    assert "Receive client connection" in scheduled


def nodefile(folder: Path, hosts: int = 1) -> str:
    path = folder / "nodefile"
    path.write_text("".join(f"{'localhost' if hosts == 1 else f'n{host}'}\n" * 2 for host in range(hosts)))
    return str(path)


@pytest.mark.parametrize("launcher", ["mpiexec", "torchrun"])
def test_open_mpi_under_pbs(tmp_path, launcher):
    mpiexec = program("mpiexec.openmpi", "openmpi-bin")
    extra = ("--oversubscribe", *(("--allow-run-as-root",) if os.getuid() == 0 else ()))
    # Debian's other MPI may hold the bare name.
    path = job(
        tmp_path, launcher, scheduler="pbs", launcher=launcher, mpi="openmpi", mpiexec=mpiexec, launcher_arguments=extra
    )
    given = {"PBS_JOBID": "12.server", "PBS_NODEFILE": nodefile(tmp_path), "PBS_O_WORKDIR": str(tmp_path)}
    outputs = ran(["bash", str(path)], Path("/"), **given)
    reported(tmp_path, launcher, outputs, launcher="torchrun" if launcher == "torchrun" else "env")


def test_mpi_analyzes_with_a_process_per_rank(tmp_path):
    pytest.importorskip("mpi4py")
    mpiexec = program("mpiexec.mpich", "mpich")
    path = job(tmp_path, "mpi", scheduler="pbs", launcher="torchrun", mpi="mpich", mpiexec=mpiexec, analysis="mpi")
    given = {"PBS_JOBID": "12.server", "PBS_NODEFILE": nodefile(tmp_path), "PBS_O_WORKDIR": str(tmp_path)}
    given |= mpich(tmp_path / "lib")
    # A single process would refuse to analyze, and leave no report.
    reported(tmp_path, "mpi", ran(["bash", str(path)], Path("/"), **given), launcher="torchrun")


@pytest.mark.parametrize("traces", ["shared", "local"])
def test_open_mpi_goes_to_another_host_with_the_jobs_software(tmp_path, traces):
    """Behind a remote shell nothing of this one's environment is there: no virtual environment, no path to it."""
    mpiexec = program("mpiexec.openmpi", "openmpi-bin")
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\nshift\nexec env -i HOME="$HOME" PATH=/usr/bin:/bin sh -c "$*"\n')
    shell.chmod(0o755)
    extra = ("--mca", "plm_rsh_agent", str(shell), *(("--allow-run-as-root",) if os.getuid() == 0 else ()))
    path = job(
        tmp_path, "two", scheduler="pbs", nodes=2, ranks_per_node=1, mpi="openmpi", mpiexec=mpiexec,
        launcher_arguments=extra, traces=traces, local_dir=str(tmp_path / "disk"),
    )  # fmt: skip
    nodes = tmp_path / "nodes"
    nodes.write_text("127.0.0.1\n127.0.0.2\n")  # the second is not known as this host
    outputs = ran(
        ["bash", str(path)], Path("/"), PBS_JOBID="12.server", PBS_NODEFILE=str(nodes), PBS_O_WORKDIR=str(tmp_path)
    )
    (run,) = (tmp_path / "runs two").iterdir()
    assert run.name.startswith("E2_N2_R2_"), outputs
    assert completeness(run).whole, outputs
    for rank in (0, 1):
        assert f"rank {rank} of 2 local 0 --epochs 2 a b" in outputs, outputs


# Starts processes as PALS and Flux do, on this host alone, with the variables that they set.
STAND_IN = f"""#!{sys.executable}
import os, subprocess, sys
words = sys.argv[1:]
open(os.environ["SAID"], "a").write(repr(words) + "\\n")
count, each = None, None
if words[0] in ("getattr", "hostlist"):
    print({{"jobid": "f123", "size": "1"}}.get(words[1], "localhost")); sys.exit()
if words[0] == "run":
    del words[0]
while words[0].startswith("-"):
    word = words.pop(0)
    if word == "-n": count = int(words.pop(0))
    elif word == "-ppn": each = int(words.pop(0))
    elif word.startswith("--ntasks="): count = int(word.partition("=")[2])
each = each or count
running = []
for rank in range(count):
    flux = dict(FLUX_TASK_RANK=rank, FLUX_TASK_LOCAL_ID=rank % each, FLUX_JOB_SIZE=count, FLUX_JOB_ID="f123")
    pals = dict(PALS_RANKID=rank, PALS_LOCAL_RANKID=rank % each, PALS_LOCAL_SIZE=each, PALS_NODEID=rank // each,
                PMI_RANK=rank, PMI_SIZE=count, PALS_APID="a1")
    mine = flux if os.path.basename(sys.argv[0]) == "flux" else pals
    running.append(subprocess.Popen(words, env=dict(os.environ, **{{k: str(v) for k, v in mine.items()}})))
sys.exit(max(abs(process.wait()) for process in running))
"""


@pytest.mark.parametrize("kind", ["pals", "flux"])
def test_stand_ins(tmp_path, kind):
    scheduler = {"pals": "pbs", "flux": "flux"}[kind]
    machine = Machine(launch_master_suffix="" if kind == "flux" else ".fast", node_cores=("0", "0"))
    if kind == "pals":
        # On this host the fast network's name is not known: what the script makes of it is looked at, then set right.
        given = {"mpi": "pals", "master_suffix": "", "launcher_arguments": ("--pmi=pmix",)}
    else:
        given = {}
    path = job(tmp_path, kind, scheduler=scheduler, machine=machine, **given)
    stand_in = tmp_path / "env" / "bin" / {"pals": "mpiexec", "flux": "flux"}[kind]
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    environ = {"SAID": str(tmp_path / "outputs")}
    if kind == "pals":
        environ |= {"PBS_JOBID": "12.server", "PBS_NODEFILE": nodefile(tmp_path), "PBS_O_WORKDIR": str(tmp_path)}
    else:
        # flux batch runs a script with the instance's own flux on PATH.
        environ |= {"PATH": f"{tmp_path}/env/bin:{os.environ['PATH']}"}
    outputs = ran(["bash", str(path)], tmp_path, **environ)
    run = reported(tmp_path, kind, outputs, launcher="env")
    launched = (tmp_path / "outputs").read_text()
    if kind == "pals":
        assert "['-n', '2', '-ppn', '2', '--cpu-bind=list:0:0', '--pmi=pmix'" in launched
    else:
        assert "['run', '--nodes=1', '--ntasks=2'" in launched
        # Flux takes no list of cores: each rank bound itself, to core 0 here.
        ranks = [json.loads(path.read_text()) for path in (run / "ranks").iterdir()]
        assert {rank["environment"]["cpu_affinity"] for rank in ranks} == {"0"}


# --- two hosts ------------------------------------------------------------------------------------------------


@contextmanager
def two_hosts():
    """Two network namespaces with a wire between them; how a command is put into each, and their addresses."""
    ip = program("ip", "iproute2")
    program("unshare", "util-linux")
    tag = uuid.uuid4().hex[:6]
    names = [f"rs{tag}a", f"rs{tag}b"]
    made = []

    def run(*words):
        return subprocess.run([ip, *words], capture_output=True, text=True, timeout=120)

    try:
        for name in names:
            done = run("netns", "add", name)
            if done.returncode != 0:
                pytest.skip(
                    f"no right to make network namespaces: {done.stderr.strip()}; run as root, with CAP_NET_ADMIN"
                )
            made.append(name)
        done = run("link", "add", names[0], "type", "veth", "peer", "name", names[1])
        if done.returncode != 0:
            pytest.skip(f"no virtual wires here: {done.stderr.strip()}; the kernel's module veth is needed")
        for number, name in enumerate(names):
            assert run("link", "set", name, "netns", name).returncode == 0
            for words in (("addr", "add", f"10.77.0.{number + 1}/24", "dev", name), ("link", "set", name, "up")):
                assert run("-n", name, *words).returncode == 0
            assert run("-n", name, "link", "set", "lo", "up").returncode == 0
        # A name of its own, in a namespace of names of its own, makes it a host.
        enter = [
            [ip, "netns", "exec", name, "unshare", "--uts", "sh", "-c", f'hostname host{n}; exec "$@"', "sh"]
            for n, name in enumerate(names)
        ]
        yield enter, names
    finally:
        for name in made:
            run("netns", "del", name)


def test_two_hosts_meet_profile_and_are_gathered(tmp_path):
    """Two ranks on each, the agents through torchrun's rendezvous, each host with a disk of its own."""
    (tmp_path / "train.py").write_text(TRAIN)
    port = free_port()
    with two_hosts() as (enter, interfaces):
        running = []
        for number, inside in enumerate(enter):
            line = [
                sys.executable, "-m", "rankscope.jobs.exec", "--run-dir", str(tmp_path / f"disk{number}"),
                "--wait", "1", "--warmup=1", "--active", "2",
                sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2",
                "--rdzv-backend=c10d", f"--rdzv-endpoint=10.77.0.1:{port}", "--rdzv-id=two", "--local-addr",
                f"10.77.0.{number + 1}", f"--rdzv-conf=is_host={int(number == 0)}", "train.py", "--epochs", "2", "a b",
            ]  # fmt: skip
            environ = {**clean_environ(), "GLOO_SOCKET_IFNAME": interfaces[number]}
            with (tmp_path / f"outputs{number}").open("w") as out:
                running.append(subprocess.Popen([*inside, *line], cwd=tmp_path, env=environ, stdout=out, stderr=out))
        try:
            codes = [process.wait(900) for process in running]
        finally:
            for process in running:
                process.kill()
        outputs = "".join((tmp_path / f"outputs{number}").read_text() for number in (0, 1))
    assert codes == [0, 0], outputs
    disks = [tmp_path / "disk0", tmp_path / "disk1"]
    assert [len(list(disk.glob("*.trace.json.gz"))) for disk in disks] == [2, 2], outputs
    # One host alone is not the run.
    one = subprocess.run(
        [sys.executable, "-m", "rankscope", "gather", tmp_path / "run", disks[0]], capture_output=True, text=True
    )
    assert one.returncode == 1
    assert "2 of 4 ranks on 1 host" in one.stdout
    # The other's disk, through a shell that stands in for ssh.
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    shell.chmod(0o755)
    way = f"host1:{disks[1]}" if shutil.which("rsync") else str(disks[1])
    both = subprocess.run(
        [sys.executable, "-m", "rankscope", "gather", tmp_path / "run", way, "--ssh", str(shell)],
        capture_output=True,
        text=True,
    )
    assert both.returncode == 0, both.stdout + both.stderr
    assert "4 of 4 ranks on 2 hosts" in both.stdout
    reduced = rankscope.open(tmp_path / "run", executor="serial").collective_summary()
    reduced = reduced.filter(reduced["collective"] == "all_reduce")
    # Four ranks come to each, over both hosts.
    assert (reduced["ranks"].max(), reduced["hosts"].max()) == (4, 2), reduced
    report = tmp_path / "report.html"
    subprocess.run(
        [sys.executable, "-m", "rankscope", "report", tmp_path / "run", "-o", report], check=True, timeout=300
    )
    page = report.read_text()
    assert "host0" in page
    assert "host1" in page
