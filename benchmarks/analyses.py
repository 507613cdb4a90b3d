"""The per-rank analyses against HTA's functions for the same: CPU seconds after loading, and cold from the file.

- warm: the trace is read (ours: tables in the cache; HTA: a `TraceAnalysis`), then one analysis. Ours loads
  its columns from the cache each time, as `rankscope analyze` does; HTA has the whole trace in memory.
- cold: from the compressed file to the result.

The functions that both have: kernel breakdown, idle time, launch statistics, queue length.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from benchmarks.peers import HTA, TRACES, environment
from benchmarks.timing import best, interleaved

FILES = (
    "tensorboard-plugin/resnet50_num_workers_4/worker0.1623212756351.pt.trace.json.gz",
    "hta/negative_queue_length_values_check/rank0.json.gz",
)
# Our analysis, and HTA's call for the same question.
PAIRS = {
    "kernels": "get_gpu_kernel_breakdown(visualize=False, num_kernels=1000000, include_memory_kernels=True)",
    "idle": "get_idle_time_breakdown(visualize=False)",
    "launches": "get_cuda_kernel_launch_stats(visualize=False)",
    "launches --by stream": "get_queue_length_summary()",
    "device_time": "get_temporal_breakdown(visualize=False)",
}
_ANALYSES = ("kernels", "idle", "launches", "device_time")
ALONE = ("operators", "utilization", "annotations", "data_loading", "devices", "slices")

_OURS = """
import os, rankscope
os.environ["RANKSCOPE_CACHE"] = {cache!r}
def work():
    run = rankscope.open({path!r}, executor="serial")
    run.analyze({name!r}, parameters={{{name!r}: {parameters!r}}})
{warm}
"""
_OURS_COLD = """
import os, tempfile, rankscope
def work():
    with tempfile.TemporaryDirectory() as cache:
        os.environ["RANKSCOPE_CACHE"] = cache
        rankscope.open({path!r}, executor="serial").analyze({name!r}, parameters={{{name!r}: {parameters!r}}})
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
"""


def _snippets(path: str, name: str, call: str, cache: str, hta: Path, cold: bool) -> dict[str, tuple[str, Path | str]]:
    analysis, _, option = name.partition(" --by ")
    parameters = {"by": option} if option else {}
    if cold:
        ours = _OURS_COLD.format(path=path, name=analysis, parameters=parameters)
        theirs = _HTA.format(path=path, made="", trace="opened()", call=call)
    else:
        ours = _OURS.format(path=path, name=analysis, parameters=parameters, cache=cache, warm="work()")
        theirs = _HTA.format(path=path, made="trace = opened()", trace="trace", call=call)
    return {"ours": (ours, sys.executable), "hta": (theirs, hta)}


def main(rounds: int = 2) -> None:
    if not TRACES.exists():
        print("the real traces are not here: nothing to measure", file=sys.stderr)
        return
    hta = environment("hta", HTA)
    if hta is None:
        return
    import tempfile

    with tempfile.TemporaryDirectory() as cache:
        for file in FILES:
            path = str(TRACES / file)
            print(f"{file}\n{'':22} {'ours ms':>9} {'HTA ms':>9} {'×':>7} {'cold: ours ms':>14} {'HTA ms':>9} {'×':>7}")
            factors = []
            for name, call in PAIRS.items():
                warm = interleaved(_snippets(path, name, call, cache, hta, False), rounds)
                cold = interleaved(_snippets(path, name, call, cache, hta, True), 1)
                cells = [best(runs[who]) * 1e3 for runs in (warm, cold) for who in ("ours", "hta")]
                factors.append(cells[1] / cells[0])
                print(
                    f"{name:22} {cells[0]:9.1f} {cells[1]:9.1f} {cells[1] / cells[0]:7.1f}"
                    f" {cells[2]:14.0f} {cells[3]:9.0f} {cells[3] / cells[2]:7.1f}",
                    flush=True,
                )
            print(f"{'geometric mean':22} {'':9} {'':9} {math.prod(factors) ** (1 / len(factors)):7.1f}")
            together = _OURS.format(path=path, name="kernels", parameters={}, cache=cache, warm="work()").replace(
                "run.analyze('kernels', parameters={'kernels': {}})", "run.analyze(*" + repr(tuple(_ANALYSES)) + ")"
            )
            took = best(interleaved({"ours": (together, sys.executable)}, rounds)["ours"]) * 1e3
            print(f"{'ours together':22} {took:9.1f}", flush=True)
            for name in ALONE:
                ours = _OURS.format(path=path, name=name, parameters={}, cache=cache, warm="work()")
                took = best(interleaved({"ours": (ours, sys.executable)}, rounds)["ours"]) * 1e3
                print(f"{name:22} {took:9.1f}", flush=True)
