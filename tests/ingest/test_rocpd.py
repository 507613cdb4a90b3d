"""rocprofv3's databases, made after rocpd's schema 3, which rocprofiler-sdk publishes: no real file was to be had."""

from __future__ import annotations

import sqlite3
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
CREATE TABLE rocpd_info_process{u} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, ppid INTEGER, pid INTEGER);
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
CREATE VIEW rocpd_kernel_dispatch AS SELECT * FROM rocpd_kernel_dispatch{u};
"""
STRINGS = {
    1: "HIP_RUNTIME_API_EXT", 2: "MARKER_CORE_RANGE_API", 3: "KERNEL_DISPATCH", 4: "MEMORY_COPY",
    5: "hipLaunchKernel", 6: "roctxThreadRangeA", 7: "MEMORY_COPY_HOST_TO_DEVICE", 8: "HSA_CORE_API",
    9: "hsa_signal_create",
}  # fmt: skip


def database(path: Path, *, uuid: str = UUID) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(SCHEMA.format(u=uuid))

    def put(table: str, columns: str, *rows: tuple[object, ...]) -> None:
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f"INSERT INTO rocpd_{table}{uuid} ({columns}) VALUES ({marks})", rows)

    put("string", "id, string", *STRINGS.items())
    put("info_node", "id, hostname", (1, "frontier042"))
    put("info_process", "id, nid, pid", (1, 1, 5151))
    put("info_thread", "id, nid, pid, tid", (1, 1, 1, 5152))
    put("info_agent", "id, type, type_index, name, product_name",
        (1, "CPU", 0, "AMD EPYC", ""), (2, "GPU", 0, "gfx942", "AMD Instinct MI300X"))  # fmt: skip
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


def test_another_schema_is_an_error(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "x.db")
    connection.execute(
        "CREATE TABLE rocpd_kernel_dispatch_9 (id INTEGER PRIMARY KEY, track_id INTEGER, start_id INTEGER)"
    )
    connection.commit()
    connection.close()
    with pytest.raises(NotATraceError, match="unknown schema"):
        read_kineto(str(tmp_path / "x.db"))
