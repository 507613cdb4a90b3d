"""What the doctor says of a machine: software, launcher, network, host, disk."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest
from tests.jobs.doctor.checks import wrong

from rankscope.jobs.doctor import disk, host, launcher, network, software

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
        ({"RANKSCOPE_WAIT": "soon"}, {}, "settings", "must be a whole number, 0 or more"),
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
