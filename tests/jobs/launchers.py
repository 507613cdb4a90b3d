"""Launchers of Debian's packages, and a Slurm cluster of one host."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.capture.conftest import clean_environ
from tests.ports import free_port


def program(name, package):
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))
    if found is None:
        pytest.skip(f"no {name} here: apt-get install {package}")
    return found


def said_by_sbatch(folder: Path, text: str) -> str:
    """What a real sbatch says of a script's lines; it looks for a controller, in vain, only once it has taken them."""
    sbatch = program("sbatch", "slurm-client")
    settings = ["ClusterName=test", "SlurmctldHost=localhost(127.0.0.1)", "SlurmctldPort=9", "MessageTimeout=1"]
    settings += ["AuthType=auth/none", "CredType=cred/none", "SelectType=select/cons_tres", "GresTypes=gpu"]
    settings += ["NodeName=localhost CPUs=8", "PartitionName=all Nodes=localhost Default=YES"]
    (folder / "slurm.conf").write_text("\n".join(settings) + "\n")
    (folder / "submitted.sh").write_text(text)
    environ = {**clean_environ(), "SLURM_CONF": str(folder / "slurm.conf")}
    line = [sbatch, "--test-only", str(folder / "submitted.sh")]
    return subprocess.run(line, env=environ, capture_output=True, text=True, timeout=300).stderr


@contextmanager
def slurm_cluster(folder: Path):
    """munged, slurmctld and slurmd of the test's own, on free ports; what srun needs in its environment."""
    names = ("munged", "slurmctld", "slurmd", "srun")
    munged, slurmctld, slurmd, _ = (program(name, "munge slurmctld slurmd slurm-client") for name in names)
    if os.getuid() != 0:
        pytest.skip("slurmd needs root")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    settings = {
        "ClusterName": "test",
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge.socket",
        "SlurmctldPort": free_port(),
        "SlurmdPort": free_port(),
        "StateSaveLocation": folder / "state",
        "SlurmdSpoolDir": folder / "spool",
        "SlurmctldPidFile": folder / "slurmctld.pid",
        "SlurmdPidFile": folder / "slurmd.pid",
        "SlurmctldLogFile": folder / "slurmctld.log",
        "SlurmdLogFile": folder / "slurmd.log",
        "ProctrackType": "proctrack/pgid",
        "TaskPlugin": "task/none",
        "SelectType": "select/cons_tres",
        # As many tasks as the test wants, on however few cores.
        "SlurmdParameters": "config_overrides",
        "MpiDefault": "none",
        "SwitchType": "switch/none",
    }
    lines = [f"{name}={value}" for name, value in settings.items()]
    lines += [f"NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN"]
    lines += [f"PartitionName=all Nodes={host} Default=YES State=UP"]
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
    environ = {**clean_environ(), "SLURM_CONF": str(folder / "slurm.conf")}
    keys = [f"--key-file={folder}/key", f"--socket={folder}/munge.socket", f"--pid-file={folder}/munged.pid"]
    keys += [f"--log-file={folder}/munged.log", f"--seed-file={folder}/seed", "--force", "--foreground"]
    running = []
    try:
        for line in ([munged, *keys], [slurmctld, "-D", "-c"], [slurmd, "-D", "-c"]):
            running.append(subprocess.Popen(line, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            time.sleep(1)
            for _ in range(600):  # the others ask munged when they start, and end where it does not answer
                if (folder / "munge.socket").exists() or running[0].poll() is not None:
                    break
                time.sleep(0.1)
        for _ in range(300):
            state = subprocess.run(
                ["sinfo", "-h", "-o", "%T"], env=environ, capture_output=True, text=True, timeout=120
            )
            if state.stdout.strip() == "idle":
                break
            time.sleep(0.5)
        else:
            logs = "\n".join(p.read_text(errors="replace")[-2000:] for p in folder.glob("*.log"))
            pytest.skip(f"Slurm does not come up here: {state.stdout}{state.stderr}\n{logs}")
        yield {"SLURM_CONF": str(folder / "slurm.conf")}
    finally:
        for process in reversed(running):
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
