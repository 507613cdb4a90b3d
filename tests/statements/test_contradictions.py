"""One quantity has one value, wherever a run shows it: in text, on the page, in JSON and in SQL."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.statements.quantities import Number, contradictions, gather, in_several_places, read

import rankscope
from rankscope.engine.pipeline import Run
from rankscope.experiments.simulate import Fault, Job, simulate

FEW = (
    "modded-nanogpt-h100-8ranks", "tracelens/mi300/resnet_act_checkpoint.json.gz", "torchrec/rank2-sleeps-4ranks",
    "gloo-2ranks/ddp_gpt_straggler_rank1*",
)  # fmt: skip
MORE = (
    "gloo-2ranks/ddp_gpt_all_collectives_shapes*", "gloo-2ranks/ddp_gpt_minimal*", "gloo-2ranks/ddp_gpt_shapes*",
    "gloo-2ranks/ddp_resnet_shapes_stack_mem_flops*", "gloo-2ranks/fsdp2_gpt_shapes.*",
    "gloo-2ranks/fsdp2_gpt_shapes_stack_mem*", "gloo-2ranks/fsdp2_gpt_straggler_rank1*",
    "torchrec/all-to-all-4ranks", "torchrec/ddp-resnet18-2ranks", "tensorboard-plugin/ddp_gloo_torch213_3ranks",
    "tensorboard-plugin/resnet50_num_workers_0", "tensorboard-plugin/resnet50_num_workers_4", "hta/amd_trace",
    "hta/critical_path/alexnet", "hta/critical_path/cuda_event_sync", "hta/critical_path/end_to_end", "hta/cpu_only",
    "hta/cupti_profiler", "hta/negative_queue_length_values_check", "hta/nccl_parser_config", "hta/ns_resolution_trace",
    "hta/timeline_analysis", "hta/trace_filter", "hta/with_gpu_user_annotation", "rocm-aorta",
    "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", "tracelens/inference/sglang_decode",
    "tracelens/inference/vllm_decode_full", "tracelens/mi210/gpu_only_trace", "tracelens/mi300/ddp_resnet18_no_pool",
    "tracelens/mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", "tracelens/torch_compile_triton",
)  # fmt: skip
TENSOR = {"dp": 4, "tp": 2}
JOBS = {
    "clean": Job(seed=5),
    "fsdp": Job(seed=6, data_parallel="fsdp"),
    "slow device": Job(seed=7, faults=(Fault("slow_device", (5,), magnitude=0.2),)),
    "more work": Job(seed=8, faults=(Fault("more_work", (2,), magnitude=0.2),)),
    "loader": Job(seed=9, faults=(Fault("data_loading", (1,), magnitude=0.3),)),
    "loaders": Job(seed=10, faults=(Fault("data_loading", magnitude=0.3),)),
    "two": Job(seed=11, faults=(Fault("slow_device", (3,), magnitude=0.2), Fault("slow_device", (5,), magnitude=0.2))),
    "memory": Job(seed=12, faults=(Fault("memory", (3,), magnitude=0.25, style="retries"),)),
    "asleep": Job(seed=13, faults=(Fault("slow_host", (4,), magnitude=0.8, style="asleep"),)),
    "clean tensor parallel": Job(seed=14, mesh=TENSOR),
    "tensor parallel": Job(seed=15, mesh=TENSOR, faults=(Fault("slow_device", (3,), magnitude=0.2),)),
    "network": Job(seed=16, mesh=TENSOR, faults=(Fault("slow_network", (4,), dim="tp", magnitude=0.3),)),
}


def agrees(run: Run) -> list[Number]:
    numbers = gather(run)
    assert not (found := contradictions(numbers)), "\n".join(f"{low}\n  but {high}" for low, high in found[:20])
    return numbers


def opened(traces: Path, name: str) -> Run:
    files = sorted(traces.glob(name)) if "*" in name else [traces / name]
    return rankscope.open(*files, executor="serial")


@pytest.mark.parametrize("name", FEW)
def test_real_traces(shared_traces: Path, shared_cache: Path, name: str) -> None:
    numbers = agrees(opened(shared_traces, name))
    several = in_several_places(numbers)
    # What contradicted itself is compared: nothing is gathered only once.
    for quantity in ("step_ns", "mean_step_ns", "exposed_communication_ns", "overlap_ratio"):
        assert len(several[quantity, (), "steps"]) >= 4, (quantity, several.get((quantity, (), "steps")))
    assert len(several) > 400


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_more_real_traces(shared_traces: Path, shared_cache: Path, name: str) -> None:
    assert len(in_several_places(agrees(opened(shared_traces, name)))) > 30


@pytest.mark.parametrize(
    "name", [each if each in ("slow device", "two") else pytest.param(each, marks=pytest.mark.slow) for each in JOBS]
)
def test_simulated_jobs(tmp_path: Path, name: str) -> None:
    simulate(tmp_path / "run", JOBS[name], costs=False)
    several = in_several_places(agrees(rankscope.open(tmp_path / "run", executor="serial")))
    assert len(several) > 400
    if name == "slow device":
        places = several["saving_ns", (("straggler", 5),), "steps"]
        assert {"summary", "headline", "straggler's sentence", "list of findings", "report"} <= places


@pytest.mark.parametrize("quantity", ["overlap_ratio", "last_share", "exposed_communication_ns", "step_ns"])
def test_a_changed_value_is_found(shared_traces: Path, shared_cache: Path, quantity: str) -> None:
    numbers = gather(opened(shared_traces, FEW[0]))
    several = in_several_places(numbers)
    at = next(
        n for n, each in enumerate(numbers) if each.quantity == quantity and each.name in several and each.low > 0
    )
    changed = replace(numbers[at], low=numbers[at].low * 1.2, high=numbers[at].high * 1.2)
    found = contradictions([*numbers[:at], changed, *numbers[at + 1 :]])
    assert [low.quantity for low, _ in found] == [quantity]


def test_numbers_of_a_text_have_the_names_of_columns() -> None:
    (one,) = read("11.7 % of communication overlaps with compute", "summary", "summary")
    assert (one.quantity, round(one.low, 4), round(one.high, 4)) == ("overlap_ratio", 0.1165, 0.1175)
    other = read("overlap     15.0 % of communication overlaps with compute", "page", "page")[0]
    assert contradictions([one, other]) == [(one, other)]
    assert not contradictions([one, replace(other, window="entire recording")])
