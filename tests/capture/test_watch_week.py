"""A watched job of a week, with a fake clock: what it keeps in memory and on disk does not grow."""

from __future__ import annotations

import gc
import json
import zlib
from types import SimpleNamespace

import pytest

from rankscope.answers.watch.log import KEPT_STEPS, WatchLogs
from rankscope.capture.flight_recorder import FlightCall
from rankscope.capture.rank_log import RankLog
from rankscope.capture.watch import step_logger, watcher
from rankscope.capture.watch.phases import StepRow
from rankscope.capture.watch.ring import RingRead
from rankscope.capture.watch.watcher import Watcher
from rankscope.rundir.config import CaptureConfig
from rankscope.rundir.manifest import RankManifest, WrittenTrace
from rankscope.rundir.watch_files import SEGMENT_BYTES, Request, answer_path, read_answer, request_path, write_request

pytestmark = pytest.mark.slow
STEP_NS = 2 * 10**9
HOUR = 3600 * 10**9 // STEP_NS
DAY, WEEK = 24 * HOUR, 7 * 24 * HOUR
KEPT_BYTES = 4 << 20
START_NS = 1_700_000_000 * 10**9


class Clock:
    """Replaces `time` in the watcher."""

    ns = 0

    def perf_counter_ns(self):
        return self.ns

    def time_ns(self):
        return START_NS + self.ns

    def monotonic(self):
        return self.ns / 1e9


class Ring:
    """Ten collectives in each step that has ended since."""

    def __init__(self):
        self.new = []
        self.sequence = 0

    def due(self, step):
        return True

    def skip(self):
        pass

    def step(self, at_ns):
        for number in range(10):
            self.sequence += 1
            size = 4 * (number + 1)
            self.new.append(
                FlightCall(at_ns + number * 10**6, 1, "allreduce", "0", "float32", size // 4, size, self.sequence)
            )

    def read(self, step, usual_ns, *, last=False):
        calls, self.new = tuple(self.new), []
        return RingRead(calls, 0)


@pytest.fixture
def job(tmp_path, monkeypatch):
    clock = Clock()
    for module in (step_logger, watcher):
        monkeypatch.setattr(module, "time", clock)
    config = CaptureConfig(wait=10, warmup=1, active=2, repeat=1, keep_windows=5, watch_windows=10, hang_timeout=0)
    process = SimpleNamespace(rank=0, world_size=1, local_rank=0, host="host", restart_count=0)
    rank = SimpleNamespace(
        process=process,
        config=config,
        run_id="week",
        run_dir=str(tmp_path),
        run_id_doubt=None,
        activities=(),
        is_profiled=True,
    )
    manifest = RankLog(str(tmp_path), RankManifest("week", 0))
    watched = Watcher(rank, manifest, lambda: iter(()), "week", 0, lambda: ("", False))
    watched._ring = Ring()
    watched._log._kept_bytes = KEPT_BYTES
    return SimpleNamespace(watcher=watched, clock=clock, manifest=manifest, folder=tmp_path, taken=[])


def make_step(job, step, ns):
    """One step of the loop, and the windows that it takes; a window is written when its last step is over."""
    watcher, began = job.watcher, job.clock.ns
    job.clock.ns += ns
    parts = (10**6, ns // 4, ns // 2, ns // 10)
    watcher._rows.append(StepRow(step, began, job.clock.ns, *parts, began + ns * 3 // 4, False))
    watcher._step = step + 1
    watcher._ring.step(START_NS + began)
    job.taken += watcher.take_windows()
    for window in [each for each in job.taken if each.last == step]:
        job.taken.remove(window)
        job.manifest.add_written(WrittenTrace(f"{window.first}.trace.json.gz", window.first, window.last, 10**6))
        job.manifest.rotate(5, 0)


def disk(job):
    return sum(path.stat().st_size for path in (job.folder / "watch").glob("rank0*"))


def tracked():
    gc.collect()
    return len(gc.get_objects())


def test_a_job_of_a_week(job):
    watcher, asked, objects = job.watcher, 0, {}
    for step in range(WEEK):
        # Every six hours, a minute of slow steps.
        slow = step % (6 * HOUR) in range(3000, 3030)
        make_step(job, step, 5 * STEP_NS if slow else STEP_NS + step % 7 * 10**6)
        if step % HOUR == 500:
            write_request(job.folder, Request(f"hour-{step}", 2))
            asked += 1
        if step % 5 == 0:
            watcher._write_log()
            watcher._agree()
        if step % HOUR == 1500 and step % (2 * HOUR) > HOUR:  # half of those who asked take their files away
            request_path(job.folder, f"hour-{step - 1000}").unlink()
            answer_path(job.folder, f"hour-{step - 1000}").unlink()
        if step % DAY == DAY - 1:
            objects[step // DAY] = tracked()
            assert disk(job) <= KEPT_BYTES + 2 * SEGMENT_BYTES
            assert len(watcher._rows) <= 5
            assert len(watcher._notes) <= 5
            assert not watcher._new
            assert not watcher._requests._pending
    watcher._write_log(last=True)

    assert asked == 168
    left = sorted((job.folder / "watch" / "requests").glob("*.request"))
    assert len(left) == 84
    answers = [read_answer(answer_path(job.folder, path.stem)) for path in left]
    assert all(answer.first_step is not None and answer.tries == 1 for answer in answers)
    assert watcher._automatic == 10  # of 28 times with slow steps
    # A week's, less what keep_windows has removed.
    assert job.manifest.manifest.rotated + len(job.manifest.manifest.written) == asked + 10
    # What is tracked differs from day to day by an answer here and a name there, and does not grow with the steps.
    assert max(objects.values()) - objects[1] < 2000, objects

    segments = sorted((job.folder / "watch").glob("*.jsonl.gz"))
    numbers = [int(path.name.split(".")[1]) for path in segments]
    assert numbers[0] > 0  # the oldest were removed
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    lines = [line for path in segments for line in zlib.decompress(path.read_bytes(), 31).splitlines()]
    lines += (job.folder / "watch" / "rank0.jsonl").read_bytes().splitlines()
    steps = [found["step"] for line in lines if "step" in (found := json.loads(line))]
    assert steps == list(range(steps[0], WEEK))  # none is missing from what is kept
    log = WatchLogs(job.folder).latest()[0]
    assert (log.last_step, log.damaged) == (WEEK - 1, 0)
    assert len(log.steps) <= KEPT_STEPS
    assert len(log.calls) > 1000
