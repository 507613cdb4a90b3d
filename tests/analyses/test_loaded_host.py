"""Real ranks on a core that other programs use too: they have one clock, and the one that sleeps is the last."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.environment import without_launcher
from tests.ports import free_port

import rankscope
from rankscope.rundir.metadata import METADATA_KEY

pytestmark = pytest.mark.slow

PINNED = """
import os
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
"""
JOB = (
    PINNED
    + """
import json, sys, time
import torch
import torch.distributed as dist
import rankscope
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, calls = dist.get_rank(), []
with rankscope.Profiler(sys.argv[1], wait=0, warmup=1, active=8, ranks="all", compression="gz") as profiler:
    for step in range(9):
        for _ in range(20):
            torch.randn(128, 128) @ torch.randn(128, 128)
        if rank == 1:
            time.sleep(0.3)
        called = time.time_ns()
        dist.all_reduce(torch.ones(1000))
        calls.append((called, time.time_ns()))
        profiler.step()
with open(f"{sys.argv[1]}.calls{rank}", "w") as file:
    json.dump(calls[1:], file)
dist.destroy_process_group()
"""
)
RANKS, STEPS, BUSY_PROGRAMS = 3, 8, 4


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a job whose ranks share one core with each other and with busy programs."""
    folder = tmp_path_factory.mktemp("loaded")
    (folder / "job.py").write_text(JOB, encoding="utf-8")
    source = str(Path(__file__).parents[2] / "src")
    environ = without_launcher(os.environ) | {"OMP_NUM_THREADS": "1"}
    environ["PYTHONPATH"] = os.pathsep.join(part for part in (source, environ.get("PYTHONPATH")) if part)
    busy = [subprocess.Popen([sys.executable, "-c", PINNED + "while True: pass"]) for _ in range(BUSY_PROGRAMS)]
    try:
        place = ["--master-addr=127.0.0.1", f"--master-port={free_port()}", f"--nproc-per-node={RANKS}"]
        command = [sys.executable, "-m", "torch.distributed.run", *place, "job.py", "run"]
        ended = subprocess.run(command, cwd=folder, env=environ, timeout=300, capture_output=True, text=True)
    finally:
        for each in busy:
            each.kill()
            each.wait()
    assert ended.returncode == 0, ended.stderr
    return folder / "run"


def spans(run: Path) -> tuple[list[list[tuple[int, int]]], set[str]]:
    """By rank, the start and end of each all_reduce on the wall clock, from the trace's text; and the hosts' boots."""
    found: dict[int, list[tuple[int, int]]] = {}
    boots = set()
    for file in run.rglob("*trace.json.gz"):
        content = json.loads(gzip.decompress(file.read_bytes()))
        base = content["baseTimeNanoseconds"]
        events = [event for event in content["traceEvents"] if event.get("name") == "gloo:all_reduce"]
        rows = [(base + round(e["ts"] * 1000), base + round((e["ts"] + e["dur"]) * 1000)) for e in events]
        found[content["distributedInfo"]["rank"]] = sorted(rows)
        boots.add(content[METADATA_KEY]["boot_id"])
    return [found[rank] for rank in range(RANKS)], boots


def test_the_wall_clocks_of_the_traces_are_those_of_the_host(loaded: Path) -> None:
    """By the host's own clock, which each rank read before and after the call."""
    rows, boots = spans(loaded)
    for rank in range(RANKS):
        calls = json.loads(Path(f"{loaded}.calls{rank}").read_text())
        assert len(rows[rank]) == len(calls) == STEPS
        for (start, _), (called, returned) in zip(rows[rank], calls, strict=True):
            assert called - 100_000 <= start <= returned + 100_000
    assert len(boots) == 1


def test_busy_ranks_of_one_host_have_one_clock(loaded: Path) -> None:
    clock = rankscope.open(loaded, executor="serial").clock()
    assert clock["offset_ns"].to_list() == [0] * RANKS
    assert clock["method"].to_list() == ["reference", "host", "host"]
    assert clock["anchors"].to_list() == [STEPS] * RANKS
    assert 0 < clock["residual_ns"].max() <= 100_000


def test_the_rank_that_sleeps_is_the_last(loaded: Path) -> None:
    run = rankscope.open(loaded, executor="serial")
    arrivals = run.collective_summary(by="rank")
    # A step that is cold on the busy machine is left out, as everywhere.
    compared = arrivals["collectives"][0]
    assert compared >= STEPS - 1
    assert dict(arrivals.select("rank", "last").iter_rows()) == {0: 0, 1: compared, 2: 0}
    rows, _ = spans(loaded)
    starts = list(zip(*([start for start, _ in each] for each in rows), strict=True))
    assert all(start[1] == max(start) for start in starts)
    late = {row["rank"]: row for row in run.stragglers().to_dicts()}
    assert [late[rank]["last_share"] for rank in range(RANKS)] == [0.0, 1.0, 0.0]
    # In each step that is compared, others wait at least from the second-to-last arrival to the last.
    assert late[1]["late_steps"] == late[1]["steps"] >= STEPS - 1
    waits = sorted(start[1] - max(start[0], start[2]) for start in starts)
    assert sum(waits[: late[1]["steps"]]) <= late[1]["waited_ns"] <= sum(start[1] - min(start) for start in starts)
