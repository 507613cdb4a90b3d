"""Clocks of whole runs: what a trace's `baseTimeNanoseconds` says, and what the real traces hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kineto import collective, launch, step, trace, write

import rankscope
from rankscope.rundir.metadata import METADATA_KEY

ENDS = (50.0, 212.0, 377.0, 590.0, 818.0)


def run_of(folder: Path, *, late_us: float = 0.0, base_ns: int = 0, ranks: tuple[int, ...] = (0, 1)) -> rankscope.Run:
    for rank in ranks:
        moved = late_us if rank else 0.0
        events = [step(1, moved, 1000)]
        for number, end in enumerate(ENDS):
            events.append(launch(moved + end - 30, 2, correlation=number + 1))
            events.append(collective(moved + end - 20, 20, ranks=ranks, correlation=number + 1))
        content = trace(events, rank=rank, world_size=len(ranks))
        content["baseTimeNanoseconds"] = 10_000_000_000 + (base_ns if rank else 0)
        write(folder / f"rank{rank}.json.gz", content)
    return rankscope.open(folder, executor="serial")


def test_a_shift_is_found_and_said(tmp_path: Path) -> None:
    run = run_of(tmp_path, late_us=7_000_000.0)
    assert run.clock().select("rank", "offset_ns", "residual_ns", "anchors", "method").rows() == [
        (0, 0, 0, 5, "reference"),
        (1, -7_000_000_000, 0, 5, "collectives"),
    ]
    assert [finding.id for finding in run.findings if finding.id.startswith("clock")] == ["clocks-differ"]


def hosted(
    folder: Path,
    hosts: tuple[str, ...],
    late_us: tuple[float, ...],
    spread_us: float = 0.0,
    boots: tuple[str, ...] = (),
) -> rankscope.Run:
    """Five all_reduces; the ranks' wall clocks are apart, and their ends differ."""
    ranks = tuple(range(len(hosts)))
    for rank, host in enumerate(hosts):
        events = [step(1, late_us[rank], 1000)]
        for number, end in enumerate(ENDS):
            at = late_us[rank] + end + spread_us * (rank * number % 3)
            events.append(launch(at - 60, 2, correlation=number + 1))
            events.append(collective(at - 20, 20, ranks=ranks, correlation=number + 1, sequence=number))
        content = trace(events, rank=rank, world_size=len(ranks))
        if boots:
            content[METADATA_KEY] = {"rank": rank, "world_size": len(ranks), "boot_id": boots[rank]}
        write(folder / f"{host}_{100 + rank}.1700000000000.pt.trace.json.gz", content)
    return rankscope.open(folder, executor="serial")


def differing_ranks(run: rankscope.Run) -> dict[str, tuple[int, ...]]:
    return {each.id: each.ranks for each in run.analyze("clock")["clock"].findings}


def test_hosts_have_clocks_and_ranks_have_none_of_their_own(tmp_path: Path) -> None:
    run = hosted(tmp_path, ("a", "a", "b", "b"), (0.0, 0.0, 7000.0, 7000.0))
    assert differing_ranks(run) == {"clocks-differ": (2, 3)}
    assert run.analyze("clock")["clock"].findings[0].title.startswith("The hosts' wall clocks differ")


def test_ranks_of_one_host_have_one_clock(tmp_path: Path) -> None:
    run = hosted(tmp_path, ("a", "a", "a"), (0.0, 0.0, 7000.0))
    assert differing_ranks(run) == {"times-differ-on-host": (2,)}
    # Whether the base time of the trace is wrong or the match, these collectives do not show.
    assert run.analyze("clock")["clock"].findings[0].title.startswith("As matched, ")


def test_the_boot_tells_hosts_from_one_another_and_their_names_do_not(tmp_path: Path) -> None:
    # Containers of one host have names of their own; hosts may have one name.
    moved = (0.0, 0.0, 0.0, 30.0)
    of_containers = hosted(tmp_path / "a", ("a", "b", "c", "d"), moved, boots=("1", "1", "2", "2")).clock()
    of_hosts = hosted(tmp_path / "b", ("a", "a", "a", "a"), moved, boots=("1", "1", "2", "2")).clock()
    of_names = hosted(tmp_path / "c", ("a", "a", "b", "b"), moved).clock()
    assert of_containers.equals(of_hosts)
    assert of_containers.equals(of_names)
    assert of_names["method"].to_list() == ["reference", "host", "collectives", "collectives"]
    # 30 µs between ranks of one host are no clock.
    assert of_names["offset_ns"].to_list() == [0, 0, 0, 0]


def test_less_than_the_residuals_is_no_difference(tmp_path: Path) -> None:
    # 2 ms apart, but ends agree to some milliseconds only.
    assert differing_ranks(hosted(tmp_path, ("a", "b"), (0.0, 2000.0), spread_us=4000.0)) == {}


def test_two_collectives_state_a_bound(tmp_path: Path) -> None:
    for rank in (0, 1):
        events = [step(1, 0, 1000)]
        for number, end in enumerate(ENDS[:2]):
            begin = end - (20 if rank else 45)
            events.append(launch(begin - 9, 2, correlation=number + 1))
            events.append(collective(begin, end - begin, ranks=(0, 1), correlation=number + 1, sequence=number))
        write(tmp_path / f"rank{rank}.json.gz", trace(events, rank=rank, world_size=2))
    # The ends agree exactly, but rank 1 might be 45 µs earlier before it would be through when rank 0 begins.
    clock = rankscope.open(tmp_path, executor="serial").clock()
    assert clock["anchors"].to_list() == [2, 2]
    assert clock["residual_ns"].to_list() == [45_000, 45_000]


def test_the_base_time_belongs_to_the_wall_clock(tmp_path: Path) -> None:
    # The trace's clock runs 3 s ahead, and the file says so.
    run = run_of(tmp_path, late_us=3_000_000.0, base_ns=-3_000_000_000)
    assert run.clock()["offset_ns"].to_list() == [0, 0]
    assert not [finding for finding in run.findings if finding.id.startswith("clock")]


def test_one_rank_keeps_its_wall_clock(tmp_path: Path) -> None:
    run = run_of(tmp_path, ranks=(0,))
    row = run.clock().row(0, named=True)
    assert (row["offset_ns"], row["residual_ns"], row["anchors"], row["method"]) == (0, None, 0, "wall clock")
    assert run.findings == []


@pytest.mark.parametrize(
    ("folder", "limit_us"),
    [("modded-nanogpt-h100-8ranks", 5), ("torchrec/all-to-all-4ranks", 40), ("torchrec/ddp-resnet18-2ranks", 40)],
)
def test_ranks_of_one_host_agree(shared_traces: Path, shared_cache: Path, folder: str, limit_us: int) -> None:
    clock = rankscope.open(shared_traces / folder, executor="serial").clock()
    assert clock["offset_ns"].abs().max() <= limit_us * 1000
    assert clock["residual_ns"].max() <= 100_000
    assert clock["drift_ppm"].null_count() == clock.height
    assert clock["component"].n_unique() == 1
