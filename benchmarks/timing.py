"""Measures CPU seconds and memory of a piece of work, in a fresh process so that nothing is warm or shared."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The child runs `work()` of the snippet some times and prints CPU seconds of each, and its peak memory.
_CHILD = """
import json, resource, sys, time
{setup}
times = []
for _ in range({repeats}):
    start = time.process_time()
    work()
    times.append(time.process_time() - start)
print("RESULT " + json.dumps({{"cpu": times, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}}))
"""


@dataclass(frozen=True)
class Measured:
    """CPU seconds of each repeat, and the process's peak memory in bytes."""

    cpu: list[float]
    peak: int


def measure(setup: str, *, python: Path | str = sys.executable, repeats: int = 3) -> Measured:
    """Run a snippet that defines ``work()`` in a fresh process on one thread."""
    code = _CHILD.format(setup=setup, repeats=repeats)
    found = child_result(code, python=python, timeout_s=1800, POLARS_MAX_THREADS="1", OMP_NUM_THREADS="1")
    return Measured(found["cpu"], found["peak"])


def child_result(
    code: str, *arguments: str, python: Path | str = sys.executable, timeout_s: int, **variables: str
) -> Any:
    """Run code in a fresh process; the JSON of the line that it prints after `RESULT `.

    Raises:
        RuntimeError: it printed none.
    """
    environment = dict(os.environ, PYTHONWARNINGS="ignore", **variables)
    done = subprocess.run(
        [str(python), "-c", code, *arguments], capture_output=True, text=True, env=environment, timeout=timeout_s
    )
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    raise RuntimeError(f"the measured process failed:\n{done.stderr[-2000:]}")


def interleaved(
    snippets: dict[str, tuple[str, Path | str]], rounds: int = 5, repeats: int = 2
) -> dict[str, list[Measured]]:
    """Run each snippet once per round, in turn, so that a change of the machine's speed affects all of them."""
    found: dict[str, list[Measured]] = {name: [] for name in snippets}
    for _ in range(rounds):
        for name, (setup, python) in snippets.items():
            found[name].append(measure(setup, python=python, repeats=repeats))
    return found


def best(runs: list[Measured]) -> float:
    """Median over rounds of the best repeat: the first one in a process pays for cold caches."""
    return statistics.median(min(run.cpu) for run in runs)


def least(runs: list[Measured]) -> float:
    """The best repeat of all: for work so short that other programs slow most repeats down."""
    return min(min(run.cpu) for run in runs)
