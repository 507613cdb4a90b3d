"""The replay against equations that are solved by hand, and what must hold for all jobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.whatif.pencil import Job

from rankscope.whatif.graph import C, graph_of, in_order
from rankscope.whatif.replay import Costs, replay
from rankscope.whatif.step_times import Steps, fidelity

US = 1_000


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Jobs of one to four ranks, and one to three steps."""
    ranks, per_step, steps = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    segments = per_step * steps
    times = st.lists(st.integers(0, 300).map(lambda us: us * US), min_size=segments, max_size=segments)
    longer = st.lists(st.integers(5, 300).map(lambda us: us * US), min_size=segments, max_size=segments)
    return Job([draw(times) for _ in range(ranks)], [draw(longer) for _ in range(ranks)], draw(longer), per_step)


def mean_step(job: Job) -> float:
    graph = job.graph()
    steps = Steps.of(graph)
    return float(steps.durations(graph, replay(graph, [Costs.recorded(graph)]).step_end).mean())


def test_a_host_that_is_ahead_costs_less_than_its_delay() -> None:
    job = Job([[1000, 1000, 1000], [1000, 10_000, 1000]], [[4000] * 3] * 2, [2000] * 3, 3)
    # Collective 1 ends at 7 µs. Rank 1 launches its next kernel at 11 µs only, and that ends at 15 µs: 17; 17 + 4 + 2.
    assert job.ends()[0] == 7000
    assert mean_step(job) == pytest.approx(job.mean_step(), abs=1)
    assert 23_000 <= job.mean_step() <= 23_000 + 2 * 1200


@settings(max_examples=80)
@given(jobs())
def test_a_consistent_recording_is_reproduced(job: Job) -> None:
    graph = job.graph()
    found = fidelity(graph, Steps.of(graph))
    assert found.recorded.tolist() == pytest.approx(job.step_times(), abs=1)
    assert found.replayed.tolist() == pytest.approx(job.step_times(), abs=1)
    assert found.error < 1e-6
    assert not graph.dropped


@settings(max_examples=80)
@given(jobs(), st.integers(0, 3), st.integers(0, 8), st.floats(0, 1))
def test_less_time_never_makes_it_longer(job: Job, rank: int, segment: int, share: float) -> None:
    rank, segment = rank % len(job.host), segment % len(job.transfer)
    graph = job.graph()
    costs = Costs.recorded(graph)
    node = np.flatnonzero((graph.kind == C) & (graph.lines.rank[graph.line] == rank))
    node = node[np.argsort(graph.recorded.start[node], kind="stable")][segment]
    host, device, transfer = costs.host.copy(), costs.device.copy(), costs.transfer.copy()
    host[node] *= share
    device[node] *= share
    transfer[graph.collective[node]] *= share
    shorter = [replace(costs, host=host), replace(costs, device=device), replace(costs, transfer=transfer)]
    ends = replay(graph, [costs, *shorter, replace(costs, host=host, device=device, transfer=transfer)]).step_end
    assert (ends[:, 1:] <= ends[:, :1] + 1e-6).all()


@settings(max_examples=60)
@given(jobs(), jobs())
def test_other_costs_give_what_the_equations_give(job: Job, other: Job) -> None:
    """The replay of one job with another's durations is the other job."""
    if len(job.host) != len(other.host) or len(job.transfer) != len(other.transfer) or job.per_step != other.per_step:
        other = replace(
            job, transfer=[value // 2 for value in job.transfer], device=[list(d)[::-1] for d in job.device]
        )
    graph, costs = job.graph(), other.graph()
    # Both have the same nodes, in the same order.
    assert graph.kind.tolist() == costs.kind.tolist()
    assert graph.line.tolist() == costs.line.tolist()
    changed = replace(Costs.recorded(graph), host=costs.host, device=costs.device, transfer=costs.transfer)
    changed_graph = replace(graph, path_host=costs.path_host, path_device=costs.path_device)
    # Launch paths are shares of recorded segments: as those of the other job, they have its durations already.
    changed_graph = replace(changed_graph, host=costs.host, device=costs.device)
    ends = replay(changed_graph, [changed]).step_end
    found = Steps.of(graph).durations(graph, ends)[:, 0]
    assert found.tolist() == pytest.approx(other.step_times(), abs=1)


def test_scenarios_in_blocks_are_those_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job([[5000, 9000], [8000, 2000]], [[4000, 7000], [6000, 3000]], [2000, 3000], 1)
    graph = job.graph()
    costs = Costs.recorded(graph)
    several = [replace(costs, transfer=costs.transfer * share) for share in (1.0, 0.5, 0.0)]
    at_once = replay(graph, several).step_end
    monkeypatch.setattr("rankscope.whatif.replay.BLOCK_BYTES", 1)
    assert replay(graph, several).step_end.tolist() == at_once.tolist()
    assert at_once[:, 0].max() > at_once[:, 2].max()


def test_what_contradicts_the_order_of_others_is_left_out() -> None:
    """Two ranks that seem to launch two collectives in opposite orders on one stream cannot both wait for both."""
    job = Job([[1000, 1000], [1000, 1000]], [[4000, 4000], [4000, 4000]], [2000, 2000], 2)
    moments = job.moments()
    swapped = moments["match"].to_list()
    rows = [
        n
        for n, (rank, match) in enumerate(zip(moments["rank"], swapped, strict=True))
        if rank == 1 and match is not None
    ]
    swapped[rows[0]], swapped[rows[1]] = swapped[rows[1]], swapped[rows[0]]
    moments = moments.with_columns(pl.Series("match", swapped, dtype=pl.Int64))
    for known in (True, False):
        launches = moments["latency_ns"] if known else pl.Series([None] * moments.height, dtype=pl.Int64)
        graph = graph_of(moments.with_columns(launches.alias("latency_ns")), {0: 0, 1: 0})
        assert graph.dropped > 0
        # On the CPU nothing waits for a device either.
        graph = in_order(replace(graph, after_device=graph.after_device & known))
        replayed = replay(graph, [Costs.recorded(graph)])
        assert replayed.step_end.min() > 0
        assert replayed.arrival.min() >= 0
