"""What a rank was doing, from its tables."""

from __future__ import annotations

import polars as pl
import pytest

from rankscope.primitives.activity import DATA_LOADING, activity, computing_operators, gloo_ranges, with_category
from rankscope.store.schema import TABLES


def table(name: str, rows: list[dict[str, object]]) -> pl.DataFrame:
    """Rows of a table; what they do not name is null."""
    schema = TABLES[name].schema
    return pl.DataFrame([{column: row.get(column) for column in schema} for row in rows], schema=schema)


def operator(name: str, start: int, end: int, tid: int = 1, depth: int = 0) -> dict[str, object]:
    return {"name": name, "start_ns": start, "end_ns": end, "pid": 1, "tid": tid, "depth": depth}


def annotation(name: str, start: int, end: int, tid: int = 1, on_device: bool = False) -> dict[str, object]:
    return {"name": name, "start_ns": start, "end_ns": end, "pid": 1, "tid": tid, "on_device": on_device}


def test_a_kernel_that_carries_metadata_is_communication_whatever_its_name() -> None:
    device = table(
        "device_events",
        [
            {"name": "gemm", "kind": "kernel", "is_collective": True},
            {"name": "gemm", "kind": "kernel", "is_collective": False},
            {"name": "ncclDevKernel_AllReduce", "kind": "kernel", "is_collective": None},
            {"name": "nccl copy", "kind": "memcpy", "is_collective": False},
            {"name": None, "kind": "kernel", "is_collective": None},
        ],
    )
    assert with_category(device)["category"].to_list() == [
        "communication", "compute", "communication", "memory", "compute",
    ]  # fmt: skip


def test_gloos_own_threads_do_not_compute_and_the_callers_thread_does() -> None:
    # Thread 9 is Gloo's. On thread 1 the caller computes, and waits in a send that runs on its own thread.
    operators = table(
        "host_ops",
        [
            operator("aten::mm", 0, 10),
            operator("aten::copy_", 22, 25),  # inside the send
            operator("aten::add", 30, 40),
            operator("aten::add", 3, 5, depth=1),  # inside aten::mm
            operator("aten::copy_", 52, 54, tid=9),
        ],
    )
    annotations = table(
        "annotations",
        [
            annotation("gloo:send", 20, 28),
            annotation("gloo:all_reduce", 50, 60, tid=9),
            annotation("gloo:all_reduce", 50, 60, tid=9, on_device=True),
        ],
    )
    gloo = gloo_ranges(operators, annotations)
    assert gloo["name"].to_list() == ["gloo:send", "gloo:all_reduce"]
    assert computing_operators(operators, gloo)["start_ns"].to_list() == [0, 30]
    sets = activity(TABLES["device_events"].empty(), operators, annotations)
    assert (sets.compute.length, sets.communication.length, sets.busy.length) == (20, 18, 38)


def test_an_operator_that_begins_as_a_gloo_range_ends_is_not_inside_it() -> None:
    operators = table("host_ops", [operator("a", 9, 12), operator("b", 10, 12), operator("c", 5, 5)])
    gloo = gloo_ranges(operators, table("annotations", [annotation("gloo:recv", 5, 10)]))
    assert computing_operators(operators, gloo)["name"].to_list() == ["b"]


def test_threads_without_a_number_and_with_large_ones_are_threads() -> None:
    threads = [None, 1 << 53, (1 << 53) + 1]
    operators = table("host_ops", [operator("a", 10, 20) | {"tid": tid} for tid in threads])
    for tid in threads:
        gloo = table("annotations", [annotation("gloo:send", 5, 30) | {"tid": tid}])
        assert computing_operators(operators, gloo)["tid"].to_list() == [each for each in threads if each != tid]


def test_waits_for_functional_collectives_can_be_left_out() -> None:
    # On thread 1 a wait (with the one that torch nests in it) by itself, and two in an operator of tensor parallelism;
    # thread 2 computes meanwhile.
    wait = "_c10d_functional::wait_tensor"
    operators = table(
        "host_ops",
        [
            operator("aten::mm", 0, 10),
            operator(wait, 10, 30),
            operator(wait, 11, 29, depth=1),
            operator("aten::linear", 40, 100),
            operator(wait, 50, 60, depth=1),
            operator("aten::mm", 60, 70, depth=1),
            operator("c10d_functional::wait_tensor", 70, 95, depth=1),
            operator("aten::add", 15, 20, tid=2),
        ],
    )
    annotations = table("annotations", [annotation("gloo:all_reduce", 12, 28, tid=9)])
    computing = computing_operators(operators, gloo_ranges(operators, annotations), without_waits=True)
    assert computing.select("name", "start_ns", "end_ns").rows() == [
        ("aten::mm", 0, 10), ("aten::linear", 40, 50), ("aten::linear", 60, 70), ("aten::linear", 95, 100),
        ("aten::add", 15, 20),
    ]  # fmt: skip
    sets = activity(TABLES["device_events"].empty(), operators, annotations)
    assert (sets.compute.length, (sets.communication - sets.compute).length) == (90, 0)  # the figures keep them


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", True),
        ("enumerate(DataPipe)#ShufflerIterDataPipe", True),
        ("## data_load ##", True),
        ("slow_dataloader", True),
        ("## load_batch ##", True),
        ("load data", False),
        ("get_batch", True),
        ("next_batch", True),
        ("data_fetch", True),
        ("DistributedDataParallel.forward", False),
        ("Optimizer.step#SGD.step", False),
        ("## sparse_data_dist ##", False),
        ("ProfilerStep#3", False),
        ("forward", False),
    ],
)
def test_ranges_that_say_data_loading(name: str, expected: bool) -> None:
    assert bool(DATA_LOADING.search(name)) is expected
