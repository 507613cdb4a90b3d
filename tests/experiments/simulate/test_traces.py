"""What is written is what happened, and looks like Kineto's."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankscope.experiments.simulate import Job, Recording, Truth, parse_mesh, simulate
from rankscope.rundir.metadata import METADATA_KEY, TraceMetadata
from rankscope.rundir.names import parse_trace_name

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
HOST = ("cpu_op", "user_annotation", "cuda_runtime", "python_function")


def spans(trace: dict[str, Any], *categories: str) -> list[dict[str, Any]]:
    return [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] in categories]


def test_names_and_metadata_say_whose_file_it_is(meshed: tuple[Path, Truth], read: Any) -> None:
    out, truth = meshed
    assert sorted(truth.files) == list(range(16))
    for rank in (0, 5):
        name = parse_trace_name(truth.files[rank])
        assert (name.rank, name.first, name.last) == (rank, 10, 11)
        trace = read(out / truth.files[rank])
        own = TraceMetadata.from_json(trace[METADATA_KEY])
        assert (own.rank, own.world_size, own.first_step, own.last_step) == (rank, 16, 10, 11)
        assert own.mesh is not None
        assert own.mesh.by_name() == name.mesh
        assert own.run_id == trace["trace_id"]
        info = trace["distributedInfo"]
        assert (info["rank"], info["world_size"], info["pg_count"]) == (rank, 16, 4)
        assert all(rank in group["ranks"] for group in info["pg_config"])
        assert {(g.name, g.ranks) for g in own.process_groups} == {
            (g["pg_name"], tuple(g["ranks"])) for g in info["pg_config"]
        }


def test_device_work_follows_its_launch_and_streams_run_in_order(meshed: tuple[Path, Truth], read: Any) -> None:
    out, truth = meshed
    for rank in (0, 1, 6, 15):
        trace = read(out / truth.files[rank])
        runtime = {e["args"]["correlation"]: e for e in spans(trace, "cuda_runtime")}
        first_launch = min(e["ts"] for e in runtime.values())
        streams = defaultdict(list)
        for event in spans(trace, *DEVICE):
            streams[event["tid"]].append(event)
            assert event["tid"] == event["args"]["stream"]
            launch = runtime.get(event["args"]["correlation"])
            if launch is None:
                assert event["ts"] < first_launch, "only what was launched before the window has no launch"
            else:
                assert event["ts"] >= launch["ts"]
                assert event["args"]["External id"] == launch["args"]["External id"]
        assert len(streams) >= 4
        for events in streams.values():
            events.sort(key=lambda e: e["ts"])
            for one, following in itertools.pairwise(events):
                assert one["ts"] + one["dur"] <= following["ts"]


def test_host_events_nest_and_steps_hold_them(meshed: tuple[Path, Truth], read: Any) -> None:
    out, truth = meshed
    trace = read(out / truth.files[2])
    threads = defaultdict(list)
    for event in spans(trace, *HOST):
        threads[event["tid"]].append((event["ts"], -event["dur"], event["name"]))
    assert len(threads) == 2
    for events in threads.values():
        open_until: list[int] = []
        for start, minus, name in sorted(events):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or start - minus <= open_until[-1], name
            open_until.append(start - minus)
    steps = [e for e in spans(trace, "user_annotation") if e["name"].startswith("ProfilerStep#")]
    assert [e["name"] for e in steps] == ["ProfilerStep#10", "ProfilerStep#11"]
    for event in spans(trace, "cpu_op"):
        assert any(s["ts"] <= event["ts"] and event["ts"] + event["dur"] <= s["ts"] + s["dur"] for s in steps)
    echoes = [e["name"] for e in spans(trace, "gpu_user_annotation")]
    assert echoes == ["ProfilerStep#10", "ProfilerStep#11"]


def test_links_lead_somewhere(meshed: tuple[Path, Truth], read: Any) -> None:
    out, truth = meshed
    trace = read(out / truth.files[4])
    operators = {e["args"]["External id"]: e for e in spans(trace, "cpu_op", "user_annotation")}
    assert len(operators) == len(spans(trace, "cpu_op", "user_annotation")), "External ids are unique"
    for event in spans(trace, "cuda_runtime"):
        if "External id" in event["args"]:
            operator = operators[event["args"]["External id"]]
            assert operator["ts"] <= event["ts"]
            assert event["ts"] + event["dur"] <= operator["ts"] + operator["dur"]
    flows = Counter((e["ph"], e["cat"], e["id"]) for e in trace["traceEvents"] if e["ph"] in "sf")
    assert max(flows.values()) == 1
    finishes = {key[2] for key in flows if key[:2] == ("f", "fwdbwd")}
    assert finishes == {key[2] for key in flows if key[:2] == ("s", "fwdbwd")}
    by_sequence = defaultdict(set)
    for event in spans(trace, "cpu_op"):
        if "Sequence number" in event["args"]:
            by_sequence[event["args"]["Sequence number"]].add(event["tid"])
    assert all(len(threads) == 2 for threads in by_sequence.values()), "forward on one thread, backward on the other"


def recorded_collectives(trace: dict[str, Any], offset: int, ppb: int, epoch: int) -> list[tuple[str, str, int, int]]:
    """(group, kind, start, end) in true time, in the order of the streams."""
    found = []
    for event in spans(trace, "kernel"):
        if "Collective name" in event["args"]:
            start = trace["baseTimeNanoseconds"] + event["ts"] - offset - epoch
            end = start + event["dur"]
            # t + t * ppb // 10**9 undone: within a nanosecond, then exactly.
            times = []
            for recorded in (start, end):
                guess = recorded - recorded * ppb // 10**9
                times.append(next(t for t in range(guess - 9, guess + 10) if t + t * ppb // 10**9 == recorded))
            found.append((event["args"]["Process Group Name"], event["args"]["Collective name"], *times))
    return sorted(found, key=lambda c: c[2])


def test_waits_found_from_the_files_are_the_truth(meshed: tuple[Path, Truth], read: Any) -> None:
    """Brute force: undo the clocks, find each collective by group and order, and compare to the nanosecond."""
    out, truth = meshed
    names = {"all_reduce": "allreduce", "send": "send", "recv": "recv"}
    facts = truth.to_json(collectives=True)
    starts: dict[tuple[object, ...], dict[int, int]] = defaultdict(dict)
    expected: dict[tuple[object, ...], dict[int, int]] = defaultdict(dict)
    for rank, about in enumerate(facts["ranks"]):
        trace = read(out / about["file"])
        found = recorded_collectives(trace, about["offset_ns"], about["drift_ppb"], facts["epoch_ns"])
        true = facts["collectives"][str(rank)]
        rows = sorted(zip(*true.values(), strict=True), key=lambda row: row[10])
        rows = [row for row in rows if row[10] >= about["window_begin_ns"]]
        assert len(found) == len(rows) > 50
        for (group, kind, start, end), row in zip(found, rows, strict=True):
            fact = dict(zip(true, row, strict=True))
            assert (group, kind) == (fact["group"], names[fact["collective"]])
            assert (start, end) == (fact["arrival_ns"], fact["end_ns"])
            peers = tuple(sorted((rank, fact["peer"]))) if fact["peer"] is not None else ()
            starts[group, peers, fact["sequence"]][rank] = start
            expected[group, peers, fact["sequence"]][rank] = fact["wait_ns"]
    for key, by_rank in starts.items():
        last = max(by_rank.values())
        assert {rank: last - start for rank, start in by_rank.items()} == expected[key]


@pytest.mark.parametrize("layout", ["torch-2.13", "torch-2.9", "compact"])
@pytest.mark.parametrize("base_time", ["shared", "epoch"])
def test_layouts_hold_the_same(tmp_path: Path, read: Any, layout: str, base_time: str) -> None:
    job = Job(ranks=2, steps=1, layers=1, recording=Recording(layout=layout, base_time=base_time, compression="none"))
    truth = simulate(tmp_path / "a", job)
    plain = simulate(tmp_path / "b", replace(job, recording=Recording()))
    trace, same = read(tmp_path / "a" / truth.files[1]), read(tmp_path / "b" / plain.files[1])
    shift = same["baseTimeNanoseconds"] - trace["baseTimeNanoseconds"]
    if base_time == "epoch":
        assert min(e["ts"] for e in trace["traceEvents"]) > 10**18, "16-digit microseconds"

    def content(of: dict[str, Any], by: int) -> Counter[tuple[object, ...]]:
        return Counter(
            (
                e["ph"],
                e.get("cat"),
                e["name"],
                e["ts"] + by,
                e.get("dur"),
                str(e["pid"]),
                str(sorted(e.get("args", {}))),
            )
            for e in of["traceEvents"]
        )

    assert content(trace, 0) == content(same, shift)
    text = (tmp_path / "a" / truth.files[1]).read_text()
    assert ("\n" in text.strip()) == (layout != "compact") or text.count("\n") < 5


def test_pretty_layout_is_kinetos_to_the_byte(tmp_path: Path) -> None:
    simulate(tmp_path / "new", Job(ranks=1, steps=1, layers=1, recording=Recording(compression="none")))
    text = next((tmp_path / "new").glob("rank0_*.json")).read_text()
    assert text.startswith(
        ' {\n    "schemaVersion": 1,\n    "deviceProperties": [\n    {\n      "id": 0, "name": "NVIDIA'
    )
    assert '    "traceEvents": [\n    \n  {\n    "ph": "M",\n    "name": "process_name",\n    "ts": ' in text
    step = text[text.rindex("  {", 0, text.index('"name": "ProfilerStep#10"')) :]
    lines = step[: step.index("},\n") + 3].splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "  {",
        '    "ph"',
        '    "cat"',
        '    "name"',
        '    "pid"',
        '    "tid"',
        '    "ts"',
        '    "dur"',
        "    ,",
        '    "args"',
        '      "External id"',
        "    }",
        "  },",
    ]
    assert '\n    "name": "fwdbwd"\n    , "bp": "e"\n  },\n' in text
    assert '\n    "name": "ac2g"\n    \n  },\n' in text
    recording = Recording(compression="none", layout="torch-2.9")
    simulate(tmp_path / "old", Job(ranks=1, steps=1, layers=1, recording=recording))
    text = next((tmp_path / "old").glob("rank0_*.json")).read_text()
    assert text.startswith('\n  {\n    "schemaVersion": 1,\n    "deviceProperties": [\n')
    assert '  "traceEvents": [\n  {\n    "ph": "X", "cat": "cpu_op", "name": "autograd::engine' in text
    assert text.endswith('"pid": "", "tid": "", "ts": ' + text.rsplit('"ts": ', 1)[1])


def test_the_same_job_gives_the_same_bytes(tmp_path: Path) -> None:
    job = Job(ranks=4, steps=2, mesh=parse_mesh("dp=2,pp=2"), layers=2, seed=3)

    def digests(out: Path) -> dict[str, str]:
        files = sorted(p for p in out.rglob("*") if p.is_file())
        return {str(p.relative_to(out)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}

    simulate(tmp_path / "one", job)
    simulate(tmp_path / "two", job, jobs=2)
    one = digests(tmp_path / "one")
    assert one == digests(tmp_path / "two")
    assert len(one) == 6
    simulate(tmp_path / "other", replace(job, seed=4))
    assert one.keys() == digests(tmp_path / "other").keys()
    assert not set(one.values()) & set(digests(tmp_path / "other").values())


def test_stacks_and_everything_else_at_once(tmp_path: Path, read: Any) -> None:
    job = Job(
        ranks=8,
        steps=1,
        layers=2,
        mesh=parse_mesh("dp=2,ep=2,tp=2"),
        data_parallel="fsdp",
        tensor_parallel="sequence",
        recording=Recording(stacks=True, sequence_numbers=True, group_names="shared"),
    )
    truth = simulate(tmp_path, job)
    trace = read(tmp_path / truth.files[5])
    frames = {e["name"] for e in spans(trace, "python_function")}
    assert {"nn.Module: TransformerBlock_1", "nn.Module: GELU_0"} <= frames
    kinds = Counter(e["args"].get("Collective name") for e in spans(trace, "kernel"))
    assert set(kinds) == {None, "_allgather_base", "_reduce_scatter_base", "all_to_all", "allreduce"}
    recorded = spans(trace, "kernel")
    assert all("Seq" in e["args"] for e in recorded if "Collective name" in e["args"])
    groups = {e["args"]["Process Group Name"] for e in recorded if "Collective name" in e["args"]}
    assert groups == {"0", "1", "2", "3"}
    assert truth.events[5] == sum(e["ph"] in "Xsf" and e.get("cat") != "Trace" for e in trace["traceEvents"])
