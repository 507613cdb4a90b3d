"""Exports of Nsight Systems, made here after NVIDIA's published SQLite schema: no real file was to be had.

The columns and types are those of the "SQLite Export Schema Reference": of each table those that are read, and more.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from random import Random
from typing import Any

import pytest

import rankscope
from rankscope.engine.pipeline import Run
from rankscope.errors import NotATraceError, OtherTraceError, TraceError
from rankscope.ingest import sqlite_trace
from rankscope.ingest.discover import find_traces
from rankscope.ingest.kineto import read_kineto

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT);
CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, totalMemory INTEGER, smCount INTEGER, computeMajor INTEGER,
  computeMinor INTEGER, pwGpuId INTEGER);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value TEXT);
CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL, uuid TEXT);
CREATE TABLE MPI_RANKS (globalTid INTEGER NOT NULL, rank INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
  globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, gridX INTEGER NOT NULL,
  gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,
  blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
  registersPerThread INTEGER, graphNodeId INTEGER, graphId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
  globalPid INTEGER, graphId INTEGER NOT NULL, graphExecId INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER,
  globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
  text TEXT, globalTid INTEGER, textId INTEGER, domainId INTEGER);
"""
EPOCH = 1_764_000_000_123_456_789
NAMES = {
    1: "void gemm<float>(float const*)", 2: "gemm", 3: "cudaLaunchKernel_v7000", 4: "cuLaunchKernelEx",
    5: "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 6: "ncclDevKernel_AllReduce",
    7: "forward", 8: "cudaMemcpyAsync_v3020",
}  # fmt: skip


def process(pid: int) -> int:
    """A serialized process: a flag in bit 48, as real files have it, above 24 bits each of process and thread."""
    return 1 << 48 | pid << 24


def export(path: Path, *, pid: int = 4242, rank: int | None = 3, late: int = 0, device: int = 0) -> Path:
    """Two steps of a rank: each a copy, a kernel, a fill and a collective. One that exists gets another process."""
    first = not path.exists()
    database = sqlite3.connect(path)
    if first:
        database.executescript(SCHEMA)

    def put(table: str, *rows: dict[str, Any]) -> None:
        for row in rows:
            columns = ", ".join(f'"{name}"' for name in row)
            marks = ", ".join("?" * len(row))
            database.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", list(row.values()))

    if first:
        put("StringIds", *({"id": key, "value": value} for key, value in NAMES.items()))
        put("TARGET_INFO_GPU", {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalMemory": 85_000_000_000, "smCount": 132,
                                "computeMajor": 9, "computeMinor": 0})  # fmt: skip
        put("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": EPOCH, "utcTime": "x", "localTime": "x"})
        put("TARGET_INFO_SYSTEM_ENV", {"name": "Hostname", "value": "node7"}, {"name": "Secret", "value": "token"})
    thread = process(pid) | 77
    if rank is not None:
        put("MPI_RANKS", {"globalTid": thread, "rank": rank})
    for step in (0, 1):
        at = 1_000_000_000 + step * 1_000_003 + late
        put("NVTX_EVENTS",
            {"start": at, "end": at + 900_001, "eventType": 59, "text": f"step {step + 5}", "globalTid": thread},
            {"start": at + 10, "end": at + 400_000, "eventType": 59, "textId": 7, "globalTid": thread},
            {"start": at + 20, "end": at + 300_000, "eventType": 59, "globalTid": thread,
             "text": "aten::mm, seq = 41, op_id = 9, sizes = [[2, 2], [2, 2]]"},
            {"start": at + 30, "end": None, "eventType": 34, "text": "mark", "globalTid": thread})  # fmt: skip
        launches = [(100_000, 3, 11), (200_000, 8, 12), (310_000, 4, 13)]
        for offset, name, correlation in launches:
            put("CUPTI_ACTIVITY_KIND_RUNTIME",
                {"start": at + offset, "end": at + offset + 5_001, "globalTid": thread, "nameId": name,
                 "correlationId": correlation + 10 * step, "returnValue": 0})  # fmt: skip
        on_device = {"deviceId": device, "contextId": 1, "globalPid": process(pid)}
        block = {"gridX": 8, "gridY": 2, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1, "staticSharedMemory": 16,
                 "dynamicSharedMemory": 32, "registersPerThread": 64}  # fmt: skip
        put("CUPTI_ACTIVITY_KIND_KERNEL",
            {"start": at + 150_000, "end": at + 350_007, "streamId": 7, "correlationId": 11 + 10 * step,
             "demangledName": 1, "shortName": 2, **on_device, **block},
            {"start": at + 400_000, "end": at + 600_000, "streamId": 20, "correlationId": 13 + 10 * step,
             "demangledName": 5, "shortName": 6, **on_device, **block})  # fmt: skip
        put("CUPTI_ACTIVITY_KIND_MEMCPY",
            {"start": at + 210_000, "end": at + 260_000, "streamId": 7, "correlationId": 12 + 10 * step,
             "bytes": 4096, "copyKind": 1, **on_device})  # fmt: skip
        put("CUPTI_ACTIVITY_KIND_MEMSET",
            {"start": at + 700_000, "end": at + 700_500, "streamId": 7, "bytes": 64, **on_device})  # fmt: skip
    database.commit()
    database.close()
    return path


def test_tables_are_those_of_a_trace(tmp_path: Path) -> None:
    trace = read_kineto(str(export(tmp_path / "r.sqlite")))
    at = 1_000_000_000
    device = trace.tables["device_events"]
    assert device.select("start_ns", "end_ns", "name", "kind", "stream", "correlation", "bytes").rows()[:4] == [
        (at + 150_000, at + 350_007, NAMES[1], "kernel", 7, 11, None),
        (at + 210_000, at + 260_000, "Memcpy HtoD", "memcpy", 7, 12, 4096),
        (at + 400_000, at + 600_000, NAMES[5], "kernel", 20, 13, None),
        (at + 700_000, at + 700_500, "Memset", "memset", 7, None, 64),
    ]
    first = device.row(0, named=True)
    assert (first["grid"], first["block"], first["registers"], first["shared_memory"]) == (
        "[8,2,1]",
        "[128,1,1]",
        64,
        48,
    )
    assert first["launch_ns"] == at + 100_000
    calls = trace.tables["runtime_calls"]
    assert calls["name"].to_list()[:3] == ["cudaLaunchKernel", "cudaMemcpyAsync", "cuLaunchKernelEx"]
    assert calls.select("pid", "tid").unique().rows() == [(4242, 77)]
    ranges = trace.tables["annotations"].select("name", "step", "start_ns", "end_ns").rows()
    assert ranges[:2] == [("ProfilerStep#5", 5, at, at + 900_001), ("forward", None, at + 10, at + 400_000)]
    operators = trace.tables["host_ops"].select("name", "sequence", "depth").rows()
    assert operators == [("aten::mm", 41, 0)] * 2
    assert trace.metadata["baseTimeNanoseconds"] == EPOCH
    assert "token" not in str(trace.metadata)


def test_ranks_of_several_files_are_one_run(tmp_path: Path, shared_cache: Path) -> None:
    for rank in (0, 1):
        export(tmp_path / f"report{rank}.sqlite", pid=100 + rank, rank=rank, late=rank * 50_000)
    (tmp_path / "settings.db").write_bytes(b"SQLite format 3\0" + bytes(84))
    run = rankscope.open(tmp_path, executor="serial")
    assert run.ranks == [0, 1]
    assert run.about()["devices"] == ["NVIDIA H100 80GB HBM3"]
    assert run.about()["hosts"] == ["node7"]
    steps = run.step_time()
    assert steps.select("rank", "step").rows() == [(0, 5), (0, 6), (1, 5), (1, 6)]
    # 200,007 ns of the kernel and 200,000 of the collective, apart in time.
    assert steps["compute_ns"].to_list() == [200_007] * 4
    assert steps["exposed_communication_ns"].to_list() == [200_000] * 4
    assert run.kernels()["calls"].sum() == 16


def add_copy(path: Path, pid: int) -> None:
    """A process that only copies, such as a helper."""
    database = sqlite3.connect(path)
    database.execute(
        "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, contextId, streamId, globalPid, bytes, copyKind)"
        " VALUES (1, 2, 0, 1, 7, ?, 1, 1)", (process(pid),)
    )  # fmt: skip
    database.commit()
    database.close()


def test_a_process_without_kernels_is_reported(tmp_path: Path, shared_cache: Path) -> None:
    path = export(tmp_path / "all.sqlite", pid=5, rank=None)
    add_copy(path, 6)
    run = rankscope.open(path, executor="serial").load()
    (found,) = [finding for finding in run.findings if finding.id == "archive-holds-more"]
    assert found.title == "all.sqlite holds 1 more process with events: not read"
    assert read_kineto(str(path)).tables["device_events"].height == 8


def two_nodes(folder: Path, *, ranks: bool) -> Path:
    """A report per node, each of two processes, as `nsys profile torchrun` makes them; and a helper that copies."""
    folder.mkdir()
    for node in (0, 1):
        # The process with the lower id uses the higher device.
        for local, pid in ((0, 900), (1, 300)):
            rank = 3 - (2 * node + local) if ranks else None
            export(folder / f"node{node}.sqlite", pid=pid, rank=rank, late=10_000 * (2 * node + local), device=local)
    add_copy(folder / "node0.sqlite", 7)
    return folder


def started(run: Run) -> dict[int, int | None]:
    """When each rank began: its place in the file is known by that."""
    return {rank: traces[0].info.start_ns for rank, traces in run.loaded.ranks.items()}


def test_every_process_of_a_report_is_a_rank(tmp_path: Path, shared_cache: Path) -> None:
    run = rankscope.open(two_nodes(tmp_path / "reports", ranks=False), executor="serial")
    assert run.ranks == [0, 1, 2, 3]
    # By node, and on it by device.
    begun = started(run)
    assert [begun[rank] - begun[0] for rank in run.ranks] == [0, 10_000, 20_000, 30_000]
    assert [trace.pid for trace in run.traces] == [900, 300, 900, 300]
    titles = {finding.id: finding.title for finding in run.findings}
    assert titles["rank-guessed"].endswith("processes in one file in the order of their devices")
    assert titles["archive-holds-more"] == "node0.sqlite holds 1 more process with events: not read"
    steps = run.step_time()
    assert steps.select("rank", "step").rows() == [(rank, step) for rank in range(4) for step in (5, 6)]
    assert steps["compute_ns"].to_list() == [200_007] * 8
    calls = run.sql("SELECT rank, pid, count(*) AS n FROM runtime_calls GROUP BY rank, pid ORDER BY rank")
    assert calls.rows() == [(0, 900, 6), (1, 300, 6), (2, 900, 6), (3, 300, 6)]


def test_recorded_ranks_of_processes_are_used(tmp_path: Path, shared_cache: Path) -> None:
    folder = two_nodes(tmp_path / "reports", ranks=True)
    run = rankscope.open(folder, executor="serial")
    begun = started(run)
    assert [begun[rank] - begun[3] for rank in run.ranks] == [30_000, 20_000, 10_000, 0]
    assert "rank-guessed" not in {finding.id for finding in run.findings}
    node = rankscope.open(folder / "node0.sqlite", executor="serial")
    assert (node.name, node.ranks) == ("node0.sqlite", [2, 3])
    alone = rankscope.open(node.traces[1].path, executor="serial")
    assert (alone.ranks, alone.traces[0].pid) == ([3], 900)
    # The same files: from the cache, which tells the processes apart.
    assert started(rankscope.open(folder, executor="serial")) == begun


def test_the_processes_of_a_file_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_trace, "_MAX_RANKS", 3)
    path = tmp_path / "many.sqlite"
    for pid in (1, 2, 3, 4, 5):
        export(path, pid=pid, rank=None)
    assert [Path(each).name for each in find_traces(path).traces] == [f"many.sqlite#process{n}" for n in range(3)]
    assert [read_kineto(f"{path}#process{n}").others for n in range(3)] == [2, 0, 0]
    with pytest.raises(TraceError, match="3 processes with kernels"):
        read_kineto(f"{path}#process3")


def test_gpus_are_those_of_the_machine(tmp_path: Path, shared_cache: Path) -> None:
    """Each process sees one GPU, which it calls 0."""
    path = tmp_path / "node.sqlite"
    for pid in (11, 12):
        export(path, pid=pid, rank=None)
    database = sqlite3.connect(path)
    database.executemany(
        "INSERT INTO TARGET_INFO_CUDA_DEVICE (gpuId, cudaId, pid) VALUES (?, 0, ?)", [(1, 11), (0, 12)]
    )
    database.commit()
    database.close()
    run = rankscope.open(path, executor="serial")
    assert [trace.pid for trace in run.traces] == [12, 11]


def test_a_file_that_is_named_after_a_rank_is_that_rank(tmp_path: Path, shared_cache: Path) -> None:
    """Its other process is a helper that ran a kernel or two, such as one that tunes kernels."""
    path = export(tmp_path / "report.rank3.sqlite", pid=5, rank=None)
    database = sqlite3.connect(path)
    database.execute(
        "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end, deviceId, contextId, streamId, globalPid, graphId,"
        " graphExecId) VALUES (1, 2, 0, 1, 7, ?, 1, 1)", (process(6),)
    )  # fmt: skip
    database.commit()
    database.close()
    run = rankscope.open(tmp_path, executor="serial").load()
    assert run.ranks == [3]
    assert [trace.pid for trace in run.traces] == [5]
    assert "archive-holds-more" in {finding.id for finding in run.findings}


def test_a_graph_that_was_recorded_as_a_whole_is_a_kernel(tmp_path: Path) -> None:
    """By default, Nsight Systems records no kernels of CUDA graphs, but how long each graph ran."""
    path = export(tmp_path / "r.sqlite")
    database = sqlite3.connect(path)
    database.execute(
        "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end, deviceId, contextId, streamId, correlationId,"
        " globalPid, graphId, graphExecId) VALUES (1001500000, 1001700000, 0, 1, 7, 11, ?, 4, 5)", (process(4242),)
    )  # fmt: skip
    database.commit()
    database.close()
    events = read_kineto(str(path)).tables["device_events"]
    graph = events.filter(events["name"] == "CUDA graph 4").row(0, named=True)
    assert (graph["kind"], graph["graph_id"]) == ("kernel", 4)
    assert (graph["start_ns"], graph["end_ns"]) == (1_001_500_000, 1_001_700_000)
    assert graph["launch_ns"] == 1_000_100_000


@pytest.mark.parametrize("value", ["'soon'", "NULL", "1e300", "x'00ff'", "9223372036854775807"])
def test_values_of_any_type_lose_their_event_only(tmp_path: Path, value: str) -> None:
    path = tmp_path / "odd.sqlite"
    database = sqlite3.connect(path)
    database.executescript(SCHEMA.replace(" NOT NULL", "").replace(" INTEGER", ""))
    columns = "start, end, deviceId, streamId, demangledName, gridX"
    database.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL ({columns}) VALUES (1000, 2000, 0, 7, 1, 1)")
    database.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL ({columns}) VALUES ({', '.join([value] * 6)})")
    database.execute(
        f"INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid) VALUES ({', '.join([value] * 5)})"
    )
    database.commit()
    database.close()
    trace = read_kineto(str(path))
    assert trace.tables["device_events"]["start_ns"].to_list() == [1000]
    assert trace.losses.events >= 1


@pytest.mark.parametrize("tables", ["all, empty", "none"])
def test_a_report_without_cuda_events_says_how_to_record_them(tmp_path: Path, tables: str) -> None:
    path = tmp_path / "report.sqlite"
    database = sqlite3.connect(path)
    database.executescript(SCHEMA if tables != "none" else "CREATE TABLE StringIds (id INTEGER, value TEXT)")
    database.execute("CREATE TABLE IF NOT EXISTS META_DATA_EXPORT (name TEXT, value TEXT)")
    database.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_NAME', 'NVIDIA Nsight Systems')")
    database.commit()
    database.close()
    with pytest.raises(OtherTraceError) as error:
        rankscope.open(path, executor="serial").load()
    assert error.value.what == "a Nsight Systems report without CUDA events"
    assert "--trace=cuda,nvtx" in (error.value.hint or "")
    export(tmp_path / "report.rank0.sqlite", rank=None)
    (left_out,) = rankscope.open(tmp_path, executor="serial").load().findings
    assert (left_out.id, left_out.severity) == ("not-a-trace", "warning")
    assert left_out.title == (
        "report.sqlite is not a trace that rankscope reads and was left out: a Nsight Systems report without CUDA "
        "events"
    )
    assert "--trace=cuda,nvtx" in left_out.advice


def test_views_and_virtual_tables_are_not_run(tmp_path: Path) -> None:
    path = tmp_path / "views.sqlite"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    database.execute(
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(start) AS "
        "(SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT start, start AS end FROM n"
    )
    database.commit()
    database.close()
    with pytest.raises(NotATraceError, match="not one of Nsight Systems or rocprofv3: it has 'StringIds'"):
        read_kineto(str(path))


def test_text_that_is_not_utf8_is_replaced(tmp_path: Path) -> None:
    path = export(tmp_path / "r.sqlite")
    database = sqlite3.connect(path)
    database.execute("UPDATE StringIds SET value = CAST(x'67ff656d6d' AS TEXT) WHERE id = 1")
    database.commit()
    database.close()
    assert read_kineto(str(path)).tables["device_events"]["name"][0] == "g\ufffdemm"


@pytest.mark.parametrize("seed", range(20))
def test_flipped_bytes_give_a_trace_or_an_error_with_a_name(tmp_path: Path, seed: int) -> None:
    path = export(tmp_path / "r.sqlite")
    random, data = Random(seed), bytearray(path.read_bytes())
    for _ in range(1 + seed):
        data[random.randrange(4, len(data))] = random.randrange(256)
    path.write_bytes(data)
    try:
        trace = read_kineto(str(path))
    except TraceError as error:
        assert "r.sqlite" in str(error)
    else:
        assert trace.tables["device_events"].height <= 8


def test_damage_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = export(tmp_path / "r.sqlite")
    whole = path.read_bytes()
    for cut in (100, 4096, len(whole) // 2):
        path.write_bytes(whole[:cut])
        with pytest.raises(TraceError, match=r"r\.sqlite"):
            read_kineto(str(path))
