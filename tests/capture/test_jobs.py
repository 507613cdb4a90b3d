"""Real jobs under torchrun with gloo: DDP of three ranks, FSDP2 and FSDP1 of two."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.ports import free_port

from rankscope.rundir.manifest import read_rank_manifest, read_run_manifest
from rankscope.rundir.metadata import METADATA_KEY, TraceMetadata
from rankscope.rundir.names import parse_trace_name

from .conftest import HAS_TRACE_ID, clean_environ, read_trace, steps_in, traces

TIMEOUT_S = 300
ASKS_FOR_A_GPU = (
    "CUDA driver version is insufficient",
    "FSDP requires CUDA for streams",
    "'Stream' object has no attribute 'record_event'",
)
"""What FSDP2 of torch 2.4 to 2.6 says where there is none."""


def run(arguments: list[str], cwd: Path) -> str:
    """Run Python; its output. It and its children are ended when it takes too long."""
    job = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        env=clean_environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = job.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        job.terminate()  # torchrun ends its workers
        time.sleep(5)
        os.killpg(job.pid, signal.SIGKILL)
        output, _ = job.communicate()
        pytest.fail(f"took more than {TIMEOUT_S} s:\n{output}")
    if job.returncode != 0 and any(text in output for text in ASKS_FOR_A_GPU):
        pytest.skip("this torch's FSDP2 asks for a GPU")
    assert job.returncode == 0, output
    return output


@pytest.fixture(scope="session")
def ddp(tmp_path_factory):
    """Three ranks, without a rendezvous id that all jobs would not share: they agree through the job's store."""
    out = tmp_path_factory.mktemp("ddp")
    script = str(Path(__file__).with_name("ddp_job.py"))
    place = ["--master-addr=127.0.0.1", f"--master-port={free_port()}", "--nproc-per-node=3"]
    run(["-m", "torch.distributed.run", *place, script, str(out)], out)
    return out


@pytest.fixture(scope="session", params=["fsdp2", "fsdp1"])
def fsdp(request, tmp_path_factory):
    out = tmp_path_factory.mktemp(request.param)
    workload = [
        "-m",
        "rankscope.capture.workloads.fsdp",
        "--width",
        "32",
        "--layers",
        "1",
        "--tokens",
        "16",
        "--steps",
        "6",
    ]
    options = ["--ranks", "1", "--wait", "1", "--warmup", "1", "--active", "2", "--save-dir", str(out / "run")]
    flag = ["--fsdp1"] if request.param == "fsdp1" else []
    output = run(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *workload, *options, *flag], out)
    assert f"{request.param}: 6 steps on 2 ranks (cpu)" in output
    return request.param, out / "run"


def metadata_of(folder: Path, name: str) -> TraceMetadata:
    """Check that name, events and metadata agree, and give the metadata."""
    trace, said = read_trace(folder / name), parse_trace_name(name)
    metadata = TraceMetadata.from_json(trace[METADATA_KEY])
    assert steps_in(trace) == list(range(said.first, said.last + 1))
    assert (metadata.rank, metadata.first_step, metadata.last_step) == (said.rank, said.first, said.last)
    assert trace["distributedInfo"]["rank"] == said.rank
    if HAS_TRACE_ID:
        assert trace["trace_id"] == metadata.run_id
    return metadata


def test_only_selected_ranks_write_and_two_profilers_do_not_overwrite(ddp):
    names = traces(ddp / "shared")
    assert names == [
        "rank0_dp0-tp0_iter2_3.2.trace.json.gz",
        "rank0_dp0-tp0_iter2_3.trace.json.gz",
        "rank2_dp2-tp0_iter2_3.2.trace.json.gz",
        "rank2_dp2-tp0_iter2_3.trace.json.gz",
    ]
    assert sorted(p.name for p in (ddp / "shared" / "ranks").iterdir()) == ["rank0.json", "rank2.json"]
    for name in names:
        metadata = metadata_of(ddp / "shared", name)
        assert metadata.mesh.by_name() == {"dp": metadata.rank, "tp": 0}
        assert metadata.mesh.shape == (3, 1)
        assert (metadata.world_size, metadata.local_rank, metadata.launcher) == (3, metadata.rank, "torchrun")
    written = [w.file for rank in (0, 2) for w in read_rank_manifest(ddp / f"shared/ranks/rank{rank}.json").written]
    assert sorted(written) == names
    run_manifest = read_run_manifest(ddp / "shared" / "run.json")
    assert (run_manifest.world_size, run_manifest.ranks, run_manifest.mesh.dims) == (3, "0, 2", ("dp", "tp"))


def test_traces_hold_the_groups_with_their_ranks(ddp):
    groups = {r: metadata_of(ddp / "shared", f"rank{r}_dp{r}-tp0_iter2_3.trace.json.gz").process_groups for r in (0, 2)}
    assert (0, 1, 2) in [g.ranks for g in groups[0]]
    assert (0, 1) in [g.ranks for g in groups[0]]
    assert (0, 1) not in [g.ranks for g in groups[2]]
    assert "default_pg" in [g.description for g in groups[2]]


def test_traces_name_groups_by_their_dimension_and_backend(ddp):
    groups = {g.name: g for g in metadata_of(ddp / "shared", "rank0_dp0-tp0_iter2_3.trace.json.gz").process_groups}
    (along_dp,) = [g for g in groups.values() if g.mesh_dim == "dp"]
    assert along_dp.ranks == (0, 1, 2)
    assert all("gloo" in g.backend for g in groups.values())
    # Without a mesh given, the job's own is found.
    found = metadata_of(ddp / "host1", "rank1_iter2_3.trace.json.gz").process_groups
    assert [g.ranks for g in found if g.mesh_dim == "dp"] == [(0, 1, 2)]


def test_traces_hold_ddps_buckets_in_their_order(ddp):
    (said,) = metadata_of(ddp / "shared", "rank2_dp2-tp0_iter2_3.trace.json.gz").parallelism
    last, first = (32 * 64 + 32) * 4, (64 * 64 + 64) * 4
    assert (said["kind"], said["backend"], said["parameter_bytes"]) == ("ddp", "gloo", first + last)
    # DDP reduces the gradients that are there first: the last layer's.
    assert said["buckets"] == [
        {"bytes": last, "parameters": ["1.bias", "1.weight"]},
        {"bytes": first, "parameters": ["0.bias", "0.weight"]},
    ]
    groups = {g.name: g.ranks for g in metadata_of(ddp / "host2", "rank2_iter2_3.trace.json.gz").process_groups}
    assert groups[said["group"]] == (0, 1, 2)
    # Shapes, where torch writes them, say the same.
    trace = read_trace(ddp / "host2" / "rank2_iter2_3.trace.json.gz")
    shapes = [e["args"]["Input Dims"] for e in trace["traceEvents"] if e["name"] == "c10d::allreduce_"]
    assert sorted(shape[0][0][0] * 4 for shape in shapes) == sorted([first, last] * 2)


@pytest.mark.parametrize("rank", [0, 2])
def test_traces_hold_group_type_and_size_of_gloos_collectives(ddp, rank):
    said = metadata_of(ddp / "shared", f"rank{rank}_dp{rank}-tp0_iter2_3.trace.json.gz")
    groups = {g.name: g.ranks for g in said.process_groups}
    kinds = [said.collectives["kinds"][index] for index in said.collectives["order"]]
    calls = [
        (k["operation"], groups[k["group"]], k["ranks"], k["dtype"], k["elements"], k["bytes"], k["caller"])
        for k in kinds
    ]
    pair = [("allreduce", (0, 1), 2, "float32", 2, 8, "python")] if rank == 0 else []
    own = [*pair, ("allgather", (0, 1, 2), 3, "float64", 15, 120, "python")]
    reduced = []
    if said.collectives["flight_recorder"] is not None:  # what DDP's reducer called: its buckets, in their order
        sizes = [bucket["bytes"] for bucket in said.parallelism[0]["buckets"]]
        reduced = [("allreduce", (0, 1, 2), 3, "float32", size // 4, size, "c++") for size in sizes]
    assert calls == [*reduced, *own] * 2
    assert said.collectives["us"] == sorted(said.collectives["us"])
    began, ended = said.clock_anchors[:2]
    assert began.wall_ns <= said.collectives["began_ns"] + 1000 * said.collectives["us"][-1] <= ended.wall_ns
    assert said.collectives["left_out"] == 0


def test_traces_hold_the_times_of_steps_and_what_profiling_cost(ddp):
    said = metadata_of(ddp / "host0", "rank0_iter2_3.trace.json.gz")
    assert [(s.first_step, s.state, len(s.ns)) for s in said.step_times] == [
        (0, "wait", 1), (1, "warmup", 1), (2, "active", 2)
    ]  # fmt: skip
    trace = read_trace(ddp / "host0" / "rank0_iter2_3.trace.json.gz")
    ranges = [e for e in trace["traceEvents"] if e.get("ph") == "X"]
    marks = sorted((e["ts"], e["ts"] + e["dur"], e["tid"]) for e in ranges if e["name"].startswith("ProfilerStep#"))
    # Ours is from one call of step() to the next, and all of a step's operators lie in it. Torch's range has a part of
    # the call besides, in which the process may lose its core for as long as it likes.
    for (began, ended, tid), ns in zip(marks, said.step_times[2].ns, strict=True):
        inside = [e for e in ranges if e["cat"] == "cpu_op" and e["tid"] == tid and began <= e["ts"] < ended]
        assert len(inside) > 10
        us = max(e["ts"] + e["dur"] for e in inside) - min(e["ts"] for e in inside)
        assert us * 1000 <= ns + 1000  # a trace counts in microseconds
    assert set(said.profiler["step_median_ns"]) == {"wait", "warmup", "active"}
    assert (said.profiler["previous_windows"], said.profiler["previous_bytes"]) == (0, 0)
    assert 10 << 20 < said.memory["host_rss"] <= said.memory["host_peak"]
    assert said.environment["torch"]["num_threads"] >= 1
    manifest = read_rank_manifest(ddp / "host0" / "ranks" / "rank0.json")
    assert [s.state for s in manifest.step_times] == ["wait", "warmup", "active", "wait"]
    assert len(manifest.clock_anchors) == 3


def test_hosts_with_disjoint_directories_share_a_run_id(ddp):
    ids, clocks = set(), []
    for rank in range(3):
        folder = ddp / f"host{rank}"
        assert traces(folder) == [f"rank{rank}_iter2_3.trace.json.gz"]
        metadata = metadata_of(folder, traces(folder)[0])
        ids |= {metadata.run_id, read_rank_manifest(folder / f"ranks/rank{rank}.json").run_id}
        clocks.append(metadata.clock_anchors[0].wall_ns)
        assert (folder / "run.json").exists() == (rank == 0)
    ids.add(read_run_manifest(ddp / "host0" / "run.json").run_id)
    # One run: also with the captures before it, which are of the same job.
    ids.add(read_run_manifest(ddp / "shared" / "run.json").run_id)
    assert len(ids) == 1
    assert max(clocks) - min(clocks) < 600e9
    assert not list(ddp.rglob(".*"))


@pytest.mark.slow
def test_fsdp_profiles_only_the_selected_rank(fsdp):
    kind, folder = fsdp
    assert traces(folder) == ["rank1_iter2_3.trace.json.gz"]
    metadata = metadata_of(folder, "rank1_iter2_3.trace.json.gz")
    assert (metadata.world_size, metadata.device.type) == (2, "cpu")
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.json")) == [
        "hang/rank1.heartbeat.json", "ranks/rank1.json", "run.json",
    ]  # fmt: skip
    names = {e["name"] for e in read_trace(folder / "rank1_iter2_3.trace.json.gz")["traceEvents"]}
    prefix = "FSDP::" if kind == "fsdp2" else "FullyShardedDataParallel"
    assert any(name.startswith(prefix) for name in names)
    assert any("gather" in name for name in names)
    modules = metadata.parallelism
    assert {m["kind"] for m in modules} == {kind}
    width, vocabulary = 32, 512
    block = 2 * 2 * width + 4 * width * width + 4 * width * width * 2 + 4 * width + width
    root = (vocabulary + 16 + vocabulary) * width + 2 * width
    # A shard is half of it, with what evens it out.
    assert sorted(m["bytes"] for m in modules) == sorted([4 * block, 4 * root])
    for module in modules:
        assert module["bytes"] <= 2 * module["shard_bytes"] <= module["bytes"] + 16 * len(module["parameters"])
        assert {g.name: g.ranks for g in metadata.process_groups}[module["group"]] == (0, 1)
    called = {k["operation"] for k in metadata.collectives["kinds"] if k["caller"] == "python"}
    assert len(called) == 2
    assert any("gather" in name for name in called)
    assert any("scatter" in name for name in called)
    sizes = {k["bytes"] for k in metadata.collectives["kinds"] if "gather" in k["operation"]}
    assert sizes >= {2 * m["shard_bytes"] for m in modules}
