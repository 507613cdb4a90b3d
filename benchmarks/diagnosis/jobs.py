"""Real jobs in which one rank is made slow: torchrun, two or more ranks, one window of eight steps each."""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import rankscope
from benchmarks.diagnosis.replay import keep as keep_record
from benchmarks.diagnosis.replay import record_of_run
from benchmarks.diagnosis.scoring import Case, Done, Said, said_of

CAUSES = {
    # The cause of each fault, in the terms of the findings.
    "loader": ("data_loading",),
    "sleep": ("slow_host",),
    "hog": ("slow_host",),
    "spin": ("slow_host",),
    "lock": ("slow_host",),
    "stall": ("slow_host",),
    "gc": ("slow_host",),
    "batch": ("more_work",),
    "slow_collective": ("slow_network",),
}
STALL_MS = 80
# Two ranks on one core slow each other down: no more ranks than cores.
LAUNCHES = tuple(
    each
    for each in ((2, True), (2, False), (3, False), (3, True), (8, True), (8, False))
    if each[0] <= max(len(os.sched_getaffinity(0)), 2)
)
JOB = Path(__file__).with_name("training_job.py")


@functools.cache
def own_network() -> tuple[str, ...]:
    """The command prefix that starts a process in its own network namespace; empty if that is not possible."""
    start = ("unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
    throttle = ("tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", "1gbit", "burst", "1mb", "latency", "1s")
    if not all(shutil.which(each) for each in ("unshare", "ip", "tc")):
        return ()
    return start if subprocess.run([*start, *throttle], capture_output=True).returncode == 0 else ()


def plan_of(seed: int, ranks: int, ddp: bool, nccl: bool) -> dict[str, Any]:
    """The windows of one launch, in random order with clean ones in between."""
    draw = random.Random(seed)
    kinds = ["loader", "sleep", "gc", "batch", "spin", "lock", "stall"]
    if ranks == 2:
        kinds += ["hog"]
        if not ddp and not nccl and own_network():
            # Overlapping ranges do not separate transfer from waiting.
            kinds += ["slow_collective"]
    draw.shuffle(kinds)
    windows: list[dict[str, Any]] = []
    for number, kind in enumerate(kinds):
        if number % 2 == 0:
            windows.append({"name": f"w{len(windows)}_clean", "kind": "", "rank": -1})
        rank = draw.randrange(ranks)
        lost_ms = STALL_MS if kind == "stall" else draw.choice([10, 20, 40])
        windows.append({"name": f"w{len(windows)}_{kind}", "kind": kind, "rank": rank, "ms": lost_ms})
    return {"ddp": ddp, "nccl": nccl, "ranks": ranks, "windows": windows}


def start_launch(number: int, out: Path, nccl: bool = False) -> None:
    """Run one job to its end, unless ``out`` has its recordings already."""
    if (out / "took.json").exists():
        return
    ranks, ddp = LAUNCHES[number % len(LAUNCHES)]
    out.mkdir(parents=True, exist_ok=True)
    (out / "plan.json").write_text(json.dumps(plan_of(number, ranks, ddp, nccl)))
    command = [*(() if nccl else own_network()), sys.executable, "-m", "torch.distributed.run"]
    command += ["--standalone", f"--nproc-per-node={ranks}"]
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore", GLOO_SOCKET_IFNAME="lo")
    paths = [str(JOB.parents[2]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(each for each in paths if each)
    subprocess.run([*command, str(JOB), str(out), str(out / "plan.json")], check=True, timeout=900, env=environment)


def cases_of(number: int, out: Path) -> Iterator[Case]:
    """The findings of each window."""
    os.environ["RANKSCOPE_CACHE"] = str(out / "cache")
    plan = json.loads((out / "plan.json").read_text())
    measured = json.loads((out / "took.json").read_text())
    took, off_core = measured["step_s"], measured["off_core_s"]
    clean = statistics.median(took[w["name"]] for w in plan["windows"] if not w["kind"])
    for window in plan["windows"]:
        begun = time.process_time()
        run = rankscope.open(out / window["name"], executor="serial")
        run.stragglers()
        said = said_of(run.findings)
        step_s, waits = took[window["name"]], off_core[window["name"]]
        done: tuple[Done, ...] = ()
        if window["kind"]:
            struck = range(plan["ranks"]) if window["kind"] == "slow_collective" else [window["rank"]]
            cost = max(step_s / clean - 1, 0.0)
            stall = window["kind"] == "stall"
            done = (Done(frozenset(struck), CAUSES[window["kind"]], cost, window["kind"], stall=stall),)
        keep_record(record_of_run(run, f"launch {number} {window['name']}", done), out.parent / "records")
        note = f"{plan['ranks']} ranks, {'DDP' if plan['ddp'] else 'one all_reduce a layer'}, {1e3 * clean:.0f} ms"
        note += "; off their cores " + ", ".join(f"{1e3 * each:.1f}" for each in waits) + " ms"
        case = Case(f"launch {number} {window['name']}", done, said, note, time.process_time() - begun)
        yield replace(case, confirmed=None if done or not waits else _confirmed(said, waits))


def _confirmed(said: Sequence[Said], waits: Sequence[float]) -> bool:
    """Whether the ranks of all findings but stalls waited longer for their cores, by half of the saving, than ranks
    without a finding did."""
    lasting = [each for each in said if not each.stall]
    accused = {rank for each in lasting for rank in each.ranks}
    others = [wait for rank, wait in enumerate(waits) if rank not in accused]
    longer = [min(waits[rank] for rank in each.ranks) - max(others, default=0.0) for each in lasting]
    return bool(others) and all(2e9 * by >= each.saving_ns > 0 for each, by in zip(lasting, longer, strict=True))


def run_jobs(launches: int = len(LAUNCHES), keep: Path | None = None, nccl: bool = False) -> Iterator[Case]:
    """The cases of several launches; those that ``keep`` has already are not run again."""
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(launches):
            out = (keep or Path(temporary)) / f"launch{number}"
            start_launch(number, out, nccl)
            yield from cases_of(number, out)
