"""A job of two ranks that runs loops with a fault in them, and the same loops fixed: ``real_job.py OUT``.

Run under torchrun by test_real_causes.py, beside other tests on a machine that may be busy. What a loop costs must not
hang on these:

- Where sleeping is honest (a loader that is slow, a rank that has more to do, a finalizer that closes something), it
  sleeps, and long: sleeps take no cores, and others cannot make them longer by much. Waiting for a network is sleep,
  too, where the network is slow: the sockets between the ranks are (`slow_network`).
- What can only be made of work, so many operators or a product, takes cores. Where the system lets it (root,
  mostly) the job goes before all others (`go_first`); elsewhere beside its gain stands by how much others kept it from
  the cores.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

import rankscope

WAIT, ACTIVE = 6, 6
KEPT = 1 << 20
NETWORK = 400_000_000
"""Bytes a second that a connection carries at most."""
# Linux has it, Python has no name for it.
SO_MAX_PACING_RATE = 47


class Work(torch.autograd.Function):
    """Compute that takes its time without the cores: what it does is an operator in the trace."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, seconds: float, back: float) -> torch.Tensor:
        ctx.back = back
        time.sleep(seconds)
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        time.sleep(ctx.back)
        return grads[0], None, None


def work(seconds: float) -> None:
    Work.apply(torch.ones(1, requires_grad=True), seconds, 0.0)


class Samples(Dataset[torch.Tensor]):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.ones(4)


class Deep(nn.Module):
    """Layers whose backward takes its time, each with 12 MB of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.ones(3_000_000) for _ in range(8))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            value = Work.apply(value + weight[:1], 0.0, 0.06)
        return value


Step = Callable[[], None]


def loading(seconds: float) -> Step:
    batches: Iterator[torch.Tensor] = iter(DataLoader(Samples(seconds), batch_size=1))

    def step() -> None:
        next(batches)
        work(0.1)

    return step


def reducing(each: bool) -> Step:
    def step() -> None:
        for micro in range(6):
            work(0.08 if micro % 2 == dist.get_rank() else 0.02)
            if each:
                dist.all_reduce(torch.ones(1))
        dist.all_reduce(torch.ones(1))

    return step


def tiny(count: int) -> Step:
    # Small, but not so small that recording it costs as much as it does.
    value = torch.ones(32_768)

    def step() -> None:
        for _ in range(count):
            value.add_(1.0)

    return step


def buckets(megabytes: int) -> Step:
    model = nn.parallel.DistributedDataParallel(Deep(), bucket_cap_mb=megabytes)

    def step() -> None:
        model(torch.ones(1)).sum().backward()

    return step


def uneven(*seconds: float) -> Step:
    def step() -> None:
        work(seconds[dist.get_rank()])
        dist.all_reduce(torch.ones(1))

    return step


class Closes:
    """What only a collection frees, for it holds itself; freeing it takes its time, as closing a file may."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.myself = seconds, self

    def __del__(self) -> None:
        time.sleep(self.seconds)


def collecting(times: int) -> Step:
    def step() -> None:
        work(0.1)
        for _ in range(times):
            Closes(0.05)
            gc.collect()

    return step


def keeping(kept: bool) -> Step:
    all_of_them: list[torch.Tensor] = []

    def step() -> None:
        made = torch.ones(KEPT // 4)
        if kept:
            all_of_them.append(made)
        work(0.005)

    return step


def products(dtype: torch.dtype) -> Step:
    one = torch.ones(512, 512, dtype=dtype)

    def step() -> None:
        for _ in range(6):
            torch.mm(one, one)

    return step


CASES: dict[str, tuple[Callable[[], Step], dict[str, Any]]] = {
    "loader": (lambda: loading(0.1), {}),
    "loader-fixed": (lambda: loading(0.0), {}),
    "sync": (lambda: reducing(True), {"record_shapes": True}),
    "sync-fixed": (lambda: reducing(False), {"record_shapes": True}),
    "tiny": (lambda: tiny(4000), {}),
    "tiny-fixed": (lambda: tiny(1), {}),
    "bucket": (lambda: buckets(1000), {"record_shapes": True}),
    "bucket-fixed": (lambda: buckets(25), {"record_shapes": True}),
    # One step in which the other rank had no core must not be one of few.
    "uneven": (lambda: uneven(0.06, 0.18), {"active": 12}),
    "uneven-dropped": (lambda: uneven(0.06, 0.06), {}),
    "gc": (lambda: collecting(2), {}),
    "gc-fixed": (lambda: collecting(0), {}),
    "growth": (lambda: keeping(True), {"profile_memory": True}),
    "growth-fixed": (lambda: keeping(False), {"profile_memory": True}),
    "precision": (lambda: products(torch.float32), {"record_shapes": True}),
    "precision-fixed": (lambda: products(torch.bfloat16), {"record_shapes": True}),
}


MENDED = {
    "loader": ["loader-fixed"],
    "sync": ["sync-fixed"],
    "tiny": ["tiny-fixed"],
    "bucket": ["bucket-fixed"],
    "uneven": ["uneven-dropped"],
    "gc": ["gc-fixed"],
    "growth": ["growth-fixed"],
    "precision": ["precision-fixed"],
}
TURNS = 7


def go_first() -> None:
    """Go before whatever else wants the cores, where that is allowed; threads that are started later do, too."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except (AttributeError, OSError):
        return


def slow_network() -> None:
    """Hold each connection of this process to so many bytes a second, where the system can: waiting takes no cores."""
    for entry in Path("/proc/self/fd").iterdir() if Path("/proc/self/fd").exists() else ():
        try:
            if not stat.S_ISSOCK(entry.stat().st_mode):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as own:
                if own.family in (socket.AF_INET, socket.AF_INET6):
                    own.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, NETWORK)
        except OSError:
            continue


def timed(step: Step) -> float:
    """How long a step takes on the slower rank, seconds."""
    dist.barrier()
    began = time.perf_counter()
    step()
    took = torch.tensor([time.perf_counter() - began])
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took)


def gain(faulty: Step, fixed: Step) -> float:
    """What mending gains, seconds: the median over turns of one step of each, for the machine is busy now and then."""
    gained = [timed(faulty) - timed(fixed) for _ in range(TURNS)]
    return sorted(gained)[TURNS // 2]


def kept_from_cores() -> float:
    """By how much longer than its own time a thread needs that has work to do, mostly: 1 on a machine that is free."""
    ratios = []
    for _ in range(TURNS):
        began, own = time.perf_counter(), time.thread_time()
        while time.thread_time() - own < 0.01:
            pass
        ratios.append((time.perf_counter() - began) / (time.thread_time() - own))
    ratio = torch.tensor([sorted(ratios)[TURNS // 2]])
    dist.all_reduce(ratio, dist.ReduceOp.MAX)
    return float(ratio)


def main(out: str, *names: str) -> None:
    go_first()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    # The first collective makes the connections.
    dist.all_reduce(torch.ones(1))
    slow_network()
    gains: dict[str, float] = {}
    busy: dict[str, float] = {}
    for name in names or MENDED:
        # A collection looks at what these loops hold, not at all of torch nor at what others have left.
        gc.collect()
        gc.freeze()
        steps: dict[str, Step] = {}
        for each in (name, *MENDED[name]):
            make, options = CASES[each]
            step = steps[each] = make()
            dist.barrier()
            options = {"active": ACTIVE, **options}
            profiler = rankscope.Profiler(f"{out}/{each}", wait=WAIT, warmup=2, repeat=1, **options)
            with profiler:
                for _ in range(WAIT + 2 + options["active"] + 1):
                    step()
                    profiler.step()
            # What the profiler leaves behind would be collected with the loop's own.
            del profiler
            gc.collect()
        before = kept_from_cores()
        gains |= {each: gain(steps[name], steps[each]) for each in MENDED[name]}
        busy[name] = max(before, kept_from_cores())
        dist.barrier()
        steps.clear()
        del step
    # Else a thread of gloo may meet the interpreter's end, and abort (docs/capture.md).
    gc.collect()
    if dist.get_rank() == 0:
        Path(out, "gains.json").write_text(json.dumps(gains))
        Path(out, "busy.json").write_text(json.dumps(busy))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
