"""What the capture tests share: a loop to profile, and a way to read what was written."""

from __future__ import annotations

import gzip
import inspect
import json
import os
from pathlib import Path

import pytest
import torch
from tests.environment import without_launcher

HAS_TRACE_ID = "custom_trace_id_callback" in inspect.signature(torch.profiler.profile.__init__).parameters
"""Whether this torch lets the trace id be chosen; with an older one it is only in rankscope's metadata."""


def clean_environ() -> dict[str, str]:
    """This process's environment without what a launcher or a test has set."""
    environ = without_launcher(os.environ)
    source = str(Path(__file__).parents[2] / "src")
    environ["PYTHONPATH"] = os.pathsep.join(p for p in (source, environ.get("PYTHONPATH", "")) if p)
    environ["OMP_NUM_THREADS"] = "1"
    # Kineto's level for no messages at all: it says two lines for each recording.
    environ["KINETO_LOG_LEVEL"] = "6"
    return environ


@pytest.fixture(autouse=True)
def nothing_left_running():
    yield
    from rankscope.capture.script_profilers import conflicts

    from .two_ranks import end_started

    end_started()

    assert conflicts._active == []
    assert not conflicts.another_profiler_runs()


@pytest.fixture
def off_loop_everywhere(monkeypatch):
    """Lets a torch that is not made for it stop off the loop, too. The loop waits for it there: an operator that ran
    meanwhile could end the process."""
    from rankscope.capture import stop_mode, trace_queue

    if stop_mode.other_threads_run():
        return
    monkeypatch.setattr(stop_mode, "_releases", True)
    original = trace_queue.TraceQueue.put

    def take(self, ended):
        original(self, ended)
        assert self._writer.drain(60)

    monkeypatch.setattr(trace_queue.TraceQueue, "put", take)


def said(stderr: str) -> str:
    """What a process said, less the line of torch's own that ends each recording off the loop. Nothing public silences
    it, and there is no GPU activity."""
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if "Toggling CPU activity with GPU activity on" not in line)


def read_trace(path: Path) -> dict:
    raw = path.read_bytes()
    return json.loads(gzip.decompress(raw) if path.name.endswith(".gz") else raw)


def steps_in(trace: dict, prefix: str = "ProfilerStep#") -> list[int]:
    found = {e["name"] for e in trace["traceEvents"] if e.get("ph") == "X" and e["name"].startswith(prefix)}
    return sorted(int(name.removeprefix(prefix)) for name in found)


def traces(folder: Path) -> list[str]:
    found = (p for p in folder.rglob("*.trace.*") if not p.name.startswith("."))
    return sorted(p.relative_to(folder).as_posix() for p in found)


def train(profiler, steps: int) -> None:
    for _ in range(steps):
        torch.mm(torch.ones(8, 8), torch.ones(8, 8))
        if profiler._queue is not None and profiler._queue.busy:
            # Steps of nothing would come to the next window before this one's trace is written.
            profiler._writer.drain(60)
        profiler.step()
