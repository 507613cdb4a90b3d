"""Damaged traces the whole way: each damage is a finding, and every analysis, rule, table and timeline is there."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import polars as pl
import pytest
from tests import kineto
from tests.fuzz.mutate import handmade, mutated, write_files
from tests.fuzz.whole_way import problems_of
from tests.show.report.reading import inflated, read_report
from tests.show.web.asking import serving
from tests.soak import some_of

from rankscope.engine.pipeline import Run, open_run
from rankscope.ingest.kineto import read_kineto
from rankscope.results import Finding, Result
from rankscope.show.report import html_report
from rankscope.show.report.embed import timeline as embedded
from rankscope.show.report.html_report import write_report
from rankscope.show.web.loading import LoadedRun

Damage = Callable[[kineto.Event], object]


def of(target: str, **fields: object) -> Damage:
    """Replaces fields of the events of a name, arguments where they have them."""

    def damage(event: kineto.Event) -> None:
        if event.get("name") == target:
            for key, value in fields.items():
                holder = event["args"] if key in event.get("args", {}) else event
                holder[key] = value

    return damage


def decades_later(event: kineto.Event) -> None:
    if event.get("cat") == "kernel" and event["ts"] > 1000:
        event["ts"] += 1e15


DAMAGES: dict[str, Damage] = {
    "operators and kernels without names": lambda event: event.pop("name", None) if event["ph"] == "X" else None,
    "names that are not texts": lambda event: event.update(name={}) if event.get("cat") == "kernel" else None,
    "a kernel decades from its launch": decades_later,
    "a duration of 30 years": of("aten::mm", dur=1e15),
    "memory beyond 64 bits": of("[memory]", **{"Total Allocated": 2**63 - 1, "Bytes": 2**62}),
    "sizes beyond 64 bits": of("record_param_comms", **{"In msg nelems": 2**62}),
    "occupancy that is not a number": of("ampere_sgemm_128x64_nn", **{"est. achieved occupancy %": "nan"}),
    "names without end": of("aten::mm", name="x" * 200_000),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_known_damages(tmp_path: Path, damage: Damage) -> None:
    for rank in range(2):
        events = handmade(rank)
        for event in events:
            damage(event)
        kineto.write(tmp_path / "run" / f"rank{rank}.json", kineto.trace(events, rank=rank, world_size=2))
    assert problems_of(tmp_path / "run", page=False) == []


def test_what_reading_changes_is_counted(tmp_path: Path) -> None:
    events = handmade(0)
    for name in ("names without end", "occupancy that is not a number", "memory beyond 64 bits"):
        for event in events:
            DAMAGES[name](event)
    found = read_kineto(str(kineto.write(tmp_path / "rank0.json", kineto.trace(events))))
    assert found.odd["texts that were cut after 65,536 characters"] == 2
    assert found.odd["values of occupancy that are not numbers"] == 2
    assert found.odd["values of total_allocated that are too large"] == 4
    assert max(map(len, found.tables["host_ops"]["name"])) == 65_536


def test_a_rank_that_cannot_be_encoded_costs_the_report_that_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(2):
        kineto.write(tmp_path / f"rank{rank}.json", kineto.trace(handmade(rank), rank=rank, world_size=2))
    events_of = embedded._events_of

    def failing(rank: Any, *others: object) -> bytes:
        if rank.rank == 1:
            raise ValueError("no planes")
        return events_of(rank, *others)

    monkeypatch.setattr(embedded, "_events_of", failing)
    run = open_run(tmp_path, executor="serial")
    _, blocks = read_report(write_report(run))
    assert "device-0" in blocks
    assert "device-1" not in blocks
    assert any("no planes" in sentence for sentence in json.loads(inflated(blocks["timeline"]))["left_out"])


def failing_run(tmp_path: Path) -> Run:
    kineto.write(tmp_path / "run" / "rank0.json", kineto.trace(handmade(0)))
    return open_run(tmp_path / "run", executor="serial")


def panic(*_arguments: object, **_options: object) -> NoReturn:
    raise pl.exceptions.PanicException("capacity overflow")


def test_a_table_that_cannot_be_shown_costs_the_report_that_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_of = html_report.table_of

    def failing(result: Result, *others: Any, **options: Any) -> object:
        return panic() if result.analysis.name == "kernels" else table_of(result, *others, **options)

    monkeypatch.setattr(html_report, "table_of", failing)
    value, blocks = read_report(write_report(failing_run(tmp_path)))
    assert "kernels" not in value["analyses"]
    assert "operators" in value["analyses"]
    assert "timeline" in blocks
    assert "The table kernels cannot be shown" in [finding["title"] for finding in value["findings"]]


@pytest.mark.parametrize("anonymize", [False, True])
def test_a_timeline_that_cannot_be_embedded_costs_the_report_the_timeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anonymize: bool
) -> None:
    monkeypatch.setattr(embedded, "draw_run", panic)
    value, blocks = read_report(write_report(failing_run(tmp_path), anonymize=anonymize))
    assert "kernels" in value["analyses"]
    assert "timeline" not in blocks
    assert "not-shown" in [finding["id"] for finding in value["findings"]]


def test_a_finding_without_a_place_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_report, "place_of", panic)
    finding = Finding("straggler", "info", "rank 3 is late", ranks=(3,))
    assert html_report.located(finding, {"ranks": []}) == finding.to_json()


def test_the_page_shows_the_tables_beside_one_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_run(tmp_path)
    server = serving(tmp_path / "run")
    headline_of = LoadedRun.headline_of

    def failing(self: LoadedRun, result: Result) -> object:
        return panic() if result.analysis.name == "kernels" else headline_of(self, result)

    monkeypatch.setattr(LoadedRun, "headline_of", failing)
    answer = server.ask("/api/summary").json()
    assert answer["analyses"]["kernels"]["state"] == "failed"
    assert answer["analyses"]["operators"]["state"] == "ready"
    assert "The table kernels cannot be shown" in [finding["title"] for finding in answer["findings"]]
    # A panic is no exception of Python's: the request is answered all the same.
    assert server.ask("/api/table/kernels").status == 500


@pytest.mark.slow
@pytest.mark.parametrize("seed", some_of(range(30), usual=range(10)))
def test_mutated_runs(tmp_path: Path, seed: int) -> None:
    write_files(tmp_path / "run", mutated(random.Random(seed)))
    assert problems_of(tmp_path / "run", page=seed % 4 == 0, anonymize=seed % 4 == 0) == []
