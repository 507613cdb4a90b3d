"""Searching for wrappers among all objects while the job runs."""

from __future__ import annotations

import gc
import threading

import pytest
import torch.nn.parallel.distributed as ddp

from rankscope.capture.parallelism import Wrappers, _all_of


@pytest.mark.slow
def test_tuples_that_the_job_is_building_survive_a_search() -> None:
    """A tuple with a second owner cannot grow: `tuple(x for x in …)` would end with a SystemError in the job."""
    assert ddp.DistributedDataParallel.__module__ == ddp.__name__, "without wrappers nothing is looked for"
    crowd = [[number] for number in range(200_000)]
    done = threading.Event()

    def look() -> None:
        for _ in range(30):
            Wrappers().find()
        done.set()

    beside = threading.Thread(target=look)
    beside.start()
    made = 0
    while not done.is_set():
        made += len(tuple(x for x in range(300))) == 300
    beside.join()
    assert made
    assert len(crowd) == 200_000


def test_all_of_a_kind_are_found_and_nothing_is_kept() -> None:
    class Strange:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("looked at")

        __hash__ = None  # type: ignore[assignment]  # what has one of its own must not be asked for it

    mine = [Strange() for _ in range(3)]
    found = _all_of({Strange})
    assert sorted(map(id, found)) == sorted(map(id, mine))
    count = len(gc.get_referrers(mine[0]))
    del found
    assert len(gc.get_referrers(mine[0])) < count
    assert gc.isenabled()
