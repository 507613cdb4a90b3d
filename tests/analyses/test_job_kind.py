"""job_kind: training or inference and the parallelism, on built traces and on real ones whose kind is known."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from tests import kineto

import rankscope
from rankscope.primitives.job_kind import EXPERT, STAGES, TENSOR, JobKind, job_kind, marks_of

ROW = tuple[str | None, str | None, str | None, bool | None, bool | None]


def kind_of(folder: Path, *events: kineto.Event, **metadata: object) -> ROW:
    path = kineto.write_ranks(folder, {0: events}, **metadata)
    found: ROW = rankscope.open(path, executor="serial").job_kind().row(0)[:5]
    return found


def product(at: float, **more: object) -> kineto.Event:
    return kineto.op("aten::mm", at, 10, **more)


def test_training_with_ddp(tmp_path: Path) -> None:
    events = [
        kineto.step(0, 0, 100),
        kineto.annotation("DistributedDataParallel.forward", 1, 30),
        product(2, sequence=1),
        kineto.op("autograd::engine::evaluate_function: MmBackward0", 40, 10),
    ]
    assert kind_of(tmp_path, *events) == ("training", "ddp", None, None, None)


def test_training_with_fsdp(tmp_path: Path) -> None:
    events = [
        kineto.annotation("FSDP::pre_forward (layers.0)", 1, 5),
        kineto.annotation("Optimizer.step#AdamW.step", 9, 5),
    ]
    assert kind_of(tmp_path, *events) == ("training", "fsdp", None, None, None)


def test_products_without_gradients_are_inference(tmp_path: Path) -> None:
    assert kind_of(tmp_path / "a", kineto.step(0, 0, 100), product(2))[0] == "inference"
    # Autograd numbers operators: this one has gradients, and its backward may lie outside of the file.
    assert kind_of(tmp_path / "b", kineto.step(0, 0, 100), product(2, sequence=3))[0] is None
    assert kind_of(tmp_path / "c", product(2))[0] == "inference"
    # A file with kernels alone tells nothing.
    assert kind_of(tmp_path / "d", kineto.step(0, 0, 100), kineto.kernel("gemm", 5, 20))[0] is None


def test_one_rank_with_a_backward_makes_it_training(tmp_path: Path) -> None:
    """The first stage of a pipeline, recorded while it only runs forward."""
    forward = [kineto.step(0, 0, 100), product(2)]
    backward = [kineto.step(0, 0, 100), kineto.op("autograd::engine::evaluate_function: MmBackward0", 40, 10)]
    run = rankscope.open(kineto.write_ranks(tmp_path, {0: forward, 1: backward}), executor="serial")
    assert run.job_kind()["mode"].to_list() == ["training"]


def test_decode_with_experts(tmp_path: Path) -> None:
    events = [
        kineto.kernel("void vllm::reshape_and_cache_flash_kernel<bf16>", 0, 5),
        kineto.kernel("fused_moe_kernel", 5, 5),
        kineto.kernel("void deep_ep::internode_ll::dispatch<true>", 10, 5),
    ]
    assert kind_of(tmp_path, *events) == ("inference", None, "expert", True, None)


def test_dimensions_of_the_process_groups(tmp_path: Path) -> None:
    """One rank of eight: its groups say which dimensions have several ranks."""

    def group(name: str, ranks: list[int]) -> dict[str, object]:
        return {"pg_name": name, "pg_desc": name, "backend_config": "cuda:nccl", "pg_size": len(ranks), "ranks": ranks}

    info = {
        "backend": "nccl", "rank": 0, "world_size": 8,
        "pg_config": [
            group("default_pg", list(range(8))), group("mesh_tp", [0, 1]), group("mesh_pp", [0, 4]),
            group("mesh_cp", [0]),
        ],
    }  # fmt: skip
    assert kind_of(tmp_path, kineto.kernel("gemm", 0, 5), distributedInfo=info)[2] == "pipeline, tensor"


def test_dimensions_that_kernels_describe(tmp_path: Path) -> None:
    events = [kineto.collective(0, 5, description="mesh_ep"), kineto.collective(9, 5, description="mesh_tp", ranks=[0])]
    assert kind_of(tmp_path, *events) == (None, None, "expert", True, None)


def test_code_that_asks_for_experts_is_no_evidence() -> None:
    """A dense model in SGLang: its scheduler imports everything."""
    frames = pl.Series(["/srt/layers/moe/utils.py(46): is_deepep", "sglang/srt/managers/scheduler.py(9): run"])
    assert set(marks_of(pl.Series(["gemm", None, "gemm"]), frames)) == {"serving"}
    assert "experts" in marks_of(pl.Series(["gemm"]), pl.Series(["nn.Module: Qwen3MoeSparseMoeBlock_0"]))
    assert not marks_of(pl.Series([], dtype=pl.String), pl.Series([], dtype=pl.String))


def test_what_is_not_seen_is_not_known() -> None:
    assert job_kind((), forward_only=False, dimensions=()) == JobKind()
    # A trainer that also generates (RL) trains.
    assert job_kind(("optimizer", "serving"), forward_only=False, dimensions=()).mode == "training"
    known = job_kind(("kv_cache",), forward_only=False, dimensions=("tp", "ep", "pp", "dp_cp"))
    assert known.parallel == {TENSOR, EXPERT, STAGES}
    assert (known.infers, known.experts) == (True, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("modded-nanogpt-h100-8ranks", ("training", None, None, None, None)),
        ("torchrec/all-to-all-4ranks", ("training", "ddp", None, None, True)),
        ("torchrec/rank2-sleeps-4ranks", ("training", "ddp", None, None, True)),
        ("tensorboard-plugin/ddp_gloo_torch213_3ranks", ("training", "ddp", None, None, None)),
        ("tensorboard-plugin/resnet50_num_workers_4", ("training", None, None, None, None)),
        ("tracelens/inference/vllm_decode_full/graph_execution.json.gz", ("inference", None, None, True, None)),
        ("tracelens/inference/sglang_decode/sglang_Qwen3-8B_decode.json.gz", ("inference", None, None, None, None)),
        ("tracelens/h100", ("inference", None, None, None, None)),
        ("tracelens/mi210/gpu_only_trace", (None, None, None, None, None)),
        ("hta/nccl_parser_config", ("training", "ddp", None, None, None)),
        ("gloo-2ranks/fsdp2_gpt_shapes.rank0.json.gz", ("training", "fsdp", None, None, None)),
    ],
)
def test_real_jobs(shared_traces: Path, path: str, expected: ROW) -> None:
    assert rankscope.open(shared_traces / path, executor="serial").job_kind().row(0)[:5] == expected
