"""A watched job on a real device: times of the device, NCCL's calls, captures of graphs, hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from tests.capture.conftest import clean_environ

import rankscope
from rankscope.answers.hang import Cause
from rankscope.answers.watch.log import WatchLogs
from rankscope.answers.watch.status import read_status
from rankscope.capture.flight_recorder import NCCL, flight_recorders
from rankscope.capture.hang.dump import write_hang_dump
from rankscope.capture.watch.device_marks import DeviceMarks

from .sharing import share_device

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]


@pytest.fixture
def nccl(cuda):
    """A process group of this process alone."""
    share_device(0)
    torch.distributed.init_process_group("nccl", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def spin(ms, device):
    """Keep the device busy for about so long; returns what measures it: two events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.cuda._sleep(round(ms * 1.7e6))
    end.record()
    return begin, end


def test_steps_are_timed_on_the_device(tmp_path, cuda):
    weight = torch.ones(8, 8, device=cuda, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    measured = []
    with rankscope.Profiler(tmp_path, watch=True, wait=1000, warmup=1, active=1) as profiler:
        for _ in range(8):
            forward = spin(20, cuda)
            loss = (weight * 2).sum()
            loss.register_hook(lambda gradient: measured.append(spin(40, cuda)) and None)
            loss.backward()
            optimizer.step()
            measured.append(forward)
            torch.cuda.synchronize()  # else the host's steps are so short that not all are logged
            profiler.step()
    (log,) = WatchLogs(tmp_path).logs()
    assert len(log.steps) == 8
    for line, backward, forward in list(zip(log.steps, measured[::2], measured[1::2], strict=True))[1:]:
        wanted = [begin.elapsed_time(end) for begin, end in (forward, backward)]
        found = [line.device_forward_ns / 1e6, line.device_backward_ns / 1e6]
        assert found == pytest.approx(wanted, rel=0.05, abs=0.5)
        assert line.device_waiting_ns / 1e6 < 1
        assert line.device_ns / 1e6 == pytest.approx(sum(wanted), rel=0.05, abs=1)


def test_reading_beside_the_capture_of_a_graph_does_not_harm_it(tmp_path, nccl, cuda):
    """The same queries without protection invalidate the capture: seen with torch 2.11."""
    values = torch.ones(1 << 20, device=cuda)
    torch.distributed.all_reduce(values)
    marks = DeviceMarks()
    marks.mark("")
    marks.mark("forward")
    torch.cuda._sleep(1_000_000_000)
    works = [torch.distributed.all_reduce(values, async_op=True) for _ in range(3)]
    marks.mark("backward")
    stop, readings = threading.Event(), []

    def read():
        write_hang_dump(tmp_path, "a graph is being captured", limit_s=5.0)
        while not stop.is_set():
            readings.append((len(flight_recorders()[NCCL]()), marks.is_over(), marks.phases()))

    thread = threading.Thread(target=read)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        thread.start()
        result = values
        for _ in range(100):
            result = result * 1.0
            time.sleep(0.01)
    stop.set()
    thread.join()
    for work in works:
        work.wait()
    graph.replay()
    assert result.sum().item() == values.sum().item()
    assert readings
    assert max(calls for calls, _, _ in readings) == 4
    assert (tmp_path / "hang" / "rank0.json").exists()


def test_a_step_that_captures_a_graph_is_logged_without_the_device(tmp_path, cuda):
    values = torch.ones(64, device=cuda)
    with rankscope.Profiler(tmp_path, watch=True, wait=1000, warmup=1, active=1) as profiler:
        for step in range(4):
            if step == 2:
                graph = torch.cuda.CUDAGraph()
                stream = torch.cuda.Stream()
                with torch.cuda.stream(stream):
                    graph.capture_begin()
                    result = values * 2
                    profiler.step()
                    graph.capture_end()
                torch.cuda.current_stream().wait_stream(stream)
                graph.replay()
            else:
                profiler.step()
        torch.cuda.synchronize()
    assert result.sum().item() == 128
    (log,) = WatchLogs(tmp_path).logs()
    assert [line.device_ns is None for line in log.steps][:3] == [False, False, True]


def job(script, *arguments, ranks=2, **variables):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"]
    environ = clean_environ() | variables
    environ["PYTHONPATH"] = os.pathsep.join([environ["PYTHONPATH"], str(ROOT)])
    done = subprocess.run(
        [*command, str(ROOT / "tests" / "gpu" / script), *arguments],
        env=environ, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "phase"), [("loading", "data loading"), ("forward", "forward"), ("backward", "backward")]
)
def test_the_log_alone_names_the_late_rank_of_a_ddp_job(tmp_path, cuda, case, phase):
    job("nccl_job.py", case, str(tmp_path))
    status = read_status(tmp_path, WatchLogs(tmp_path))
    assert [(late.rank, late.phase) for late in status.late_ranks] == [(1, phase)], status


@pytest.mark.slow
def test_no_rank_is_named_where_none_is_late(tmp_path, cuda):
    job("nccl_job.py", "none", str(tmp_path))
    assert read_status(tmp_path, WatchLogs(tmp_path)).late_ranks == ()


@pytest.mark.slow
def test_ranks_that_wait_outside_of_the_backward_pass_need_timed_kernels(tmp_path, cuda):
    job("nccl_job.py", "reduced", str(tmp_path / "untimed"))
    unknown = read_status(tmp_path / "untimed", WatchLogs(tmp_path / "untimed"))
    assert "TORCH_NCCL_ENABLE_TIMING=1" in unknown.unknown
    job("nccl_job.py", "reduced", str(tmp_path / "timed"), TORCH_NCCL_ENABLE_TIMING="1")
    status = read_status(tmp_path / "timed", WatchLogs(tmp_path / "timed"))
    assert [late.rank for late in status.late_ranks] == [1], status
    assert max(status.last_arrivals, key=lambda each: each.collectives).rank == 1


# As with Gloo, but for `order` and `cycle`, which block while the communicators of the groups are made.
HANGS = {
    "sleep": (Cause.PYTHON_CODE, (1,)),
    "loader": (Cause.DATA_LOADING, (1,)),
    "exception": (Cause.EXCEPTION, (1,)),
    "branch": (Cause.MISMATCH, (1,)),
    "size": (Cause.MISMATCH, (1,)),
    "store": (Cause.NETWORK, (1,)),
    "order": (Cause.DEADLOCK, (0, 1)),
    "cycle": (Cause.DEADLOCK, (0, 1, 2)),
}


@pytest.mark.slow
@pytest.mark.parametrize(("case", "lazy"), [*((case, "") for case in HANGS), ("order", "1"), ("cycle", "1")])
def test_the_verdict_on_a_hang(tmp_path, cuda, case, lazy, monkeypatch):
    from tests.answers.hang.jobs import verdict_of

    monkeypatch.setenv("HANGING_JOB_BACKEND", "nccl")
    monkeypatch.setenv("HANGING_JOB_LAZY", lazy)
    ranks = 2 if case == "order" else 4 if case == "size" else 3
    verdict = verdict_of(case, tmp_path, ranks, lambda found: (found.cause, found.culprits) == HANGS[case])
    assert (verdict.cause, verdict.culprits) == HANGS[case], verdict
