"""Every finding is true: its ranks, steps and numbers are recomputed from the raw events, in plain Python.

Over all real traces, over every kind of simulated fault, and (`conftest.py` of the rules) over the traces that the
rules' own tests build. A finding that nothing recomputes fails as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.claims.anchors import KINDS, WITHOUT
from tests.claims.check import false_claims
from tests.claims.registry import CHECKS

import rankscope
from rankscope.answers.diagnosis.rules import all_rules
from rankscope.experiments.simulate import Fault, Job, Lost, Recording, simulate

SOURCES = Path(rankscope.__file__).parent

# -- nothing without a check -----------------------------------------------------------------------------------------


def ids_in(folder: Path) -> Iterator[tuple[str, str]]:
    """The ids of the findings that modules make, with the file: the first argument, or `id=`."""
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "Finding":
                continue
            given = [keyword.value for keyword in node.keywords if keyword.arg == "id"] or node.args[:1]
            for each in ast.walk(given[0]):
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    yield each.value, file.name


@pytest.mark.parametrize("name", sorted(all_rules()))
def test_every_rule_has_a_check(name: str) -> None:
    assert name in CHECKS


@pytest.mark.parametrize("folder", ["analyses", "answers/diagnosis"])
def test_every_finding_has_a_check(folder: str) -> None:
    found = set(ids_in(SOURCES / folder))
    assert found or folder == "answers/diagnosis"
    assert {(name, file) for name, file in found if name not in CHECKS} == set()


@pytest.mark.parametrize("name", sorted(all_rules()))
def test_every_rule_has_an_event_or_is_about_none(name: str) -> None:
    assert (name in KINDS) != (name in WITHOUT)


# -- real traces -----------------------------------------------------------------------------------------------------

SETS = [
    "gloo-2ranks/ddp_gpt_all_collectives_shapes",
    "gloo-2ranks/ddp_gpt_minimal",
    "gloo-2ranks/ddp_gpt_shapes",
    "gloo-2ranks/ddp_gpt_straggler_rank1",
    "hta/amd_trace/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "hta/cpu_only/rank-34.05cd72fe.Jul_15_10_52_41.1074.pt.trace.json.gz",
    "hta/cpu_only/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
    "hta/critical_path/alexnet/benchmark_result_2869224_1695835535_trace.json.gz",
    "hta/critical_path/cuda_event_sync/event_sync_trace.json.gz",
    "hta/critical_path/cuda_event_sync_multi_stream/event_sync_trace.json.gz",
    "hta/critical_path/end_to_end/simple_add/input/trace.json.gz",
    "hta/cupti_profiler/benchmark_result_924719_1679055439_trace.json.gz",
    "hta/distributed_info_unavailable/distributed_info_not_found.json.gz",
    "hta/mixed_files/rank_non_gpu.json.gz",
    "hta/nccl_parser_config/nccl_data.json.gz",
    "hta/rank_unavailable/rank_not_found.json.gz",
    "hta/timeline_analysis/sampled_rank-0.json.gz",
    "hta/trace_filter/sampled_rank-1.json.gz",
    "hta/triton_example/triton_example.0935c73d.json.gz",
    "hta/triton_example/triton_example.36347a15.json.gz",
    "hta/triton_example/triton_example.json.gz",
    "hta/with_gpu_user_annotation/step_based_trace_2543932.json.gz",
    "rocm-aorta/misc",
    "tensorboard-plugin/ddp_gloo_torch213_3ranks",
    "tensorboard-plugin/unit_tests/test_distributed_gloo_cpu",
    "tensorboard-plugin/unit_tests/test_distributed_gloo_gpu",
    "tensorboard-plugin/unit_tests/test_distributed_nccl",
    "torchrec/all-to-all-4ranks",
    "torchrec/ddp-resnet18-2ranks",
    "torchrec/rank2-sleeps-4ranks",
    "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "tracelens/inference/sglang_decode/capture_traces/bs_32_rank0.json.gz",
    "tracelens/inference/sglang_decode/sglang_Qwen3-8B_decode.json.gz",
    "tracelens/inference/vllm_decode_full/graph_execution.json.gz",
    "tracelens/mi210/gpu_only_trace/gpu_only_trace.json.gz",
    "tracelens/mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "tracelens/mi300/ddp_resnet18_no_pool/train_resnet18.json.gz",
    "tracelens/mi300/resnet_act_checkpoint.json.gz",
    "tracelens/torch_compile_triton/trace.json.gz",
    "verl/mem.pickle",
]
SLOW = [
    "gloo-2ranks/ddp_resnet_shapes_stack_mem_flops",
    "gloo-2ranks/fsdp2_gpt_shapes",
    "gloo-2ranks/fsdp2_gpt_shapes_stack_mem",
    "gloo-2ranks/fsdp2_gpt_straggler_rank1",
    "hta/negative_queue_length_values_check/rank0.json.gz",
    "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "modded-nanogpt-h100-8ranks",
    "tensorboard-plugin/kineto_docs/after_fix_trace.json",
    "tensorboard-plugin/kineto_docs/before_fix_trace.json",
    "tensorboard-plugin/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz",
    "tensorboard-plugin/resnet50_num_workers_0/worker0.1623143566756.pt.trace.json.gz",
    "tensorboard-plugin/resnet50_num_workers_4/worker0.1623212756351.pt.trace.json.gz",
]
SINGLE = "tensorboard-plugin/unit_tests/single"
"""A folder of files that are each a run."""


def files_of(folder: Path, name: str) -> list[Path]:
    """The files of a set: a file, those of a folder, or those whose names begin so."""
    place = folder / name
    if place.is_file():
        return [place]
    return sorted(place.glob("*.json*")) if place.is_dir() else sorted(place.parent.glob(f"{place.name}.*"))


@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize("name", [*SETS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_real_traces(shared_traces: Path, name: str) -> None:
    files = files_of(shared_traces, name)
    if not files:
        pytest.skip(f"the real traces {name} are not here")
    holds([str(file) for file in files])


@pytest.mark.slow
@pytest.mark.usefixtures("shared_cache")
def test_real_traces_of_unit_tests(shared_traces: Path) -> None:
    for file in sorted((shared_traces / SINGLE).glob("*.json*")):
        holds([str(file)])


def test_every_real_trace_is_checked(shared_traces: Path) -> None:
    listed = {file for name in [*SETS, *SLOW, SINGLE] for file in files_of(shared_traces, name)}
    there = {file for file in shared_traces.rglob("*.json*") if file.is_file()}
    assert there - listed == set()


# -- simulated jobs --------------------------------------------------------------------------------------------------

FAST = {
    "clean": Job(ranks=4, steps=5, seed=101),
    "slow_device": Job(ranks=4, steps=5, seed=102, faults=(Fault("slow_device", ranks=(2,), magnitude=0.3),)),
    "data_loading": Job(ranks=2, steps=4, seed=103, faults=(Fault("data_loading", ranks=(1,), magnitude=0.3),)),
    "host_bound": Job(ranks=2, steps=4, seed=104, device_scale=0.2),
    "network_bound": Job(ranks=2, steps=4, seed=105, network_scale=20.0),
    "missing": Job(ranks=4, steps=4, seed=106, recording=Recording(missing=(2,))),
    "clocks": Job(ranks=2, steps=4, seed=107, recording=Recording(clock_offset_ns={1: 5_000_000})),
    "truncated": Job(ranks=4, steps=4, seed=120, recording=Recording(truncated={2: 0.7})),
}
TP = {"dp": 2, "tp": 4}
MORE = {
    "more_work": Job(ranks=4, steps=5, seed=108, faults=(Fault("more_work", ranks=(1,), magnitude=0.3),)),
    "loading_everywhere": Job(ranks=4, steps=5, seed=109, faults=(Fault("data_loading", magnitude=0.3),)),
    "slow_host": Job(ranks=4, steps=5, seed=110, faults=(Fault("slow_host", ranks=(0,), magnitude=0.3),)),
    "gc": Job(ranks=4, steps=5, seed=111, faults=(Fault("slow_host", ranks=(0,), style="gc", magnitude=0.3),)),
    "asleep": Job(ranks=4, steps=5, seed=112, faults=(Fault("slow_host", ranks=(1,), style="asleep", magnitude=0.3),)),
    "asleep_once": Job(
        ranks=4, steps=6, seed=113, faults=(Fault("slow_host", ranks=(1,), style="asleep", ms=80, steps=(13,)),)
    ),
    "retries": Job(ranks=4, steps=5, seed=114, faults=(Fault("memory", ranks=(1,), style="retries", magnitude=0.3),)),
    "copies": Job(ranks=4, steps=5, seed=115, faults=(Fault("memory", ranks=(1,), style="copies", magnitude=0.3),)),
    "slow_network": Job(
        ranks=8, steps=5, seed=116, mesh=TP, faults=(Fault("slow_network", where={"dp": 0}, dim="tp", magnitude=0.3),)
    ),
    "slow_link": Job(ranks=8, steps=5, seed=117, mesh=TP, faults=(Fault("slow_network", link=(0, 4), magnitude=0.3),)),
    "pipeline": Job(
        ranks=4, steps=4, seed=118, mesh={"pp": 4}, faults=(Fault("slow_device", ranks=(2,), magnitude=0.3),)
    ),
    "pipeline_of_pairs": Job(ranks=4, steps=4, seed=991005, mesh={"dp": 2, "pp": 2}, host_scale=1.5, device_scale=0.3),
    "slow_device_lost": Job(
        ranks=8, steps=4, seed=126, faults=(Fault("slow_device", ranks=(5,), magnitude=0.4),),
        recording=Recording(lost=(Lost(rank=5, fraction=0.02),)),
    ),
    "host_bound_work": Job(
        ranks=2, steps=6, seed=991001, host_scale=1.5, device_scale=0.3, layers=2,
        faults=(Fault("more_work", ranks=(0,), magnitude=0.2),),
    ),
    "fsdp": Job(ranks=4, steps=5, seed=119, data_parallel="fsdp", network_scale=3.0),
    "unsynchronized": Job(
        ranks=4, steps=5, seed=121, synchronize=False, faults=(Fault("slow_device", ranks=(2,), magnitude=0.3),)
    ),
    "lost": Job(ranks=4, steps=4, seed=122, recording=Recording(lost=(Lost(rank=1, fraction=0.1),))),
    "no_metadata": Job(ranks=4, steps=4, seed=123, recording=Recording(collective_metadata=False)),
    "ragged": Job(
        ranks=4, steps=4, seed=124,
        recording=Recording(window_start_ns={1: 20_000_000}, window_end_ns={2: -20_000_000}),
    ),
    "two_faults": Job(
        ranks=4, steps=5, seed=125,
        faults=(Fault("slow_device", ranks=(2,), magnitude=0.3), Fault("data_loading", ranks=(0,), magnitude=0.1)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_simulated_jobs(tmp_path: Path, name: str) -> None:
    simulate(tmp_path, {**FAST, **MORE}[name])
    holds(str(tmp_path))


# -- the assertion ---------------------------------------------------------------------------------------------------


def holds(paths: str | Sequence[str]) -> None:
    """All findings of a run are true, and their savings are no more than there is."""
    run = rankscope.open(paths if isinstance(paths, str) or len(paths) > 1 else paths[0], executor="serial")
    wrong = false_claims(run)
    assert not wrong, "\n".join(wrong)
