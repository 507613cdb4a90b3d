"""Real runs run again: nothing moves by itself, and what one rank loses the others wait for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from benchmarks.diagnosis.perturbed import case_of, load
from benchmarks.diagnosis.retiming import Retiming, Slower, Tables

MS = 1_000_000


def kernel(name: str, start: int, end: int, launch: int, stream: int) -> dict[str, Any]:
    return {
        "start_ns": start, "end_ns": end, "name": name, "kind": "kernel", "is_collective": name == "nccl",
        "launch_ns": launch, "stream": stream,
    }  # fmt: skip


def rank_of(arrival: int) -> Tables:
    """Compute up to the arrival, a collective that ends at 10 ms on both, compute after it, and a wait for that."""
    device = [
        kernel("gemm", 1 * MS, arrival - 1_000, MS - 10_000, 7),
        kernel("nccl", arrival, 10 * MS, 2 * MS, 9),
        kernel("gemm", 10 * MS + 1_000, 12 * MS, 3 * MS, 7),
    ]
    calls = [(row["launch_ns"], row["launch_ns"] + 5_000, "cudaLaunchKernel") for row in device]
    calls.append((4 * MS, 12 * MS + 10_000, "cudaStreamSynchronize"))
    times = {"start_ns": pl.Int64, "end_ns": pl.Int64, "name": pl.String}
    ops = [(row["launch_ns"] - 1_000, row["launch_ns"] + 6_000, "aten::mm") for row in device]
    ops.append((13 * MS, 14 * MS, "aten::add"))
    return {
        "device_events": pl.DataFrame(device),
        "runtime_calls": pl.DataFrame(calls, schema=times, orient="row"),
        "host_ops": pl.DataFrame(ops, schema=times, orient="row"),
        "annotations": pl.DataFrame(schema={**times, "on_device": pl.Boolean}),
    }


def pair() -> Retiming:
    tables = {0: rank_of(6 * MS), 1: rank_of(8 * MS)}
    collectives = pl.DataFrame(
        {"rank": [0, 1], "match": [0, 0], "start_ns": [6 * MS, 8 * MS], "end_ns": [10 * MS] * 2, "stream": [9, 9]}
    )
    return Retiming(tables, collectives, {0: 0, 1: 0})


def starts(tables: Tables, name: str = "device_events") -> list[int]:
    return tables[name]["start_ns"].to_list()


def test_nothing_moves_by_itself() -> None:
    again = pair()
    for rank, tables in again.run().items():
        for name in ("device_events", "runtime_calls", "host_ops"):
            assert (
                tables[name]
                .select("start_ns", "end_ns")
                .equals(again.ranks[rank].tables[name].select("start_ns", "end_ns"))
            )


def test_the_last_rank_holds_the_other_up() -> None:
    # Rank 1 computes for 7 ms before the collective; 10 % more make it arrive 0.7 ms later.
    late = round(0.1 * (7 * MS - 1_000))
    found = pair().run(Slower(1, kernels=0.1))
    assert starts(found[1])[1] == 8 * MS + late
    assert starts(found[0])[1] == 6 * MS
    # Both leave it later, by as much; rank 0 goes on later, and its host, which waits for its device, too.
    assert [each["device_events"]["end_ns"].to_list()[1] for each in found.values()] == [10 * MS + late] * 2
    assert starts(found[0])[2] == 10 * MS + 1_000 + late
    assert found[0]["runtime_calls"]["end_ns"].to_list()[-1] == 12 * MS + 10_000 + late
    assert starts(found[0], "host_ops")[-1] == 13 * MS + late


def test_the_first_rank_has_time_to_spare() -> None:
    # 2 ms of waiting swallow half a millisecond more of computing before it.
    found = pair().run(Slower(0, kernels=0.1))
    assert starts(found[0])[1] == 6 * MS + round(0.1 * (5 * MS - 1_000))
    assert [each["device_events"]["end_ns"].to_list()[1] for each in found.values()] == [10 * MS] * 2
    assert starts(found[1], "host_ops")[-1] == 13 * MS


def test_a_slow_host_that_runs_ahead_holds_nobody_up() -> None:
    found = pair().run(Slower(1, host=0.5))
    # All it costs is half of the microsecond before its first launch, which its device has to wait for.
    assert starts(found[0]) == [1 * MS, 6 * MS, 10 * MS + 1_000 + 500]
    # It launches later, though: half as long again after its first instant.
    first = MS - 11_000
    assert found[1]["device_events"]["launch_ns"].to_list()[2] == first + round(1.5 * (3 * MS - first))


@pytest.mark.parametrize(
    "name", ["gloo-2ranks/ddp_gpt_minimal", pytest.param("torchrec/all-to-all-4ranks", marks=pytest.mark.slow)]
)
def test_real_runs(shared_traces: Path, shared_cache: Path, name: str) -> None:
    recorded = load(shared_traces, name)
    for rank, tables in recorded.retiming.run().items():
        for table in ("device_events", "runtime_calls", "host_ops"):
            columns = ["start_ns", "end_ns"]
            assert tables[table].select(columns).equals(recorded.tables[rank][table].select(columns))
    for slower in (Slower(0, host=0.5), Slower(0, launch_ns=100_000)):
        found = recorded.retiming.run(slower)
        for rank, each in recorded.retiming.ranks.items():
            # No rank leaves a collective before the last has come, and nothing takes less time than it did.
            assert (each.new_end >= each.new_start).all()
            assert (each.new_start >= each.start).all()
            frame = found[rank]["host_ops"]
            assert (frame["end_ns"] >= frame["start_ns"]).all()
        for match, members in recorded.retiming.members.items():
            last = max(int(recorded.retiming.ranks[r].new_start[row]) for r, row in members)
            for r, row in members:
                least = last + recorded.retiming.transfer[match, r]
                assert int(recorded.retiming.ranks[r].new_end[row]) == least


def test_a_slow_device_is_named(shared_traces: Path, shared_cache: Path) -> None:
    recorded = load(shared_traces, "torchrec/all-to-all-4ranks")
    work = int(
        (recorded.retiming.ranks[0].end - recorded.retiming.ranks[0].start)[recorded.retiming.ranks[0].compute].sum()
    )
    share = 0.25 * recorded.length / work
    case = case_of(recorded, Slower(0, kernels=share), "kernels stretched", 0.25)
    assert (case.said[0].ranks, case.said[0].cause) == (frozenset([0]), "slow_device")
