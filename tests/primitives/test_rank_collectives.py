"""What a rank's collectives are, from every source that writes them; numbers worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests import kineto

import rankscope
from rankscope.experiments.simulate import Job, Recording, parse_mesh, simulate

METADATA = {
    "dtype": "BFloat16", "Group size": 2, "Process Group Name": "3", "Process Group Description": "mesh_tp",
    "Process Group Ranks": "[0, 1]",
}  # fmt: skip


def recorded(name: str, into: int, out: int, **more: Any) -> dict[str, Any]:
    return {**METADATA, "Collective name": name, "In msg nelems": into, "Out msg nelems": out, **more}


def collectives(folder: Path, *ranks: list[kineto.Event], **metadata: Any) -> pl.DataFrame:
    run = rankscope.open(kineto.write_ranks(folder, dict(enumerate(ranks)), **metadata), executor="serial")
    return run.collectives()


def only(frame: pl.DataFrame) -> dict[str, Any]:
    return frame.row(0, named=True) if frame.height == 1 else pytest.fail(str(frame))


def test_the_record_of_xccl_has_ended_when_its_kernels_are_launched(tmp_path: Path) -> None:
    # As torch-xpu-ops #5486 describes it: the operator is open, the record is not; and oneCCL names its parts.
    name = "oneccl_reduce_base<sycl::_V1::ext::oneapi::bfloat16, 2, 16, 1, 1, 2>"
    events = [
        kineto.op("c10d::allreduce_", 0, 50, external=1, dims=[[[4096]], [], []]),
        kineto.op("record_param_comms", 2, 5, external=2, **recorded("allreduce", 4096, 4096)),
        kineto.annotation("xccl:all_reduce", 8, 30),
        kineto.launch(10, 3, correlation=7, external=1, name="urEnqueueKernelLaunch", cat="xpu_runtime"),
        kineto.launch(20, 3, correlation=8, external=1, name="urEnqueueKernelLaunch", cat="xpu_runtime"),
        kineto.kernel(name, 30, 10, correlation=7, external=1, stream=2),
        kineto.kernel(name, 45, 15, correlation=8, external=1, stream=2),
    ]
    row = only(collectives(tmp_path, events))
    assert (row["collective"], row["source"], row["group"], row["group_size"]) == (
        "all_reduce",
        "record",
        "3 mesh_tp",
        2,
    )
    assert (row["bytes"], row["kernels"], row["start_ns"], row["end_ns"]) == (4096 * 2, 2, 30_000, 60_000)


def ranged(at: float, operator: str, name: str, dims: list[Any], correlation: int, ts: float) -> list[kineto.Event]:
    """A call without any metadata, and the kernel that NCCL up to 2.18 runs it as."""
    shown = next(shape for shape in reversed(dims) if shape)
    inner = shown[0] if isinstance(shown[0], list) else shown
    return [
        kineto.op(operator, at, 9, dims=dims, **{"Input type": ["float", "float", ""]}),
        kineto.op("record_param_comms", at + 1, 7),
        kineto.annotation(name, at + 2, 5, **{"Input Dims": [inner], "Input type": ["float"]}),
        kineto.launch(at + 3, 2, correlation=correlation, external=correlation),
        kineto.kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWork*)", ts, 5, correlation=correlation,
                      external=correlation, stream=20),
    ]  # fmt: skip


def test_ranges_say_what_a_generic_kernel_is(tmp_path: Path) -> None:
    events = [
        # Launched before the recording: it could be any of what this kernel is used for.
        kineto.kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWork*)", 5, 3, correlation=99, stream=20),
        *ranged(10, "c10d::allreduce_", "nccl:all_reduce", [[[300, 2]], [], []], 1, 100),
        *ranged(20, "c10d::_allgather_base_", "nccl:_all_gather_base", [[1024], [128], []], 2, 110),
        *ranged(30, "c10d::_reduce_scatter_base_", "nccl:_reduce_scatter_base", [[64], [512], []], 3, 120),
        *ranged(40, "c10d::alltoall_base_", "nccl:all_to_all", [[100], [90], []], 4, 130),
    ]  # fmt: skip
    found = collectives(tmp_path, events).select(
        "collective", "in_elements", "out_elements", "bytes", "source", "group"
    )
    assert found.rows() == [
        ("unknown", None, None, None, "name", "stream 20"),
        ("all_reduce", 600, 600, 2400, "range", "stream 20"),
        ("all_gather", 128, 1024, 4096, "range", "stream 20"),
        ("reduce_scatter", 512, 64, 2048, "range", "stream 20"),
        ("all_to_all", 90, 100, 360, "range", "stream 20"),
    ]


def test_a_launchless_kernel_is_what_its_like_are(tmp_path: Path) -> None:
    name = "ncclDevKernel_SendRecv(ncclDevComm*)"
    events = [
        kineto.kernel(name, 5, 3, stream=20),
        kineto.annotation("nccl:all_to_all", 10, 9),
        kineto.launch(12, 2, correlation=1),
        kineto.kernel(name, 20, 5, correlation=1, stream=20),
    ]
    assert collectives(tmp_path, events)["collective"].to_list() == ["all_to_all", "all_to_all"]


@pytest.mark.parametrize("ranges", [[], [kineto.annotation("nccl:coalesced", 18, 8)]], ids=["torch 2.4", "torch 2.11"])
def test_coalesced_calls_are_one_with_their_summed_sizes(tmp_path: Path, ranges: list[kineto.Event]) -> None:
    # batch_isend_irecv: each call is recorded, the kernel is launched when the last has ended; with a range around it.
    events = [
        *ranges,
        kineto.op("record_param_comms", 0, 5, external=1, **recorded("send", 100, 100, **{"Dst Rank": 1})),
        kineto.op("record_param_comms", 10, 5, external=2, **recorded("recv", 50, 50, **{"Src Rank": 1})),
        kineto.launch(20, 2, correlation=1),
        kineto.kernel("ncclDevKernel_SendRecv(ncclDevComm*)", 30, 9, correlation=1, stream=20),
        # The next two are all_reduces under a coalescing manager, on another thread at the same time.
        kineto.op("record_param_comms", 11, 3, external=3, tid=7, **recorded("allreduce", 7, 7)),
        kineto.op("record_param_comms", 15, 3, external=4, tid=7, **recorded("allreduce", 8, 8)),
        kineto.launch(19, 2, correlation=2, tid=7),
        kineto.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)", 50, 9, correlation=2, stream=20),
    ]
    run = rankscope.open(kineto.write(tmp_path / "rank0.json", kineto.trace(events)))
    found = run.collectives().select("collective", "in_elements", "bytes", "source", "calls", "group")
    assert found.rows() == [
        ("send_recv", 150, 300, "coalesced", 2, "3 mesh_tp"),
        ("all_reduce", 15, 30, "coalesced", 2, "3 mesh_tp"),
    ]
    assert "collectives-without-kernel" not in {finding.id for finding in run.findings}


def test_uneven_calls_count_once(tmp_path: Path) -> None:
    # all_gather of unlike sizes: one call that broadcasts each part inside, in two kernels.
    uneven = recorded("all_gather", 10, 35, **{"In split size": "[10, 25]", "Out split size": "[10, 25]"})
    events = [
        kineto.op("record_param_comms", 0, 40, external=1, **uneven),
        kineto.op("record_param_comms", 2, 5, external=2, **recorded("_broadcast_oop", 10, 10)),
        kineto.op("record_param_comms", 10, 5, external=3, **recorded("_broadcast_oop", 25, 25)),
        kineto.launch(20, 2, correlation=1),
        kineto.kernel("ncclDevKernel_Broadcast_RING_LL(ncclDevComm*)", 30, 5, correlation=1, stream=20),
        kineto.launch(25, 2, correlation=2),
        kineto.kernel("ncclDevKernel_Broadcast_RING_LL(ncclDevComm*)", 36, 5, correlation=2, stream=20),
    ]
    row = only(collectives(tmp_path, events))
    assert (row["collective"], row["out_elements"], row["bytes"], row["kernels"]) == ("all_gather", 35, 70, 2)
    assert (row["start_ns"], row["end_ns"]) == (30_000, 41_000)


def test_kernels_of_a_graph_are_nobodys_call(tmp_path: Path) -> None:
    custom = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)"
    events = [
        # A call is open on the thread that launches the graph; it is not theirs.
        kineto.op("record_param_comms", 0, 50, external=1, **recorded("allreduce", 64, 64)),
        kineto.launch(10, 5, correlation=1, external=9, name="cudaGraphLaunch"),
        *(
            kineto.kernel(custom, 20 + 10 * n, 5, correlation=1, external=9, stream=7,
                          **{"graph id": 1, "graph node id": n + 1})
            for n in range(3)
        ),
    ]  # fmt: skip
    run = rankscope.open(kineto.write_ranks(tmp_path, {0: events}), executor="serial")
    found = run.collectives()
    assert found.select("collective", "source", "dtype", "group_size", "kernels").rows() == 3 * [
        ("all_reduce", "name", "BFloat16", 8, 1)
    ]
    (finding,) = run.analyze("collectives")["collectives"].findings
    assert (finding.id, finding.evidence[0].value) == ("collectives-without-kernel", 1)


@pytest.mark.parametrize(
    ("name", "kind", "size"),
    [
        ("void sglang::cross_device_reduce_2stage<__half, 4>(sglang::RankData*)", "all_reduce", 4),
        ("void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8, false>(aiter::RankData*)", "all_reduce", 8),
        ("void deep_ep::intranode::dispatch<(int)8, (int)768, (int)8192>(int4*, float*)", "dispatch", 8),
        ("void deep_ep::intranode::combine<__nv_bfloat16, (int)8, (int)768, (int)4096>(T1*)", "combine", 8),
        ("void deep_ep::internode_ll::dispatch<false, 7168>(void*)", "dispatch", None),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(T*)", "all_reduce", None),
        ("void nvshmemi_alltoall_kernel<long>(long*)", "all_to_all", None),
        ("ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymkDevWorkArgs4K)", "all_reduce", None),
        ("mscclKernel_Sum_hip_bfloat16_Simple(mscclWork*)", "unknown", None),
    ],
)  # fmt: skip
def test_names_of_other_libraries(tmp_path: Path, name: str, kind: str, size: int | None) -> None:
    row = only(collectives(tmp_path, [kineto.kernel(name, 5, 3, stream=7)]))
    assert (row["collective"], row["group_size"], row["source"]) == (kind, size, "name")


def test_calls_without_any_kernel_match_by_number_alone(tmp_path: Path) -> None:
    def rank(late: float) -> list[kineto.Event]:
        return [
            kineto.op("record_param_comms", late, 5, external=1, **recorded("allreduce", 64, 64, Seq=4)),
            kineto.op("record_param_comms", late + 10, 5, external=2, **recorded("allreduce", 64, 64)),
        ]

    run = rankscope.open(kineto.write_ranks(tmp_path, {0: rank(0), 1: rank(3)}), executor="serial")
    found = run.collectives().sort("rank", "start_ns")
    assert found["source"].to_list() == ["launch"] * 4
    assert found["match"].to_list() == [0, None, 0, None]
    assert found.select(pl.col("duration_ns", "wait_ns", "transfer_ns", "bus_bandwidth").is_null().all()).row(0) == (
        True, True, True, True,
    )  # fmt: skip
    assert run.clock()["method"].to_list() == ["wall clock", "wall clock"]


@pytest.mark.parametrize("ranks", ["[" * 3000, "[0, true]", "[0, 99999999999999999999]"])
def test_ranks_of_a_group_that_are_none(tmp_path: Path, ranks: str) -> None:
    metadata = {**recorded("allreduce", 64, 64), "Process Group Ranks": ranks}
    kernels = [kineto.kernel("ncclDevKernel_AllReduce", 100 * n, 50, **metadata) for n in range(4)]
    run = rankscope.open(kineto.write_ranks(tmp_path, {0: kernels, 1: kernels}), executor="serial")
    assert run.collectives()["match"].to_list() == [0, 1, 2, 3] * 2
    assert run.mesh().height == run.stragglers().height - 2 == 0


@pytest.mark.parametrize("peer", ["1e999", "-1", "99999999999999999999", "[]"])
def test_the_other_end_of_a_channel_that_is_no_rank(tmp_path: Path, peer: str) -> None:
    inputs = {"Concrete Inputs": ["", "", "PEER", "0"], "Input type": ["TensorList", "", "Scalar", "Scalar"]}
    call = kineto.op("c10d::send", 10, 50, dims=[[[10]], [], [], []], **inputs)
    kernel = kineto.kernel("ncclKernel_SendRecv", 20, 10, correlation=1)
    text = json.dumps(kineto.trace([call, kineto.launch(12, 2, correlation=1), kernel], rank=0))
    (tmp_path / "rank0.json").write_text(text.replace('"PEER"', peer))
    found = rankscope.open(tmp_path, executor="serial").collectives()
    assert found.select("collective", "peers").rows() == [("send", None)]


def test_gloo_names_the_other_end_of_a_channel(tmp_path: Path) -> None:
    def events(kind: str, peer: int) -> list[kineto.Event]:
        inputs = {"Concrete Inputs": ["", "", str(peer), "0"], "Input type": ["TensorList", "", "Scalar", "Scalar"]}
        return [
            kineto.op(f"c10d::{kind}{'_' if kind == 'recv' else ''}", 10, 50, dims=[[[10]], [], [], []], **inputs),
            kineto.annotation(f"gloo:{kind}", 12, 40, **{"Input Dims": [[10]], "Input type": ["float"]}),
        ]

    info = {"pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 3, "ranks": [0, 1, 2]}]}
    for rank, (kind, peer) in enumerate((("send", 2), ("recv", 2), ("recv", 0))):
        distributed = {"backend": "gloo", "rank": rank, "world_size": 3, **info}
        trace = {"schemaVersion": 1, "distributedInfo": distributed, "traceEvents": events(kind, peer)}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(trace))
    run = rankscope.open(tmp_path, executor="serial")
    found = run.collectives().sort("rank")
    # Gloo's calls launch no kernel, and none is missed.
    assert [finding.id for finding in run.analyze("collectives")["collectives"].findings] == ["unmatched-collectives"]
    assert found["peers"].to_list() == ["0 → 2", "2 → 1", "0 → 2"]
    assert found["match"].to_list() == [0, None, 0]
    assert found["bytes"].to_list() == [40, 40, 40]


def test_without_metadata_a_job_reads_as_with_it(tmp_path: Path) -> None:
    found = []
    for metadata in (True, False):
        recording = Recording(collective_metadata=metadata)
        job = Job(ranks=4, steps=2, mesh=parse_mesh("pp=2,dp=2"), layers=1, data_parallel="fsdp", recording=recording)
        simulate(tmp_path / str(metadata), job, costs=False)
        found.append(rankscope.open(tmp_path / str(metadata), executor="serial").collectives())
    with_metadata, without = found
    assert set(without["source"].unique()) == {"range"}
    assert set(with_metadata["source"].unique()) == {"kernel"}
    for name in ("rank", "start_ns", "end_ns", "in_elements", "step", "launch_ns"):
        assert with_metadata[name].to_list() == without[name].to_list(), name
    assert with_metadata["collective"].to_list() == without["collective"].to_list()
    # Nothing names a group: the streams stand for them, and nearly all is found on the other ranks all the same.
    of_all = ("all_gather", "reduce_scatter", "all_reduce")
    alone = without.filter(pl.col("collective").is_in(of_all))["match"].null_count()
    assert alone <= 0.02 * without.height
