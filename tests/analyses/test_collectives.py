"""Matching through whole files: simulated jobs whose recording has every fault that recordings have.

The same job with recorded sequence numbers says which collectives belong together; each faulty recording's rows are
found in it by their true times, which the simulator writes beside the traces.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from tests import kineto

import rankscope
from rankscope.experiments.simulate import Job, Recording, parse_mesh, simulate
from rankscope.experiments.simulate.job import Lost
from rankscope.results import Finding

HOUR = 3_600_000_000_000
JOB = Job(ranks=8, steps=3, mesh=parse_mesh("dp=2,pp=2,tp=2"), layers=1, kernels_per_layer=4)
# What is wrong with the recording, and which part of the rows that have partners may stay without.
FAULTS: dict[str, tuple[Recording, float]] = {
    "as it should be": (Recording(), 0.0),
    "edges that differ": (Recording(window_spread_ns=6_000_000), 0.02),
    "clocks seconds apart": (Recording(clock_offset_ns={3: 5_000_000_000}), 0.0),
    "clocks hours apart and drifting": (
        Recording(clock_offset_ns={1: 2 * HOUR, 6: -HOUR}, drift_ppm={2: 100.0, 5: -80.0}, clock_spread_ns=400_000),
        0.0,
    ),
    "each its own base time": (Recording(base_time="per-rank"), 0.0),
    "lost events": (Recording(lost=(Lost(rank=2, count=3, what="collective"), Lost(rank=5, fraction=0.02))), 0.01),
    "a file cut short": (Recording(truncated={4: 0.6}), 0.01),
    "a missing rank": (Recording(missing=(7,)), 0.0),
    "half of the ranks": (Recording(missing=(1, 3, 5, 7)), 0.0),
    "names that groups share": (Recording(group_names="shared"), 0.0),
    "no metadata of ours": (Recording(rankscope_metadata=False, distributed_info=False), 0.0),
    "all at once": (
        Recording(
            clock_offset_ns={3: -5 * HOUR}, drift_spread_ppm=50.0, window_spread_ns=3_000_000, group_names="shared",
            lost=(Lost(rank=0, count=2, what="collective"), Lost(rank=6, count=2, what="launch")), missing=(4,),
        ),
        0.03,
    ),
}  # fmt: skip


QUICK = ("as it should be", "lost events", "all at once")
"""Among the fast tests."""


def opened(folder: Path) -> tuple[pl.DataFrame, tuple[Finding, ...]]:
    """The collectives with their true start times, and what was found."""
    run = rankscope.open(folder, executor="serial")
    truth = json.loads((folder / "truth.json").read_text())
    clocks = {each["rank"]: each for each in truth["ranks"]}
    result = run.analyze("collectives")["collectives"]
    true = []
    for rank, start in result.frame.select("rank", "start_ns").iter_rows():
        clock = clocks[rank]
        since = start + clock["base_ns"] - truth["epoch_ns"] - clock["offset_ns"]
        true.append(since * 10**9 // (10**9 + clock["drift_ppb"]))
    return result.frame.with_columns(pl.Series("true_ns", true, dtype=pl.Int64)), result.findings


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    """Every collective by rank, stream and true time, with the number that its ranks share."""
    folder = tmp_path_factory.mktemp("known")
    recording = Recording(sequence_numbers=True, window_spread_ns=0)
    simulate(folder, replace(JOB, recording=recording), costs=False)
    frame, _ = opened(folder)
    by_sequence = frame.filter(pl.col("match_method") == "sequence")
    assert by_sequence.height > 0.97 * frame.height
    return by_sequence.select(
        "rank", "stream", "true_ns", pl.col("match").alias("truth"), pl.col("wait_ns").alias("waited_ns")
    )


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=() if fault in QUICK else pytest.mark.slow) for fault in FAULTS]
)
def test_what_belongs_together_is_found(known: pl.DataFrame, tmp_path: Path, fault: str) -> None:
    recording, without = FAULTS[fault]
    simulate(tmp_path, replace(JOB, recording=recording), costs=False)
    found, findings = opened(tmp_path)
    key = ["rank", "stream"]
    rows = found.sort("true_ns").join_asof(
        known.sort("true_ns"), on="true_ns", by=key, strategy="nearest", tolerance=5, check_sortedness=False
    )  # fmt: skip
    rows = rows.filter(pl.col("truth").is_not_null())
    assert rows.height > 0.5 * found.height
    matched = rows.filter(pl.col("match").is_not_null())
    wrong = matched.group_by("match").agg(pl.col("truth").n_unique()).filter(pl.col("truth") > 1)
    assert wrong.height == 0, matched.filter(pl.col("match").is_in(wrong["match"].implode()))
    split = matched.group_by("truth").agg(pl.col("match").n_unique()).filter(pl.col("match") > 1)
    assert split.height == 0
    partners = rows.filter(pl.len().over("truth") > 1)
    assert partners["match"].null_count() <= without * partners.height
    # Where a wait is given it is the true one, to the nanosecond that a drifting clock rounds away.
    waits = matched.filter(pl.col("wait_ns").is_not_null() & pl.col("waited_ns").is_not_null())
    off = (waits["wait_ns"] - waits["waited_ns"]).abs().max()
    drifts = bool(recording.drift_ppm or recording.drift_spread_ppm)
    assert off is None or off <= (10_000 if drifts else 0)  # type: ignore[operator]
    # And what was not found is said, with its number.
    by_id = {finding.id: finding for finding in findings}
    unmatched = found["match"].null_count()
    assert ("collectives-matched" in by_id) == (unmatched == 0)
    assert ("unmatched-collectives" in by_id) == (unmatched > 0)
    counted = by_id["unmatched-collectives" if unmatched else "collectives-matched"].evidence
    assert [each.value for each in counted[:2]] == [found.height, found.height - unmatched]
    if unmatched:
        reasons = [each.value for each in counted[2:] if not each.name.startswith("matched by")]
        assert sum(reasons) == unmatched  # type: ignore[arg-type]
    assert ("incomplete-groups" in by_id) or not recording.missing
    if recording.missing:
        whole = found.group_by("group_ranks", "group_size").agg(pl.col("rank").n_unique())
        partly = whole.filter(pl.col("rank") < pl.col("group_size"))
        assert by_id["incomplete-groups"].evidence[0].value == partly.height
        of_missing = found.filter(~pl.col("collective").is_in(["send", "recv"])).join(
            partly, on="group_ranks", how="semi"
        )
        assert of_missing["wait_ns"].null_count() == of_missing.height


def test_clocks_are_found_to_the_residual(tmp_path: Path) -> None:
    offsets = {1: 7_000, 2: -40_000, 3: 5_000_000_000, 4: -3 * HOUR}
    job = replace(JOB, recording=Recording(clock_offset_ns=offsets))
    simulate(tmp_path, job, costs=False)
    found = rankscope.open(tmp_path, executor="serial").clock()
    assert (found["component"] == 0).all()
    for row in found.to_dicts():
        assert row["anchors"] > 10
        assert abs(row["offset_ns"] + offsets.get(row["rank"], 0)) <= 2 * row["residual_ns"] + 1_000, row
        assert row["residual_ns"] < 100_000


def test_groups_that_share_no_rank_are_components(tmp_path: Path) -> None:
    # One tensor-parallel group of each half; the rest of their groups is not recorded.
    job = replace(JOB, recording=Recording(missing=(2, 3, 4, 5)), gradient_norm=False)
    components = {}
    for per_host in (4, 8):
        simulate(tmp_path / str(per_host), replace(job, gpus_per_host=per_host), costs=False)
        clock = rankscope.open(tmp_path / str(per_host), executor="serial").analyze("clock")["clock"]
        parts = clock.frame.group_by("component").agg(pl.col("rank").sort()).sort("component")["rank"].to_list()
        components[per_host] = parts, "clock-components" in {finding.id for finding in clock.findings}
    # On one host they have its clock in common.
    assert components == {4: ([[0, 1], [6, 7]], True), 8: ([[0, 1, 6, 7]], False)}


def test_no_collective_at_all(tmp_path: Path) -> None:
    events = [kineto.step(1, 0, 50), kineto.launch(2, 3, correlation=1), kineto.kernel("gemm", 9, 20, correlation=1)]
    run = rankscope.open(kineto.write_ranks(tmp_path, {0: events, 1: events}), executor="serial")
    results = run.analyze("collectives", "collective_summary", "clock", "mesh", "pipeline_bubble", "stragglers")
    for name in ("collectives", "collective_summary", "mesh", "pipeline_bubble"):
        assert (results[name].frame.height, results[name].findings) == (0, ()), name
    assert results["clock"].frame["method"].to_list() == ["wall clock", "wall clock"]
    assert [finding.id for finding in results["clock"].findings] == ["clock-not-aligned"]


def decode(
    rank: int, *, streams: tuple[int, int], layers: int = 12, launched: bool, late_us: float = 0.0, lost: int = 0
) -> list[kineto.Event]:
    """DeepEP's dispatch and combine of two replays of a captured graph, on streams that are the rank's own affair."""
    events: list[kineto.Event] = []
    for replay in range(2):
        begin = 1000 + 20_000 * replay
        if launched:
            events.append(kineto.launch(begin - 90, 9, name="cudaGraphLaunch", correlation=replay + 1))
        for layer in range(layers):
            for place, kind in enumerate(("dispatch", "combine")):
                at = begin + 900 * layer + 370 * place + 13 * (layer * layer % 7)
                end = at + 60 + (17 * rank + 29 * layer + 11 * place) % 70 + late_us
                if lost and layer == 5 and replay == 0:
                    continue
                name = f"void deep_ep::internode_ll::{kind}<7168>(int4*)"
                correlation = replay + 1 if launched else None
                start = at - 10 * rank
                events.append(
                    kineto.kernel(name, start, end - start, stream=streams[place], correlation=correlation,
                                  **{"graph id": 3, "graph node id": 2 * layer + place})
                )  # fmt: skip
    return events


@pytest.mark.parametrize("launched", [True, False])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_communicators_without_a_name_are_found_whatever_their_streams(
    tmp_path: Path, ranks: int, launched: bool
) -> None:
    parts = {
        rank: decode(rank, streams=(20 + rank, 40 - rank) if rank % 2 else (40 - rank, 20 + rank), launched=launched)
        for rank in range(ranks)
    }
    run = rankscope.open(kineto.write_ranks(tmp_path, parts), executor="serial")
    result = run.analyze("collectives")["collectives"]
    frame = result.frame
    assert frame["match"].null_count() == 0
    assert set(frame["matched_ranks"]) == {ranks}
    # The nth of a kind is the nth on every rank.
    nth = frame.with_columns(pl.int_range(pl.len()).over("rank", "collective", order_by="start_ns").alias("nth"))
    assert nth.group_by("match").agg(pl.col("nth").n_unique())["nth"].max() == 1
    assert set(frame["group_size"]) == {ranks}
    assert set(frame["group_ranks"].cast(pl.String)) == {str(list(range(ranks)))}
    assert set(frame["group"]) <= {"unnamed 1", "unnamed 2"}
    assert frame["wait_ns"].null_count() == 0
    assert [finding.id for finding in result.findings] == ["collectives-matched"]


def test_bus_bandwidth_follows_from_an_inferred_group(tmp_path: Path) -> None:
    def rank_events(rank: int) -> list[kineto.Event]:
        events: list[kineto.Event] = []
        for index, at in enumerate((100.0, 340.0, 770.0, 1130.0, 1610.0)):
            inputs = {"Input Dims": [[1_000_000]], "Input type": ["float"]}
            events += [
                kineto.annotation("nccl:all_reduce", at, 20, **inputs),
                kineto.launch(at + 5, 2, correlation=index + 1),
                kineto.kernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", at + 10 + rank, 100 - rank,
                              correlation=index + 1, stream=20 + rank),
            ]  # fmt: skip
        return events

    folder = kineto.write_ranks(tmp_path, {rank: rank_events(rank) for rank in range(4)})
    frame = rankscope.open(folder, executor="serial").collectives()
    assert set(frame["group_size"]) == {4}
    # 4 MB in 97 µs, of the rank that came last; on each link 2 · 3/4 of it.
    assert frame["bus_bandwidth"].to_list() == pytest.approx([4e6 / 97e3 * 1.5] * frame.height)


def test_without_all_ranks_of_the_job_a_group_is_not_inferred(tmp_path: Path) -> None:
    parts = {rank: decode(rank, streams=(20, 21), launched=False) for rank in range(2)}
    for rank, events in parts.items():
        kineto.write(tmp_path / f"rank{rank}.json", kineto.trace(events, rank=rank, world_size=4))
    result = rankscope.open(tmp_path, executor="serial").analyze("collectives")["collectives"]
    assert result.frame["match"].null_count() == 0
    assert result.frame["group_size"].null_count() == result.frame.height
    assert result.frame["wait_ns"].null_count() == result.frame.height
    by_id = {finding.id: finding for finding in result.findings}
    because = "communicators, because ranks of the job have no trace"
    assert because in {each.name for each in by_id["unknown-groups"].evidence}


def unmatched(result: rankscope.Result) -> dict[str, object]:
    (finding,) = (each for each in result.findings if each.id == "unmatched-collectives")
    assert "only one rank" not in finding.title
    return {each.name: each.value for each in finding.evidence}


def test_what_is_missing_on_other_ranks_is_said_only_where_it_is(tmp_path: Path) -> None:
    parts = {rank: decode(rank, streams=(20, 21), launched=False, lost=rank) for rank in range(2)}
    result = rankscope.open(kineto.write_ranks(tmp_path, parts), executor="serial").analyze("collectives")
    reasons = unmatched(result["collectives"])
    assert reasons["missing on other ranks, between matched ones"] == 2
    assert reasons["matched across ranks"] == 4 * 23


def test_as_many_on_each_rank_are_not_called_missing(tmp_path: Path) -> None:
    # Two in the middle end 3 ms apart, which no synchronizing collective does.
    times = (0, 9_700, 21_100, 29_900, 41_300, 50_200, 61_700, 70_100, 81_900, 90_500)
    parts = {
        rank: [
            kineto.collective(1000.0 + at + 3000 * rank * (number in (4, 5)), 20.0, ranks=(0, 1))
            for number, at in enumerate(times)
        ]
        for rank in (0, 1)
    }
    result = rankscope.open(kineto.write_ranks(tmp_path, parts), executor="serial").analyze("collectives")
    reasons = unmatched(result["collectives"])
    assert reasons["matched across ranks"] == 16
    assert reasons["recorded on other ranks too, but the ends do not agree"] == 4
    assert reasons["all_reduce recorded per rank"] == 10
    assert "missing on other ranks, between matched ones" not in reasons


def test_kernels_that_one_rank_alone_has(tmp_path: Path) -> None:
    parts = {rank: decode(rank, streams=(20, 21), launched=False) for rank in range(2)}
    own = "void deep_ep::intranode::notify_combine(int)"
    parts[1] += [kineto.kernel(own, 1500 + 3000 * n, 9, stream=33) for n in range(3)]
    result = rankscope.open(kineto.write_ranks(tmp_path, parts), executor="serial").analyze("collectives")
    reasons = unmatched(result["collectives"])
    assert reasons["recorded on no other rank"] == 3
    assert reasons["matched across ranks"] == 4 * 24
