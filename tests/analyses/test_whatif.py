"""What if, from traces: a job by hand, real sets, and recordings that say little."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests import kineto
from tests.analyses.random_traces import traces

import rankscope
from rankscope.errors import ConfigError
from rankscope.whatif.graph import Graph, graph_of

SCENARIOS: tuple[dict[str, Any], ...] = (
    {}, {"fix": "rank=0"}, {"fix": "rank=0:host; rank=1:compute@3"}, {"fix": "group=0,1"}, {"network": "2x"},
    {"overlap": True, "no_launches": True}, {"no_data_loading": True, "no_allocation": True}, {"no_copies": True},
    {"no_synchronization": True, "balance": "ranks"}, {"balance": "stages"},
)  # fmt: skip


def events(late: int, steps: int = 3) -> list[kineto.Event]:
    """Steps of 300 µs, in which the loader takes 40 µs, and on a late rank more: the other one waits for it."""
    found: list[kineto.Event] = []
    for number in range(steps):
        at, one = 300 * number, 10 * number + 1
        found += [
            kineto.step(number + 1, at, 300),
            kineto.loading(at, 40 + late),
            kineto.op("aten::mm", at + 45 + late, 15),
            kineto.launch(at + 50 + late, 5, correlation=one),
            kineto.kernel("gemm", at + 55 + late, 45, correlation=one),
            kineto.launch(at + 60 + late, 5, correlation=one + 1),
            # The last to arrive transfers for 50 µs, and all end at 260.
            kineto.collective(at + 110 + late, 150 - late, correlation=one + 1, sequence=number + 1),
            kineto.launch(at + 70 + late, 192 - late, name="cudaDeviceSynchronize", correlation=one + 2),
        ]
    return found


def gloo_steps(late: int, recorded_late: int, steps: int = 4) -> list[kineto.Event]:
    """Steps of 80 ms on the CPU, of which one rank sleeps 50: the other one waits until the all-reduce ends at 75.

    Its end may be recorded late, when the host is at work again.
    """
    found: list[kineto.Event] = []
    for number in range(steps):
        at = 80_000 * number
        found += [
            kineto.step(number + 1, at, 80_000),
            kineto.op("aten::mm", at + late, 20_000),
            kineto.annotation("gloo:all_reduce", at + 20_000 + late, 55_000 - late + recorded_late, tid=9),
            kineto.op("aten::copy_", at + 75_000, 5_000),
        ]
    return found


def concurrent_gloo_steps(late: int, steps: int = 4) -> list[kineto.Event]:
    """Steps of 80 ms on the CPU with three all-reduces, of which one rank sleeps 50.

    Two are launched 140 µs apart, with Python in between. The third is queued: its thread runs the first until then.
    """
    found: list[kineto.Event] = []
    for number in range(steps):
        at, launch = 80_000 * number, 80_000 * number + 20_000 + late
        found += [
            kineto.step(number + 1, at, 80_000),
            kineto.op("aten::mm", at + late, 20_000),
            kineto.annotation("gloo:all_reduce", launch, at + 75_000 - launch, tid=9),
            kineto.annotation("gloo:all_reduce", launch + 140, at + 75_040 - launch - 140, tid=8),
            kineto.annotation("gloo:all_reduce", at + 75_050, 950, tid=9),
            kineto.op("aten::copy_", at + 76_000, 4_000),
        ]
    return found


def opened(folder: Path, by_rank: dict[int, Sequence[kineto.Event]]) -> rankscope.Run:
    return rankscope.open(kineto.write_ranks(folder, by_rank), executor="serial")


def as_recorded(run: rankscope.Run, **options: Any) -> dict[str, Any]:
    return run.whatif(**options).row(0, named=True)


@pytest.mark.parametrize("recorded_late", [0, 220, 3_000])
def test_a_wait_for_gloo_whose_end_is_recorded_late(tmp_path: Path, recorded_late: int) -> None:
    run = opened(tmp_path, {0: gloo_steps(0, recorded_late), 1: gloo_steps(50_000, 0)})
    recorded, fixed = run.whatif(fix="rank=1").rows(named=True)
    assert recorded["explained"] == pytest.approx(1)
    assert fixed["gain_alone_ns"] == pytest.approx(50e6, rel=0.01)


def test_without_collectives_there_are_no_buckets(tmp_path: Path) -> None:
    alone = [event for event in events(0) if "nccl" not in event["name"]]
    with pytest.raises(ConfigError, match="no all-reduces"):
        opened(tmp_path, {0: alone}).whatif(buckets="2x")


def test_a_run_has_one_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(*arguments: Any) -> Graph:
        made.append(len(arguments))
        return graph_of(*arguments)

    monkeypatch.setattr("rankscope.whatif.run.graph_of", counted)
    run = opened(tmp_path, {0: events(0, 8), 1: events(100, 8), 2: events(0, 8), 3: events(0, 8)})
    assert "rank=1" in run.stragglers()["fix"].to_list()  # by its replay
    run.whatif()
    run.whatif(fix="rank=0")
    run.diagnosis()
    assert run.replayed() is run.replayed()
    assert len(made) == 1


def test_a_host_that_launches_does_not_wait_for_gloo(tmp_path: Path) -> None:
    run = opened(tmp_path, {0: concurrent_gloo_steps(0), 1: concurrent_gloo_steps(50_000)})
    recorded, fixed = run.whatif(fix="rank=1").rows(named=True)
    assert recorded["note"] is None
    assert recorded["explained"] == pytest.approx(1, abs=1e-3)
    assert fixed["gain_alone_ns"] == pytest.approx(50e6, rel=0.01)


def test_a_thread_without_a_core_ends_its_collective_later(tmp_path: Path) -> None:
    """In every other step one rank's ends 30 ms after the other's, which goes on: the next one waits for it."""

    def steps(noticed_late: int) -> list[kineto.Event]:
        found: list[kineto.Event] = []
        for number in range(6):
            at = 100_000 * (number // 2) + (35_000 + noticed_late if number % 2 else 0)
            late = 0 if number % 2 else noticed_late
            until = at + 25_000 if not number % 2 else 100_000 * (number // 2) + 90_000
            found += [
                kineto.step(number + 1, at, until + late + 10_000 - at),
                kineto.op("aten::mm", at, 20_000),
                kineto.annotation("gloo:all_reduce", at + 20_000, until + late - at - 20_000, tid=9),
                kineto.op("aten::copy_", until + late, 10_000),
            ]
        return found

    run = opened(tmp_path, {0: steps(0), 1: steps(30_000)})
    assert as_recorded(run)["explained"] == pytest.approx(1)
    # Steps take 65 and 35 ms in turns, without transfers and what one rank notices late 30. The first is not measured.
    for scenario in ({"network": "1000x"}, {"overlap": True}):
        assert run.whatif(**scenario)["gain_alone_ns"][1] == pytest.approx(17e6, rel=0.02)


def test_by_hand(tmp_path: Path) -> None:
    """Rank 1 loads 100 µs longer: without that, both would arrive 100 µs earlier, and each step be 100 µs shorter."""
    run = opened(tmp_path, {0: events(0), 1: events(100)})
    frame = run.whatif(fix="rank=1")
    recorded, fixed = frame.rows(named=True)
    assert (recorded["scenario"], recorded["order"]) == ("as recorded", 0)
    assert recorded["alone_ns"] == 300_000
    assert recorded["step_ns"] == pytest.approx(300_000, abs=3_000)
    assert fixed["scenario"] == "rank 1 like its peers"
    assert fixed["gain_ns"] == fixed["gain_alone_ns"] == pytest.approx(100_000, abs=3_000)
    assert (fixed["component"], fixed["command"]) == ("data_loading", "whatif RUN --fix rank=1")
    # All loading is more than the late rank's.
    assert run.whatif(no_data_loading=True)["gain_alone_ns"][1] == pytest.approx(140_000, abs=3_000)
    assert run.whatif(fix="rank=1:compute")["gain_alone_ns"][1] == 0


def test_the_waterfall_leads_with_the_late_rank(tmp_path: Path) -> None:
    # Of two ranks, enough steps to tell that it is not chance.
    run = opened(tmp_path, {0: events(0, 6), 1: events(100, 6)})
    result = run.analyze("whatif")["whatif"]
    frame = result.frame
    first = frame.row(1, named=True)
    assert first["command"] == "whatif RUN --fix rank=1"
    placed = frame.filter(pl.col("order") > 0)
    assert placed["order"].to_list() == list(range(1, placed.height + 1))
    assert placed["gain_ns"].sum() == frame["step_ns"][0] - placed["step_ns"][-1]
    assert result.headline is not None
    assert "rank 1 like its peers" in [value.value for value in result.headline.values]


def test_steps_are_chosen(tmp_path: Path) -> None:
    kineto.write_ranks(tmp_path, {0: events(0), 1: events(100)})
    run = rankscope.open(tmp_path, steps="3", executor="serial")
    assert as_recorded(run)["steps"] == 1
    assert run.whatif(fix="rank=1")["gain_ns"][1] == pytest.approx(100_000, abs=3_000)


def test_what_is_not_explained_is_not_judged(tmp_path: Path) -> None:
    """Kernels start later and later after their launch, for no recorded reason."""
    made: list[kineto.Event] = []
    for number in range(3):
        at = 300 * number
        made += [
            kineto.step(number + 1, at, 20),
            kineto.launch(at + 5, 5, correlation=number + 1),
            kineto.kernel("gemm", at + 10 + 240 * number, 20, correlation=number + 1),
        ]
    run = opened(tmp_path, {0: made})
    result = run.analyze("whatif")["whatif"]
    assert result.frame.height == 1
    assert result.frame["explained"][0] < 0.95
    assert result.frame["note"][0]
    assert result.headline is not None
    assert "is not judged" in result.headline.text


def test_one_rank_of_two(tmp_path: Path) -> None:
    run = opened(tmp_path, {0: events(0)})
    frame = run.whatif()
    assert frame.height > 1
    with pytest.raises(ConfigError, match="--fix rank=0: rank 0 cannot be compared"):
        run.whatif(fix="rank=0")
    with pytest.raises(ConfigError, match="--network 2x: no collective was matched"):
        run.whatif(network="2")


def test_without_steps(tmp_path: Path) -> None:
    by_rank = {
        rank: [each for each in events(late) if "ProfilerStep" not in each["name"]] for rank, late in ((0, 0), (1, 100))
    }
    run = opened(tmp_path, by_rank)
    assert as_recorded(run)["steps"] == 1
    # Three steps are one.
    assert run.whatif(fix="rank=1")["gain_alone_ns"][1] == pytest.approx(300_000, abs=9_000)


def test_without_anything_on_the_host(tmp_path: Path) -> None:
    run = opened(tmp_path, {0: [kineto.kernel("gemm", 0, 10)]})
    result = run.analyze("whatif")["whatif"]
    assert result.frame["step_ns"].to_list() == [None]
    assert result.headline is not None
    assert "cannot be replayed" in result.headline.text


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(traces(), min_size=1, max_size=3))
def test_no_scenario_raises(made: list[kineto.Trace]) -> None:
    """But for an error that names the option."""
    with tempfile.TemporaryDirectory() as folder:
        for rank, trace in enumerate(made):
            trace["distributedInfo"] = {"rank": rank, "world_size": len(made)}
            kineto.write(Path(folder) / f"rank{rank}.json", trace)
        run = rankscope.open(folder, executor="serial")
        for options in SCENARIOS:
            try:
                frame = run.whatif(**options)
            except ConfigError as error:
                assert str(error).startswith("--")
                continue
            assert frame["scenario"][0] == "as recorded"
            assert frame.height == 1 or frame["alone_ns"].null_count() == 0


def recorded_error(run: rankscope.Run) -> float:
    return 1 - float(as_recorded(run)["explained"])


def test_h100(shared_traces: Path, shared_cache: Path) -> None:
    run = rankscope.open(shared_traces / "modded-nanogpt-h100-8ranks", executor="serial")
    assert recorded_error(run) < 0.001
    # Three other ranks are nearly as late: rank 1 alone gains little, with rank 2 much more.
    alone, both = (run.whatif(fix=f"rank={ranks}")["gain_alone_ns"][1] for ranks in ("1", "1,2"))
    assert 0.4e6 < alone < 1.2e6
    assert 2e6 < both < 6e6


@pytest.mark.parametrize(
    ("name", "largest", "rank"),
    [
        ("torchrec/rank2-sleeps-4ranks", 0.01, 2),
        ("tensorboard-plugin/ddp_gloo_torch213_3ranks", 0.03, 1),
    ],
)
def test_real_stragglers(shared_traces: Path, shared_cache: Path, name: str, largest: float, rank: int) -> None:
    run = rankscope.open(shared_traces / name, executor="serial")
    assert recorded_error(run) < largest
    assert run.whatif()["command"][1] == f"whatif RUN --fix rank={rank}"


def test_a_late_rank_that_is_not_significant_can_be_asked_for(shared_traces: Path, shared_cache: Path) -> None:
    run = rankscope.open(shared_traces / "torchrec/ddp-resnet18-2ranks", executor="serial")
    assert recorded_error(run) < 0.001
    assert not run.whatif()["command"].str.contains("--fix").any()
    assert run.whatif(fix="rank=1")["gain_ns"][1] > 0


def test_gloo(shared_traces: Path, shared_cache: Path) -> None:
    """Rank 1 sleeps for 30 ms a step in its loader."""
    folder = shared_traces / "gloo-2ranks"
    run = rankscope.open(sorted(folder.glob("ddp_gpt_straggler_rank1.*")), executor="serial")
    assert recorded_error(run) < 0.05
    first = run.whatif().row(1, named=True)
    assert (first["command"], first["component"]) == ("whatif RUN --fix rank=1", "data_loading")
    assert 27e6 < first["gain_ns"] < 36e6
