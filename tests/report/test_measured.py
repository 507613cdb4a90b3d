"""What `rankscope measure` leaves, as tables: by its fields, and what is no such file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankscope.report.measured import measured

SETTING = {"created": "2026-01-01T00:00:00Z", "target": "train.py", "device": "CPU", "notes": ["few blocks"]}
SCALING: dict[str, Any] = {
    "measurement": "scaling", "schema": 1, "mode": "strong", "base": "plain", "setting": SETTING,
    "sizes": [
        {"name": "plain", "ranks": 1, "nodes": 1, "state": "done",
         "step": {"median_ns": 100, "low_ns": 99, "high_ns": 101},
         "efficiency": {"value": 1.0, "low": None, "high": None}, "what is new": 7},
        {"name": "4", "ranks": 4, "nodes": 1, "state": "done", "oversubscribed": True, "step": {"median_ns": 50},
         "efficiency": {"value": 0.5, "low": 0.4, "high": 0.6}, "derived_overhead": {"value": 0.5},
         "traced": {"exposed_share": 0.3}, "lost": {"total_ns": 25, "compute_ns": 5, "exposed_communication_ns": 20,
                                                    "data_loading_ns": 0, "other_ns": 0}},
        {"name": "8", "ranks": 8, "nodes": 2, "state": "failed", "error": "no such host"},
    ],
}  # fmt: skip


def put(folder: Path, name: str, content: Any) -> None:
    (folder / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))


def test_sizes_of_a_scaling_study(tmp_path: Path) -> None:
    put(tmp_path, "scaling", SCALING)
    (name, result), = measured(str(tmp_path)).items()  # fmt: skip
    assert name == "measured_scaling"
    plain, four, eight = result.frame.to_dicts()
    assert (plain["step_ns"], plain["step_low_ns"], plain["step_high_ns"], plain["efficiency"]) == (100, 99, 101, 1.0)
    assert (four["efficiency_low"], four["efficiency_high"], four["oversubscribed"]) == (0.4, 0.6, True)
    assert (four["derived_overhead"], four["traced_overhead"], four["lost_communication_ns"]) == (0.5, 0.3, 20)
    assert (eight["state"], eight["error"], eight["step_ns"]) == ("failed", "no such host", None)
    assert "few blocks" in result.analysis.doc
    assert result.headline is not None
    assert {each.name: each.value for each in result.headline.values} == {
        "ranks": 4, "efficiency": 0.5, "mode": "strong",
    }  # fmt: skip
    assert {column.name for column in result.analysis.columns} == set(result.frame.columns)


def test_the_answer_is_of_the_most_ranks_that_had_a_core_each(tmp_path: Path) -> None:
    plain, four, _ = SCALING["sizes"]
    two = {"name": "2", "ranks": 2, "state": "done", "efficiency": {"value": 0.9}}
    put(tmp_path, "scaling", {**SCALING, "sizes": [plain, two, four]})
    headline = measured(str(tmp_path))["measured_scaling"].headline
    assert headline is not None
    assert [each.value for each in headline.values] == [2, 0.9, "strong"]


def test_overhead_is_one_row(tmp_path: Path) -> None:
    time = {"median_ns": 1000}
    put(tmp_path, "overhead", {
        "measurement": "overhead", "schema": 1, "wrapper": "ddp", "world_size": 2, "sync": {"step": time},
        "no_sync": {"step": {"median_ns": 800}}, "sync_cost": {"median_ns": 200}, "setting": SETTING,
        "measured_overhead": {"value": 0.2, "low": 0.1, "high": 0.3}, "traced": None,
    })  # fmt: skip
    (row,) = measured(str(tmp_path))["measured_overhead"].frame.to_dicts()
    assert (row["sync_ns"], row["no_sync_ns"], row["measured_overhead"], row["traced_overhead"]) == (
        1000,
        800,
        0.2,
        None,
    )


def test_a_recommendation_is_the_answer(tmp_path: Path) -> None:
    variants = [{"name": "own", "base": True, "state": "done", "step": {"median_ns": 10}, "beyond_chance": None}]
    told = {"variant": None, "saving_ns": None, "text": "nothing is worth it: {share}"}
    put(tmp_path, "buckets", {"measurement": "buckets", "schema": 1, "variants": variants, "recommendation": told})
    result = measured(str(tmp_path))["measured_buckets"]
    assert result.frame["base"].to_list() == [True]
    assert result.headline is not None
    assert (result.headline.text, result.headline.values[0].value) == ("{text}", told["text"])


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "null", '{"measurement": "scaling", "schema": 2, "sizes": []}', {**SCALING, "sizes": 7},
        {**SCALING, "sizes": ["x", None]}, {**SCALING, "measurement": "overhead"}, "[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_result_is_left_alone(tmp_path: Path, content: Any) -> None:
    put(tmp_path, "scaling", content)
    assert measured(str(tmp_path)) == {}


def test_odd_values_are_null(tmp_path: Path) -> None:
    odd = {"name": 7, "ranks": "many", "step": {"median_ns": True}, "efficiency": 3, "lost": [], "oversubscribed": 1}
    put(
        tmp_path, "scaling", {**SCALING, "sizes": [odd, {"step": {"median_ns": 1e300}, "efficiency": {"value": 1e999}}]}
    )
    first, second = measured(str(tmp_path))["measured_scaling"].finite().to_dicts()
    assert all(value is None for value in first.values())
    assert second["step_ns"] is None and second["efficiency"] is None


def test_nowhere_and_elsewhere(tmp_path: Path) -> None:
    assert measured(str(tmp_path / "none")) == {}
    assert measured("s3://bucket/run") == {}


def test_a_difference_without_an_interval_is_no_figure(tmp_path: Path) -> None:
    shares = [None, {"value": 0.03, "low": None, "high": None}, {"value": 0.03, "low": 0.01, "high": 0.05}]
    variants = [
        {"name": str(k), "base": k == 0, "state": "done", "step": {"median_ns": 10 + k}, "cost": share}
        for k, share in enumerate(shares)
    ]
    put(tmp_path, "profiler", {"measurement": "profiler", "schema": 1, "variants": variants})
    frame = measured(str(tmp_path))["measured_profiler"].frame
    assert frame["cost"].to_list() == [None, None, 0.03]
    assert frame["step_ns"].to_list() == [10, 11, 12]
