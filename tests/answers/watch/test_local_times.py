"""Local times from arrivals alone, against jobs whose local times are given."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rankscope.answers.watch.local_times import local_times
from rankscope.answers.watch.log import WatchLogs

from .jobs import MS, SimulatedJob


def times_of(job, folder, most=1000, **options):
    truth = job.write(folder, **options)
    return local_times(WatchLogs(folder).latest(), most), np.array(truth)


LAYOUTS = {
    "data parallel": {"buckets": 3},
    "one bucket": {"buckets": 1},
    "tensor parallel": {"forward": 8, "buckets": 1},
    "both": {"forward": 4, "buckets": 4},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ranks", [2, 5])
@pytest.mark.parametrize("slow_at", ["", "loading", "forward", "backward", "optimizer"])
def test_local_times_are_those_that_were_given(tmp_path, layout, ranks, slow_at):
    def slow(rank, _step, place):
        return 15 * MS if slow_at and rank == 1 and place == slow_at else 0

    found, truth = times_of(SimulatedJob(ranks=ranks, slow=slow, **LAYOUTS[layout]), tmp_path)
    assert found.basis == "collectives"
    assert found.ranks == tuple(range(ranks))
    assert found.steps.tolist() == list(range(1, 60))
    # Arrivals are logged in µs.
    count = 1 + sum(LAYOUTS[layout].values())
    assert np.abs(found.local_ns - truth[:, 1:]).max() <= 1000 * count


def test_the_phases_add_up_and_one_has_the_excess(tmp_path):
    def slow(rank, _step, place):
        return 9 * MS if rank == 2 and place == "backward" else 0

    found, _ = times_of(SimulatedJob(slow=slow, noise=0), tmp_path)
    total = np.sum(list(found.phases.values()), axis=0)
    assert np.abs(total - found.local_ns).max() < 5000
    more = {name: float((value[2] - value[0]).mean()) for name, value in found.phases.items()}
    assert max(more, key=more.get) == "backward"
    assert more["backward"] == pytest.approx(9 * MS, rel=0.01)


def test_collectives_in_the_forward_pass_hide_where_it_is_slow(tmp_path):
    def slow(rank, _step, place):
        return 3 * MS if rank == 2 and place == "forward" else 0

    found, _ = times_of(SimulatedJob(slow=slow, forward=4, buckets=1), tmp_path)
    assert "forward" not in found.phases
    more = {name: float((value[2] - value[0]).mean()) for name, value in found.phases.items()}
    assert max(more, key=more.get) == "forward and backward"


def test_clocks_of_hosts_are_aligned(tmp_path):
    clocks = (0, 0, 7_000 * MS, 7_000 * MS)

    def slow(rank, _step, place):
        return 12 * MS if rank == 3 and place == "forward" else 0

    job = SimulatedJob(clocks=clocks, slow=slow)
    found, truth = times_of(job, tmp_path, hosts=("a", "a", "b", "b"))
    assert not found.unaligned
    assert np.abs(found.local_ns - truth[:, 1:]).max() <= 5000
    (arrivals,) = found.arrivals
    assert (arrivals.late_ns.argmax(axis=1) == 3).mean() > 0.95


def test_steps_that_one_rank_lacks_are_left_out(tmp_path):
    SimulatedJob().write(tmp_path)
    path = tmp_path / "watch" / "rank2.jsonl"
    kept = [line for line in path.read_bytes().splitlines(keepends=True) if b'"step":30,' not in line]
    path.write_bytes(b"".join(kept))
    found = local_times(WatchLogs(tmp_path).latest(), 1000)
    # What is before the collectives of step 31 is not known on that rank.
    assert set(range(1, 60)) - set(found.steps.tolist()) == {30, 31}


def test_without_collectives_the_phases_are_compared(tmp_path):
    SimulatedJob(noise=0).write(tmp_path)
    for path in (tmp_path / "watch").iterdir():
        kept = [line for line in path.read_bytes().splitlines(keepends=True) if b'"calls"' not in line]
        path.write_bytes(b"".join(kept))
    found = local_times(WatchLogs(tmp_path).latest(), 1000)
    assert found.basis == "phases"
    assert found.local_ns[0].tolist() == [27 * MS] * 60  # loading, forward, optimizer
    assert found.arrivals == ()


def test_steps_whose_collectives_are_not_in_the_log_yet_are_not_compared(tmp_path):
    SimulatedJob(steps=90).write(tmp_path)
    for path in (tmp_path / "watch").iterdir():
        lines = path.read_bytes().splitlines(keepends=True)
        calls = [line for line in lines if b'"calls"' in line]
        path.write_bytes(b"".join(line for line in lines if line not in calls[len(calls) // 2 :]))
    found = local_times(WatchLogs(tmp_path).latest(), 20)
    assert found.basis == "collectives"
    assert len(found.steps) >= 18
    assert found.steps[-1] < 60


def test_only_steps_whose_collectives_were_all_read_are_compared(tmp_path):
    # Of 4 per step, each rank has read some in a row, which begin and end within a step.
    def unread(rank, number):
        begin = (42, 62, 50)[rank]
        return not (begin <= number < begin + 80 or 201 <= number < 279 + rank)

    found, truth = times_of(SimulatedJob(ranks=3, steps=100, forward=1), tmp_path, unread=unread)
    assert found.basis == "collectives"
    assert found.steps.tolist() == [*range(16, 30), *range(51, 69)]
    assert np.abs(found.local_ns - truth[:, found.steps]).max() <= 5000


def test_where_no_step_was_read_whole_it_says_so(tmp_path):
    found, _ = times_of(SimulatedJob(forward=1), tmp_path, unread=lambda _rank, number: number % 4 == 1)
    assert (found.basis, found.unread) == ("phases", True)


def test_one_rank_has_nobody_to_compare_with(tmp_path):
    SimulatedJob(ranks=1).write(tmp_path)
    assert local_times(WatchLogs(tmp_path).latest(), 1000) is None


def lengths(seed):
    """Of all ranks, what each step is longer, ns."""
    rng = random.Random(seed)
    return [abs(round(rng.gauss(0, 30 * MS))) for _ in range(100)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("layout", [*LAYOUTS, "one before the backward pass"])
def test_steps_that_are_longer_on_all_ranks_hide_no_wait(tmp_path, layout, seed):
    more = lengths(seed)
    shape = LAYOUTS.get(layout, {"forward": 1, "buckets": 3})

    def slow(rank, step, place):
        longer = more[step] // max(shape.get("forward", 1), 1) if place == "forward" else 0
        return longer + (10 * MS if (rank, place) == (1, "backward") else 0)

    found, truth = times_of(SimulatedJob(ranks=2, steps=100, seed=seed, slow=slow, **shape), tmp_path)
    assert found.undecided_ns == 0
    assert np.abs(found.local_ns - truth[:, 1:]).max() <= 10_000


def test_what_cannot_be_told_from_the_steps_is_said(tmp_path):
    def slow(rank, _step, place):
        return 3 * MS if (rank, place) == (1, "forward") else 0

    found, _ = times_of(SimulatedJob(ranks=2, noise=0, forward=4, buckets=1, slow=slow), tmp_path)
    assert found.undecided_ns == pytest.approx(9 * MS, rel=0.5)


def test_a_rank_that_is_early_by_equally_much_in_each_step_waits(tmp_path):
    """Nothing varies, so levels must tell: without them rank 0 would have what it waited as its own time."""

    def slow(rank, _step, place):
        return 15 * MS if (rank, place) == (1, "loading") else 0

    found, truth = times_of(SimulatedJob(ranks=2, noise=0, forward=4, buckets=1, slow=slow), tmp_path)
    assert found.undecided_ns < MS
    assert np.abs(found.local_ns - truth[:, 1:]).max() <= 6000
