"""Each check speaks where something is wrong, and is silent where it is well: on machines and runs made for it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.jobs.test_gather import part

from rankscope.doctor import Check, devices, disk, host, launcher, logs, network, run, run_checks, software, worst
from rankscope.doctor.__main__ import report
from rankscope.doctor.devices import Answer
from rankscope.rundir.manifest import LostWindow, RankManifest, RunManifest, WrittenTrace, to_json
from rankscope.rundir.metadata import ClockAnchor


def wrong(checks) -> dict[str, Check]:
    return {check.name: check for check in checks if check.status != "ok"}


# --- torch and devices ----------------------------------------------------------------------------------------

CPU = {
    "torch": "2.13.0+cpu",
    "file": "/x/torch",
    "import_s": 1.5,
    "cuda_build": None,
    "hip_build": None,
    "backends": {"gloo": True, "nccl": False, "xccl": False, "mpi": False},
    "profiler": {"kineto": True, "activities": ["CPU"]},
    "cuda": {"count": 0},
    "xpu": {"count": 0},
}
A100 = {"name": "NVIDIA A100", "total_bytes": 80 * 2**30, "free_bytes": 79 * 2**30}
CUDA = {
    **CPU,
    "cuda_build": "12.6",
    "backends": {"gloo": True, "nccl": True, "nccl_version": "2.27.3"},
    "profiler": {"kineto": True, "activities": ["CPU", "CUDA"]},
    "cuda": {"count": 2, "devices": [A100, A100], "why": None},
}


def asked(tmp_path, said, environ=None, **answer):
    return list(devices.checks(Answer(said, answer.pop("stage", "done"), **answer), environ or {}, tmp_path))


def test_a_machine_without_devices_is_well(tmp_path):
    found = asked(tmp_path, CPU)
    assert not wrong(found)
    assert "no accelerator: ranks compute on the CPU" in [check.what for check in found]


def test_a_machine_with_devices_is_well(tmp_path):
    found = asked(tmp_path, CUDA)
    assert not wrong(found)
    said = [check.what for check in found]
    assert "2 x NVIDIA A100 (CUDA), 80 GiB each" in said
    assert "gloo, nccl 2.27.3" in said


@pytest.mark.parametrize(
    ("said", "files", "environ", "name", "text"),
    [
        (CPU, ["nvidia0"], {}, "build", "this torch is built for the CPU"),
        (CPU, ["kfd"], {}, "build", "AMD devices are here"),
        ({**CUDA, "cuda": {"count": 0, "why": "driver too old"}}, ["nvidia0"], {}, "unseen", "driver too old"),
        ({**CUDA, "cuda": {"count": 0}}, [], {}, "devices", "a login node"),
        ({**CUDA, "cuda": {"count": 0}}, ["nvidia0"], {"CUDA_VISIBLE_DEVICES": ""}, "hidden", "hides the devices"),
        ({**CUDA, "backends": {"gloo": True}}, [], {}, "nccl", "this torch has no nccl"),
        ({**CUDA, "backends": {}}, [], {}, "distributed", "not available"),
        ({**CUDA, "profiler": {"kineto": False, "activities": []}}, [], {}, "kineto", "without Kineto"),
        ({**CUDA, "profiler": {"kineto": True, "activities": ["CPU"]}}, [], {}, "activities", "no cuda activity"),
        ({**CPU, "torch": "2.1.0"}, [], {}, "torch", "torch 2.1.0"),
        ({**CPU, "import_s": 45.0}, [], {}, "torch", "45.0 s"),
        (
            {**CUDA, "cuda": {"count": 2, "devices": [A100, {**A100, "free_bytes": 2**30}]}},
            [],
            {},
            "cuda-memory",
            "device 1 (1 GiB free)",
        ),
        (
            {**CUDA, "cuda": {"count": 1, "devices": [{"name": "x", "error": "busy"}]}},
            [],
            {},
            "cuda-use",
            "device 0: busy",
        ),
    ],
)
def test_what_is_wrong_with_devices(tmp_path, said, files, environ, name, text):
    (tmp_path / "dev").mkdir()
    for file in files:
        (tmp_path / "dev" / file).write_text("")
    found = wrong(asked(tmp_path, said, environ))
    assert list(found) == [name]
    assert text in found[name].what
    assert found[name].fix


@pytest.mark.skipif(os.name != "posix" or os.getuid() == 0, reason="root may open everything")
def test_a_device_that_may_not_be_opened(tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kfd").touch(0o000)
    assert wrong(asked(tmp_path, {**CUDA, "cuda": {"count": 0}}))["permission"].status == "fail"


def test_a_torch_that_does_not_answer(tmp_path):
    late = wrong(asked(tmp_path, {}, stage="import torch", error="no answer within 9 s", timed_out=True))
    assert late["torch"].status == "fail"
    absent = wrong(asked(tmp_path, {}, error="ModuleNotFoundError: No module named 'torch'"))
    # Traces can be read without it.
    assert absent["torch"].status == "warn"
    broken = wrong(asked(tmp_path, {}, error="ImportError: libcudart.so.12"))
    assert (broken["torch"].status, "libcudart" in broken["torch"].what) == ("fail", True)
    hung = wrong(asked(tmp_path, CPU, stage="cuda", error="no answer within 9 s", timed_out=True))
    assert "failed at cuda" in hung["answer"].what
    assert "nvidia-smi" in hung["answer"].fix


@pytest.mark.parametrize(
    ("code", "stage", "error"),
    [
        ("open('asleep', 'w'); import time; time.sleep(600)", "cuda", "no answer within 1 s"),
        ("raise ValueError('odd')", "cuda", "ValueError: odd"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "cuda", f"signal {int(signal.SIGSEGV)}"),
        ('print(\'{"stage": "done"}\')', "done", None),
    ],
)
def test_the_process_that_asks_torch_may_hang_or_die(tmp_path, monkeypatch, code, stage, error):
    probe = tmp_path / "probe.py"
    lines = 'print(\'chatter of a library\\n{"stage": "cuda"}\\n{"torch": "9.9"}\', flush=True)'
    probe.write_text(f"{lines}\n{code}\n")
    monkeypatch.setattr(devices, "PROBE_SCRIPT", probe)
    monkeypatch.chdir(tmp_path)
    whole = subprocess.Popen.communicate

    def communicate(self, input=None, timeout=None):
        until = time.monotonic() + 300
        # Its time begins when it is there, however long a process takes to start here.
        while timeout == 1 and not (tmp_path / "asleep").exists() and time.monotonic() < until:
            time.sleep(0.02)
        return whole(self, input, timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    answer = devices.ask_torch({**os.environ}, 1 if "sleep" in code else 300)
    assert answer.stage == stage
    assert answer.report == {"torch": "9.9"}
    assert (error or "") in (answer.error or "")
    assert (answer.error is None) == (error is None)
    assert answer.timed_out == ("sleep" in code)


@pytest.mark.slow
def test_this_torch_answers():
    torch = pytest.importorskip("torch")
    answer = devices.ask_torch({**os.environ, "RANKSCOPE_HOOK": "1"}, 300)
    assert answer.error is None, answer
    assert answer.report["torch"] == str(torch.__version__)
    assert answer.report["backends"]["gloo"] == torch.distributed.is_gloo_available()
    assert answer.report["profiler"]["activities"] == sorted(a.name for a in torch.profiler.supported_activities())
    assert answer.report["cuda"]["count"] == torch.cuda.device_count()


def test_nothing_here_imports_torch_or_what_capture_lacks():
    code = (
        "import sys, rankscope.doctor.__main__ as m\n"
        "bad = {'torch', 'polars', 'typer', 'rich', 'msgspec'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


# --- software -------------------------------------------------------------------------------------------------


def test_packages(monkeypatch):
    versions = {"polars": "1.30.0", "typer": "0.15"}

    def version(name):
        if name not in versions:
            raise software.metadata.PackageNotFoundError(name)
        return versions[name]

    required = ["polars>=1.20", "typer>=0.15", "dask>=1; extra == 'dask'"]
    monkeypatch.setattr(software.metadata, "requires", lambda _: required)
    monkeypatch.setattr(software.metadata, "version", version)
    assert not wrong(software.checks())
    versions["polars"] = "1.9.3"
    assert wrong(software.checks())["packages"].what == "polars 1.9.3 is older than 1.20"
    versions["polars"] = "1.30.0"
    del versions["typer"]
    assert "not installed: typer" in wrong(software.checks())["packages"].what
    versions.clear()
    # On a job's node, that is meant.
    assert not wrong(software.checks())


@pytest.mark.parametrize("there", [True, False])
def test_which_reader(monkeypatch, there):
    monkeypatch.setattr(software, "has_compiled_reader", lambda: there)
    (found,) = (check for check in software.checks() if check.name == "reader")
    assert found.status == "ok"
    assert ("compiled" in found.what, "cargo" in found.what) == (there, not there)


# --- launcher -------------------------------------------------------------------------------------------------

SRUN = {
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "7",
}
TORCH = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}


def checks_of_launch(environ, **given):
    return list(launcher.checks(environ, **{"cores": 8, "allowed": 8, **given}))


def test_launchers():
    assert checks_of_launch({})[0].what == "not started by a launcher"
    assert checks_of_launch({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"})[0].what == (
        "in a batch script, not started as a rank, job slurm-7"
    )
    assert not wrong(checks_of_launch({**SRUN, **TORCH}))
    assert checks_of_launch(SRUN)[0].what == "rank 1 of 4, local rank 1, by slurm, job slurm-7"


@pytest.mark.parametrize(
    ("environ", "given", "name", "text"),
    [
        ({**SRUN, **TORCH, "RANK": "2"}, {}, "ranks", "contradict each other"),
        (SRUN, {}, "torch", "will not find MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, which slurm does not set"),
        ({"RANK": "1"}, {}, "torch", "RANK=1 is set without WORLD_SIZE"),
        ({"PMIX_RANK": "0"}, {}, "ranks", "the number of ranks is not known"),
        ({}, {"allowed": 1}, "cores", "one of 8 cores"),
        (
            {**TORCH, "LOCAL_WORLD_SIZE": "4", "OMP_NUM_THREADS": "4"},
            {},
            "threads",
            "4 ranks with 4 threads each on 8 cores",
        ),
        ({**TORCH, "LOCAL_WORLD_SIZE": "4"}, {}, "threads", "each of 4 ranks starts 8 threads"),
        ({"RANKSCOPE_WARMPUP": "3"}, {}, "settings", "RANKSCOPE_WARMPUP is not a variable"),
        ({"RANKSCOPE_WAIT": "soon"}, {}, "settings", "must be a whole number from 0"),
        ({"RANKSCOPE_RANKS": "5-2"}, {}, "settings", "runs backwards"),
    ],
)
def test_what_is_wrong_with_the_launchers_variables(environ, given, name, text):
    found = wrong(checks_of_launch(environ, **given))
    assert list(found) == [name]
    assert text in found[name].what
    assert found[name].fix


def test_a_name_that_was_mistyped_is_guessed():
    assert "RANKSCOPE_WARMUP" in wrong(checks_of_launch({"RANKSCOPE_WARMPUP": "3"}))["settings"].fix


# --- network --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "said", "status"),
    [
        ("NCCL_SOCKET_IFNAME", "hsn", "ok"),
        ("NCCL_SOCKET_IFNAME", "hsn0,hsn1", "ok"),
        ("NCCL_SOCKET_IFNAME", "=hsn", "fail"),
        ("NCCL_SOCKET_IFNAME", "ib", "fail"),
        ("NCCL_SOCKET_IFNAME", "^lo,docker", "ok"),
        ("NCCL_SOCKET_IFNAME", "^hsn,eth", "fail"),
        ("GLOO_SOCKET_IFNAME", "hsn0", "ok"),
        ("GLOO_SOCKET_IFNAME", "hsn", "fail"),
    ],
)
def test_interfaces(variable, said, status):
    found = {c.name: c for c in network.checks({variable: said}, ["lo", "eth0", "hsn0", "hsn1"])}
    assert found[variable].status == status


def test_the_rendezvous(monkeypatch):
    assert not wrong(c for c in network.checks({"MASTER_ADDR": "127.0.0.1"}) if c.name != "host")
    monkeypatch.setattr(network, "_addresses", lambda name: [] if name == "nowhere.invalid" else ["127.0.0.1"])
    assert wrong(network.checks({"MASTER_ADDR": "nowhere.invalid"}))["MASTER_ADDR"].status == "fail"
    assert wrong(network.checks({"MASTER_PORT": "http"}))["MASTER_PORT"].status == "fail"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(taken.getsockname()[1])}
        assert "in use" in wrong(network.checks(given))["MASTER_PORT"].what
        # In a rank of the job, it is the job's own.
        assert "MASTER_PORT" not in wrong(network.checks({**given, "RANK": "0"}))
    assert "MASTER_PORT" not in wrong(network.checks(given))


def test_a_name_that_leads_home(monkeypatch):
    monkeypatch.setattr(network, "_addresses", lambda _: ["127.0.1.1"])
    assert not wrong(network.checks({"SLURM_JOB_NUM_NODES": "1"}))
    assert "cannot connect to it" in wrong(network.checks({"SLURM_JOB_NUM_NODES": "2"}))["host"].what
    monkeypatch.setattr(network, "_addresses", lambda _: [])
    assert "has no address" in wrong(network.checks({}))["host"].what


# --- host and disk --------------------------------------------------------------------------------------------


def test_clock_source_and_shared_memory(tmp_path, monkeypatch):
    source = tmp_path / "sys/devices/system/clocksource/clocksource0"
    source.mkdir(parents=True)
    (tmp_path / "dev/shm").mkdir(parents=True)
    usage = {"free": 8 * 2**30, "total": 9 * 2**30}
    monkeypatch.setattr(host.shutil, "disk_usage", lambda _: (usage["total"], 0, usage["free"]))
    (source / "current_clocksource").write_text("tsc\n")
    assert {"source", "shared memory"} & set(wrong(host.checks(tmp_path))) == set()
    (source / "current_clocksource").write_text("hpet\n")
    # What Docker gives a container that nobody asked.
    usage |= {"total": 64 * 2**20, "free": 64 * 2**20}
    found = wrong(host.checks(tmp_path))
    assert "hpet" in found["source"].what
    assert "--ipc=host" in found["shared memory"].fix


@pytest.mark.skipif(os.name != "posix", reason="limits of Unix")
def test_few_open_files(tmp_path, monkeypatch):
    import resource

    limits = {resource.RLIMIT_NOFILE: (256, 4096), resource.RLIMIT_MEMLOCK: (65_536, 65_536)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    found = wrong(host.checks(tmp_path))
    assert found["files"].fix == "ulimit -n 4096"
    # Locked memory matters where there is a network that wants it.
    assert "locked memory" not in found
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    assert "64 KiB" in wrong(host.checks(tmp_path))["locked memory"].what


def test_directories(tmp_path, monkeypatch):
    assert disk.look("run directory", tmp_path / "new" / "run", "--run-dir").status == "ok"
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    found = disk.look("run directory", tmp_path / "file" / "run", "--run-dir")
    assert (found.status, "is not a directory" in found.what, "--run-dir" in found.fix) == ("fail", True, True)
    free = {"bytes": 10**9}
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: type("Usage", (), {"free": free["bytes"]}))
    assert disk.look("cache", tmp_path, "RANKSCOPE_CACHE").status == "warn"
    free["bytes"] = 10**7
    assert disk.look("cache", tmp_path, "RANKSCOPE_CACHE").status == "fail"

    def refused(**_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(disk.tempfile, "NamedTemporaryFile", refused)
    found = disk.look("cache", tmp_path, "RANKSCOPE_CACHE")
    assert (found.status, "Read-only file system" in found.what) == ("fail", True)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/mounts")
def test_the_kind_of_file_system():
    assert disk._file_system(Path("/proc/self")) == "proc"


# --- a run ----------------------------------------------------------------------------------------------------


def manifest(rank: int, **given) -> RankManifest:
    return RankManifest("r1", rank, world_size=2, host="h0", pid=rank, state="finished", **given)


def a_run(folder: Path, *ranks: RankManifest) -> Path:
    (folder / "ranks").mkdir(parents=True)
    (folder / "run.json").write_bytes(to_json(RunManifest("r1", world_size=2, ranks="all")))
    for each in ranks:
        (folder / "ranks" / f"rank{each.rank}.json").write_bytes(to_json(each))
    return folder


def test_a_run_that_is_well(tmp_path):
    folder = part(tmp_path / "a", (0, 1, 2, 3))
    assert wrong(run.checks(folder))["unfinished"].what == "unfinished: .rank9.tmp"
    (folder / ".rank9.tmp").unlink()
    assert not wrong(run.checks(folder))


def test_a_run_that_is_not_there(tmp_path):
    assert wrong(run.checks(tmp_path / "x"))["directory"].status == "fail"


def test_a_run_that_is_not_whole(tmp_path):
    folder = part(tmp_path / "a", (0, 1))
    (folder / "rank1_iter3_4.trace.json.gz").unlink()
    found = wrong(run.checks(folder))
    assert found["missing"].what == "ranks 2-3 of 4 are not here"
    assert "rankscope gather" in found["missing"].fix
    assert "rank1_iter3_4.trace.json.gz" in found["traces"].what
    assert found["traces"].fix == f"rankscope gather {folder} HOST:DIR copies them again"
    # Of what is cut its manifest is the proof, and gather puts the whole one in its place.
    (folder / "rank1_iter3_4.trace.json.gz").write_bytes(b"cut")
    assert wrong(run.checks(folder))["traces"].fix == f"rankscope gather {folder} HOST:DIR copies them again"


def test_what_ranks_say(tmp_path):
    def anchors(*pairs):
        return tuple(ClockAnchor(wall, monotonic) for wall, monotonic in pairs)

    second = 10**9
    folder = a_run(
        tmp_path / "a",
        manifest(
            0,
            failed=(LostWindow(1, 2, "No space left on device"),),
            warnings=("odd",),
            environment={"settings": {"NCCL_NET": "IB", "CUDA_VISIBLE_DEVICES": "0"}, "cpu_affinity": "3"},
            clock_anchors=anchors((0, 0), (second, second), (3 * second + 5_000_000, 3 * second)),
        ),
        manifest(
            1,
            skipped=(LostWindow(1, 2, "the one before is still written"),),
            environment={"settings": {"CUDA_VISIBLE_DEVICES": "1"}, "cpu_affinity": "3"},
            # Set right slowly, as it should be: 300 ppm.
            clock_anchors=anchors((0, 0), (100 * second + 30_000_000, 100 * second)),
        ),
    )
    found = wrong(run.checks(folder))
    assert found["failed"].what == "1 window failed on rank 0: No space left on device"
    assert found["failed"].status == "fail"
    assert found["skipped"].status == "warn"
    assert found["warned"].what == "rank 0: odd"
    assert found["settings"].what == "NCCL_NET differs: 'IB' on rank 0, not set on rank 1"
    assert found["cores"].what == "ranks 0-1 share core 3 of h0"
    assert found["clock"].what == "the clock of h0 jumped by 5.0 ms while rank 0 ran"


def test_windows_that_only_some_ranks_have(tmp_path):
    busy = "the previous trace was still being written on rank 1"
    warned = f"steps 5 to 6 were not recorded: {busy}"
    ranks = []
    for rank, steps in ((0, (3, 5)), (1, (3,))):
        written = tuple(WrittenTrace(f"rank{rank}_iter{n}_{n + 1}.trace.json", n, n + 1, 2) for n in steps)
        ranks.append(manifest(rank, written=written, skipped=(LostWindow(8, 9, busy),), warnings=(warned,)))
    folder = a_run(tmp_path / "a", *ranks)
    for each in ranks:
        for trace in each.written:
            (folder / trace.file).write_text("{}")
    found = wrong(run.checks(folder))
    assert found.keys() == {"windows", "skipped"}
    assert found["windows"].what == "no trace on rank 1 of steps 5-6, which rank 0 recorded"
    assert found["skipped"].what == f"1 window skipped on ranks 0-1: {busy}"
    # What is still running may still write it.
    running = replace(ranks[1], state="running")
    (folder / "ranks" / "rank1.json").write_bytes(to_json(running))
    assert "windows" not in wrong(run.checks(folder))


def test_a_window_that_is_kept_elsewhere_is_not_lost(tmp_path):
    reasons = ("OSError: disk full", "TraceKeptError: [Errno 28] disk full; the trace is kept as /tmp/kept-a/b: add it")
    failed = tuple(LostWindow(1, 2, reason) for reason in reasons)
    folder = a_run(tmp_path / "a", manifest(0, failed=failed))
    lost, kept = (each for each in run.checks(folder) if each.name == "failed")
    assert "lost" in lost.fix
    assert "lost" not in kept.fix
    assert "rankscope gather RUN" in kept.fix


# --- logs -----------------------------------------------------------------------------------------------------

LINES = [
    ("sockets", "n1:7:9 [0] NCCL INFO Using network Socket"),
    ("plugin", "n1:7:9 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin."),
    ("interface", "n1:7:9 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found"),
    ("connection", "n1:7:9 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n2<4>"),
    (
        "connection",
        "n1:7:9 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to n2 failed : No route to host",
    ),
    ("locked memory", "n1:7:9 [0] misc/ibvwrap.cc:252 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate"),
    ("shared memory", "n1:7:9 [0] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device"),
    ("shared memory", "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)"),
    ("direct", "n1:7:9 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"),
    ("timeout", "[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE) ran for 6 ms"),
    ("memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB."),
    (
        "system error",
        "torch.distributed.DistBackendError: NCCL error, unhandled system error (run with NCCL_DEBUG=INFO)",
    ),
    ("peer to peer", "n1:7:9 [0] NCCL INFO P2P is disabled between connected GPUs 1 and 0"),
    ("warning", "n1:7:9 [0] transport/net.cc:3 NCCL WARN something that nobody has thought of"),
]


@pytest.mark.parametrize(("name", "line"), LINES)
def test_signs_in_logs(tmp_path, name, line):
    (tmp_path / "nccl").mkdir()
    (tmp_path / "nccl" / "n1.7.log").write_text(f"NCCL version 2.27.3\n{line}\n{line}\n")
    found = wrong(logs.checks(tmp_path))
    assert list(found) == [name]
    assert line[:40] in found[name].what
    assert "(2 lines in 1 file)" in found[name].what


def test_logs_that_are_well_and_logs_that_are_not_there(tmp_path):
    assert list(logs.checks(tmp_path)) == []
    (tmp_path / "train.out").write_text("NCCL INFO Using network IB\nloss 3.2\n")
    assert [c.what for c in logs.checks(tmp_path)] == ["no problems in 1 log"]
    # Files that were named are read whatever they are called.
    (tmp_path / "slurm-7").write_text(LINES[0][1])
    assert "sockets" in wrong(logs.checks(None, [tmp_path / "slurm-7"]))
    assert "unread" in wrong(logs.checks(None, [tmp_path / "nowhere"]))


def test_a_very_long_log_is_read_at_both_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "_MOST_BYTES", 400)
    (tmp_path / "a.log").write_bytes(LINES[0][1].encode() + b"\n" + b"\xff\n" * 5000 + LINES[9][1].encode() + b"\n")
    assert set(wrong(logs.checks(tmp_path))) == {"sockets", "timeout"}


# --- the whole ------------------------------------------------------------------------------------------------


def test_worst():
    checks = [Check("a", "b", status, "") for status in ("ok", "warn", "fail")]
    assert [worst(checks[:n]) for n in range(4)] == ["ok", "ok", "warn", "fail"]


def test_the_report_is_inert_and_its_exit_code_tells(capsys):
    checks = [Check("s", "a", "ok", "fine"), Check("s", "b", "warn", "odd \x1b[31m\n name", "fix \x07")]
    assert report(checks) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert out.splitlines()[-1] == "1 ok, 1 warning, 0 failures"
    assert report([*checks, Check("s", "c", "fail", "bad", "fix")], as_json=True) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["schema_version"], found["status"], found["fail"]) == (1, "fail", 1)
    assert found["checks"][2] == {"subject": "s", "name": "c", "status": "fail", "what": "bad", "fix": "fix"}
    report(checks, only_wrong=True)
    assert "fine" not in capsys.readouterr().out


def test_the_command(tmp_path, monkeypatch, capfd):
    from rankscope.cli import main

    probe = tmp_path / "probe.py"
    probe.write_text(f"import json\nprint(json.dumps({CPU!r} | {{'stage': 'done'}}))")
    monkeypatch.setattr(devices, "PROBE_SCRIPT", probe)
    folder = part(tmp_path / "a", (0, 1))

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["rankscope", "doctor", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code or 0, capfd.readouterr().out

    code, out = command(folder, "--json")
    found = json.loads(out)
    assert code == 1
    assert {c["name"] for c in found["checks"] if c["status"] == "fail"} == {"missing"}
    assert {c["subject"] for c in found["checks"]} >= {"software", "torch", "launcher", "network", "disk", "run"}
    assert command("--only-wrong")[0] == 0


def test_every_failure_and_warning_says_how_to_mend_it(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "ask_torch", lambda *_: Answer(CPU, "done"))
    for check in run_checks(part(tmp_path / "a", (0, 1)), environ={"RANK": "x", "MASTER_PORT": "y"}):
        assert check.what
        assert check.status == "ok" or check.fix, check
