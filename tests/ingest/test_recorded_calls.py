"""Sizes of Gloo's ranges without `record_shapes`: from the calls that rankscope lists in the trace's metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.kineto import Event, annotation, step, trace, write

import rankscope

BASE_NS = 1_700_000_000_000_000_000
WORKER = 7

Call = tuple[float, str, str, int]
"""When (µs on the trace's clock), operation, type, elements."""

BUCKETS: list[Call] = [(10, "allreduce", "float32", 1000), (50, "allreduce", "bfloat16", 600)]


def listed(calls: list[Call], *, groups: tuple[str, ...] = ("0",), **changed: Any) -> dict[str, Any]:
    kinds = [
        {"operation": operation, "group": groups[number % len(groups)], "ranks": 2, "dtype": dtype,
         "elements": elements, "bytes": 0, "caller": "c++"}
        for number, (_, operation, dtype, elements) in enumerate(calls)
    ]  # fmt: skip
    return {
        "began_ns": BASE_NS, "kinds": kinds, "order": list(range(len(calls))), "us": [int(call[0]) for call in calls],
        "left_out": 0, "flight_recorder": "whole", **changed,
    }  # fmt: skip


ONE_GROUP = [{"pg_name": "0", "ranks": [0, 1]}]


def found(
    folder: Path, ranges: list[Event], collectives: dict[str, Any], groups: list[dict[str, Any]] = ONE_GROUP
) -> list[tuple[Any, ...]]:
    content = trace(
        [step(1, 0, 1000), *ranges],
        rank=0,
        world_size=2,
        baseTimeNanoseconds=BASE_NS,
        rankscope={"schema_version": 1, "rank": 0, "world_size": 2, "collectives": collectives},
        distributedInfo={
            "backend": "gloo",
            "rank": 0,
            "world_size": 2,
            "pg_config": groups,
        },
    )
    run = rankscope.open(write(folder / "rank0.json", content), executor="serial")
    return run.collectives().select("collective", "dtype", "in_elements", "out_elements", "bytes").rows()


def gloo(name: str, ts: float, dur: float = 20, **more: Any) -> Event:
    return annotation(f"gloo:{name}", ts, dur, tid=WORKER, **more)


UNKNOWN = ("all_reduce", None, None, None, None)


def test_each_range_is_of_its_call(tmp_path: Path) -> None:
    ranges = [gloo("all_reduce", 12), gloo("all_gather", 35), gloo("all_reduce", 60), gloo("barrier", 90)]
    calls = [BUCKETS[0], (30, "all_gather_single", "float32", 512), BUCKETS[1], (85, "barrier", "float32", 0)]
    assert found(tmp_path, ranges, listed(calls)) == [
        ("all_reduce", "float32", 1000, 1000, 4000),
        # A call's size is that of its larger side: what is gathered.
        ("all_gather", "float32", 256, 512, 2048),
        ("all_reduce", "bfloat16", 600, 600, 1200),
        ("barrier", "float32", None, None, None),
    ]


def test_gloo_reduces_where_the_job_reduces_and_scatters(tmp_path: Path) -> None:
    calls: list[Call] = [BUCKETS[0], (30, "reduce_scatter_single", "float32", 512), BUCKETS[1]]
    ranges = [gloo("all_reduce", 12), gloo("all_reduce", 32), gloo("all_reduce", 60)]
    assert [row[-1] for row in found(tmp_path, ranges, listed(calls))] == [4000, 2048, 1200]


def test_a_range_of_a_call_before_the_recording_and_a_call_whose_range_is_after_it(tmp_path: Path) -> None:
    later: list[Call] = [(1000 + at, *rest) for at, *rest in [*BUCKETS, (900, "allreduce", "float32", 7)]]  # type: ignore[misc]  # a call's fields
    ranges = [gloo("all_reduce", 300), gloo("all_reduce", 1012), gloo("all_reduce", 1060)]
    assert found(tmp_path, ranges, listed(later)) == [
        UNKNOWN,
        ("all_reduce", "float32", 1000, 1000, 4000),
        ("all_reduce", "bfloat16", 600, 600, 1200),
    ]


@pytest.mark.parametrize(
    "collectives",
    [
        pytest.param(listed(BUCKETS[:1], flight_recorder=None), id="calls from C++ are missing"),
        pytest.param(listed([(500, *BUCKETS[0][1:]), (900, *BUCKETS[1][1:])]), id="calls after the ranges"),
        pytest.param(listed(BUCKETS, groups=("0", "1")), id="two groups with other sizes"),
        pytest.param(listed(BUCKETS) | {"us": ["x", 1]}, id="damaged"),
        pytest.param({}, id="nothing recorded"),
    ],
)
def test_what_is_not_certain_stays_unknown(tmp_path: Path, collectives: dict[str, Any]) -> None:
    assert found(tmp_path, [gloo("all_reduce", 12), gloo("all_reduce", 60)], collectives) == [UNKNOWN, UNKNOWN]


def test_shapes_take_precedence(tmp_path: Path) -> None:
    ranges = [gloo("all_reduce", 12, **{"Input Dims": [[10]], "Input type": ["double"]}), gloo("all_reduce", 60)]
    assert [row[1:] for row in found(tmp_path, ranges, listed(BUCKETS))] == [
        ("double", 10, 10, 80),
        ("bfloat16", 600, 600, 1200),
    ]


def test_an_all_gathers_output_where_its_group_is_not_known(tmp_path: Path) -> None:
    """FSDP1's, with shapes: they are those of the input alone."""
    ranges = [gloo("all_gather", 12, **{"Input Dims": [[256]], "Input type": ["float"]})]
    groups = [*ONE_GROUP, {"pg_name": "1", "ranks": [0]}]
    assert found(tmp_path, ranges, {}, groups) == [("all_gather", "float", 256, None, None)]
    calls = listed([(10, "allgather", "float32", 512)])
    assert found(tmp_path, ranges, calls, groups) == [("all_gather", "float", 256, 512, 2048)]


def test_the_table_names_the_ranges(tmp_path: Path) -> None:
    found(tmp_path, [gloo("all_reduce", 12), gloo("all_reduce", 60)], listed(BUCKETS))
    run = rankscope.open(tmp_path / "rank0.json", executor="serial")
    query = """SELECT annotations.start_ns, collectives.in_elements, group_size FROM collectives JOIN annotations
        ON collectives.row = annotations.row_index WHERE source = 'annotations' ORDER BY start_ns"""
    assert run.sql(query).rows() == [(12_000, 1000, 2), (60_000, 600, 2)]
    assert run.sql("SELECT row FROM collectives")["row"].dtype == pl.Int32
