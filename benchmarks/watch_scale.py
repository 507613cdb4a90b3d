"""CPU seconds and peak memory of reading the log of a watched job of 200, 1,000 and 2,000 ranks.

Capture's own writer writes the logs, of simulated jobs of 60 steps with 4 collectives each, in which ranks wait for
each other and one is late by 8 ms per step: each row says whether that rank was named. In the end that rank sleeps, and
all have written a dump of the hang with 200 collectives.

- watch: the process of `rankscope watch --once --format json`.
- hang: that of `rankscope hang --format json`.
- scrape: one look of `rankscope monitor` at the log, when it has grown by nothing: how often it can be done.

The first row is one of 2 ranks: what a start costs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.answers.watch.jobs import MS, START, SimulatedJob

from rankscope.rundir.hang_dump import DUMP_FORMAT, HANG_FOLDER, Frame, HangDump, ThreadStack

STEPS, LATE_NS, CALLS = 60, 8 * MS, 200
_MEASURED = """
import atexit, json, re, resource, runpy, sys
def say():
    used = resource.getrusage(resource.RUSAGE_SELF)
    # Not ru_maxrss, which begins with that of the process that has started this one.
    peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1)) / 1024
    print(json.dumps([used.ru_utime + used.ru_stime, peak]), file=sys.stderr)
atexit.register(say)
"""
_COMMAND = "runpy.run_module('rankscope', run_name='__main__', alter_sys=True)"
_SCRAPE = """
import json, sys, time
from rankscope.show.monitor.job import WatchedJob
from rankscope.show.monitor.numbers import numbers_of
job = WatchedJob(sys.argv[1])
numbers_of(job.read())
began = time.process_time()
numbers = numbers_of(job.read())
named = [int(each.labels["rank"]) for each in numbers if each.name == "straggler" and each.value]
print(json.dumps([named, time.process_time() - began]))
"""


def _write(folder: Path, ranks: int, late: int) -> None:
    """The logs of a job, and the dumps of its hang."""
    SimulatedJob(
        ranks, STEPS, forward=1, slow=lambda rank, _step, place: LATE_NS if (rank, place) == (late, "loading") else 0
    ).write(folder)
    (folder / HANG_FOLDER).mkdir()
    sleeps = Frame("/job/train.py", 19, "main", "time.sleep(9999)")
    waits = Frame("/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3, "all_reduce", "work.wait()")
    for rank in range(ranks):
        own = (sleeps,) if rank == late else (waits, sleeps)
        dump = HangDump(
            DUMP_FORMAT,
            rank,
            world_size=ranks,
            time_ns=START + 10**12,
            reason="no step for 300 s",
            threads=(ThreadStack(own, "MainThread", 1, training=True),),
            flight_recorder={
                "version": "2.10",
                "pg_config": {"": {"name": "", "desc": "", "ranks": str(list(range(ranks)))}},
                "entries": [_call(number) for number in range(1, CALLS + (rank != late))],
            },
        )
        (folder / HANG_FOLDER / f"rank{rank}.json").write_text(dump.to_json())


def _call(number: int) -> dict[str, object]:
    """A collective as gloo's Flight Recorder has it; the last one of those that wait is not over."""
    return {
        "record_id": number - 1,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "gloo:all_reduce",
        "time_created_ns": START + number * MS,
        "input_sizes": [[4160]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4160]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "retired": number < CALLS,
        "is_p2p": False,
        "frames": [{"name": "all_reduce", "filename": "/job/train.py", "line": line} for line in range(5)],
    }


def _measured(program: str, *arguments: str) -> tuple[Any, float, float]:
    """What a process printed as JSON, its CPU seconds, and its peak in MB."""
    command = [sys.executable, "-c", _MEASURED + program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=3600)
    cpu, peak = json.loads(done.stderr.splitlines()[-1])
    return json.loads(done.stdout), cpu, peak


def main(counts: Sequence[int] = (2, 200, 1000, 2000)) -> None:
    """Print a table."""
    print(" ranks  watch: s     MB  right   hang: s     MB  right  scrape: s right")
    for ranks in counts:
        late = ranks // 2
        with tempfile.TemporaryDirectory() as root:
            folder = Path(root)
            _write(folder, ranks, late)
            watch, watch_s, watch_mb = _measured(_COMMAND, "watch", root, "--once", "--format", "json")
            hang, hang_s, hang_mb = _measured(_COMMAND, "hang", root, "--format", "json")
            (stragglers, scrape_s), _, _ = _measured(_SCRAPE, root)
        named = [each["rank"] for each in watch["stragglers"]]
        print(
            f"{ranks:6} {watch_s:9.2f} {watch_mb:6.0f} {named == [late]!s:>6} {hang_s:9.2f} {hang_mb:6.0f} "
            f"{hang['culprits'] == [late]!s:>6} {scrape_s:10.3f} {stragglers == [late]}",
            flush=True,
        )


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]] or (2, 200, 1000, 2000))
