"""A finding's event is in the raw trace, and shows what the finding says; both are read with `json` alone."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests import kineto

import rankscope
from rankscope.answers.diagnosis.anchors import exposed_anchor, with_anchors
from rankscope.experiments.simulate import Fault, Job, parse_mesh, simulate
from rankscope.results import Anchor, Finding, Inputs, Options

NEEDED = ("collectives", "evidence_events")


def inputs_of(run: rankscope.Run) -> Inputs:
    """What anchors are made from."""
    return Inputs(options=Options(), traces=run.traces, results={"collectives": run.collectives()})


def raw_events(folder: Path, rank: int) -> list[dict[str, Any]]:
    """The complete events of a rank's trace."""
    for path in sorted(folder.glob("*.json*")):
        if path.name.startswith(("run", "truth", "rankscope")):
            continue
        content = json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
        if content.get("distributedInfo", {}).get("rank") == rank:
            return [event for event in content["traceEvents"] if event.get("ph") == "X"]
    raise AssertionError(f"no trace of rank {rank}")


def nanoseconds(value: float) -> int:
    """A time as Kineto writes it, µs with three decimals."""
    return round(Decimal(str(value)) * 1000)


def raw_event(folder: Path, anchor: Anchor) -> dict[str, Any]:
    """The kernel of the trace that an anchor names: there must be exactly one of its name and times."""
    found = [
        event
        for event in raw_events(folder, anchor.rank)
        if event["cat"] == "kernel"
        and event["name"] == anchor.name
        and (nanoseconds(event["ts"]), nanoseconds(event["ts"]) + nanoseconds(event["dur"]))
        == (anchor.start_ns, anchor.end_ns)
    ]
    (event,) = found
    return event


@pytest.mark.parametrize(
    "fault",
    [
        Fault("slow_host", ranks=(2,), ms=20, style="asleep"),
        Fault("data_loading", ranks=(2,), ms=20),
        Fault("more_work", ranks=(2,), ms=20),
    ],
    ids=lambda fault: fault.kind,
)
def test_a_stragglers_event_is_where_the_others_wait_for_it(tmp_path: Path, fault: Fault) -> None:
    simulate(tmp_path, Job(ranks=4, steps=5, layers=2, faults=(fault,)), costs=False)
    findings = rankscope.open(tmp_path, executor="serial").diagnose()
    (found,) = [each for each in findings if each.id == "straggler"]
    anchor = found.anchor
    assert anchor is not None
    assert anchor.rank == 2
    event = raw_event(tmp_path, anchor)
    assert len(anchor.peers) == 3
    for peer in anchor.peers:
        other = raw_event(tmp_path, peer)
        # The same collective of the same group, which the others are in for most of the delay.
        for name in ("Collective name", "Process Group Name", "In msg nelems"):
            assert other["args"].get(name) == event["args"].get(name)
        assert other["dur"] - event["dur"] > 10_000
    others = [peer.end_ns - peer.start_ns for peer in anchor.peers]
    assert others == sorted(others, reverse=True)


def test_a_bubbles_event_is_its_ranks_longest_wait(tmp_path: Path) -> None:
    job = Job(ranks=8, steps=2, mesh=parse_mesh("pp=4,tp=2"), layers=1, gradient_norm=False, synchronize=False)
    simulate(tmp_path, job, costs=False)
    run = rankscope.open(tmp_path, executor="serial")
    stated = run.analyze("pipeline_bubble")["pipeline_bubble"].findings
    bubble = Finding("pipeline-bubble", "warning", "t", ranks=(0, 1)) if not stated else stated[0]
    (found,) = with_anchors([bubble], inputs_of(run))
    assert found.anchor is not None
    assert found.anchor.rank in bubble.ranks
    event = raw_event(tmp_path, found.anchor)
    sends = [
        each["dur"]
        for rank in bubble.ranks
        for each in raw_events(tmp_path, rank)
        if each.get("args", {}).get("Collective name") in ("send", "recv") and each["cat"] == "kernel"
    ]
    # Those at the edges of the recording have no other end, so they may be longer.
    assert event["dur"] >= sorted(sends)[-9]


def test_findings_about_files_have_none(tmp_path: Path) -> None:
    simulate(tmp_path, Job(ranks=4, steps=4, layers=1), costs=False)
    next(tmp_path.glob("rank3_*")).unlink()
    findings = rankscope.open(tmp_path, executor="serial").diagnose()
    assert "missing-ranks" in {each.id for each in findings}
    assert all(each.anchor is None for each in findings if each.id == "missing-ranks")


def test_by_hand(tmp_path: Path) -> None:
    """Rank 1 is 40 µs late at the second of two collectives, 10 µs at the first."""

    def events(first: float, second: float) -> list[kineto.Event]:
        return [
            kineto.step(1, 0, 500),
            kineto.launch(1, 1, correlation=1),
            kineto.collective(first, 150 - first, sequence=1, correlation=1, ranks=(0, 1, 2)),
            kineto.launch(2, 1, correlation=2),
            kineto.collective(second, 400 - second, sequence=2, correlation=2, ranks=(0, 1, 2)),
        ]

    by_rank = {0: events(100, 300), 1: events(110, 340), 2: events(105, 320)}
    run = rankscope.open(kineto.write_ranks(tmp_path, by_rank), executor="serial")
    late = Finding("straggler", "warning", "t", ranks=(1,))
    other = Finding("straggler", "warning", "t", ranks=(1,), steps=(9,))
    found, nowhere, file = with_anchors([late, other, Finding("unreadable", "error", "t", ranks=(1,))], inputs_of(run))
    assert nowhere.anchor is None
    assert file.anchor is None
    assert found.anchor is not None
    assert (found.anchor.rank, found.anchor.start_ns, found.anchor.end_ns) == (1, 340_000, 400_000)
    assert [(peer.rank, peer.start_ns) for peer in found.anchor.peers] == [(0, 300_000), (2, 320_000)]
    assert found.to_json()["anchor"]["peers"][0]["rank"] == 0
    assert "anchor" not in nowhere.to_json()


def test_exposed_transfer_shows_no_event_that_mostly_waits(tmp_path: Path) -> None:
    """All collectives of rank 0 are ones in which it waits for rank 1, until the shortest one of a step transfers."""
    simulate(tmp_path, Job(ranks=2, steps=4, layers=3, faults=(Fault("slow_host", ranks=(1,), ms=30),)), costs=False)
    run = rankscope.open(tmp_path, executor="serial")
    inputs = replace(inputs_of(run), results={name: run.analyze(name)[name].frame for name in NEEDED})
    collectives = inputs.results["collectives"]
    duration = pl.col("end_ns") - pl.col("start_ns")
    own = collectives.filter(pl.col("rank") == 0)
    assert (2 * own["transfer_ns"] < own.select(duration).to_series()).all()
    assert exposed_anchor(inputs, 0, "it transfers") is None
    shortest = duration == duration.min().over("rank", "step")
    transfers = pl.when(shortest).then(duration).otherwise("transfer_ns").alias("transfer_ns")
    inputs = replace(inputs, results={**inputs.results, "collectives": collectives.with_columns(transfers)})
    found = exposed_anchor(inputs, 0, "it transfers")
    assert found is not None
    assert found.start_ns in own.filter(shortest)["start_ns"].to_list()
