"""Names of traces: what is written can be read back, and the world's names are understood or left alone."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankscope.errors import ConfigError
from rankscope.rundir.names import (
    DEFAULT_TEMPLATE,
    TraceIdentity,
    TraceName,
    check_template,
    format_mesh,
    format_trace_name,
    parse_mesh,
    parse_trace_name,
    rank_folder,
    rank_manifest_name,
    unique_name,
)


def name_of(template=DEFAULT_TEMPLATE, compression="gz", **given):
    return format_trace_name(TraceIdentity(**given), template, compression)


# A loaded machine is no error.
calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

dims = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
meshes = st.dictionaries(dims, st.integers(0, 10_000), min_size=1, max_size=4)


@calm
@given(
    rank=st.integers(0, 100_000),
    first=st.integers(0, 10**9),
    length=st.integers(0, 50),
    mesh=st.none() | meshes,
    restart=st.integers(0, 9),
    compressed=st.booleans(),
    attempt=st.integers(0, 3),
)
def test_what_is_written_is_read_back(rank, first, length, mesh, restart, compressed, attempt):
    name = name_of(
        rank=rank,
        first=first,
        last=first + length,
        mesh=mesh,
        restart=restart,
        compression="gz" if compressed else "none",
    )
    assert name.endswith(".trace.json.gz" if compressed else ".trace.json")
    parsed = parse_trace_name(f"/runs/3/{unique_name(name, attempt)}")
    assert parsed == TraceName(
        rank=rank,
        first=first,
        last=first + length,
        mesh=mesh,
        restart=restart if restart else None,
        pattern="rankscope",
    )


@calm
@given(meshes)
def test_mesh_coordinates_are_read_back(mesh):
    assert parse_mesh(format_mesh(mesh)) == mesh


@calm
@given(st.text(max_size=60))
def test_any_text_is_read_without_an_error(text):
    parsed = parse_trace_name(text)
    assert parsed.rank is None or parsed.rank >= 0


def test_the_names_of_the_design():
    assert name_of(rank=3, first=10, last=12) == "rank3_iter10_12.trace.json.gz"
    mesh = {"dp": 1, "tp": 0}
    assert name_of(rank=3, first=10, last=12, mesh=mesh) == "rank3_dp1-tp0_iter10_12.trace.json.gz"
    assert name_of(rank=3, first=10, last=12, restart=1) == "rank3_restart1_iter10_12.trace.json.gz"
    assert name_of(rank=0, first=1, last=1, compression="none") == "rank0_iter1_1.trace.json"


def test_templates():
    name = name_of(
        template="{host}/{rank}-of-{world_size}.{local_rank}.{time}.{first}",
        rank=3,
        world_size=8,
        local_rank=1,
        host="node/0 1",
        first=4,
        last=6,
        time="20260101-000000",
    )
    assert name == "node-0-1/3-of-8.1.20260101-000000.4.trace.json.gz"
    tensorboard = name_of(
        template="{host}_{pid}.{time}.pt.trace.json", rank=1, first=1, last=2, host="h", pid=7, time="1700000000000"
    )
    assert tensorboard == "h_7.1700000000000.pt.trace.json.gz"
    # A restart shows even in a template that does not name it.
    assert name_of(template="r{rank}", rank=1, first=1, last=2, restart=2) == "r1_restart2.trace.json.gz"


def test_layouts_of_others():
    given = {"rank": 3, "first": 8, "last": 9, "world_size": 8, "host": "h", "pid": 7, "time_ns": 17}
    mesh = {"pp": 1, "dp": 0}
    d9d = name_of(template="d9d", compression="tar.gz", mesh=mesh, **given)
    assert d9d == "step_10/rank-3-coord-1-0-trace.tar.gz"
    assert name_of(template="d9d", mesh=mesh, restart=2, **given) == ("step_10/rank-3-coord-1-0_restart2-trace.json.gz")
    assert parse_trace_name("step_10/rank-3-coord-1-0_restart2-trace.json.gz").mesh == {"dim0": 1, "dim1": 0}
    assert name_of(template="d9d", **given) == "step_10/rank-3-trace.json.gz"
    assert name_of(template="tensorboard", **given) == "h_7.17.pt.trace.json.gz"
    assert name_of(template="of", **given) == "rank-3-of-8_iter8_9.trace.json.gz"
    parsed = parse_trace_name("rank-3-of-8_iter8_9.trace.json.gz")
    assert (parsed.rank, parsed.world_size, parsed.first, parsed.last) == (3, 8, 8, 9)
    # A restart goes before the ending, whatever that is.
    assert name_of(template="{rank}.pt.trace.json", restart=1, **given) == "3.pt.trace_restart1.json.gz"


@pytest.mark.parametrize(
    "template", ["", "../{rank}", "/tmp/{rank}", "{ranks}", "a//b", "[{mesh}", "a/../{rank}", "c:x"]
)
def test_a_template_that_is_not_valid_is_refused(template):
    with pytest.raises(ConfigError):
        check_template(template)


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("iteration_10/rank0_trace.json", 0),
        ("iteration_10/rank3_trace.json.gz", 3),
        ("step_4/rank-3-coord-1-0-trace.tar.gz", 3),
        ("worker0.pt.trace.json", 0),
        ("worker3.1623212756351.pt.trace.json.gz", 3),
        ("resnet-5-of-12.json", 5),
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", 34),
        ("sampled_rank-1.json.gz", 1),
        ("ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz", 0),
        ("rank_3.json", 3),
        ("rank7.json.gz", 7),
        ("rank[0].json", 0),
        ("run_1-rank[12].pt.trace.json.gz", 12),
        ("rank_[3]_trace.json", 3),
        ("rank[5]/trace.json", 5),
        ("Baseline_-_12-11_-_220ff-rank6-chrome-trace.json.gz", 6),
        ("bs_32_rank0.json.gz", 0),
        ("ddp_gpt_shapes.rank1.json.gz", 1),
        ("fsdp2_gpt_straggler_rank1.rank0.json.gz", 0),
        ("rank_3/trace.json", 3),
        ("3/trace.json.gz", 3),
        ("rank_3/host_19488.1698954910154219890.pt.trace.json.gz", 3),
        ("rank_5/rank2.json", 2),
        ("s3://bucket/run/rank_4/x.json", 4),
        (r"C:\runs\rank12.trace.json", 12),
        # Megatron, verl, vLLM, Lightning, SGLang.
        ("torch_profile/rank-3.json.gz", 3),
        ("prof_start_1_end_3_rank_3.json", 3),
        ("dp0_pp0_tp3_dcp0_ep3_rank3.1764000000000000000.pt.trace.json.gz", 3),
        ("[Strategy]DDP-fit-3.1700000000000.pt.trace.json", 3),
        ("1764000000.123-TP-3.trace.json.gz", 3),
        ("1764000000.123-TP-3-EP-1.trace.json.gz", 3),
        ("1764000000.123-TP-3-DECODE.trace.json.gz", 3),
        ("prefix-1764000000.123-TP-3-EP-1-EXTEND.trace.json.gz", 3),
        ("1764000000.123-TP-3-ForwardMode.DECODE.trace.json.gz", 3),
        ("1764000000.123-TP-3-2.trace.json.gz", 3),
        ("1764000000.123-TP-3-memory-DECODE.pickle", 3),
        ("1764000000.123-TP-3-PP-1-DECODE.trace.json.gz", None),
        ("1764000000.123-TP-3-PP-1.trace.json.gz", None),
        ("1764000000.123-TP-3-DP-1.trace.json.gz", None),
        ("actor_rollout/e2e_prof_rank-3.json.gz", 3),
        ("iteration_10/replica_1/rank3_trace.json.gz", 3),
        ("step_000000000010/000003_step_10.pickle", 3),
        ("torch-trace-03-of-12.json", 3),
        # Numbers that are no ranks: process ids, times, sizes, steps.
        ("host_19488.async_llm.1698954910154219890.pt.trace.json.gz", None),
        ("merged-1764000000.123.trace.json.gz", None),
        ("step_10/trace.json", None),
        ("ranks[4].json", None),
        ("rank[4a].json", None),
        ("host_19488.1698954910154219890.pt.trace.json.gz", None),
        ("host_0.1795170630711365614.pt.trace.json.gz", None),
        ("rank2-sleeps-4ranks/host_19488.1698954910154219890.pt.trace.json.gz", None),
        ("ddp-resnet18-2ranks/host_85867.1698107929568240321.pt.trace.json.gz", None),
        ("benchmark_result_2869224_1695835535_trace.json.gz", None),
        ("step_based_trace_2543932.json.gz", None),
        ("Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", None),
        ("sglang_Qwen3-8B_decode.json.gz", None),
        ("rank_unavailable/rank_not_found.json.gz", None),
        ("train_resnet18.json.gz", None),
        ("iteration_10/trace.json", None),
        ("crank3.json", None),
        ("model-00009-of-00008.json", None),
    ],
)
def test_the_worlds_names(path, rank):
    assert parse_trace_name(path).rank == rank


def test_what_else_the_worlds_names_say():
    assert parse_trace_name("a-5-of-12.json").world_size == 12
    assert parse_trace_name("rank-3-coord-1-0-trace.tar.gz").mesh == {"dim0": 1, "dim1": 0}
    assert parse_trace_name("1764000000.1-TP-3-PP-1.trace.json.gz").mesh == {"tp": 3, "pp": 1}
    assert parse_trace_name("node.x_77.1698954910154219890.pt.trace.json").host == "node.x"
    stage = parse_trace_name("1764000000.1-TP-3-PP-1-DECODE.trace.json.gz")
    assert (stage.mesh, stage.pattern) == ({"tp": 3, "pp": 1}, "sglang")
    server = parse_trace_name("node.x_77.async_llm.1698954910154219890.pt.trace.json")
    assert (server.rank, server.host, server.pattern) == (None, "node.x", "frontend")
    ours = parse_trace_name("bench_rank0_iter10_12.json.gz")
    assert (ours.rank, ours.first, ours.last) == (0, 10, 12)
    # The folder of torchtitan says when it was written, not what is in the file.
    assert parse_trace_name("iteration_10/rank0_trace.json").last is None


def test_numbers_that_are_called_ranks():
    for name, called in (
        ("rank3_iter1_2.trace.json", True),
        ("rank-3-coord-1-0-trace.tar.gz", True),
        ("t-3-of-8.json", True),
        ("rank_3.json", True),
        # A worker's number may be its host's, a folder's a step's, SGLang's the tensor's dimension's.
        ("worker3.1623212756351.pt.trace.json", False),
        ("3/trace.json", False),
        ("1764.1-TP-3.trace.json", False),
        ("trace.json", False),
    ):
        assert parse_trace_name(name).names_rank is called, name


def test_folders_of_large_jobs():
    assert rank_folder(5, 1024) == ""
    assert rank_folder(5, 1025) == "ranks0-1023"
    assert rank_folder(2047, 4096) == "ranks1024-2047"
    assert rank_manifest_name(2047, 4096, 1) == "ranks/ranks1024-2047/rank2047_restart1.json"
    assert parse_trace_name("ranks1024-2047/rank2047_iter1_3.trace.json.gz").rank == 2047
    assert parse_trace_name("ranks1024-2047/trace.json").rank is None
