"""What is wrong with the record is exactly what was asked for."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankscope.errors import ConfigError
from rankscope.experiments.simulate import Job, Lost, Recording, Truth, scaled, simulate

JOB = Job(ranks=2, steps=2, layers=2, seed=9)


def events(truth: Truth, out: Path, rank: int, read: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read(out / truth.files[rank])["traceEvents"]
    return found


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    out = tmp_path_factory.mktemp("clean")
    return out, simulate(out, JOB)


def with_recording(out: Path, **recording: Any) -> Truth:
    return simulate(out, replace(JOB, recording=Recording(**recording)))


def test_an_offset_shifts_every_time_exactly(tmp_path: Path, clean: tuple[Path, Truth], read: Any) -> None:
    truth = with_recording(tmp_path, clock_offset_ns={1: 3_600_000_000_123})
    for rank, shift in ((0, 0), (1, 3_600_000_000_123)):
        before, after = events(clean[1], clean[0], rank, read), events(truth, tmp_path, rank, read)
        assert [e["ts"] + shift for e in before] == [e["ts"] for e in after]
        assert [e.get("dur") for e in before] == [e.get("dur") for e in after]


def test_drift_grows_with_time(tmp_path: Path, clean: tuple[Path, Truth], read: Any) -> None:
    truth = with_recording(tmp_path, drift_ppm={1: 100.0})
    before, after = events(clean[1], clean[0], 1, read), events(truth, tmp_path, 1, read)
    epoch = truth.to_json(collectives=False)["epoch_ns"] - read(tmp_path / truth.files[1])["baseTimeNanoseconds"]
    assert all(b["ts"] + (b["ts"] - epoch) // 10_000 == a["ts"] for b, a in zip(before, after, strict=True))


def test_base_times_differ_and_cancel(tmp_path: Path, clean: tuple[Path, Truth], read: Any) -> None:
    truth = with_recording(tmp_path, base_time="per-rank")
    bases = set()
    for rank in (0, 1):
        a, b = read(clean[0] / clean[1].files[rank]), read(tmp_path / truth.files[rank])
        bases |= {a["baseTimeNanoseconds"], b["baseTimeNanoseconds"]}
        for one, other in zip(a["traceEvents"], b["traceEvents"], strict=True):
            assert one["ts"] + a["baseTimeNanoseconds"] == other["ts"] + b["baseTimeNanoseconds"]
    assert len(bases) == 3


@pytest.mark.parametrize(
    "lost",
    [Lost(1, count=1), Lost(1, count=7, what="kernel"), Lost(1, count=1, what="collective"), Lost(1, fraction=0.02)],
    ids=str,
)
def test_lost_events_are_exactly_those_missing(
    tmp_path: Path, clean: tuple[Path, Truth], read: Any, lost: Lost
) -> None:
    truth = with_recording(tmp_path, lost=(lost,))
    before = Counter((e["ph"], e["name"], e["ts"]) for e in events(clean[1], clean[0], 1, read))
    after = Counter((e["ph"], e["name"], e["ts"]) for e in events(truth, tmp_path, 1, read))
    assert not after - before
    lost_events = Counter(("X", e.name, int(e.ts.replace(".", ""))) for e in truth.lost)
    assert before - after == lost_events
    assert len(truth.lost) == lost.count or lost.fraction
    assert 0 < len(truth.lost) < 60
    if lost.what == "collective":
        assert all("nccl" in e.name for e in truth.lost)
    assert events(truth, tmp_path, 0, read) == events(clean[1], clean[0], 0, read)
    assert json.loads((tmp_path / "truth.json").read_text())["lost"][0]["rank"] == 1


def test_a_shorter_window_has_fewer_events_and_no_half_step(
    tmp_path: Path, clean: tuple[Path, Truth], read: Any
) -> None:
    truth = with_recording(tmp_path, window_start_ns={1: 4_000_000}, window_end_ns={1: -3_000_000})
    before, after = events(clean[1], clean[0], 1, read), events(truth, tmp_path, 1, read)
    assert len(after) < len(before) * 0.9
    steps = [e["name"] for e in after if "Step#" in e["name"] and e["cat"] == "user_annotation"]
    assert steps == ["PartialStep#11"], "a range that began before the recording is not in it"
    assert not [e for e in after if "Step#" in e["name"] and e["cat"] == "gpu_user_annotation"]
    stop = next(e["ts"] for e in after if e["name"] == "cudaDeviceSynchronize")
    host = [e for e in after if e["ph"] == "X" and e["cat"] in ("cpu_op", "user_annotation")]
    assert max(e["ts"] + e["dur"] for e in host) <= stop, "what was going on when it ended, ended there"
    begin = min(e["ts"] for e in after if e["ph"] == "X" and e["cat"] in ("cpu_op", "cuda_runtime"))
    launches = {e["args"]["correlation"] for e in after if e.get("cat") == "cuda_runtime"}
    launchless = [e for e in after if e.get("cat") == "kernel" and e["args"]["correlation"] not in launches]
    assert launchless, "launched before the recording, ran in it"
    known = {(e["ph"], e["name"], e["ts"]) for e in before}
    extra = [e for e in after if e["ph"] == "X" and (e["ph"], e["name"], e["ts"]) not in known]
    assert {e["name"] for e in extra} <= {"cudaDeviceSynchronize", "PyTorch Profiler (0)", "PartialStep#11"}
    assert begin - min(e["ts"] for e in before if e["ph"] == "X") > 3_000_000


def test_an_earlier_window_has_a_part_of_the_step_before(tmp_path: Path, clean: tuple[Path, Truth], read: Any) -> None:
    truth = with_recording(tmp_path, window_start_ns={1: -3_000_000})
    before, after = events(clean[1], clean[0], 1, read), events(truth, tmp_path, 1, read)
    assert len(after) > len(before)
    assert not [e for e in after if e["name"] == "ProfilerStep#9"]


def test_a_later_window_has_a_part_of_the_step_after(tmp_path: Path, clean: tuple[Path, Truth], read: Any) -> None:
    truth = with_recording(tmp_path, window_end_ns={1: 2_000_000})
    assert truth.step_ns == clean[1].step_ns
    counts = [Counter(e.get("cat") for e in events(truth, tmp_path, rank, read)) for rank in (0, 1)]
    assert counts[1]["cpu_op"] > counts[0]["cpu_op"]
    found = events(truth, tmp_path, 1, read)
    begun = [e["name"] for e in found if e["name"].startswith("PartialStep#")]
    assert begun == ["PartialStep#12"]


def test_hosts_that_run_ahead_leave_launchless_kernels(tmp_path: Path, read: Any) -> None:
    truth = simulate(tmp_path, replace(JOB, synchronize=False, warmup_steps=2))
    found = events(truth, tmp_path, 0, read)
    launches = {e["args"]["correlation"]: e["ts"] for e in found if e.get("cat") == "cuda_runtime"}
    kernels = [e for e in found if e.get("cat") == "kernel"]
    launchless = [e for e in kernels if e["args"]["correlation"] not in launches]
    assert len(launchless) > 5
    for stream in {e["tid"] for e in launchless}:
        first = min(e["ts"] for e in kernels if e["tid"] == stream and e not in launchless)
        assert all(e["ts"] < first for e in launchless if e["tid"] == stream)


def test_missing_and_truncated_files(tmp_path: Path) -> None:
    truth = with_recording(tmp_path / "gz", missing=(0,), truncated={1: 0.5})
    assert list(truth.files) == [1]
    with pytest.raises(EOFError):
        gzip.decompress((tmp_path / "gz" / truth.files[1]).read_bytes())
    truth = with_recording(tmp_path / "plain", truncated={1: 0.5}, compression="none")
    size = (tmp_path / "plain" / truth.files[1]).stat().st_size
    assert size == truth.json_bytes[1] // 2


def test_kernels_without_metadata(tmp_path: Path, read: Any) -> None:
    truth = with_recording(tmp_path, collective_metadata=False, distributed_info=False, rankscope_metadata=False)
    trace = read(tmp_path / truth.files[0])
    assert "distributedInfo" not in trace
    assert "rankscope" not in trace
    assert not (tmp_path / "run.json").exists()
    nccl = [e for e in trace["traceEvents"] if "nccl" in e["name"] and e.get("cat") == "kernel"]
    assert nccl
    assert not any("Collective name" in e["args"] for e in nccl)


def test_zstandard(tmp_path: Path, clean: tuple[Path, Truth]) -> None:
    import zstandard

    truth = with_recording(tmp_path, compression="zst")
    path = tmp_path / truth.files[0]
    assert path.name.endswith(".trace.json.zst")
    text = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
    original = gzip.decompress((clean[0] / clean[1].files[0]).read_bytes())
    assert json.loads(text)["traceEvents"] == json.loads(original)["traceEvents"]


def test_runs_do_not_mix(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(ConfigError, match="empty"):
        simulate(tmp_path, JOB)


@pytest.mark.parametrize("mesh", [{"dp": 2}, {"pp": 2}])
def test_files_come_out_as_large_as_asked(tmp_path: Path, mesh: dict[str, int]) -> None:
    job = Job(ranks=2, steps=1, mesh=mesh)
    truth = simulate(tmp_path / "bytes", scaled(job, bytes_per_rank=6_000_000))
    assert truth.json_bytes[0] == pytest.approx(6e6, rel=0.05)
    truth = simulate(tmp_path / "events", scaled(job, events_per_rank=30_000))
    assert truth.events[0] == pytest.approx(30_000, rel=0.05)


def test_long_programs_are_written_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Big files are made in pieces that are thrown away; the text must be that of small ones, but for its order."""
    from rankscope.experiments.simulate import trace

    job = replace(JOB, kernels_per_layer=60)
    simulate(tmp_path / "kept", job)
    monkeypatch.setattr(trace, "KEPT_ROWS", 10)
    monkeypatch.setattr(trace, "BATCH_ROWS", 50)
    truth = simulate(tmp_path / "anew", job)
    for file in truth.files.values():
        assert gzip.decompress((tmp_path / "kept" / file).read_bytes()) == gzip.decompress(
            (tmp_path / "anew" / file).read_bytes()
        )
