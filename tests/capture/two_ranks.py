"""Two ranks with gloo, started directly so that each has an exit status of its own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_port

from rankscope.jobs.exec import profiled_environment

from .conftest import clean_environ

TIMEOUT_S = 300

TRAIN = """
import atexit, gc, os, signal, sys, threading, time
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
# Whoever started the tests may ignore these: nohup, a shell's background.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
{before}
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def train(steps):
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.full((2, 8), 1.0 + rank + step)).square().sum()
        loss.backward()
        optimizer.step()
        print(loss.item().hex(), flush=True)
{after}
"""
"""The losses are printed exactly. Gloo's thread may meet the interpreter's end where a group lives until then, with or
without a profiler: what does not end in the middle drops the model."""


@dataclass(frozen=True)
class Ended:
    """One rank that has ended."""

    code: int
    losses: tuple[str, ...]
    errors: str


_started: list[subprocess.Popen[str]] = []


def end_when_the_test_ends(job: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """Whatever becomes of the test, its processes end and their pipes are closed: they would spoil another test."""
    _started.append(job)
    return job


def end_started() -> None:
    """End what the test has started."""
    for job in _started:
        job.kill()
        job.wait()
        for pipe in (job.stdout, job.stderr):
            if pipe is not None:
                pipe.close()
    _started.clear()


def start(
    code: str, cwd: Path, *, profiled: bool = True, world_size: int = 2, **variables: str
) -> list[subprocess.Popen[str]]:
    """Both ranks, or another number of them."""
    cwd.mkdir(exist_ok=True)
    (cwd / "job.py").write_text(code)
    environ = clean_environ() | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(world_size),
    }
    environ |= variables
    if profiled:
        environ = profiled_environment({"RANKSCOPE_RUN_DIR": "run", "RANKSCOPE_RUN_ID": "one"} | environ)
    return [
        end_when_the_test_ends(
            subprocess.Popen(
                [sys.executable, "job.py"],
                cwd=cwd,
                env=environ | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        for rank in range(world_size)
    ]


def finish(jobs: list[subprocess.Popen[str]]) -> list[Ended]:
    """Wait for them."""
    found = []
    try:
        for job in jobs:
            output, errors = job.communicate(timeout=TIMEOUT_S)
            found.append(Ended(job.returncode, tuple(line for line in output.split() if "0x" in line), errors))
    finally:
        for job in jobs:
            job.kill()
    return found


def run(code: str, cwd: Path, *, profiled: bool = True, **variables: str) -> list[Ended]:
    """Both ranks, from start to end."""
    return finish(start(code, cwd, profiled=profiled, **variables))


def rankscope(folder, *arguments):
    """Run a command of rankscope in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "rankscope", *arguments],
        cwd=folder,
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
