"""Torch's Flight Recorder, read incrementally: every call once, gaps counted, and no more than a share of the time."""

from __future__ import annotations

import json

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
    """A buffer of a fixed size, written as torch writes it."""

    def __init__(self, size=10, order=True):
        self.size, self.made, self.order, self.now, self.cpu, self.cost = size, 0, order, 0.0, 0.0, 0.001

    def dump(self):
        self.cpu += self.cost
        entries = [entry(n) for n in range(max(self.made - self.size, 0), self.made)]
        whole = {"comm_lib_version": "", "entries": entries, "nccl_comm_state": {}, "version": "2.10"}
        if not self.order:
            whole = {"version": "2.10", "entries": entries}
        return json.dumps(whole, separators=(",", ":")).encode()

    def ring(self):
        return CollectiveRing(self.dump, lambda: self.now, lambda: self.cpu)


@pytest.mark.parametrize("order", [True, False], ids=["as torch writes it", "another order of keys"])
def test_each_call_is_read_once(order):
    torch, found = Torch(order=order), []
    ring = torch.ring()
    for more in (0, 3, 0, 7, 10, 1):
        torch.made += more
        torch.now += 20
        assert ring.due
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
    assert not ring.due
    torch.now += 0.2
    assert ring.due


def test_a_quiet_job_is_read_now_and_then():
    torch = Torch()
    ring = torch.ring()
    ring.read()
    torch.now += READ_AT_LEAST_S + 0.1
    assert ring.due


def test_a_busy_job_is_read_before_the_buffer_is_full():
    torch = Torch(size=2000)
    torch.cost = 0.0
    ring = torch.ring()
    torch.now, torch.made = 1.0, 400  # 400 per second: full in five seconds
    ring.read()
    torch.now += 2.4
    assert not ring.due
    torch.now += 0.2
    assert ring.due


def test_torchs_own_buffer():
    """A process group of one rank: what torch writes is what is parsed here."""
    import torch
    import torch.distributed as dist

    from rankscope.capture.collectives import flight_recorder_dump

    if flight_recorder_dump() is None:
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
