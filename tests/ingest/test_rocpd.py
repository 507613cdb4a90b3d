"""rocprofv3's databases, made after rocpd's schema 3, which rocprofiler-sdk publishes: no real file was to be had."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import rankscope
from rankscope.errors import NotATraceError
from rankscope.ingest.kineto import read_kineto

UUID = "_00001f2e_7a9c_4b55"
# The columns that rocprofv3 fills, in the schema's order; foreign keys are left out.
SCHEMA = """
CREATE TABLE rocpd_string{u} (id INTEGER PRIMARY KEY, guid TEXT, string TEXT NOT NULL);
CREATE TABLE rocpd_info_node{u} (id INTEGER PRIMARY KEY, guid TEXT, hash BIGINT, machine_id TEXT, hostname TEXT);
CREATE TABLE rocpd_info_process{u} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, ppid INTEGER, pid INTEGER,
  command TEXT, environment JSONB DEFAULT '{{}}' NOT NULL, extdata JSONB DEFAULT '{{}}' NOT NULL);
CREATE TABLE rocpd_info_thread{u} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, ppid INTEGER, pid INTEGER,
  tid INTEGER);
CREATE TABLE rocpd_info_agent{u} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER, type TEXT,
  absolute_index INTEGER, logical_index INTEGER, type_index INTEGER, name TEXT, product_name TEXT);
CREATE TABLE rocpd_info_kernel_symbol{u} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER,
  code_object_id INTEGER, kernel_name TEXT, display_name TEXT);
CREATE TABLE rocpd_event{u} (id INTEGER PRIMARY KEY, guid TEXT, category_id INTEGER, stack_id INTEGER,
  parent_stack_id INTEGER, correlation_id INTEGER, extdata JSONB DEFAULT '{{}}' NOT NULL);
CREATE TABLE rocpd_region{u} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER, start BIGINT,
  end BIGINT, name_id INTEGER, event_id INTEGER);
CREATE TABLE rocpd_kernel_dispatch{u} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER,
  agent_id INTEGER, kernel_id INTEGER, dispatch_id INTEGER, queue_id INTEGER, stream_id INTEGER, start BIGINT,
  end BIGINT, private_segment_size INTEGER, group_segment_size INTEGER, workgroup_size_x INTEGER,
  workgroup_size_y INTEGER, workgroup_size_z INTEGER, grid_size_x INTEGER, grid_size_y INTEGER, grid_size_z INTEGER,
  event_id INTEGER);
CREATE TABLE rocpd_memory_copy{u} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER,
  start BIGINT, end BIGINT, name_id INTEGER, dst_agent_id INTEGER, src_agent_id INTEGER, size INTEGER, queue_id INTEGER,
  stream_id INTEGER, event_id INTEGER);
CREATE VIEW IF NOT EXISTS rocpd_kernel_dispatch AS SELECT * FROM rocpd_kernel_dispatch{u};
"""
STRINGS = {
    1: "HIP_RUNTIME_API_EXT", 2: "MARKER_CORE_RANGE_API", 3: "KERNEL_DISPATCH", 4: "MEMORY_COPY",
    5: "hipLaunchKernel", 6: "roctxThreadRangeA", 7: "MEMORY_COPY_HOST_TO_DEVICE", 8: "HSA_CORE_API",
    9: "hsa_signal_create",
}  # fmt: skip


def database(
    path: Path, *, uuid: str = UUID, pid: int = 5151, device: int = 0, environment: dict[str, object] | None = None
) -> Path:
    """The tables of one process; a file that is there gets them as well, as `rocpd merge` does."""
    connection = sqlite3.connect(path)
    connection.executescript(SCHEMA.format(u=uuid))

    def put(table: str, columns: str, *rows: tuple[object, ...]) -> None:
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f"INSERT INTO rocpd_{table}{uuid} ({columns}) VALUES ({marks})", rows)

    put("string", "id, string", *STRINGS.items())
    put("info_node", "id, hostname", (1, "frontier042"))
    put("info_process", "id, nid, pid, environment", (1, 1, pid, json.dumps(environment or {})))
    put("info_thread", "id, nid, pid, tid", (1, 1, 1, 5152))
    put("info_agent", "id, type, type_index, name, product_name",
        (1, "CPU", 0, "AMD EPYC", ""), (2, "GPU", device, "gfx942", "AMD Instinct MI300X"))  # fmt: skip
    put("info_kernel_symbol", "id, kernel_name, display_name", (9, "_Z4gemmPf.kd", "gemm(float*)"))
    at = 5_000_000_000_000
    put("event", "id, category_id, stack_id, extdata",
        (1, 1, 71, "{}"), (2, 2, 72, '{"message": "iteration 4"}'), (3, 3, 71, "{}"), (4, 4, 73, "{}"),
        (5, 8, 74, "{}"))  # fmt: skip
    put("region", "pid, tid, start, end, name_id, event_id",
        (1, 1, at + 100, at + 201, 5, 1), (1, 1, at, at + 9_000, 6, 2), (1, 1, at + 110, at + 120, 9, 5))  # fmt: skip
    put("kernel_dispatch",
        "agent_id, kernel_id, queue_id, stream_id, start, end, group_segment_size, workgroup_size_x, workgroup_size_y, "
        "workgroup_size_z, grid_size_x, grid_size_y, grid_size_z, event_id",
        (2, 9, 3, 0, at + 500, at + 4_503, 512, 64, 1, 1, 256, 2, 1, 3))  # fmt: skip
    put("memory_copy", "start, end, name_id, dst_agent_id, src_agent_id, size, queue_id, stream_id, event_id",
        (at + 300, at + 400, 7, 2, 1, 1024, None, 0, 4))  # fmt: skip
    connection.commit()
    connection.close()
    return path


def test_tables_are_those_of_a_trace(tmp_path: Path) -> None:
    trace = read_kineto(str(database(tmp_path / "5151_results.db")))
    at = 5_000_000_000_000
    copy, kernel = trace.tables["device_events"].iter_rows(named=True)
    assert (copy["name"], copy["start_ns"], copy["end_ns"], copy["bytes"]) == ("Memcpy HtoD", at + 300, at + 400, 1024)
    assert (kernel["name"], kernel["start_ns"], kernel["end_ns"]) == ("gemm(float*)", at + 500, at + 4_503)
    assert (kernel["stream"], kernel["device"], kernel["grid"], kernel["block"]) == (3, 0, "[4,2,1]", "[64,1,1]")
    assert (kernel["launch_ns"], kernel["shared_memory"]) == (at + 100, 512)
    calls = trace.tables["runtime_calls"]
    assert calls.select("name", "pid", "tid").rows() == [
        ("hipLaunchKernel", 5151, 5152),
        ("hsa_signal_create", 5151, 5152),
    ]
    assert trace.tables["annotations"].select("name", "step").rows() == [("ProfilerStep#4", 4)]


def test_a_run_of_two_ranks(tmp_path: Path, shared_cache: Path) -> None:
    for rank in (0, 1):
        database(tmp_path / f"rank{rank}_results.db", uuid=f"{UUID}{rank}")
    run = rankscope.open(tmp_path, executor="serial")
    assert run.ranks == [0, 1]
    assert (run.about()["hosts"], run.about()["devices"]) == (["frontier042"], ["AMD Instinct MI300X"])
    steps = run.step_time()
    assert steps.select("step", "compute_ns", "exposed_memcpy_ns").rows() == [(4, 4_003, 100)] * 2


def test_a_name_that_is_no_text_is_left_out(tmp_path: Path) -> None:
    path = database(tmp_path / "x.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE rocpd_info_agent{UUID} SET product_name = x'00ff'")
        connection.commit()
    devices = read_kineto(str(path)).metadata["deviceProperties"]
    assert devices == [{"id": 0, "name": "gfx942"}]


def test_another_schema_is_an_error(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "x.db")
    connection.execute(
        "CREATE TABLE rocpd_kernel_dispatch_9 (id INTEGER PRIMARY KEY, track_id INTEGER, start_id INTEGER)"
    )
    connection.commit()
    connection.close()
    with pytest.raises(NotATraceError, match="unknown schema"):
        read_kineto(str(tmp_path / "x.db"))


def test_every_process_of_a_merged_database_is_a_rank(tmp_path: Path, shared_cache: Path) -> None:
    for number, device in enumerate((1, 0)):
        database(tmp_path / "merged.db", uuid=f"{UUID}{number}", pid=60 + number, device=device)
    run = rankscope.open(tmp_path, executor="serial")
    assert run.ranks == [0, 1]
    # In the order of the devices.
    assert [trace.pid for trace in run.traces] == [61, 60]
    assert "rank-guessed" in {finding.id for finding in run.findings}
    assert run.kernels().select("rank", "calls").rows() == [(0, 1), (0, 1), (1, 1), (1, 1)]  # a kernel and a copy each


def test_the_rank_is_that_of_the_environment(tmp_path: Path, shared_cache: Path) -> None:
    for rank in (0, 1):
        environment = {"RANK": str(1 - rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(1 - rank)}
        database(tmp_path / "merged.db", uuid=f"{UUID}{rank}", pid=60 + rank, device=rank, environment=environment)
    slurm = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}
    database(tmp_path / "other.db", uuid=UUID, pid=70, environment=slurm)
    run = rankscope.open(tmp_path, executor="serial")
    assert [(trace.rank, trace.pid) for trace in run.traces] == [(0, 61), (1, 60), (3, 70)]
    assert run.missing_ranks == [2]
    assert "rank-guessed" not in {finding.id for finding in run.findings}


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "9", "WORLD_SIZE": "4"},
        {"RANK": "x", "WORLD_SIZE": "4"},
        {"RANK": 1, "WORLD_SIZE": [4]},
        {"RANK": "0", "WORLD_SIZE": "2", "PMI_RANK": "1", "PMI_SIZE": "2"},
    ],
)
def test_an_environment_that_contradicts_itself_is_left_alone(tmp_path: Path, environment: dict[str, object]) -> None:
    trace = read_kineto(str(database(tmp_path / "x.db", environment=environment)))
    assert "distributedInfo" not in trace.metadata
    assert trace.tables["device_events"].height == 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_no_file_that_the_environment_names_is_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "nodes"
    os.mkfifo(pipe)  # opening it would wait for ever
    variables = {"PALS_RANKID": "1", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "2", "PBS_NODEFILE": str(pipe)}
    trace = read_kineto(str(database(tmp_path / "x.db", environment=dict(variables))))
    assert trace.metadata["distributedInfo"] == {"rank": 1, "world_size": None}
