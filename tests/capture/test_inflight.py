"""No recording is stopped while a collective of gloo may still write into it."""

from __future__ import annotations

import sys
import threading
import time
import zlib
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.ports import free_port

from rankscope.capture import inflight
from rankscope.capture.inflight import InFlight
from rankscope.rundir.manifest import read_rank_manifest

from .test_jobs import run


class Work:
    """As torch's: over when the test says so, or failed."""

    def __init__(self, over: bool = False, error: Exception | None = None):
        self.over, self.error = over, error

    def is_completed(self) -> bool:
        if self.error is not None:
            raise self.error
        return self.over

    def get_future(self) -> object:
        return self


class Between(Work):
    """A send or a receive: without a future."""

    def get_future(self) -> object:
        raise NotImplementedError


def test_all_works_are_waited_for():
    flight, works = InFlight(), [Work(True), Work(), Work(True), Work(error=RuntimeError("the peer is gone"))]
    for work in works:
        flight.add(work, "allreduce")
    flight.add(None, "barrier")  # some give none
    assert not flight.wait(0)
    works[1].over = True
    assert flight.wait(0)
    flight.add(late := Work(), "broadcast")
    later = threading.Timer(0.05, lambda: setattr(late, "over", True))
    later.start()
    assert flight.wait(30)
    later.join()


def test_composed_collectives_never_report_completion():
    flight, held = InFlight(), Between()
    flight.add(held, "reduce_scatter")
    assert flight.wait(0)
    # A send that is waited for later is under way; one that nobody holds has been let go of, as without us.
    flight.add(held, "send")
    assert not flight.wait(0)
    del held
    assert flight.wait(0)
    flight.add(Between(), "recv_anysource")
    assert flight.wait(0)


def test_complete_works_are_released():
    flight = InFlight()
    for _ in range(1000):
        flight.add(Work(True), "allreduce")
    assert len(flight._works) <= 1


@pytest.fixture
def gloo(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone says what a thread is doing")
def test_gloos_threads_are_waited_for(gloo):
    dist.all_reduce(torch.ones(2))
    if not inflight._gloo_threads():
        pytest.skip("this torch gives its threads no names")
    assert InFlight().wait(30)
    end, ready = threading.Event(), threading.Event()

    def busy():
        # As a run loop's thread that has work to do: its name, and on the CPU without the interpreter.
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("pt_gloo_runloop")
        ready.set()
        while not end.is_set():
            zlib.crc32(bytes(100_000_000))

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        ready.wait()
        # Between two sums it may wait for the interpreter, and seem to rest: for as long as this thread does not.
        until = time.monotonic() + 300
        while InFlight().wait(0):
            assert time.monotonic() < until
            time.sleep(0.01)
    finally:
        end.set()
        thread.join()
    assert InFlight().wait(30)


def test_unnamed_threads_are_given_a_pause(gloo, monkeypatch):
    monkeypatch.setattr(inflight, "_gloo_threads", list)
    began = time.monotonic()
    assert InFlight().wait(0)
    assert time.monotonic() - began >= inflight._PAUSE_S


JOB = """
import sys, time, torch, torch.distributed as dist, rankscope
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
store = dist.distributed_c10d._get_default_store()
with rankscope.Profiler(sys.argv[1], wait=0, warmup=1, active=1) as prof:
    prof.step()
    if rank == 1:
        store.wait(["four steps"])
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    steps = 0
    while prof.recording or steps == 0:
        prof.step()
        steps += 1
        if rank == 0 and steps == 4:
            store.set("four steps", "made")
        assert prof.recording or work.is_completed(), "stopped under a collective"
        time.sleep(0.1)
    sys.stdout.write(f"rank {rank}: {steps} steps\\n")
work.wait()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_window_ends_later_while_a_collective_is_pending(tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    place = ["--master-addr=127.0.0.1", f"--master-port={free_port()}", "--nproc-per-node=2"]
    said = run(["-m", "torch.distributed.run", *place, "job.py", "out"], tmp_path)
    steps = {rank: int(said.partition(f"rank {rank}: ")[2].split()[0]) for rank in (0, 1)}
    # Rank 1 comes when rank 0 has made four steps and waits all the while.
    assert steps[0] >= 4, said
    for rank in (0, 1):
        (written,) = read_rank_manifest(tmp_path / "out" / "ranks" / f"rank{rank}.json").written
        assert (written.first_step, written.last_step) == (1, 1)
