"""Manifests with absurd values: every command that reads a run directory ends, and reports what is left of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rankscope.errors import ConfigError
from rankscope.ingest.manifests import capture_findings, read_manifests
from rankscope.jobs.doctor import run as doctor
from rankscope.jobs.gather import completeness
from rankscope.rundir.manifest import LostWindow, RankManifest, RunManifest, StepBlock, WrittenTrace
from rankscope.rundir.metadata import ClockAnchor, Device, Mesh, StepSpan

RUN = RunManifest(run_id="a", world_size=2, mesh=Mesh(("dp",), (2,), (0,)), ranks="all", started_ns=5)
RANK = RankManifest(
    run_id="a", rank=1, world_size=2, local_rank=1, host="h", pid=3, device=Device("cpu", "x", 0, 1), steps=9,
    mesh=Mesh(("dp",), (2,), (1,)), written=(WrittenTrace("rank1_iter1_2.trace.json", 1, 2, 10, 100, 7, 8),),
    skipped=(LostWindow(3, 4, "why"),), failed=(LostWindow(5, 6, "no room"),),
    step_times=(StepSpan(0, "wait", (5, 6)),),
    step_blocks=(StepBlock(2, 2, 1, 3, 4),), step_median_ns={"wait": 5},
    environment={"settings": {"NCCL_DEBUG": "INFO"}, "cpu_affinity": "3"},
    clock_anchors=(ClockAnchor(1, 2, 3), ClockAnchor(4, 5, 6)), warnings=("careful",),
)  # fmt: skip
ODD = [10**12, 2**63, 10**400, -1, 1e308, float("nan"), True, None, "", "9" * 40, [], [[]], {}, "\ud800", "\x1b[2J"]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place within a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, each in inside for place in ((*path, key), *places(each, (*path, key)))]


def with_value(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    changed = json.loads(json.dumps(value))
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = odd
    return changed


def look_at(run: Path) -> None:
    found = completeness(run)
    assert found.report()
    assert list(doctor.checks(run))
    _, ranks, findings = read_manifests([str(run / "run.json")], [str(run / "ranks" / "rank1.json")], "a")
    for each in (*findings, *capture_findings(ranks, [])):
        json.dumps(each.to_json(), allow_nan=False)


@pytest.mark.parametrize("odd", ODD, ids=ascii)
def test_absurd_values_everywhere(tmp_path: Path, odd: Any) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "run.json").write_text(json.dumps(dict.fromkeys(asdict(RUN), odd)))
    (tmp_path / "ranks" / "rank1.json").write_text(json.dumps(dict.fromkeys(asdict(RANK), odd) | {"run_id": "a"}))
    look_at(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run.json", "ranks/rank1.json"])
def test_absurd_values_cost_no_more_than_their_field(tmp_path: Path, name: str) -> None:
    (tmp_path / "ranks").mkdir()
    plain = {"run.json": json.loads(json.dumps(asdict(RUN))), "ranks/rank1.json": json.loads(json.dumps(asdict(RANK)))}
    for file, value in plain.items():
        (tmp_path / file).write_text(json.dumps(value))
    for place, odd in product(places(plain[name]), ODD):
        (tmp_path / name).write_text(json.dumps(with_value(plain[name], place, odd)))
        look_at(tmp_path)


def test_a_world_of_a_million_million_ranks_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"run_id": "a", "world_size": 10**12}))
    assert completeness(tmp_path).expected is None
    with pytest.raises(ConfigError, match="not a number of ranks"):
        completeness(tmp_path, 10**12)
