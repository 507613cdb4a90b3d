"""The collectives of a window, including those that C++ calls, compared with calls of known number and size."""

from __future__ import annotations

import pickle
import threading

import pytest
import torch
import torch.distributed as dist
from torch._dynamo.utils import counters

from rankscope.capture import collectives, graph_capture
from rankscope.capture.collectives import CollectiveCalls
from rankscope.capture.flight_recorder import read_flight_recorder
from rankscope.capture.inflight import InFlight

RECORDER = pytest.mark.skipif(
    not hasattr(getattr(torch._C, "_distributed_c10d", None), "_dump_fr_trace"),
    reason="this torch has no recorder",
)


@pytest.fixture
def alone():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def listed(calls, caller):
    said = calls.describe()
    kinds = [said["kinds"][index] for index in said["order"]]
    assert said["us"] == sorted(said["us"])
    return [(k["operation"], k["ranks"], k["dtype"], k["elements"], k["bytes"]) for k in kinds if k["caller"] == caller]


def functional(tensor):
    """A collective as compiled code calls it: an operator, which calls the group from C++."""
    name = dist.group.WORLD.group_name
    torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.all_reduce(tensor, "sum", name))


@RECORDER
def test_calls_from_cpp_are_listed_once_and_those_from_python_once(alone):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
    for _ in range(3):  # until it has rebuilt its buckets, by broadcasts
        model(torch.ones(2, 8)).sum().backward()
    dist.all_reduce(torch.ones(999))  # before the window
    calls = CollectiveCalls(InFlight())
    calls.begin()
    for _ in range(3):
        dist.all_reduce(torch.ones(5, dtype=torch.bfloat16))
        functional(torch.ones(2, 3, dtype=torch.float64))
        model(torch.ones(2, 8)).sum().backward()
        dist.all_gather([torch.ones(7)], torch.ones(7))
        dist.barrier()
    calls.end()
    dist.all_reduce(torch.ones(999))  # after it
    calls.add_native_calls()
    bucket = 8 * 4 + 4
    assert (
        listed(calls, "c++")
        == [("allreduce", 1, "float64", 6, 48), ("allreduce", 1, "float32", bucket, 4 * bucket)] * 3
    )
    own = listed(calls, "python")
    assert [call[0] for call in own] == ["allreduce", "allgather", "barrier"] * 3
    assert own[0] == ("allreduce", 1, "bfloat16", 5, 10)
    assert calls.describe()["flight_recorder"] == "whole"


@RECORDER
def test_calls_of_another_thread_are_kept_apart(alone, monkeypatch):
    """While this thread is inside a call of Python's, another calls from C++."""
    calls = CollectiveCalls(InFlight())
    kind = torch.distributed.ProcessGroup
    original = kind.broadcast

    def slow(group, *args):
        other = threading.Thread(target=functional, args=(torch.ones(11),))
        other.start()
        other.join()
        return original(group, *args)

    monkeypatch.setattr(kind, "broadcast", slow)
    calls.begin()
    dist.broadcast(torch.ones(3), 0)
    calls.end()
    calls.add_native_calls()
    assert listed(calls, "python") == [("broadcast", 1, "float32", 3, 12)]
    assert listed(calls, "c++") == [("allreduce", 1, "float32", 11, 44)]


def ring(*calls, first=0):
    """A recorder's answer: when, in which thread."""
    entry = {"profiling_name": "gloo:all_reduce", "process_group": ["0", "default_pg"], "input_sizes": [[2, 3]],
             "input_dtypes": ["Float"], "output_sizes": [[2, 3]], "output_dtypes": ["Float"]}  # fmt: skip
    numbered = enumerate(calls, first)
    return [{**entry, "record_id": n, "time_created_ns": at, "thread_id": str(thread)} for n, (at, thread) in numbered]


@pytest.fixture
def recorder(monkeypatch):
    """A recorder that answers with the entries given to it."""
    entries = []
    dump = staticmethod(lambda *_: pickle.dumps({"entries": entries}))
    answer = type("c10d", (), {"_dump_fr_trace": dump})
    monkeypatch.setattr(torch._C, "_distributed_c10d", answer, raising=False)
    return entries


def test_a_buffer_that_lacks_the_beginning_is_incomplete(recorder):
    recorder += ring((50, 1), (60, 1), (70, 1), first=17)
    assert read_flight_recorder(40, 65).complete is False
    assert [call.at_ns for call in read_flight_recorder(40, 65).calls] == [50, 60]
    assert read_flight_recorder(55, 65).complete is True
    recorder[0]["record_id"] = 0
    assert read_flight_recorder(40, 65).complete is True


def test_without_a_recorder_or_with_an_accelerator_nothing_is_read(recorder, monkeypatch):
    assert read_flight_recorder(0, 100) is None  # switched off: it has no entries
    recorder += ring((50, 1))
    assert read_flight_recorder(0, 100) is not None
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(graph_capture, "_exchange_mode", lambda: None)
    assert read_flight_recorder(0, 100) is None
    monkeypatch.undo()
    monkeypatch.setattr(torch._C, "_distributed_c10d", object(), raising=False)
    assert read_flight_recorder(0, 100) is None


def test_a_recorder_with_another_format_changes_nothing(recorder, monkeypatch):
    recorder += [{"odd": True}]
    calls = CollectiveCalls(InFlight())
    calls._began, calls._ended = 1, 100
    calls.add_native_calls()
    assert calls.describe() == {}


@pytest.mark.parametrize("at", range(0, 100, 7))
def test_a_call_is_from_python_if_its_thread_was_in_one(at):
    """Against looking at each: calls one after the other, one within another, one that has not ended."""
    ran = [[1, 10, 20], [2, 5, 90], [1, 30, 60], [1, 35, 40], [1, 95, 10**18], [3, 50, 51]]
    held = collectives._PythonCalls(ran)
    for thread in (1, 2, 3, 4):
        call = collectives.FlightCall(at, thread, "allreduce", "0", None, 0, 0)
        assert (call in held) == any(t == thread and begin <= at <= end for t, begin, end in ran)


def test_a_method_that_the_job_replaces_meanwhile_stays_replaced(alone):
    calls, kind = CollectiveCalls(InFlight()), dist.ProcessGroup
    before, theirs = kind.__dict__["allreduce"], []
    calls.begin()
    wrapped = kind.allreduce

    def allreduce(*args, **options):
        theirs.append(1)
        return wrapped(*args, **options)

    try:
        kind.allreduce = allreduce
        dist.all_reduce(torch.ones(1))
        calls.end()
        dist.all_reduce(torch.ones(1))
    finally:
        kind.allreduce = before
    assert len(theirs) == 2
    assert len(listed(calls, "python")) == 1


@pytest.mark.filterwarnings("ignore")  # Dynamo's, of what it cannot trace in the job's own code
def test_dynamo_compiles_nothing_of_the_recording(alone):
    def broadcast(x):
        y = x + 1
        dist.broadcast(y, 0)
        return y * 2

    def frames(calls):
        torch._dynamo.reset()
        counters["frames"].clear()
        calls.begin()
        torch.compile(broadcast, backend="eager")(torch.ones(3))
        calls.end()
        return dict(counters["frames"])

    recorded, ended = CollectiveCalls(InFlight()), CollectiveCalls(InFlight())
    ended._ended = 1
    assert frames(recorded) == frames(ended)
    assert len(listed(recorded, "python")) == 1


def test_beyond_a_limit_calls_are_counted(monkeypatch, recorder):
    monkeypatch.setattr(collectives, "MAX_CALLS", 2)
    recorder += ring((10, 1), (20, 1), (30, 1))
    calls = CollectiveCalls(InFlight())
    calls._began, calls._ended = 1, 100
    calls.add_native_calls()
    said = calls.describe()
    assert (len(said["order"]), said["left_out"], said["us"]) == (2, 1, [0, 0])
    assert said["kinds"] == [
        {"operation": "allreduce", "group": "0", "ranks": None, "dtype": "float32", "elements": 6, "bytes": 24,
         "caller": "c++"}
    ]  # fmt: skip
