"""Starts the hanging job, waits until its ranks have written what is expected, and ends it by its process ids."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.environment import without_launcher
from tests.ports import free_port

from rankscope.answers.hang import HangVerdict, NoDumpsError, read

JOB = Path(__file__).parent / "hanging_job.py"
LIMIT_S = 60.0
"""Until the job hangs and all ranks have written it down, on a busy machine."""
ALONE = ("killed", "size", "dtype")
"""Cases in which a rank ends at once. torchrun would end the others before they report it; srun and mpirun may not."""


@contextmanager
def hanging_job(case: str, folder: Path, ranks: int) -> Iterator[None]:
    """The job while it runs: under torchrun, or as plain processes."""
    environ = without_launcher(os.environ)
    root = JOB.parents[2]
    environ["PYTHONPATH"] = os.pathsep.join([str(root / "src"), str(root), environ.get("PYTHONPATH", "")])
    environ["OMP_NUM_THREADS"] = "1"
    job = [str(JOB), case, str(folder)]
    if case in ALONE:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
        starts = [([sys.executable, *job], {**environ, **place, "RANK": str(rank)}) for rank in range(ranks)]
    else:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        starts = [([*torchrun, *job], environ)]
    with (folder / "output.txt").open("wb") as output:
        processes = [
            subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True)
            for command, env in starts
        ]
        try:
            yield
        finally:
            for process in processes:
                # torchrun's workers have sessions of their own, and survive it.
                for pid in (process.pid, *_descendants(process.pid)):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                process.wait()


def _descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, children.read_text().split()):
                found += [child, *_descendants(child)]
    return found


def verdict_of(case: str, folder: Path, ranks: int, expected: Callable[[HangVerdict], bool]) -> HangVerdict:
    """The verdict on a case, once it is as expected; the latest one if it never is."""
    folder.mkdir(parents=True, exist_ok=True)
    verdict = None
    with hanging_job(case, folder, ranks):
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            time.sleep(0.5)
            with contextlib.suppress(NoDumpsError):
                verdict = read(folder)
                if verdict.found and expected(verdict):
                    break
    assert verdict is not None, (folder / "output.txt").read_text()
    return verdict
