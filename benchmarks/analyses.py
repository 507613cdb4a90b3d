"""The per-rank analyses against HTA's functions for the same: CPU seconds after loading, and cold from the file.

- after loading: the trace is read (ours: a run that is open, with the columns of earlier analyses in memory, 256 MiB at
  most; HTA: a `TraceAnalysis`, with the whole trace in memory), then the analysis is computed anew, 100 times in
  each of three processes in turn: the least of them, of both alike, for what others do on the machine only ever adds.
- opened again: ours alone, from the tables in the cache, as each `rankscope analyze` does it.
- cold: from the compressed file to the result.

The functions that both have: kernel breakdown, idle time by stream, launch statistics, queue length, time by kind of
work with what overlaps, bandwidth of copies. Of these `idle` gives more unless `--of streams` is asked: what the host
did while the device idled, which HTA does not have; so it stands beside them and not in the sum.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.peers import HTA, TRACES, environment
from benchmarks.timing import best, interleaved, least

FILES = (
    "tensorboard-plugin/resnet50_num_workers_4/worker0.1623212756351.pt.trace.json.gz",
    "hta/negative_queue_length_values_check/rank0.json.gz",
)
_IDLE = "get_idle_time_breakdown(visualize=False)"
# Our analysis, and HTA's call for the same question.
PAIRS = {
    "kernels": "get_gpu_kernel_breakdown(visualize=False, num_kernels=1000000, include_memory_kernels=True)",
    "idle --of streams": _IDLE,
    "launches": "get_cuda_kernel_launch_stats(visualize=False)",
    "launches --by stream": "get_queue_length_summary()",
    "device_time": "get_temporal_breakdown(visualize=False)",
    "copies": "get_memory_bw_summary()",
}
MORE = {"idle": _IDLE}
REPEATS = 100
_ANALYSES = ("kernels", "idle", "launches", "device_time")
ALONE = ("operators", "critical_path", "utilization", "annotations", "data_loading", "devices", "slices")

_OURS = """
import os, rankscope
os.environ["RANKSCOPE_CACHE"] = {cache!r}
run = rankscope.open({path!r}, executor="serial")
def work():
    # A run gives a result that it has again: it must have none.
    run._results.clear()
    {call}
work()
"""
_OURS_AGAIN = """
import os, rankscope
os.environ["RANKSCOPE_CACHE"] = {cache!r}
def work():
    run = rankscope.open({path!r}, executor="serial")
    {call}
work()
"""
_OURS_COLD = """
import os, tempfile, rankscope
def work():
    with tempfile.TemporaryDirectory() as cache:
        os.environ["RANKSCOPE_CACHE"] = cache
        run = rankscope.open({path!r}, executor="serial")
        {call}
"""
_HTA = """
import logging
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
def opened():
    return TraceAnalysis(trace_files={{0: {path!r}}}, trace_dir="")
{made}
def work():
    {trace}.{call}
{before}
"""


def _call(name: str) -> str:
    """The call for `launches --by stream`."""
    analysis, *option = name.replace("--", "").split()
    parameters = {analysis: dict([option])} if option else {}
    return f"run.analyze({analysis!r}, parameters={parameters!r})"


def main(rounds: int = 3) -> None:
    if not TRACES.exists():
        print("the real traces are not here: nothing to measure", file=sys.stderr)
        return
    hta = environment("hta", HTA)
    if hta is None:
        return
    with tempfile.TemporaryDirectory() as cache:
        for file in FILES:
            _of_file(str(TRACES / file), cache, hta, rounds)


def _of_file(path: str, cache: str, hta: Path, rounds: int) -> None:
    columns = ("ours ms", "HTA ms", "×", "again: ours", "×", "cold: ours", "HTA ms", "×")
    print(f"{path}\n{'':22}" + "".join(f" {column:>11}" for column in columns))
    sums = dict.fromkeys(("ours", "hta", "again", "cold", "hta cold"), 0.0)
    for name, theirs in PAIRS.items():
        found = _of_pair(name, theirs, path, cache, hta, rounds)
        _row(name, found)
        sums = {key: value + found[key] for key, value in sums.items()}
    _row("together", sums)
    for name, theirs in MORE.items():
        _row(f"{name}: more than HTA", _of_pair(name, theirs, path, cache, hta, rounds))
    for label, call in (
        ("ours in one call", f"run.analyze(*{_ANALYSES!r})"),
        *((name, f"run.analyze({name!r})") for name in ALONE),
    ):
        snippet = _OURS.format(path=path, cache=cache, call=call)
        taken = least(interleaved({"ours": (snippet, sys.executable)}, rounds, REPEATS)["ours"])
        print(f"{label:22} {taken * 1e3:11.1f}", flush=True)


def _of_pair(name: str, theirs: str, path: str, cache: str, hta: Path, rounds: int) -> dict[str, float]:
    """Milliseconds of an analysis and its peer."""
    filled = {"path": path, "cache": cache, "call": _call(name)}
    warm = interleaved(
        {
            "ours": (_OURS.format(**filled), sys.executable),
            "hta": (_HTA.format(path=path, made="trace = opened()", trace="trace", call=theirs, before="work()"), hta),
        },
        rounds,
        REPEATS,
    )
    again = interleaved({"again": (_OURS_AGAIN.format(**filled), sys.executable)}, rounds)
    cold = interleaved(
        {
            "cold": (_OURS_COLD.format(**filled), sys.executable),
            "hta cold": (_HTA.format(path=path, made="", trace="opened()", call=theirs, before=""), hta),
        },
        1,
    )
    found = {key: least(runs) for key, runs in warm.items()} | {key: best(runs) for key, runs in (again | cold).items()}
    return {key: seconds * 1e3 for key, seconds in found.items()}


def _row(name: str, ms: dict[str, float]) -> None:
    cells = [ms["ours"], ms["hta"], ms["hta"] / ms["ours"], ms["again"], ms["hta"] / ms["again"]]
    cells += [ms["cold"], ms["hta cold"], ms["hta cold"] / ms["cold"]]
    print(f"{name:22}" + "".join(f" {cell:11.2f}" for cell in cells), flush=True)
