"""What `rankscope measure` leaves, as tables: by its fields, and what is no such file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.experiments.measure.test_results import OVERHEAD, SETTING

from rankscope.experiments.measure.files import save
from rankscope.experiments.measure.results import (
    Binding,
    BoundVariant,
    Buckets,
    EfficiencyLoss,
    NumaNode,
    ProfiledVariant,
    ProfilerCost,
    Projected,
    Projection,
    Recommendation,
    Scaling,
    Share,
    Size,
    Time,
    Topology,
    TraceSummary,
    Variant,
)
from rankscope.show.report.experiments import tables
from rankscope.show.report.experiments.tables import jobs_of, measured

PLAIN = Size("plain", 1, 1, "done", step=Time(100, 99, 101), efficiency=Share(1.0))
FOUR = Size(
    "4", 4, 1, "done", oversubscribed=True, step=Time(50), efficiency=Share(0.5, 0.4, 0.6),
    derived_overhead=Share(0.5), traced=TraceSummary("jobs/4-0", 1, 100, 60, 30, 20, 0.3, 0.3),
    lost=EfficiencyLoss(25, 5, 20, 9, 0, 0),
)  # fmt: skip
EIGHT = Size("8 on 2 nodes", 8, 2, "failed", error="no such host")
SCALING = Scaling(replace(SETTING, notes=["few blocks"]), "strong", "plain", [PLAIN, FOUR, EIGHT])


def test_sizes_of_a_scaling_study(tmp_path: Path) -> None:
    save(SCALING, tmp_path)
    (name, result), = measured(str(tmp_path)).items()  # fmt: skip
    assert name == "measured_scaling"
    plain, four, eight = result.frame.to_dicts()
    assert (plain["step_ns"], plain["step_low_ns"], plain["step_high_ns"], plain["efficiency"]) == (100, 99, 101, 1.0)
    assert (four["efficiency_low"], four["efficiency_high"], four["oversubscribed"]) == (0.4, 0.6, True)
    assert (four["derived_overhead"], four["traced_overhead"], four["lost_communication_ns"]) == (0.5, 0.3, 20)
    assert (four["lost_wait_ns"], plain["lost_wait_ns"]) == (9, None)
    assert (eight["state"], eight["error"], eight["step_ns"]) == ("failed", "no such host", None)
    assert "few blocks" in result.analysis.doc
    assert result.headline is not None
    assert {each.name: each.value for each in result.headline.values} == {
        "ranks": 4, "efficiency": 0.5, "low": 0.4, "high": 0.6, "mode": "strong",
    }  # fmt: skip
    assert {column.name for column in result.analysis.columns} == set(result.frame.columns)


def test_the_answer_is_of_the_most_ranks_that_had_a_core_each(tmp_path: Path) -> None:
    two = Size("2", 2, 1, "done", efficiency=Share(0.9))
    save(replace(SCALING, sizes=[PLAIN, two, FOUR]), tmp_path)
    headline = measured(str(tmp_path))["measured_scaling"].headline
    assert headline is not None
    assert [each.value for each in headline.values] == [2, 0.9, "strong"]


def test_a_table_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(SCALING, tmp_path)
    save(OVERHEAD, tmp_path)
    made = tables._result

    def failing(name: str, *others: Any) -> object:
        if name == "scaling":
            raise ValueError("no such size")
        return made(name, *others)

    monkeypatch.setattr(tables, "_result", failing)
    failed: dict[str, str] = {}
    found = measured(str(tmp_path), lambda name, error: failed.update({name: str(error)}))
    assert "measured_overhead" in found
    assert failed == {"measured_scaling": "no such size"}


def test_overhead_is_one_row(tmp_path: Path) -> None:
    save(OVERHEAD, tmp_path)
    (row,) = measured(str(tmp_path))["measured_overhead"].frame.to_dicts()
    assert (row["sync_ns"], row["no_sync_ns"], row["measured_overhead"], row["traced_overhead"]) == (
        50_000_000,
        40_000_000,
        0.2,
        None,
    )


def test_the_two_overheads_and_the_waiting_of_the_worst_rank(tmp_path: Path) -> None:
    traced = TraceSummary("jobs/job-0", 4, 600, 300, 250, 160, 0.3, 0.27, exposed_wait_ns=150, rank=1)
    save(replace(OVERHEAD, forward_backward_overhead=Share(0.33, 0.3, 0.36), traced=traced), tmp_path)
    (row,) = measured(str(tmp_path))["measured_overhead"].frame.to_dicts()
    assert [row[f"forward_backward_overhead{end}"] for end in ("", "_low", "_high")] == [0.33, 0.3, 0.36]
    assert (row["traced_rank"], row["traced_exposed_ns"], row["traced_wait_ns"]) == (1, 160, 150)


def test_a_recommendation_is_the_answer(tmp_path: Path) -> None:
    recommendation = Recommendation(None, None, "nothing is worth it: {share}")
    save(Buckets(SETTING, "ddp", 2, [Variant("own", {}, True, "done", step=Time(10))], recommendation), tmp_path)
    result = measured(str(tmp_path))["measured_buckets"]
    assert result.frame["base"].to_list() == [True]
    assert result.headline is not None
    assert (result.headline.text, result.headline.values[0].value) == ("{text}", recommendation.text)


@pytest.mark.parametrize(
    "changed",
    [
        {"sizes": 7}, {"sizes": ["x", None]}, {"measurement": "overhead"}, {"schema": 2}, {"setting": None},
        {"sizes": [{"name": 7, "ranks": "many"}]}, {"mode": 3},
    ],
)  # fmt: skip
def test_what_is_no_result_is_left_alone(tmp_path: Path, changed: dict[str, Any]) -> None:
    content = msgspec.to_builtins(SCALING)
    path = tmp_path / "scaling.json"
    path.write_text(json.dumps(content))
    assert list(measured(str(tmp_path))) == ["measured_scaling"]
    path.write_text(json.dumps({**content, **changed}))
    assert measured(str(tmp_path)) == {}


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "[" * 100_000])
def test_what_is_no_json_is_left_alone(tmp_path: Path, content: str) -> None:
    (tmp_path / "scaling.json").write_text(content)
    assert measured(str(tmp_path)) == {}


def test_what_no_table_holds_is_null(tmp_path: Path) -> None:
    save(replace(SCALING, sizes=[replace(FOUR, step=Time(1 << 62), efficiency=Share(1e300))]), tmp_path)
    (row,) = measured(str(tmp_path))["measured_scaling"].finite().to_dicts()
    assert row["step_ns"] is None and row["efficiency"] is None


def test_a_projection_and_a_binding(tmp_path: Path) -> None:
    law = Projection("usl", "S(n) = n", 0.1, 0.002, [2], ["as ever"], [Projected(8, Share(6.0), Share(0.75), 31)])
    save(replace(SCALING, projection=law), tmp_path)
    host = Topology("0-1", 1, 2, [NumaNode(0, "0-1")], [], ["/sys"])
    bound = BoundVariant("compact", False, ["0", "1"], "done", step=Time(9), launch_latency=Time(7))
    save(Binding(SETTING, 2, host, [bound], Recommendation(None, None, "keep it")), tmp_path)
    found = measured(str(tmp_path))
    assert sorted(found) == ["measured_binding", "measured_projection", "measured_scaling"]
    assert found["measured_projection"].frame["efficiency"].to_list() == [0.75]
    assert "sigma = 0.1, kappa = 0.002" in found["measured_projection"].analysis.doc
    assert "It holds if as ever." in found["measured_projection"].analysis.doc
    assert found["measured_binding"].frame["launch_latency_ns"].to_list() == [7]
    # Whoever asks for the jobs of a study asks for all of its results.
    (tmp_path / "jobs").mkdir()
    assert jobs_of(str(tmp_path)) == {"jobs/4-0": "4 ranks"}


def test_nowhere_and_elsewhere(tmp_path: Path) -> None:
    assert measured(str(tmp_path / "none")) == {}
    assert measured("s3://bucket/run") == {}


def test_a_difference_without_an_interval_is_no_figure(tmp_path: Path) -> None:
    shares = [None, Share(0.03), Share(0.03, 0.01, 0.05)]
    variants = [ProfiledVariant(str(k), k == 0, [], Time(10 + k), share) for k, share in enumerate(shares)]
    save(ProfilerCost(SETTING, 2, variants), tmp_path)
    frame = measured(str(tmp_path))["measured_profiler"].frame
    assert frame["cost"].to_list() == [None, None, 0.03]
    assert [None if each is None else each.split(" (")[0] for each in frame["verdict"].to_list()] == [
        None, "too few steps to tell", "significant",
    ]  # fmt: skip
    assert frame["step_ns"].to_list() == [10, 11, 12]
