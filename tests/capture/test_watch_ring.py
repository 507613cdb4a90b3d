"""Torch's Flight Recorder, read incrementally: every call once, gaps counted, and no more than a share of the time."""

from __future__ import annotations

import pytest

from rankscope.capture.watch.ring import READ_AT_LEAST_S, SHARE, CollectiveRing


def entry(number):
    return {
        "collective_seq_id": number + 1,
        "input_dtypes": ["Float"],
        "input_sizes": [[4]],
        "is_p2p": False,
        "op_id": number,
        "output_dtypes": ["Float"],
        "output_sizes": [[4]],
        "process_group": ["0", "default_pg"],
        "profiling_name": "gloo:all_reduce",
        "record_id": number,
        "thread_id": "1",
        "time_created_ns": 10**18 + number,
    }


class Torch:
    """A buffer of a fixed size."""

    def __init__(self, size=10):
        self.size, self.made, self.now, self.cpu, self.cost = size, 0, 0.0, 0.0, 0.001

    def entries(self):
        self.cpu += self.cost
        return [entry(n) for n in range(max(self.made - self.size, 0), self.made)]

    def ring(self):
        return CollectiveRing(lambda: {"": self.entries}, lambda: self.now, lambda: self.cpu)


def test_each_call_is_read_once():
    torch, found = Torch(), []
    ring = torch.ring()
    for more in (0, 3, 0, 7, 10, 1):
        torch.made += more
        torch.now += 20
        assert ring.due(0)
        read = ring.read()
        assert read.missed == 0
        assert len(read.calls) == more
        found += [call.sequence for call in read.calls]
    assert found == list(range(1, 22))


def test_what_was_called_before_is_left_out():
    torch = Torch()
    ring = torch.ring()
    torch.made = 7
    ring.skip()
    torch.made = 9
    read = ring.read()
    assert ([call.sequence for call in read.calls], read.missed) == ([8, 9], 0)


def test_what_the_buffer_dropped_is_counted():
    torch = Torch()
    ring = torch.ring()
    torch.made = 5
    ring.read()
    torch.made = 27
    torch.now += 20
    read = ring.read()
    assert read.missed == 12
    assert [call.sequence for call in read.calls] == list(range(18, 28))


def test_reading_takes_no_more_than_its_share():
    torch = Torch()
    torch.cost = 0.05
    ring = torch.ring()
    torch.made = 5
    ring.read()
    torch.now += 0.05 / SHARE - 0.1
    assert not ring.due(0)
    torch.now += 0.2
    assert ring.due(0)


def test_a_quiet_job_is_read_now_and_then():
    torch = Torch()
    ring = torch.ring()
    ring.read()
    torch.now += READ_AT_LEAST_S + 0.1
    assert ring.due(0)


def test_a_busy_job_is_read_before_the_buffer_is_full():
    torch = Torch(size=2000)
    torch.cost = 0.0
    ring = torch.ring()
    torch.now, torch.made = 1.0, 400  # 400 per second: full in five seconds
    ring.read()
    torch.now += 2.4
    assert not ring.due(0)
    torch.now += 0.2
    assert ring.due(0)


def read_for(rank, seconds, *, cost, step_ns=100_000_000, calls=20, size=2000):
    """The steps whose calls a rank reads completely, of a job with more calls than it may read."""
    torch = Torch(size)
    torch.cost, ring, whole, readings = cost, torch.ring(), set(), 0
    torch.now = before = rank * 0.37  # the control threads look at other times
    for step in range(int(seconds * 1e9 / step_ns)):
        torch.now += step_ns / 1e9
        torch.made += calls
        # Woken at the step, else about once per second.
        if ring.next_step == step + 1 or torch.now - before >= 1:
            before = torch.now
            if ring.due(step + 1):
                numbers = [(each.sequence - 1) // calls for each in ring.read(step + 1, step_ns).calls]
                whole |= {number for number in numbers if numbers.count(number) == calls}
                readings += 1
    return whole, readings * cost / seconds


def test_of_too_many_calls_all_ranks_read_those_of_the_same_steps():
    (one, share), (other, other_share) = read_for(0, 600, cost=0.028), read_for(1, 600, cost=0.05)
    assert max(share, other_share) < 1.2 * SHARE
    # The second may read half as often: then each of its steps is one of the first's, but for the beginning.
    assert 900 < len(other) < len(one)
    assert len(one & other) > 0.8 * len(other)


def test_a_step_longer_than_expected_does_not_stop_the_reading():
    torch = Torch(2000)
    torch.cost = 0.05
    ring = torch.ring()
    torch.now, torch.made = 1.0, 2000
    ring.read(10, 10**8)
    assert ring.next_step == 512
    torch.now += 10
    assert not ring.due(500)
    assert ring.due(512)
    torch.now += 1000
    assert ring.due(500)


def test_torchs_own_buffer():
    """A process group of one rank: what torch writes is what is parsed here."""
    import torch
    import torch.distributed as dist

    from rankscope.capture.flight_recorder import flight_recorders

    if not flight_recorders():
        pytest.skip("this torch has no flight recorder for gloo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        ring = CollectiveRing()
        ring.read()
        for made in (3, 2):
            for _ in range(made):
                dist.all_reduce(torch.ones(6))
            read = ring.read()
            assert [(each.operation, each.bytes) for each in read.calls] == [("allreduce", 24)] * made
            assert read.missed == 0
    finally:
        dist.destroy_process_group()


def test_calls_of_two_recorders_are_read_in_order():
    """NCCL's latest calls have no duration yet: what gloo was called with later waits for them."""
    base = 10**18

    def nccl(number, *, retired):
        timed = {"duration_ms": 1.5} if retired else {}
        made = {"record_id": number, "time_created_ns": base + 10 * number, "retired": retired}
        return entry(number) | made | timed | {"profiling_name": "nccl:all_reduce"}

    def gloo(number):
        return entry(number) | {"time_created_ns": base + 10 * number + 5}

    retired = [3]
    now = [base]
    entries = {
        "nccl": lambda: [nccl(n, retired=n < retired[0]) for n in range(6)],
        "others": lambda: [gloo(n) for n in range(6)],
    }
    ring = CollectiveRing(lambda: entries, wall_clock=lambda: now[0])
    first = [call.at_ns - base for call in ring.read().calls]
    assert first == [0, 5, 10, 15, 20, 25]
    retired[0] = 5
    assert [call.at_ns - base for call in ring.read().calls] == [30, 35, 40, 45]
    assert ring.read().calls == ()
    now[0] += 61 * 10**9  # torch never retires some calls
    assert [call.at_ns - base for call in ring.read().calls] == [50, 55]


def test_the_last_reading_has_all_and_odd_entries_are_left_out():
    entries = [entry(0) | {"duration_ms": 1.0, "retired": True}, entry(1), entry(2) | {"time_created_ns": None}]
    ring = CollectiveRing(lambda: {"nccl": lambda: entries}, wall_clock=lambda: 10**18)
    assert len(ring.read(last=True).calls) == 2
