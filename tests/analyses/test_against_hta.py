"""HTA's own functions on the same files, where both answer a question; run where benchmarks have made its environment.

HTA drops the last step unasked and floors to whole microseconds, so it is given files in whole microseconds whose steps
are called otherwise. What still differs is named here and in docs/numbers.md, and counted in plain Python.
"""

from __future__ import annotations

import gzip
import json
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests import plain_reading

import rankscope

HTA = Path(__file__).resolve().parents[2] / ".bench" / "hta" / "bin" / "python"
FILES = [
    "hta/timeline_analysis/sampled_rank-0.json.gz",
    "hta/trace_filter/sampled_rank-1.json.gz",
    "hta/negative_queue_length_values_check/rank0.json.gz",
]
ASK = """
import json, logging, sys, warnings
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
trace = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
idle = trace.get_idle_time_breakdown(visualize=False)[0]
queue = trace.get_queue_length_summary()["queue_length"].reset_index()
stats = trace.get_cuda_kernel_launch_stats(visualize=False)[0]
types, kernels = trace.get_gpu_kernel_breakdown(visualize=False, num_kernels=10**6, include_memory_kernels=True)
print("RESULT " + json.dumps({
    "idle": idle[["stream", "idle_category", "idle_time"]].values.tolist(),
    "queue": queue[["stream", "max"]].values.tolist(),
    "stats": [len(stats), float(stats["gpu_duration"].sum()), float(stats["cpu_duration"].sum())],
    "kernels": kernels[["name", "sum (us)"]].values.tolist(),
}))
"""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HTA.exists(), reason="HTA's environment is not made")]


def stepless(path: Path, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The trace with its steps called otherwise, and its content."""
    content = json.loads(gzip.decompress(path.read_bytes()))
    for event in content["traceEvents"]:
        if str(event.get("name", "")).startswith("ProfilerStep"):
            event["name"] = event["name"].replace("ProfilerStep", "a step")
    file = folder / "rank0.json.gz"
    file.write_bytes(gzip.compress(json.dumps(content).encode(), 1))
    return file, content


@pytest.mark.parametrize("name", FILES)
def test_hta(shared_traces: Path, tmp_path: Path, name: str) -> None:
    file, content = stepless(shared_traces / name, tmp_path)
    done = subprocess.run([str(HTA), "-c", ASK, str(file)], capture_output=True, text=True, timeout=600)
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    theirs = json.loads(line.removeprefix("RESULT "))
    run = rankscope.open(file, executor="serial")
    plain = plain_reading.read(content)

    ours = {(r["stream"], r["cause"]): r["idle_ns"] // 1000 for r in run.idle().to_dicts() if r["stream"] is not None}
    assert known_idle(plain) == {(stream, cause): round(time) for stream, cause, time in theirs["idle"] if time}
    # What `previous event` and `unknown` do not change is the same.
    differs = {key for key in {*ours, *known_idle(plain)} if ours.get(key, 0) != known_idle(plain).get(key, 0)}
    assert differs <= overlapping_or_launchless(plain)

    queues = {row["stream"]: row["max_queue"] for row in run.launches(by="stream").to_dicts()}
    counted = hta_queues(plain)
    graphs = graph_streams(plain)
    for stream, depth in theirs["queue"]:
        # HTA joins a graph's one launch with its kernels and counts neither as it is.
        if stream not in graphs:
            assert queues[round(stream)] == round(depth) == counted[round(stream)], stream

    kernels = {row["name"]: row["total_ns"] / 1000 for row in run.kernels().to_dicts()}
    for kernel, total in theirs["kernels"]:
        assert kernels.get(kernel) == total, kernel


def known_idle(plain: plain_reading.Plain) -> dict[tuple[Any, str], int]:
    """HTA's gaps: behind the *previous* event of the stream, even if an earlier one still runs (then negative)."""
    found: dict[tuple[Any, str], int] = defaultdict(int)
    before: dict[Any, plain_reading.Event] = {}
    for event in plain.device:
        stream = event.args.get("stream")
        if stream in before:
            gap, end = event.start - before[stream].end, before[stream].end
            late = event.launch is not None and event.launch > end
            cause = "host_wait" if late else "kernel_wait" if gap < 30_000 else "other"
            found[stream, cause] += gap // 1000
        before[stream] = event
    return {key: value for key, value in found.items() if value}


def overlapping_or_launchless(plain: plain_reading.Plain) -> set[tuple[Any, str]]:
    """Streams in which events overlap or lack a launch: all of their causes may differ."""
    reached: dict[Any, int] = {}
    odd: set[Any] = set()
    for event in plain.device:
        stream = event.args.get("stream")
        if event.start < reached.get(stream, event.start) or event.launch is None:
            odd.add(stream)
        reached[stream] = max(reached.get(stream, event.end), event.end)
    return {(stream, cause) for stream in odd for cause in ("host_wait", "kernel_wait", "other", "unknown")}


def graph_streams(plain: plain_reading.Plain) -> set[Any]:
    """Streams with an event whose launch has further events."""
    calls: dict[Any, int] = defaultdict(int)
    for event in plain.device:
        calls[event.args.get("correlation")] += 1
    return {event.args.get("stream") for event in plain.device if calls[event.args.get("correlation")] > 1}


def hta_queues(plain: plain_reading.Plain) -> dict[Any, int]:
    """HTA's depth: launches before starts of one instant, the greatest of the points at which it changes."""
    changes: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for event in plain.device:
        if event.launch is not None:
            changes[event.args.get("stream")] += [(event.launch, 1), (event.start, -1)]
    deepest: dict[Any, int] = {}
    for stream, points in changes.items():
        depth = 0
        for _, change in sorted(points, key=lambda point: (point[0], -point[1])):
            depth += change
            deepest[stream] = max(deepest.get(stream, 0), depth)
    return deepest
