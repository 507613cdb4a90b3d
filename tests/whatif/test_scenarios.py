"""Each scenario on a job whose step can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from tests.whatif.pencil import Job

from rankscope.errors import ConfigError
from rankscope.whatif.gains import candidates
from rankscope.whatif.graph import Graph, graph_of
from rankscope.whatif.options import scenarios_of
from rankscope.whatif.run import ReplayedRun
from rankscope.whatif.scenarios import (
    AsPeers,
    Balanced,
    GroupAsOthers,
    Network,
    Overlapped,
    Scenario,
    Without,
    costs_of,
)
from rankscope.whatif.step_times import Steps

MS = 1_000_000
# Rank 2's device takes 9 ms where the others' takes 3; one step of one segment, three times.
SLOW = Job([[0] * 3] * 3, [[3 * MS] * 3, [3 * MS] * 3, [9 * MS] * 3], [2 * MS] * 3, 1)


def step(graph: Graph, *scenarios: Scenario) -> float:
    """ms."""
    return ReplayedRun(graph, Steps.of(graph)).mean_steps([scenarios])[0] / MS


def near(ms: float) -> object:
    return pytest.approx(ms, abs=0.01)


def test_a_rank_like_its_peers() -> None:
    graph = SLOW.graph()
    assert step(graph) == near(9 + 2)
    assert step(graph, AsPeers((2,))) == near(3 + 2)
    assert step(graph, AsPeers((2,), "compute")) == near(3 + 2)
    assert step(graph, AsPeers((2,), "host")) == near(9 + 2)
    assert step(graph, AsPeers((0,))) == near(9 + 2)


def test_only_some_steps() -> None:
    # Steps 1 and 2 are measured; one of them is fixed.
    assert step(SLOW.graph(), AsPeers((2,), "", (1,))) == near((5 + 11) / 2)


def test_ranks_that_are_fixed_together_are_no_peers() -> None:
    job = replace(SLOW, device=[[3 * MS] * 3, [9 * MS] * 3, [9 * MS] * 3])
    # Alone, rank 1 gets the mean of 3 and 9, and rank 2 is as late as before.
    assert step(job.graph(), AsPeers((1,))) == near(11)
    assert step(job.graph(), AsPeers((1,)), AsPeers((2,))) == near(5)
    assert step(job.graph(), AsPeers((1, 2))) == near(5)


def test_a_component_in_which_it_is_faster_stays() -> None:
    # Rank 0's host takes 8 ms less than the others', but its device 2 ms more.
    job = Job([[0] * 3, [8 * MS] * 3, [8 * MS] * 3], [[5 * MS] * 3, [3 * MS] * 3, [3 * MS] * 3], [MS] * 3, 1)
    fixed = costs_of(job.graph(), [AsPeers((0,))])
    recorded = costs_of(job.graph(), [])
    assert fixed.host.tolist() == recorded.host.tolist()
    assert fixed.device.sum() == pytest.approx(recorded.device.sum() - 3 * 2 * MS)


def test_network() -> None:
    assert step(SLOW.graph(), Network(4)) == near(9 + 0.5)
    assert step(SLOW.graph(), Network(0.5)) == near(9 + 4)


def test_nothing_waits_for_overlapped_transfers() -> None:
    job = replace(SLOW, per_step=3)
    graph = job.graph()
    # Nothing waits for a transfer; ranks still wait for the late one.
    assert step(graph) == near(3 * 11)
    assert step(graph, Overlapped()) == near(3 * 9)


def test_balanced_over_ranks_and_stages() -> None:
    graph = SLOW.graph()
    assert step(graph, Balanced("ranks")) == near((3 + 3 + 9) / 3 + 2)
    stages = graph_of(SLOW.moments(), {0: 0, 1: 0, 2: 1})
    # Stage 0 takes 3 ms, stage 1 takes 9; their ranks' mean is 5.
    assert step(stages, Balanced("stages")) == near(5 + 2)


def test_without_data_loading_and_launches() -> None:
    job = Job([[10 * MS] * 3] * 2, [[3 * MS] * 3] * 2, [MS] * 3, 1)
    moments = job.moments()
    loading = moments.with_columns(data_loading_ns=pl.col("nothing_ns"), nothing_ns=pl.lit(0, pl.Int64))
    graph = graph_of(loading, {0: 0, 1: 0})
    # The host launches every 10 ms.
    assert step(graph) == near(10)
    assert step(graph, Without("data_loading")) == near(3 + 1)
    assert step(graph, Without("launches")) == near(10)
    assert step(graph_of(moments, {0: 0, 1: 0}), Without("launches")) == near(3 + 1)
    assert step(graph, Without("copies")) == near(10)


def two_groups() -> Graph:
    """Ranks 0 and 1 transfer for 6 ms, ranks 2 and 3 the same bytes for 2 ms, and all four meet."""
    frames = []
    for first, transfer in ((0, 6 * MS), (2, 2 * MS)):
        job = Job([[0] * 3] * 2, [[3 * MS] * 3] * 2, [transfer] * 3, 1)
        frames.append(
            job.moments().with_columns(
                pl.col("rank") + first, pl.col("match") + 100 * first, pl.col("start_ns", "end_ns")
            )
        )
    return graph_of(pl.concat(frames), dict.fromkeys(range(4), 0))


def test_a_slow_group_like_others() -> None:
    graph = two_groups()
    assert sorted(graph.group_ranks.values()) == [(0, 1), (2, 3)]
    assert step(graph) == near(3 + 6)
    assert step(graph, GroupAsOthers((0, 1))) == near(3 + 2)
    assert GroupAsOthers((0, 1)) in candidates(ReplayedRun(graph, Steps.of(graph)), ())
    assert GroupAsOthers((2, 3)) not in candidates(ReplayedRun(graph, Steps.of(graph)), ())


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        (AsPeers((7,)), "--fix rank=7: rank 7 cannot be replayed"),
        (AsPeers((0, 1, 2)), "--fix rank=0,1,2: ranks 0-2 cannot be compared"),
        (GroupAsOthers((0, 1)), "--fix group=0,1: these ranks have no matched collective"),
        (GroupAsOthers((0, 1, 2)), "--fix group=0,1,2: no other group moves data of the same size"),
        (Balanced("stages"), "--balance stages: all recorded ranks run one program"),
    ],
)
def test_what_a_run_cannot_tell(scenario: Scenario, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        costs_of(SLOW.graph(), [scenario])
    assert message in str(error.value)


def test_one_rank_alone() -> None:
    graph = Job([[10 * MS] * 3], [[3 * MS] * 3], [MS] * 3, 1).graph()
    for scenario in (Network(2), Overlapped(), Balanced("ranks"), AsPeers((0,))):
        with pytest.raises(ConfigError, match="--"):
            costs_of(graph, [scenario])
    assert {each.option for each in candidates(ReplayedRun(graph, Steps.of(graph)), ())} == {
        "--no-data-loading", "--no-allocation", "--no-copies", "--no-synchronization", "--no-launches",
    }  # fmt: skip


def test_options() -> None:
    options = {"fix": "rank=1-2:host@10,11; group=0,4", "network": "2x", "no_copies": True, "balance": "ranks,stages"}
    assert scenarios_of(options) == [
        AsPeers((1, 2), "host", (10, 11)), GroupAsOthers((0, 4)), Without("copies"), Network(2.0), Balanced("ranks"),
        Balanced("stages"),
    ]  # fmt: skip
    assert scenarios_of({"fix": None, "network": None, "overlap": False}) == []


@pytest.mark.parametrize(
    "option",
    [
        {"fix": "rank"}, {"fix": "rank=x"}, {"fix": "rank=3-1"}, {"fix": "rank=1:engine"}, {"fix": "group=0:host"},
        {"network": "fast"}, {"network": "0x"}, {"network": "nan"}, {"balance": "nodes"},
    ],
)  # fmt: skip
def test_wrong_options_are_named(option: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=f"--{next(iter(option))}"):
        scenarios_of(option)


def test_names_and_options_read_back() -> None:
    for scenario in (AsPeers((1, 2), "host", (10, 11)), AsPeers((3,)), GroupAsOthers((0, 4)), Network(2.0)):
        name, _, value = scenario.option.partition(" ")
        assert scenarios_of({name.lstrip("-"): value}) == [scenario]
    assert AsPeers((1, 2), "data_loading").name == "data loading of ranks 1-2 like their peers"
    assert np.isfinite(step(SLOW.graph(), AsPeers((2,))))
