"""Advice fits the job: what a rule advises in training and in inference, with DDP and with FSDP."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests import kineto
from tests.answers.diagnosis.rules.steps import diagnosed, work

import rankscope
from rankscope.answers.diagnosis.advice import any_of
from rankscope.answers.diagnosis.rules.exposed_communication import _advice as for_communication
from rankscope.answers.diagnosis.rules.exposed_communication import _Heaviest as Heaviest
from rankscope.answers.diagnosis.rules.imbalance import _advice as for_imbalance
from rankscope.answers.diagnosis.rules.small_problem import _advice as for_small_problem
from rankscope.primitives.job_kind import EXPERT, TENSOR, JobKind

OF_TRAINING = re.compile(
    r"optimizer|AdamW|DDP|FSDP|bucket|gradient|backward|no_sync|autocast|GradScaler|\bloss|checkpointing|\btrain", re.I
)
DECODE = JobKind("inference", None, frozenset({EXPERT, TENSOR}), True)
ADVICE = (for_communication, for_imbalance, for_small_problem)


def test_nobody_who_serves_a_model_reads_of_training() -> None:
    for advice in ADVICE:
        assert not OF_TRAINING.search(advice(DECODE)), advice(DECODE)
    assert "dispatch and combine" in for_communication(DECODE)
    assert "experts placed by their load" in for_imbalance(DECODE)


def test_one_wrapper_is_not_told_of_the_other() -> None:
    ddp, fsdp = (for_communication(JobKind("training", wrapper)) for wrapper in ("ddp", "fsdp"))
    assert "bucket_cap_mb" in ddp
    assert "FSDP" not in ddp
    assert "prefetch FSDP" in fsdp or "Prefetch FSDP" in fsdp
    assert not re.search(r"DDP|bucket|no_sync", fsdp.replace("FSDP", ""))
    # Where nothing is known, neither is named.
    for advice in (for_communication, for_small_problem):
        assert not re.search(r"DDP|FSDP|HSDP|bucket|no_sync", advice(JobKind()))
    assert "start each transfer" in for_communication(JobKind()).lower()


def test_advice_is_about_the_collective_with_most_time() -> None:
    """FSDP's reductions cannot be prefetched, and smaller buckets of DDP shorten no exchange of embeddings."""
    fsdp, ddp = JobKind("training", "fsdp"), JobKind("training", "ddp", embeddings=True)
    assert "prefetch" in for_communication(fsdp, Heaviest("all_gather", None, 8, None, 1.0)).lower()
    assert "prefetch" not in for_communication(fsdp, Heaviest("reduce_scatter", None, 8, None, 1.0)).lower()
    assert "bucket_cap_mb" in for_communication(ddp, Heaviest("all_reduce", None, 8, None, 1.0))
    exchange = for_communication(ddp, Heaviest("all_to_all", None, 8, None, 1.0))
    assert "bucket_cap_mb" not in exchange
    assert "embeddings" in exchange


def test_embeddings_only_where_there_are_some() -> None:
    assert "embedding" not in for_imbalance(JobKind("training", "ddp"))
    assert "embedding tables" in for_imbalance(JobKind("training", "ddp", embeddings=True))


def test_ways_are_one_sentence() -> None:
    assert any_of(["do this", "that", "or that"]) == "Do this; that; or or that."
    assert any_of(["do this"]) == "Do this."


@pytest.mark.parametrize("serves", [False, True])
def test_a_late_host(tmp_path: Path, serves: bool) -> None:
    """The same finding in a trainer and in a server: the advice alone differs."""
    mark = kineto.op("vllm::attention", 1, 1) if serves else kineto.op("autograd::engine::evaluate_function: X", 1, 1)

    def make(_: int, at: float) -> list[kineto.Event]:
        # Many short operators: a long one alone would be named, whatever the job does.
        short = [kineto.op("my::slow", at + 20 + 97 * number, 96) for number in range(5)]
        late = [*work(at + 10, 300), *short, *work(at + 510, 300)]
        return [*late, mark] if at == 0 else late

    advice = diagnosed(tmp_path, make)["launch_bound"].advice
    assert ("optimizers" in advice) is not serves


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        "tracelens/inference/vllm_decode_full/graph_execution.json.gz",
        "tracelens/inference/sglang_decode/sglang_Qwen3-8B_decode.json.gz",
        "tracelens/inference/sglang_decode/capture_traces/bs_32_rank0.json.gz",
        "tracelens/h100",
    ],
)
def test_real_inference_is_not_told_of_training(shared_traces: Path, path: str) -> None:
    for finding in rankscope.open(shared_traces / path, executor="serial").diagnose():
        assert not OF_TRAINING.search(finding.advice or ""), (finding.id, finding.advice)
