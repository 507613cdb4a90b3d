"""The log of a watched rank: lines, segments, a full disk, and what an hour takes."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from contextlib import nullcontext

import pytest

from rankscope.capture.flight_recorder import FlightCall
from rankscope.capture.notices import CaptureWarning
from rankscope.capture.profiler import Profiler
from rankscope.capture.watch import log as log_module
from rankscope.capture.watch import step_logger
from rankscope.capture.watch.log import WatchLog
from rankscope.capture.watch.log_lines import ALL_STEPS, LogLines, stride_of
from rankscope.capture.watch.phases import StepRow
from rankscope.capture.watch.ring import CollectiveRing
from rankscope.rundir.atomic import write_atomic
from rankscope.rundir.watch_files import SCHEMA_VERSION, Header, parse_log_name


def header(rank=3):
    return Header(SCHEMA_VERSION, rank, run_id="one", world_size=4, host="here", pid=7, began_ns=5)


def lines_of(path):
    raw = path.read_bytes()
    return [json.loads(line) for line in (gzip.decompress(raw) if path.suffix == ".gz" else raw).splitlines()]


def test_a_segment_begins_with_its_header_and_what_lines_refer_to(tmp_path):
    log = WatchLog(tmp_path / "watch", header(), segment_bytes=400, kept_bytes=10**6)
    for step in range(40):
        log.write(
            [json.dumps({"step": step, "ns": 100})], ['{"kind":0,"group":"0","op":"allreduce"}'] if not step else []
        )
    segments = sorted((tmp_path / "watch").glob("*.gz"))
    files = [*segments, tmp_path / "watch" / "rank3.jsonl"]
    assert len(segments) > 1
    content = [lines_of(path) for path in files]
    assert [lines[0]["segment"] for lines in content] == list(range(len(files)))
    assert all(lines[1] == {"kind": 0, "group": "0", "op": "allreduce"} for lines in content)
    assert [line["step"] for lines in content for line in lines if "step" in line] == list(range(40))
    assert [parse_log_name(path.name).segment for path in segments] == list(range(len(segments)))


def test_the_oldest_segments_are_removed(tmp_path):
    log = WatchLog(tmp_path, header(), segment_bytes=2000, kept_bytes=5000)
    rng = random.Random(1)
    for step in range(3000):
        log.write([json.dumps({"step": step, "ns": rng.randrange(10**9)})])
    segments = sorted(tmp_path.glob("*.gz"))
    assert sum(path.stat().st_size for path in segments) <= 5000
    kept = [line["step"] for path in [*segments, log.path] for line in lines_of(path) if "step" in line]
    assert kept == list(range(kept[0], 3000))
    assert {path.name for path in tmp_path.iterdir()} == {"rank3.jsonl", *(path.name for path in segments)}


def test_another_log_of_the_same_rank_has_a_name_of_its_own(tmp_path):
    for _ in range(3):
        WatchLog(tmp_path, header()).write(['{"note":"a"}'])
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["rank3.jsonl", "rank3.run2.jsonl", "rank3.run3.jsonl"]
    assert {(parse_log_name(name).rank, parse_log_name(name).restart) for name in names} == {(3, 0)}


def test_lost_lines_are_counted(tmp_path, monkeypatch):
    log = WatchLog(tmp_path, header())
    log.write(['{"note":"first"}'])

    def full(_content):
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(log, "_append", full)
    for _ in range(2):
        with pytest.raises(OSError, match="no space"):
            log.write(['{"note":"lost"}', '{"note":"lost too"}'])
    monkeypatch.undo()
    log.write(['{"note":"last"}'])
    assert [line.get("note") for line in lines_of(log.path)[1:]] == ["first", "4 lines could not be written", "last"]


def test_definitions_that_could_not_be_written_are_written_later(tmp_path):
    folder = tmp_path / "watch"
    folder.write_text("in the way")
    log = WatchLog(folder, header())
    with pytest.raises(OSError):
        log.write(['{"calls":[[0,1,0]]}'], ['{"kind":0,"op":"allreduce"}'])
    folder.unlink()
    log.write(['{"calls":[[0,2,0]]}'])
    assert [next(iter(line)) for line in lines_of(log.path)[1:]] == ["note", "kind", "calls"]


def test_a_segment_after_which_no_other_could_begin_is_written_once(tmp_path, monkeypatch):
    log = WatchLog(tmp_path, header(), segment_bytes=300)

    def full_below(path, content):
        if path.suffix == ".jsonl":
            raise OSError("no space left on device")
        return write_atomic(path, content)

    for step in range(9):
        full = step == 4
        with monkeypatch.context() as patch, pytest.raises(OSError) if full else nullcontext():
            patch.setattr(log_module, "write_atomic", full_below if full else write_atomic)
            log.write([json.dumps({"step": step, "text": "x" * 300})])
    files = [*sorted(tmp_path.glob("*.gz")), log.path]
    assert [line["step"] for path in files for line in lines_of(path) if "step" in line] == [0, 1, 2, 3, 5, 6, 7, 8]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="tmpfs of Linux")
def test_a_full_disk_leaves_whole_lines(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        log = WatchLog(disk, header())
        written = 0
        with pytest.raises(OSError):
            while written < 10_000:
                log.write([json.dumps({"step": written, "text": "x" * 500})])
                written += 1
        raw = log.path.read_bytes()
        assert raw.endswith(b"\n")
        assert [line["step"] for line in lines_of(log.path)[1:]] == list(range(written))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


# --- lines ----------------------------------------------------------------------------------------------------


def row(step, began, ended, **phases):
    known = {"loading": None, "forward": None, "backward": None, "optimizer": None, "backward_ended": None}
    return StepRow(step, began, ended, profiled=False, **{**known, **phases})


def test_a_step_has_what_is_known_of_it():
    lines = LogLines()
    one = json.loads(lines.step(row(7, 100, 350, forward=40, backward=0, backward_ended=200), 10**9, 0, slow=False))
    assert one == {
        "step": 7,
        "start_ns": 10**9 + 100,
        "ns": 250,
        "forward_ns": 40,
        "backward_ns": 0,
        "backward_end_ns": 100,
    }


@pytest.mark.parametrize(("usual_ms", "stride"), [(0, 1), (100, 1), (50, 1), (49, 4), (10, 16), (1, 128)])
def test_a_fast_job_has_lines_for_pairs_of_steps(usual_ms, stride):
    assert stride_of(usual_ms * 10**6, ALL_STEPS) == stride
    assert stride_of(usual_ms * 10**6, ALL_STEPS - 1) == 1
    if usual_ms:
        assert 2 / stride / (usual_ms / 1000) <= 20 or stride == 1


def test_of_a_fast_job_the_latest_step_has_a_line_once_no_further_one_comes():
    lines = LogLines()
    for step in (15, 16, 17, 18):
        row = StepRow(ALL_STEPS + step, 0, 10**7, None, None, None, None, None, False)
        lines.step(row, 0, 10**7, slow=False)
    assert json.loads(lines.latest_step())["step"] == ALL_STEPS + 18
    assert lines.latest_step() is None
    lines.step(row._replace(step=ALL_STEPS + 31), 0, 10**7, slow=False)  # has one
    assert lines.latest_step() is None


def call(at_ns, sequence):
    return FlightCall(at_ns, 1, "allreduce", "0", "float32", 4, 16, sequence)


def test_calls_are_written_once_with_their_kind():
    lines = LogLines()
    first = json.loads(lines.calls([call(5_000_000, 1), call(5_250_000, 2)]))
    assert first == {"calls": [[0, 1, 0], [0, 2, 250]], "base_ns": 5_000_000}
    assert [json.loads(line) for line in lines.definitions] == [
        {"group": "0", "ranks": ""},
        {"kind": 0, "group": "0", "op": "allreduce", "dtype": "float32", "bytes": 16},
    ]
    lines.definitions = []
    lines.calls([call(6_000_000, 3)])
    assert lines.definitions == []


def test_of_a_fast_job_only_calls_of_logged_steps_are_written():
    lines, usual = LogLines(), 10 * 10**6
    logged = [
        step
        for step in range(64)
        if lines.step(row(ALL_STEPS + step, step * usual, (step + 1) * usual), 0, usual, slow=False) is not None
    ]
    assert logged == [0, 15, 16, 31, 32, 47, 48, 63]
    written = json.loads(lines.calls([call(step * usual + 5, step + 1) for step in range(64)]))["calls"]
    assert [sequence - 1 for _, sequence, _ in written] == logged


def test_of_a_fast_job_calls_are_written_after_its_clock_was_set_back():
    lines = LogLines()
    row = StepRow(31, 0, 10**7, None, None, None, None, None, False)
    hour = 3600 * 10**9
    lines.step(row, hour, 10**7, slow=False)
    lines.step(row._replace(step=32), 0, 10**7, slow=False)
    assert lines.calls([call(5, 1)]) is not None


def test_an_hour_takes_a_few_megabytes(tmp_path):
    """Ten steps per second with ten collectives each: six minutes of it."""
    rng, lines = random.Random(3), LogLines()
    log = WatchLog(tmp_path, header())
    now, sequence, steps = 10**18, 0, 3600
    for first in range(0, steps, 10):
        written, calls = [], []
        for step in range(first, first + 10):
            parts = {
                "loading": rng.randrange(10**6),
                "forward": 30_000_000 + rng.randrange(10**7),
                "backward": 50_000_000 + rng.randrange(10**7),
                "optimizer": 5_000_000 + rng.randrange(10**6),
            }
            ended = now + 100_000_000 + rng.randrange(10**6)
            written.append(
                lines.step(row(step, now, ended, backward_ended=now + 90_000_000, **parts), 0, 10**8, slow=False)
            )
            for place in range(10):
                sequence += 1
                calls.append(call(now + place * 9_000_000 + rng.randrange(10**6), sequence))
            now = ended
        written.append(lines.calls(calls))
        log.write(written, lines.definitions)
        lines.definitions = []
    size = sum(path.stat().st_size for path in tmp_path.glob("*.gz"))
    plain = log.path.stat().st_size
    assert plain < 1.1 * 2**20
    assert size * 10 < 5 * 10**6


@pytest.mark.filterwarnings("ignore:rankscope. no trace was written")
def test_a_recorder_that_cannot_be_read_costs_no_steps(tmp_path, monkeypatch):
    def broken():
        raise KeyError("profiling_name")

    monkeypatch.setattr(step_logger, "CollectiveRing", lambda: CollectiveRing(lambda: {"others": broken}))
    reported = pytest.warns(CaptureWarning, match=r"the watch failed \(collectives\)")
    with reported, Profiler(tmp_path, watch=True, wait=9) as profiler:
        for _ in range(3):
            profiler.step()
    assert [line["step"] for line in lines_of(tmp_path / "watch" / "rank0.jsonl") if "step" in line] == [0, 1, 2]
