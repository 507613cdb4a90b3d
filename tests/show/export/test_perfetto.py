"""A run for Perfetto: counts, times and arrows as Perfetto's schema, and its own trace processor, read them."""

from __future__ import annotations

import gzip
import json
import random
import zipfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests import kineto
from tests.conftest import SHARED_TRACES
from tests.ingest.test_nsight import export
from tests.show.export.trace_processor import needs_trace_processor, query

import rankscope
from rankscope.engine.pipeline import Run
from rankscope.errors import ConfigError, NotATraceError
from rankscope.experiments.simulate.job import Job, Recording
from rankscope.experiments.simulate.run import simulate
from rankscope.ingest.kineto import read_kineto
from rankscope.show.export.perfetto import write_archive, write_merged
from rankscope.show.export.perfetto.archive import MANIFEST
from rankscope.show.export.perfetto.lanes import lanes_of

Slices = Counter[tuple[str, str, int, int]]
Arrows = Counter[tuple[int, int]]
TABLES = ("device_events", "host_ops", "runtime_calls", "annotations", "python_frames", "other_events")
HOSTILE = 'k"},\n\x1b[31m</script>\ud800é'


def write_run(folder: Path) -> Run:
    """Two ranks whose clocks differ by 5 ms, with names of every kind."""
    for rank in range(2):
        events = [kineto.event("mark", -3 - rank, ph="i", s="g")]
        for number in range(6):
            at = 1000 * number + 5000 * rank
            late = 40 * number % 100 if rank else 0
            events += [
                kineto.step(number, at, 900),
                kineto.op("aten::mm", at + 30, 20, external=10 + number),
                kineto.launch(at + 35, 3, correlation=20 + number, external=10 + number),
                kineto.kernel(HOSTILE, at + 50, 200, correlation=20 + number, external=10 + number),
                kineto.kernel("crosses", at + 100, 200, correlation=90 + number),
                kineto.launch(at + 301, 2, correlation=40 + number),
                kineto.collective(at + 410 + late, 100 - late, correlation=40 + number, sequence=number),
                kineto.event("ac2g", at + 35, ph="s", id=20 + number, cat="ac2g"),
                kineto.event("ac2g", at + 50, ph="f", id=20 + number, cat="ac2g", pid=0, tid=7, bp="e"),
            ]
        content = kineto.trace(events, rank=rank, world_size=2, traceName="/home/alice/secret/rank.json")
        kineto.write(folder / f"rank{rank}.json.gz", content)
    return rankscope.open(folder, executor="serial")


def expected(run: Run) -> tuple[Slices, Arrows]:
    """Process, name, begin and duration of all ranges, and begin and end of the files' arrows: with the times that the
    analysis `clock` defines, from the earliest range on."""
    clock = {row["rank"]: row for row in run.clock().iter_rows(named=True)}
    slices: list[tuple[str, str, int, int]] = []
    arrows: list[tuple[int, int]] = []
    for rank, traces in run.loaded.ranks.items():
        own, mesh = clock[rank], traces[0].info.mesh
        place = " ".join(f"{name}{index}" for name, index in mesh.items())

        def common(time: int, base: int, own: dict[str, Any] = own) -> int:
            wall = time + base
            return int(wall + own["offset_ns"] + round((own["drift_ppm"] or 0.0) * 1e-6 * (wall - own["at_ns"])))

        for trace in traces:
            base = trace.info.base_time_ns
            process = f"rank {rank} ({place})" if place else f"rank {rank}"
            for name in TABLES:
                table = trace.load(name)
                if name == "other_events":
                    table = table.filter(~pl.col("phase").is_in(["i", "I"]))
                for start, end, what in table.select("start_ns", "end_ns", "name").iter_rows():
                    begins = common(start, base)
                    slices.append((process, what, begins, max(0, common(end, base) - begins)))
            flows = trace.load("flows")
            starts = {
                (row["category"], row["id"]): row for row in flows.filter(pl.col("phase") == "s").iter_rows(named=True)
            }
            for row in flows.filter(pl.col("phase") == "f").iter_rows(named=True):
                if (start := starts.get((row["category"], row["id"]))) is not None:
                    arrows.append((common(start["time_ns"], base), common(row["time_ns"], base)))
    first = min(begins for _, _, begins, _ in slices)
    return (
        Counter((process, name, begins - first, length) for process, name, begins, length in slices),
        Counter((begins - first, ends - first) for begins, ends in arrows),
    )


def shifted(slices: list[tuple[str, str, int, int]], arrows: list[tuple[int, int]]) -> tuple[Slices, Arrows]:
    """From the earliest slice of a rank on, without the findings."""
    of_ranks = [each for each in slices if each[0] != "rankscope: findings"]
    first = min(begins for _, _, begins, _ in of_ranks)
    return (
        Counter((process, name, begins - first, length) for process, name, begins, length in of_ranks),
        Counter((begins - first, ends - first) for begins, ends in arrows),
    )


def plain(slices: Slices) -> Slices:
    """With what UTF-8 cannot express as `?`."""
    return Counter({(p, n.encode("utf-8", "replace").decode(), b, d): count for (p, n, b, d), count in slices.items()})


def by_schema(path: Path) -> tuple[list[tuple[str, str, int, int]], list[tuple[int, int]]]:
    """The slices and arrows of a `.pftrace`, decoded with Perfetto's classes and paired track by track."""
    pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace = pb.Trace.FromString(path.read_bytes())
    names: dict[int, str] = {}
    processes: dict[int, str] = {}
    parents: dict[int, int] = {}
    slices, opened, flows = [], dict[int, list[Any]](), dict[int, list[int]]()
    packets = [packet for packet in trace.packet if packet.HasField("track_event")]
    for packet in trace.packet:
        descriptor = packet.track_descriptor
        if descriptor.HasField("process"):
            processes[descriptor.uuid] = descriptor.process.process_name
        elif packet.HasField("track_descriptor"):
            parents[descriptor.uuid] = descriptor.parent_uuid
        for entry in packet.interned_data.event_names:
            names[entry.iid] = entry.name
    for packet in sorted(packets, key=lambda packet: packet.timestamp):  # stable, as the trace processor's
        event = packet.track_event
        stack = opened.setdefault(event.track_uuid, [])
        if event.type == 1:
            stack.append((packet.timestamp, names[event.name_iid]))
            for flow in event.flow_ids:
                flows.setdefault(flow, []).append(packet.timestamp)
        elif event.type == 2:
            begins, name = stack.pop()
            slices.append((processes[parents[event.track_uuid]], name, begins, packet.timestamp - begins))
    assert not any(opened.values()), "every slice has an end"
    return slices, [pair for times in flows.values() for pair in pairwise(times)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write_run(tmp_path_factory.mktemp("run"))


def test_merged_by_perfettos_schema(run: Run, tmp_path: Path) -> None:
    written = write_merged(run, tmp_path / "run.pftrace")
    slices, arrows = expected(run)
    found, found_arrows = shifted(*by_schema(tmp_path / "run.pftrace"))
    assert found == plain(slices)
    assert written.slices == slices.total()
    assert (written.arrows, written.collectives, written.instants) == (12, 6, 2)
    assert written.lanes == 2  # the kernels that cross, on each rank
    between = found_arrows - arrows
    assert found_arrows.total() == 18
    assert between.total() == 6
    # Ranks arrive by the delays of rank 1 after one another, and the clocks' 5 ms are gone.
    assert sorted(ends - begins for begins, ends in between) == sorted(
        1000 * (40 * number % 100) for number in range(6)
    )


def test_json_holds_the_same(run: Run, tmp_path: Path) -> None:
    write_merged(run, tmp_path / "run.pftrace")
    write_merged(run, tmp_path / "run.json.gz")
    events = json.loads(gzip.decompress((tmp_path / "run.json.gz").read_bytes()))["traceEvents"]
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    slices = [
        (processes[event["pid"]], event["name"], round(event["ts"] * 1000), round(event["dur"] * 1000))
        for event in events
        if event["ph"] == "X"
    ]
    by_id: dict[int, list[tuple[int, str]]] = {}
    for event in events:
        if event["ph"] in "stf":
            by_id.setdefault(event["id"], []).append((round(event["ts"] * 1000), event["ph"]))
    assert all(sorted(phase for _, phase in ends) == ["f", "s"] for ends in by_id.values())
    arrows = [(begins, ends) for ((begins, _), (ends, _)) in map(sorted, by_id.values())]
    found = shifted(slices, arrows)
    assert (plain(found[0]), found[1]) == shifted(*by_schema(tmp_path / "run.pftrace"))


def test_findings_have_a_track(run: Run, tmp_path: Path) -> None:
    written = write_merged(run, tmp_path / "run.pftrace")
    titles = {finding.title for finding in run.diagnose()}
    slices, _ = by_schema(tmp_path / "run.pftrace")
    shown = [name for process, name, _, _ in slices if process == "rankscope: findings"]
    assert titles
    assert set(shown) >= titles
    assert written.findings == len(shown)


def test_archive_places_every_file_on_one_clock(run: Run, tmp_path: Path) -> None:
    """The manifest by the rules of its reference page: times plus offsets are those of the merged trace."""
    written = write_archive(run, tmp_path / "run.zip")
    assert (written.files, written.aligned, written.cut, written.drifts) == (2, True, [], {})
    slices: list[tuple[str, str, int, int]] = []
    with zipfile.ZipFile(tmp_path / "run.zip") as archive:
        assert archive.testzip() is None
        for entry in archive.infolist():  # what Perfetto's reader of zip files supports
            assert entry.extract_version <= 20
            assert entry.flag_bits == 0
        text = archive.read(MANIFEST).decode()
        assert "".join(text.split()).startswith('{"perfetto_manifest"')
        manifest = json.loads(text)["perfetto_manifest"]
        assert manifest["version"] == 1
        paths = [file["path"] for file in manifest["files"]]
        assert sorted([*paths, MANIFEST]) == sorted(archive.namelist())
        references = [file for file in manifest["files"] if "clocks" not in file]
        assert len(references) == 1
        for file in manifest["files"]:
            clocks = file.get("clocks", {"offset_ns": 0, "sync_to": {"file": references[0]["path"]}})
            assert clocks["sync_to"] == {"file": references[0]["path"]}
            content = json.loads(archive.read(file["path"]).decode("utf-8", "replace"))  # as the reader repairs it
            assert content["traceName"] == file["path"]
            for event in content["traceEvents"]:
                time = round(event.get("ts", 0) * 1000) + clocks["offset_ns"]
                if event["ph"] == "X":
                    slices.append((file["machine"]["name"], event["name"], time, round(event["dur"] * 1000)))
    assert b"alice" not in (tmp_path / "run.zip").read_bytes()
    assert shifted(slices, [])[0] == expected(run)[0]


def test_archive_has_other_formats_as_json(tmp_path: Path, shared_cache: Path) -> None:
    """From their tables, on the file's clock."""
    for rank in (0, 1):
        export(tmp_path / f"report{rank}.sqlite", pid=100 + rank, rank=rank, late=rank * 50_000)
    run = rankscope.open(tmp_path, executor="serial")
    write_archive(run, tmp_path / "run.zip")
    with zipfile.ZipFile(tmp_path / "run.zip") as archive:
        for rank in (0, 1):
            events = json.loads(archive.read(f"rank{rank}.json"))["traceEvents"]
            kernels = [event for event in events if event["name"].startswith("void gemm")]
            assert [(event["ts"], event["dur"]) for event in kernels] == [
                (round(1_000_150 + step * 1_000.003 + rank * 50, 3), 200.007) for step in (0, 1)
            ]
            assert {event["args"]["grid"] for event in kernels} == {"[8,2,1]"}


def test_paths_are_kept_if_asked_for(run: Run, tmp_path: Path) -> None:
    write_archive(run, tmp_path / "run.zip", keep_paths=True)
    with zipfile.ZipFile(tmp_path / "run.zip") as archive:
        assert json.loads(archive.read("rank1.json"))["traceName"] == "/home/alice/secret/rank.json"


def test_a_name_without_a_format(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="names no format"):
        write_merged(run, tmp_path / "run.bin")


def test_slices_of_a_lane_nest() -> None:
    for seed in range(200):
        source = random.Random(seed)
        spans = sorted(
            (
                (source.randrange(3), begin, begin + source.choice([0, 1, 5, 20]))
                for begin in (source.randrange(30) for _ in range(25))
            ),
            key=lambda each: (each[1], -each[2]),
        )
        track, start, end = (np.array(column) for column in zip(*spans, strict=True))
        times = np.array([source.randrange(35) for _ in range(20)])
        where = np.array([source.randrange(4) for _ in range(20)])
        lanes, slices = lanes_of(track, start, end, where, times)
        for one in range(25):
            for other in range(one):
                if (track[one], lanes[one]) == (track[other], lanes[other]):
                    assert end[other] <= start[one] or end[one] <= end[other], seed
        crossing = any(
            track[one] == track[other] and start[one] < end[other] < end[one]
            for one in range(25) for other in range(one)
        )  # fmt: skip
        assert crossing == (max(lanes) > 0), seed
        for place, time, found in zip(where, times, slices, strict=True):
            # The last that began; a slice without duration may have been closed by one that begins with it.
            open_there = [n for n in range(25) if track[n] == place and start[n] <= time and end[n] > time]
            touching = [n for n in range(25) if track[n] == place and start[n] <= time <= end[n]]
            assert (found in touching) if found >= 0 else not open_there, seed
            assert found >= max(open_there, default=-1), seed


# -- Perfetto's own reading -----------------------------------------------------------------------------------------

SLICES = """
select coalesce(p.name, q.name), s.name, s.ts, s.dur from slice s
left join process_track pt on pt.id = s.track_id left join process p on p.upid = pt.upid
left join thread_track tt on tt.id = s.track_id left join thread t on t.utid = tt.utid
left join process q on q.upid = t.upid
where s.category is null or s.category != 'instant'
"""
FLOWS = "select a.ts, b.ts from flow join slice a on a.id = slice_out join slice b on b.id = slice_in"
PROBLEMS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


@needs_trace_processor
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("made", "pftrace"),
        ("made", "pftrace.gz"),
        ("made", "json"),
        ("gloo-2ranks/ddp_gpt_shapes.*", "pftrace"),
        ("rocm-aorta/misc/*", "json.gz"),
        ("modded-nanogpt-h100-8ranks/*", "pftrace"),
        ("modded-nanogpt-h100-8ranks/*", "json.gz"),
        ("simulated", "pftrace.gz"),
    ],
)
def test_the_trace_processor_reads_the_same(tmp_path: Path, name: str, form: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    if name == "made":
        run = write_run(folder)
    elif name == "simulated":
        job = Job(ranks=64, steps=2, layers=1, kernels_per_layer=2, mesh={"dp": 16, "tp": 4}, recording=Recording())
        simulate(folder / "sim", job, costs=False)
        run = rankscope.open(folder / "sim", executor="serial")
    else:
        paths = sorted(SHARED_TRACES.glob(name))
        if not paths:
            pytest.skip("the real traces are not here")
        run = rankscope.open(paths, executor="serial")
    trace = tmp_path / f"run.{form}"
    written = write_merged(run, trace)
    slices, arrows, problems = query(trace, [SLICES, FLOWS, PROBLEMS])
    assert not problems
    expected_slices, expected_arrows = expected(run)
    # Instants are slices without duration to it; those of the profiler come before the first range.
    ranges = {(process, what) for process, what, _, _ in plain(expected_slices)}
    of_ranks = Counter(tuple(each) for each in slices if each[0] != "rankscope: findings")
    first = min(begins for process, what, begins, _ in of_ranks if (process, what) in ranges)
    found = Counter(
        {(process, what, begins - first, length): n for (process, what, begins, length), n in of_ranks.items()}
    )
    instants = found - plain(expected_slices)
    assert plain(expected_slices) - found == Counter()
    assert instants.total() == written.instants
    assert len(slices) == written.slices + written.instants + written.findings
    assert len(arrows) == written.arrows + written.collectives
    if not written.unbound:
        assert expected_arrows - Counter((begins - first, ends - first) for begins, ends in arrows) == Counter()


@pytest.mark.parametrize("form", ["pftrace", "json"])
def test_a_merged_trace_is_not_read_as_that_of_one_rank(run: Run, tmp_path: Path, form: str) -> None:
    write_merged(run, tmp_path / f"all.{form}")
    with pytest.raises(NotATraceError, match="a trace of 2 ranks for a viewer"):
        read_kineto(str(tmp_path / f"all.{form}"))
