"""Stragglers: on real traces, on modified copies of them, and on simulated jobs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.kineto import op, step, write_ranks

import rankscope
from rankscope.analyses import get_analysis, stragglers
from rankscope.experiments.simulate import Fault, Job, Lost, Recording, simulate
from rankscope.primitives.statistics import Significance, Verdict
from rankscope.primitives.stragglers.causes import CAUSES, STALLS, Cause
from rankscope.primitives.stragglers.stragglers import Straggler
from rankscope.results import Inputs, Options, Tables, rank_state, without_straggler
from rankscope.store.cache import CachedTrace

REAL = [
    ("torchrec/rank2-sleeps-4ranks", 2, {"silent"}),
    ("tensorboard-plugin/ddp_gloo_torch213_3ranks", 1, {"silent"}),
]


def opened(traces: Path, name: str) -> rankscope.Run:
    folder = traces / name
    files = folder if folder.is_dir() else sorted(folder.parent.glob(f"{folder.name}.rank*"))
    return rankscope.open(files, executor="serial")


def worst(stragglers: pl.DataFrame) -> dict[str, Any]:
    return stragglers.row(stragglers["waited_ns"].fill_null(0).arg_max() or 0, named=True)


@pytest.mark.parametrize(("name", "rank", "causes"), REAL)
def test_real_traces(shared_traces: Path, shared_cache: Path, name: str, rank: int, causes: set[str]) -> None:
    run = opened(shared_traces, name)
    found = worst(run.stragglers())
    assert found["rank"] == rank
    assert found["cause"] in causes
    assert found["late_steps"] == found["steps"]
    first = next(finding for finding in run.findings if finding.id == "straggler")
    assert (first.severity, first.ranks) == ("warning", (rank,))


@pytest.mark.parametrize(
    ("name", "late"),
    [
        ("torchrec/ddp-resnet18-2ranks", 1),
        ("gloo-2ranks/ddp_gpt_minimal", None),
        ("gloo-2ranks/ddp_gpt_shapes", None),
        ("gloo-2ranks/fsdp2_gpt_shapes", None),
        ("gloo-2ranks/fsdp2_gpt_shapes_stack_mem", None),
    ],
)
def test_two_or_three_steps_of_two_ranks_are_too_few_to_tell(
    shared_traces: Path, shared_cache: Path, name: str, late: int | None
) -> None:
    """Rank 1 of a pair is waited for: but two steps are no evidence."""
    run = opened(shared_traces, name)
    found = run.stragglers()
    assert late is None or worst(found)["rank"] == late
    assert found["cause"].null_count() == 2
    assert all(each.startswith("too few steps to tell (") for each in found["verdict"])
    assert [each for each in run.findings if each.id in ("straggler", "slow-network", "stall")] == []
    assert run.diagnosis().stragglers.state == "too-few-steps"


@pytest.mark.parametrize("name", ["gloo-2ranks/ddp_gpt_straggler_rank1", "gloo-2ranks/fsdp2_gpt_straggler_rank1"])
def test_three_steps_of_two_ranks_show_what_one_does_at_one_place_in_each(
    shared_traces: Path, shared_cache: Path, name: str
) -> None:
    """Rank 1 sleeps for 30 ms of each step, in a range that is named for loading data."""
    run = opened(shared_traces, name)
    found = worst(run.stragglers())
    assert (found["rank"], found["cause"]) == (1, "data_loading")
    assert 24e6 < found["saving_ns"] < 36e6
    assert run.diagnosis().stragglers.ranks == (1,)


def test_three_states(tmp_path: Path) -> None:
    fault = Fault("slow_device", ranks=(2,), magnitude=0.15)
    simulate(tmp_path, Job(ranks=8, steps=6, seed=2, jitter=0.5, faults=(fault,)), costs=False)
    found = rankscope.open(tmp_path, executor="serial").stragglers()
    verdicts = dict(found.select("rank", "verdict").rows())
    assert verdicts.pop(2).startswith("significant (mean excess against its standard error, ")
    assert all(each.startswith(("not significant (", "too few steps to tell (")) for each in verdicts.values())


@pytest.mark.parametrize("ranks", [(2, 5), (0, 1)])
def test_two_slow_hosts_of_a_tensor_parallel_group_of_eight(tmp_path: Path, ranks: tuple[int, int]) -> None:
    fault = Fault("slow_host", ranks=ranks, magnitude=0.3)
    job = Job(ranks=8, mesh={"tp": 8}, steps=6, seed=4, host_scale=2.5, device_scale=0.3, faults=(fault,))
    simulate(tmp_path, job, costs=False)
    found = rankscope.open(tmp_path, executor="serial").stragglers()
    assert dict(found.select("rank", "cause").drop_nulls().rows()) == dict.fromkeys(ranks, "slow_host")


def test_a_pause_of_80_ms_is_a_stall_and_no_straggler(tmp_path: Path) -> None:
    fault = Fault("slow_host", ranks=(3,), ms=80.0, style="asleep", steps=(13,))
    simulate(tmp_path, Job(ranks=8, steps=6, seed=6, faults=(fault,)), costs=False)
    run = rankscope.open(tmp_path, executor="serial")
    found = run.stragglers()
    by_step = run.stragglers(by="step")
    (stall,) = [each for each in run.findings if each.id in ("straggler", "slow-network", "stall")]
    assert (stall.id, stall.severity, stall.ranks, stall.steps) == ("stall", "info", (3,), (13,))
    place = "between NativeLayerNormBackward0 and c10d::allreduce_"
    assert stall.title == f"Rank 3 stalled once, in step 13: nothing is recorded {place}, 75.1 ms"
    cause = next(each for each in stall.evidence if each.name == "cause: silent")
    assert "with nothing recorded on the host" in str(cause.value)
    assert found["cause"].null_count() == 8
    assert by_step.drop_nulls("cause").select("rank", "step", "cause").rows() == [(3, 13, "silent")]
    assert run.diagnosis().stragglers.state != "straggler"


def test_what_was_slept_is_what_the_others_waited(shared_traces: Path, shared_cache: Path) -> None:
    # 30 ms a step, three steps; summed over overlapping collectives it would read 237.9 ms.
    found = worst(opened(shared_traces, "gloo-2ranks/ddp_gpt_straggler_rank1").stragglers())
    assert 85e6 < found["waited_ns"] < 105e6
    assert 28e6 < found["saving_ns"] < 35e6


def test_collectives_of_eight_ranks(shared_traces: Path, shared_cache: Path) -> None:
    run = rankscope.open(shared_traces / "modded-nanogpt-h100-8ranks", executor="serial")
    rows = run.collectives()
    # 76 of rank 0–3, up to 84 of the others: each has a partner, and 76 are known on all ranks.
    assert rows["match"].null_count() == 0
    events = rows.group_by("match").agg(
        pl.col("rank").n_unique().alias("ranks"),
        pl.len().alias("rows"),
        pl.col("collective").n_unique().alias("kinds"),
        pl.col("dtype").drop_nulls().n_unique().alias("types"),
        pl.col("in_elements").drop_nulls().n_unique().alias("sizes"),
        (pl.col("end_ns").max() - pl.col("end_ns").min()).alias("spread"),
    )
    assert (events["ranks"] == 8).sum() == 76
    assert (events["ranks"] == events["rows"]).all()
    assert (events["kinds"].max(), events["types"].max(), events["sizes"].max()) == (1, 1, 1)
    assert events["spread"].median() < 30_000
    assert events["spread"].max() < 200_000
    # Transfer is one figure for all ranks; with all of them known it is 17.5 ms, without one it would read 44.5.
    assert set(rows.group_by("rank").agg(pl.col("transfer_ns").sum())["transfer_ns"]) == {17_459_980}
    # Without the steps' numbers the ends alone say the same.
    parts = Parts(run)
    assert parts.results(parts.parts(steps=False))[0]["match"].to_list() == rows["match"].to_list()


class Parts:
    """A run's mapped collectives, to take something away from before they are reduced."""

    def __init__(self, run: rankscope.Run) -> None:
        from rankscope.engine.pipeline.tasks import analysis_key, analyze_rank
        from rankscope.store.column_cache import Columns

        self.run, self.infos, self.world = run, tuple(run.loaded.infos), run.world_size
        collectives = analysis_key("collectives")
        self.mapped = {
            rank: analyze_rank([collectives], traces, self._inputs(rank, traces), Columns(), {})[collectives]
            for rank, traces in run.loaded.ranks.items()
        }
        reads = {
            table: {*columns, *get_analysis("segments").reads.get(table, ())}
            for table, columns in get_analysis("stragglers").reads.items()
        }
        self.tables: dict[int, Tables] = {
            rank: {
                table: traces[0].load(table, sorted(columns)).with_columns(pl.lit(0, pl.Int16).alias("window"))
                for table, columns in reads.items()
            }
            for rank, traces in run.loaded.ranks.items()
        }

    def _inputs(self, rank: int, traces: Sequence[CachedTrace]) -> Inputs:
        return Inputs(Options(), tuple(trace.info for trace in traces), rank=rank, world_size=self.world)

    def parts(self, *, steps: bool = True) -> dict[int, pl.DataFrame]:
        if steps:
            return dict(self.mapped)
        return {r: part.with_columns(pl.lit(None, pl.Int64).alias("step")) for r, part in self.mapped.items()}

    def results(
        self, parts: dict[int, pl.DataFrame], shift_ns: dict[int, int] | None = None
    ) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        """Collectives, clock and stragglers."""
        shift = shift_ns or {}
        infos = tuple(replace(i, base_time_ns=i.base_time_ns + shift.get(i.rank or 0, 0)) for i in self.infos)
        moved = [part.with_columns(pl.col("base_ns") + shift.get(rank, 0)) for rank, part in parts.items()]
        inputs = Inputs(Options(), infos, {}, world_size=self.world)
        collectives, _ = get_analysis("collectives").reduce(moved, inputs)
        clock, _ = get_analysis("clock").reduce([], replace(inputs, results={"collectives": collectives}))
        known = {"collectives": collectives, "clock": clock}
        for name in ("segments", "stragglers"):
            analysis = get_analysis(name)
            mapped = [
                analysis.per_rank(
                    self.tables[rank],
                    Inputs(Options(), tuple(i for i in infos if i.rank == rank), known, rank, self.world),
                )
                for rank in parts
            ]
            known[name] = analysis.reduce(mapped, replace(inputs, results=dict(known)))[0]
        return collectives, clock, known["stragglers"]


def waits(collectives: pl.DataFrame) -> dict[tuple[int, int], int]:
    return {(a, b): wait for a, b, wait in collectives.select("rank", "start_ns", "wait_ns").rows() if wait is not None}


@pytest.mark.parametrize(
    "name",
    [
        "gloo-2ranks/ddp_gpt_straggler_rank1",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (*(name for name, _, _ in REAL), "modded-nanogpt-h100-8ranks")
            if name != "gloo-2ranks/ddp_gpt_straggler_rank1"
        ),
    ],
)
def test_a_lost_event_or_a_shifted_clock_changes_no_verdict(shared_traces: Path, shared_cache: Path, name: str) -> None:
    whole = Parts(opened(shared_traces, name))
    collectives, clock, stragglers = whole.results(whole.parts())
    verdict, before, residual = worst(stragglers), waits(collectives), clock["residual_ns"].max()
    trials = [
        whole.results(whole.parts(), {rank: sign * 5 * 10**9})
        for rank, sign in zip(whole.mapped, (1, -1, 1), strict=False)
    ]
    assert all(waits(after) == before for after, _, _ in trials)
    for rank, part in whole.mapped.items():
        for index in range(rank % 3, part.height, max(part.height // (2 if len(whole.mapped) > 4 else 4), 1)):
            parts = whole.parts()
            parts[rank] = part.with_row_index("n").filter(pl.col("n") != index).drop("n")
            trials.append(whole.results(parts))
    for after, _, found in trials:
        now = worst(found)
        assert (now["rank"], now["cause"]) == (verdict["rank"], verdict["cause"])
        then = waits(after)
        assert all(abs(then[key] - before[key]) <= residual for key in then.keys() & before.keys())


@pytest.mark.parametrize(
    ("kind", "style"),
    [
        ("slow_device", "stretch"),
        ("more_work", "kernels"),
        ("data_loading", "late"),
        ("memory", "retries"),
        ("memory", "copies"),
    ],
)
def test_simulated_faults(tmp_path: Path, kind: str, style: str) -> None:
    recording = Recording(clock_spread_ns=10**9, drift_spread_ppm=50, window_spread_ns=3_000_000)
    fault = Fault(kind, ranks=(2,), magnitude=0.15, style=style)
    truth = simulate(tmp_path, Job(ranks=4, steps=3, seed=2, faults=(fault,), recording=recording))
    found = worst(rankscope.open(tmp_path, executor="serial").stragglers())
    assert (found["rank"], found["cause"]) == (2, kind)
    assert 0.9 * truth.fault_cost_ns[0] <= found["saving_ns"] <= 1.25 * truth.fault_cost_ns[0]


def test_one_group_is_slower_than_its_like(tmp_path: Path) -> None:
    fault = Fault("slow_network", ranks=(4,), magnitude=0.15, dim="tp")
    simulate(tmp_path, Job(ranks=8, mesh={"dp": 4, "tp": 2}, steps=3, seed=7, faults=(fault,)), costs=False)
    run = rankscope.open(tmp_path, executor="serial")
    run.stragglers()
    assert [set(finding.ranks) for finding in run.findings if finding.id == "slow-network"] == [{4, 5}]


def test_blame_passes_over_groups(tmp_path: Path) -> None:
    # Rank 7 shares a group with rank 6 and is late to its own data-parallel peers because of it.
    fault = Fault("slow_device", ranks=(6,), magnitude=0.15)
    simulate(tmp_path, Job(ranks=8, mesh={"dp": 4, "tp": 2}, steps=3, seed=7, faults=(fault,)), costs=False)
    run = rankscope.open(tmp_path, executor="serial")
    found = run.stragglers()
    assert (worst(found)["rank"], worst(found)["cause"]) == (6, "slow_device")
    assert found["saving_ns"].to_list()[7] is None


def test_a_whole_replica_is_one_finding(tmp_path: Path) -> None:
    # Both ranks of one replica of four; by hosts of two ranks it is a host as well, which comes first in the mesh.
    fault = Fault("slow_device", where={"dp": 2}, magnitude=0.2)
    simulate(tmp_path, Job(ranks=8, mesh={"dp": 4, "tp": 2}, steps=3, seed=7, faults=(fault,)), costs=False)
    run = rankscope.open(tmp_path, executor="serial")
    run.stragglers()
    (finding,) = [each for each in run.findings if each.id == "straggler"]
    assert finding.ranks == (4, 5)
    assert finding.title == "dp=2 delays the other ranks: its device is slow"


def test_two_equally_slow_hosts_are_one_finding(tmp_path: Path) -> None:
    fault = Fault("slow_device", ranks=(2, 3, 8, 9), magnitude=0.2)
    job = Job(ranks=12, mesh={"dp": 12}, gpus_per_host=2, steps=4, layers=2, seed=7, faults=(fault,))
    simulate(tmp_path, job, costs=False)
    run = rankscope.open(tmp_path, executor="serial")
    found = run.stragglers()
    (finding,) = [each for each in run.findings if each.id == "straggler"]
    assert finding.ranks == (2, 3, 8, 9)
    assert finding.title == "host=node0001 and host=node0004 delay the other ranks: their devices are slow"
    assert found["fix"].drop_nulls().unique().to_list() == ["rank=2,3,8,9"]
    # One host as fast as the others would gain nothing: the step would wait for the other one.
    assert (finding.saving_ns or 0) > 3 * run.whatif(fix="rank=2,3")["gain_alone_ns"][1]


def test_a_rank_that_is_not_the_only_slow_one_saves_nothing_by_itself() -> None:
    """No number where there is nothing to gain, and who must be fixed too; causes in words."""
    table = pl.DataFrame({"rank": [3], "lateness_ns": [5], "waited_ns": [7]})
    cause = Cause("slow_host", 1.0, "why")
    verdict = Verdict(Significance.SIGNIFICANT, "a test", (2,))
    blamed = [
        Straggler((3,), "rank 3", cause, 10, False, saving, others, (1, 2), 2, 2, "always_late", verdict)
        for saving, others in ((0, (4, 7)), (9, ()))
    ]
    none, some = stragglers._findings(blamed, table, Inputs(Options(), ()))
    assert (none.saving_ns, some.saving_ns) == (None, 9)
    assert none.title == "Rank 3 delays the other ranks: its host takes longer"
    assert set(CAUSES) == set(STALLS)  # every cause has its words
    assert all(Cause(name, 1.0, "").what_to_do(()) for name in CAUSES)
    assert some.evidence[-2].value == "a test, 2 steps"
    assert none.evidence[-2].value == "4, 7"


@pytest.mark.parametrize(
    ("kind", "steps"),
    [("slow_device", None), ("slow_device", (11, 14)), pytest.param("more_work", (11, 14), marks=pytest.mark.slow)],
)
def test_a_stage_of_one_rank_is_held_against_other_stages_and_its_own_steps(
    tmp_path: Path, kind: str, steps: tuple[int, ...] | None
) -> None:
    fault = Fault(kind, ranks=(2,), magnitude=0.3, steps=steps)
    simulate(tmp_path, Job(ranks=4, mesh={"pp": 4}, steps=6, layers=1, seed=3, faults=(fault,)), costs=False)
    run = rankscope.open(tmp_path, executor="serial")
    found = run.stragglers()
    assert dict(found.select("rank", "cause").drop_nulls().rows()) == {2: kind}
    (finding,) = [each for each in run.findings if each.id == "straggler"]
    assert finding.steps == (steps or ())
    assert finding.saving_ns


def test_of_two_stages_of_one_rank_none_is_compared(tmp_path: Path) -> None:
    """That a rank takes longer in every step may be its program; which rank the other waits for is known."""
    late = Fault("slow_host", ranks=(1,), magnitude=0.5)
    simulate(tmp_path, Job(ranks=2, mesh={"pp": 2}, steps=8, layers=1, seed=3, faults=(late,)), costs=False)
    run = rankscope.open(tmp_path, executor="serial")
    found = run.stragglers()
    assert found["significance"].to_list() == [None, None]
    assert rank_state(found) == "not-compared"
    text = without_straggler(found).text
    assert text.startswith(
        "The ranks cannot be compared: no two run the same program, as in pipeline stages of one rank; the longest wait"
    )
    (unknown,) = run.diagnosis().not_judged
    assert unknown.what == "Which rank delays the others"
    assert "no two ranks run the same program" in unknown.why


def test_a_stage_whose_ranks_are_all_as_slow_is_held_against_the_other_stages(tmp_path: Path) -> None:
    fault = Fault("slow_device", where={"pp": 1}, magnitude=0.1)
    simulate(tmp_path, Job(ranks=8, mesh={"pp": 4, "dp": 2}, steps=4, layers=1, seed=3, faults=(fault,)), costs=False)
    run = rankscope.open(tmp_path, executor="serial")
    assert dict(run.stragglers().select("rank", "cause").drop_nulls().rows()) == {2: "slow_device", 3: "slow_device"}
    (finding,) = [each for each in run.findings if each.id == "straggler"]
    assert finding.ranks == (2, 3)
    assert finding.title == "pp=1 delays the other ranks: its device is slow"


def test_two_at_once(tmp_path: Path) -> None:
    faults = (Fault("slow_device", ranks=(1,), magnitude=0.3), Fault("memory", ranks=(6,), magnitude=0.2))
    simulate(tmp_path, Job(ranks=8, steps=4, seed=5, faults=faults), costs=False)
    found = rankscope.open(tmp_path, executor="serial").stragglers()
    causes = dict(found.select("rank", "cause").drop_nulls().rows())
    assert causes == {1: "slow_device", 6: "memory"}


@pytest.mark.parametrize(
    ("seed", "mesh"),
    [
        (0, {"dp": 4, "pp": 2}),
        pytest.param(1, {"dp": 4, "pp": 2}, marks=pytest.mark.slow),
        pytest.param(2, {"pp": 8}, marks=pytest.mark.slow),
    ],
)
def test_clean_runs_accuse_nobody(tmp_path: Path, seed: int, mesh: dict[str, int]) -> None:
    simulate(tmp_path, Job(ranks=8, mesh=mesh, steps=4, layers=2, seed=seed), costs=False)
    run = rankscope.open(tmp_path, executor="serial")
    assert run.stragglers()["cause"].null_count() == 8
    assert [each for each in run.findings if each.id in ("straggler", "slow-network")] == []


def test_nobody_to_compare_with(tmp_path: Path) -> None:
    simulate(tmp_path, Job(ranks=2, steps=2, recording=Recording(missing=(1,))), costs=False)
    run = rankscope.open(tmp_path, executor="serial")
    row = run.stragglers().row(0, named=True)
    assert {key: value for key, value in row.items() if value is not None} == {"rank": 0}
    assert run.collectives()["wait_ns"].null_count() == run.collectives().height


def test_the_others_wait_for_the_rank_that_is_accused(tmp_path: Path) -> None:
    # Rank 9 is in the second stage: the first, whose gradients come through it, is late to more collectives.
    fault = Fault("data_loading", ranks=(9,), magnitude=0.1)
    job = Job(ranks=16, mesh={"dp": 4, "tp": 2, "pp": 2}, steps=3, layers=2, faults=(fault,))
    simulate(tmp_path, job, costs=False)
    run = rankscope.open(tmp_path, executor="serial")
    found = run.stragglers()
    assert (worst(found)["rank"], worst(found)["cause"]) == (9, "data_loading")
    assert [each.ranks for each in run.findings if each.id == "straggler"] == [(9,)]
    # Nobody else is waited for by a fifth as much.
    waited = sorted(found["waited_ns"])
    assert 5 * waited[-2] < waited[-1]
    # Step by step it is the same, and adds up to it.
    steps = run.stragglers(by="step")
    assert steps.height == sum(found["steps"])
    assert dict(steps.group_by("rank").agg(pl.col("waited_ns").sum()).rows()) == dict(
        found.select("rank", "waited_ns").rows()
    )
    accused = steps.filter(pl.col("cause").is_not_null())
    assert accused.select("rank", "step", "cause").rows() == [(9, step, "data_loading") for step in (10, 11, 12)]
    most = steps.group_by("step").agg(pl.col("rank").sort_by("waited_ns").last())
    assert set(most["rank"]) == {9}


@pytest.mark.parametrize(("rank", "accused"), [(2, [2]), (3, [])])
def test_half_of_the_ranks_missing(tmp_path: Path, rank: int, accused: list[int]) -> None:
    # Of a rank without a file nothing can be said, nor is another accused in its place.
    fault = Fault("slow_device", ranks=(rank,), magnitude=0.2)
    recording = Recording(missing=(1, 3, 5, 7))
    simulate(tmp_path, Job(ranks=8, steps=3, layers=2, seed=5, faults=(fault,), recording=recording), costs=False)
    run = rankscope.open(tmp_path, executor="serial")
    found = run.stragglers()
    assert found["rank"].to_list() == [0, 2, 4, 6]
    assert found.filter(pl.col("cause").is_not_null())["rank"].to_list() == accused
    said = {finding.id: finding.ranks for finding in run.findings}
    assert (said["missing-ranks"], said["incomplete-groups"]) == ((1, 3, 5, 7), (0, 2, 4, 6))


def test_a_rank_that_lost_events_is_compared_with_nobody(tmp_path: Path) -> None:
    fault = Fault("slow_device", ranks=(2,), magnitude=0.3)
    simulate(tmp_path, Job(ranks=6, steps=5, layers=2, seed=5, faults=(fault,)), costs=False)
    assert worst(rankscope.open(tmp_path, executor="serial").stragglers())["cause"] == "slow_device"
    (file,) = tmp_path.glob("rank2_*")
    head, duration, tail = gzip.decompress(file.read_bytes()).rpartition(b'"dur":')
    file.write_bytes(gzip.compress(head + duration + b"," + tail))
    run = rankscope.open(tmp_path, executor="serial")
    found = run.stragglers()
    assert found["cause"].null_count() == 6
    assert found.filter(pl.col("rank") == 2)["significance"].to_list() == [None]
    assert [each.ranks for each in run.findings if each.id == "not-judged"] == [(2,)]


@pytest.mark.parametrize("magnitude", [0.4, 0.0])
def test_a_rank_that_lost_kernels_in_every_step_is_compared_with_nobody(tmp_path: Path, magnitude: float) -> None:
    """Its launches are there: nobody knows how long what it lost has taken."""
    faults = (Fault("slow_device", ranks=(5,), magnitude=magnitude),) if magnitude else ()
    recording = Recording(lost=(Lost(5, count=8, what="collective"),))
    simulate(tmp_path, Job(ranks=8, steps=4, seed=88201, faults=faults, recording=recording), costs=False)
    run = rankscope.open(tmp_path, executor="serial")
    steps = run.collectives().filter(pl.col("rank") == 5).group_by("step").len()
    assert steps.drop_nulls()["len"].n_unique() > 1  # Some are lost.
    (lost,) = [each for each in run.findings if each.id == "device-events-lost"]
    assert lost.ranks == (5,)
    assert run.stragglers()["cause"].null_count() == 8
    assert run.diagnosis().stragglers.ranks == ()
    assert not any(5 in each.ranks for each in run.diagnosis().findings if each.id in ("straggler", "imbalance"))


def test_without_collectives_nothing_is_compared(tmp_path: Path) -> None:
    write_ranks(tmp_path, {rank: [step(10, 0, 990), op("aten::mm", 10, 100 + 50 * rank)] for rank in (0, 1)})
    run = rankscope.open(tmp_path, executor="serial")
    assert run.stragglers().drop("rank").null_count().row(0) == (2,) * 17
    assert run.diagnosis().stragglers.state == "not-compared"


def test_a_rank_that_does_more_in_some_steps_is_late_in_all_of_them(tmp_path: Path) -> None:
    """What it adds is shorter than the other kernels of that name and grid; it adds half of a step."""
    fault = Fault("more_work", ranks=(0,), steps=(11, 15, 19), magnitude=0.5)
    simulate(tmp_path, Job(ranks=4, steps=12, seed=1, faults=(fault,)), costs=True)
    (truth,) = json.loads((tmp_path / "truth.json").read_text())["faults"]
    run = rankscope.open(tmp_path, executor="serial")
    run.stragglers()
    (finding,) = [each for each in run.findings if each.id == "straggler"]
    assert finding.steps == (11, 15, 19)
    assert (finding.saving_ns or 0) == pytest.approx(truth["cost_ns"], rel=0.3)
    (cause,) = [str(each.value) for each in finding.evidence if each.name == "cause: more work"]
    more_ms = float(cause.partition(" take ")[2].split()[0])
    assert more_ms == pytest.approx(3 * truth["taken_ns"] / 1e6, rel=0.05)
