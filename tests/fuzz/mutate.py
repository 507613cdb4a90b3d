# ruff: noqa: E501 (tables of values)
"""Traces to begin with, and mutations of them: of single values by their place in an event, and of bytes."""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tests import kineto
from tests.conftest import SHARED_TRACES
from tests.ingest.test_fuzz import bases as small_texts
from tests.ingest.test_fuzz import damage

from rankscope.errors import TraceError
from rankscope.experiments.simulate.job import Job, Recording
from rankscope.experiments.simulate.run import simulate
from rankscope.ingest.source import open_trace

Files = dict[str, bytes]
"""The traces of a run by the names of their files."""

MOST_OF_A_KIND = 12

_TIMES = [0, -1, 1, 1e-9, 0.5, 1e12, 3e14, 2e15, 9e15, -9e15, 9.3e18, -9.3e18, 2**63, -(2**63), 2**64, 10**40]
_NUMBERS = [0, -1, 1, 2, 7, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, -(2**63), 10**40, 0.1, -0.5, 1e308, 1e-300]
_TOKENS = ["NaN", "Infinity", "-Infinity", "1e400", "-0.0", "1E5", "00", "+1", ".5", '"\\ud800"', "nul", "{", "}"]
_TEXTS = [
    "", " ", "0", "-1", "1e400", "nan", "\x00", "\x1b[31m", "</script><script>", "=1+1", "ProfilerStep#", "ProfilerStep#-1",
    "ProfilerStep#999999999999999999", "ProfilerStep#99999999999999999999", "PartialStep#3", "aten::mm", "aten::addmm",
    "nn.Module: Linear_0", "nn.Module: ", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", "gloo:all_reduce",
    "record_param_comms", "ncclKernel_SendRecv_RING", "Memcpy HtoD (Pinned -> Device)", "x" * 70_000, "é" * 40_000, "[", "[[]]",
    "[[2, 3], [4]]", "[[-1]]", "[[9223372036854775807, 9223372036854775807], [2, 2]]", "[1e400]", "Float", "BFloat16", "allreduce",
    "train.py(12): forward", "(): ", "cudaGraphLaunch", "cudaStreamSynchronize", "DistributedDataParallel.forward", "Optimizer.step#SGD.step",
]  # fmt: skip
_ODD = [None, True, False, [], {}, [[]], [None], [0] * 50, {"a": {"b": []}}, [[2, 3], [4]], [-1, 2**63, "x"]]
_CATEGORIES = [
    "kernel", "cpu_op", "user_annotation", "gpu_user_annotation", "cuda_runtime", "cuda_driver", "gpu_memcpy", "gpu_memset",
    "python_function", "overhead", "ac2g", "fwdbwd", "cpu_instant_event", "cuda_sync", "privateuse1_runtime", "xpu_runtime", None, 3,
]  # fmt: skip


@cache
def base_runs() -> list[dict[str, kineto.Trace]]:
    """Runs to begin with: handmade, simulated, and of each producer of real traces, thinned to few events of a kind."""
    found = [{"rank0.json": kineto.trace(handmade(0), rank=0, world_size=2)}]
    found.append({f"rank{rank}.json": kineto.trace(handmade(rank), rank=rank, world_size=2) for rank in range(2)})
    jobs = [
        Job(ranks=2, steps=2, layers=1, kernels_per_layer=2, recording=Recording(stacks=True)),
        Job(ranks=2, steps=3, layers=1, kernels_per_layer=2, data_parallel="fsdp"),
        Job(ranks=4, steps=2, layers=1, kernels_per_layer=1, mesh={"pp": 2, "dp": 2}),
    ]
    for job in jobs:
        with tempfile.TemporaryDirectory() as folder:
            simulate(
                Path(folder) / "run", replace(job, recording=replace(job.recording, compression="none")), costs=False
            )
            found.append(
                {path.name: json.loads(path.read_bytes()) for path in sorted(Path(folder).rglob("rank*_iter*"))}
            )
    smallest: dict[Path, Path] = {}
    for file in SHARED_TRACES.rglob("*.json*") if SHARED_TRACES.exists() else ():
        kept = smallest.get(file.parent)
        if file.stat().st_size < (1 << 20 if kept is None else kept.stat().st_size):
            smallest[file.parent] = file
    for _, file in sorted(smallest.items()):
        try:
            with open_trace(str(file)) as opened:
                content = json.loads(opened.trace.read(64 << 20), strict=False)
        except (AttributeError, ValueError, TraceError):
            continue
        if isinstance(content, dict) and isinstance(content.get("traceEvents"), list):
            found.append({"rank0.json": {**content, "traceEvents": _thinned(content["traceEvents"])}})
    return found


def handmade(rank: int) -> list[kineto.Event]:
    """Two steps of everything that a trace may hold."""
    made: list[kineto.Event] = []
    for number in range(2):
        at = 1000 * number
        made += [
            kineto.step(number + 3, at, 900),
            kineto.loading(at + 1, 9),
            kineto.annotation("Optimizer.step#SGD.step", at + 700, 90),
            kineto.annotation("DistributedDataParallel.forward", at + 20, 200),
            kineto.op("aten::mm", at + 30, 20, external=10 + at, dims=[[8, 16], [16, 8]], sequence=5 + number, **{"Input type": ["float", "float"]}),
            kineto.op("autograd::engine::evaluate_function: MmBackward0", at + 300, 50, tid=kineto.BACKWARD_THREAD, sequence=5 + number, forward_thread=1),
            kineto.launch(at + 35, 3, correlation=20 + at, external=10 + at),
            kineto.kernel("ampere_sgemm_128x64_nn", at + 50, 200, correlation=20 + at, external=10 + at, grid=[8, 1, 1], block=[128, 1, 1], **{"est. achieved occupancy %": 40, "blocks per SM": 0.5, "warps per SM": 2}),
            kineto.op("record_param_comms", at + 400, 5, external=11 + at, **{"Collective name": "allreduce", "In msg nelems": 64, "Out msg nelems": 64, "Group size": 2, "dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}),
            kineto.launch(at + 401, 2, correlation=21 + at, external=11 + at),
            kineto.collective(at + 410 + 30 * rank, 100 - 30 * rank, correlation=21 + at, external=11 + at, sequence=number),
            kineto.memcpy(at + 600, 20, size=4096, correlation=22 + at),
            kineto.launch(at + 598, 2, correlation=22 + at, name="cudaMemcpyAsync"),
            kineto.memset(at + 640, 5, size=64),
            kineto.launch(at + 800, 60, name="cudaStreamSynchronize"),
            kineto.memory(at + 40, 512, allocated=512, reserved=1024),
            kineto.memory(at + 850, -512, allocated=0, reserved=1024),
            kineto.frame("train.py(1): main", at, 890, python_id=1 + 3 * number),
            kineto.frame("nn.Module: Linear_0", at + 25, 60, python_id=2 + 3 * number, parent=1 + 3 * number),
            kineto.event("ac2g", at + 35, ph="s", id=20 + at, cat="ac2g"),
            kineto.event("ac2g", at + 50, ph="f", id=20 + at, cat="ac2g", tid=7, pid=0, bp="e"),
        ]  # fmt: skip
    made.append(kineto.event("process_name", None, ph="M", args={"name": "python"}))
    return made


def _thinned(events: list[Any]) -> list[Any]:
    kinds: Counter[tuple[str, str]] = Counter()
    kept = []
    for each in events:
        if not isinstance(each, dict):
            continue
        kind = str(each.get("ph")), str(each.get("cat"))
        kinds[kind] += 1
        if kinds[kind] <= MOST_OF_A_KIND or str(each.get("name")).startswith("ProfilerStep#"):
            kept.append(each)
    return kept


def mutated(source: random.Random) -> Files:
    """A run with several mutations."""
    if source.random() < 0.15:  # bytes
        return {"rank0.json": damage(source, source.choice(small_texts()), small_texts())}
    run = json.loads(json.dumps(source.choice(base_runs())))
    tokens: dict[str, str] = {}
    for _ in range(source.choice([1, 1, 2, 4, 12, 40])):
        _mutate(source, source.choice(list(run.values())), tokens)
    files = {}
    for name, content in run.items():
        text = json.dumps(content)
        for key, token in tokens.items():
            text = text.replace(f'"{key}"', token)
        files[name] = text.encode("utf-8", "surrogatepass")
    return files


def _mutate(source: random.Random, content: kineto.Trace, tokens: dict[str, str]) -> None:
    events = content["traceEvents"]
    kind = source.random()
    if not events or kind < 0.12:  # of a top-level key
        keys = [key for key in content if key != "traceEvents"]
        holder, key = _place(source, content, source.choice(keys)) if keys else (content, "x")
        holder[key] = _odd(source, key, tokens)
    elif kind < 0.62:  # one value of one event, or of all like it
        one = source.choice(events)
        alike = [one]
        if source.random() < 0.3:
            alike = [each for each in events if each.get("cat") == one.get("cat")]
        field = source.choice(["ts", "dur", "name", "cat", "pid", "tid", "args", "args", "args", "args", "ph", "id"])
        value = _odd(source, field, tokens)
        args = one.get("args")
        argument = source.choice(list(args)) if field == "args" and isinstance(args, dict) and args else None
        for each in alike:
            if argument is not None and isinstance(each.get("args"), dict):
                each["args"][argument] = deepcopy(value)
            elif source.random() < 0.9:
                each[field] = deepcopy(value)
            else:
                each.pop(field, None)
    elif kind < 0.72:  # removed
        del events[source.randrange(len(events))]
    elif kind < 0.82:  # again, perhaps at another time
        one = json.loads(json.dumps(source.choice(events)))
        if source.random() < 0.5:
            one["ts"] = _odd(source, "ts", tokens)
        events.insert(source.randrange(len(events) + 1), one)
    elif kind < 0.9:  # two change a value
        one, other = source.choice(events), source.choice(events)
        field = source.choice(["ts", "dur", "name", "cat", "pid", "tid", "args"])
        if field in one and field in other:
            one[field], other[field] = other[field], one[field]
    elif kind < 0.95:  # all of a category are gone
        category = source.choice(events).get("cat")
        events[:] = [each for each in events if each.get("cat") != category]
    else:  # one argument of all events is gone
        args = source.choice(events).get("args")
        if isinstance(args, dict) and args:
            gone = source.choice(list(args))
            for each in events:
                if isinstance(each.get("args"), dict):
                    each["args"].pop(gone, None)


def _place(source: random.Random, holder: Any, key: Any) -> tuple[Any, Any]:
    """A place within a value: from the outside in, as deep as chance has it."""
    inside = holder[key]
    while isinstance(inside, dict | list) and inside and source.random() < 0.8:
        holder, key = inside, source.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
        inside = holder[key]
    return holder, key


def _odd(source: random.Random, field: Any, tokens: dict[str, str]) -> Any:
    if field in ("ts", "dur") and source.random() < 0.6:
        return source.choice(_TIMES)
    if field == "cat":
        return source.choice(_CATEGORIES)
    if field == "ph":
        return source.choice(["X", "B", "E", "i", "C", "s", "f", "M", "", None, 3])
    kind = source.random()
    if kind < 0.4:
        return source.choice(_NUMBERS)
    if kind < 0.65:
        return source.choice(_TEXTS)
    if kind < 0.9:
        return deepcopy(source.choice(_ODD))
    key = f"token-{len(tokens)}"
    tokens[key] = source.choice(_TOKENS)
    return key


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """The traces of a run, in a new directory."""
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
