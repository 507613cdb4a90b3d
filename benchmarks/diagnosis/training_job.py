"""A small training job under torchrun with one fault per window: ``training_job.py OUT PLAN``.

The plan is JSON: a list of windows, each with a name, what goes wrong, on which rank, and how much (ms a step). Every
window is a run directory of its own, recorded by rankscope's Profiler as any user's would be. With ``"nccl": true`` the
model is on a GPU, which the ranks share where there is only one. A slow network is one of
a network namespace of the job's own, whose loopback a token bucket throttles for some steps.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.gpu.sharing import share_device
from torch.nn.parallel import DistributedDataParallel

import rankscope

WARMUP, ACTIVE = 2, 8
WIDTH, LAYERS, BATCH = 512, 4, 48
ON_GPU = 64  # so many times the batch there
SLOW_STEPS = (3, 5, 6)  # of the recorded ones: those with a slow network
STALLED_STEP = 4  # of the recorded ones: the one in which a rank stalls
USUAL_MS = 12  # that a step's transfers take anyway, with Gloo's threads on the core of their rank
FAST = 30_000_000_000  # bit/s: more than loopback moves here


class Batches(torch.utils.data.Dataset[torch.Tensor]):
    """Batches in memory; fetching one can be slowed down."""

    def __init__(self, count: int, sleep_s: float, size: int) -> None:
        self.count, self.sleep_s, self.batch = count, sleep_s, torch.randn(size, WIDTH)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        return self.batch


class Trouble:
    """The fault of one window, on the affected rank."""

    def __init__(self, window: dict[str, Any], rank: int, usual_batch: int) -> None:
        self.usual_batch = usual_batch
        self.kind = window["kind"] if rank == window.get("rank") else ""
        self.ms = float(window.get("ms", 0))
        self.hogs: list[subprocess.Popen[bytes]] = []
        self.heap: list[dict[int, list[int]]] = []
        self.tc: subprocess.Popen[str] | None = None
        if self.kind == "hog":
            # They compete with the entire rank: they inherit its core.
            self.hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
        self.ended, self.lock = threading.Event(), threading.Lock()
        work = {"spin": self._spin, "lock": self._hold}.get(self.kind)
        self.thread = threading.Thread(target=work, daemon=True) if work is not None else None
        if self.thread is not None:
            self.thread.start()
        if self.kind == "slow_collective":
            # It obeys each line as it comes, so that a change costs this rank no process.
            self.tc = subprocess.Popen(["tc", "-batch", "-"], stdin=subprocess.PIPE, text=True, bufsize=1)
            self._network("add", FAST)
        if self.kind == "gc":
            self.heap = [{i: [i]} for i in range(120_000)]

    @property
    def loader_s(self) -> float:
        return self.ms / 1e3 if self.kind == "loader" else 0.0

    @property
    def batch(self) -> int:
        return self.usual_batch * (2 if self.kind == "batch" else 1)

    def before(self, step: int) -> None:
        """Before a step's forward pass."""
        if self.kind == "gc":
            end = time.perf_counter() + self.ms / 1e3
            while time.perf_counter() < end:
                gc.collect()
        if self.kind == "sleep" or (self.kind == "stall" and step - WARMUP == STALLED_STEP):
            time.sleep(self.ms / 1e3)
        if self.kind == "lock":
            with self.lock:
                pass
        if self.kind == "slow_collective":
            sent = 2 * LAYERS * 4 * WIDTH * WIDTH  # by both ranks: each sends as much as a layer's gradient has
            slow = round(8 * sent / ((USUAL_MS + self.ms) / 1e3))
            self._network("change", slow if step - WARMUP in SLOW_STEPS else FAST)

    def _spin(self) -> None:
        """Python that computes: it keeps the interpreter from the training thread for 5 ms at a time."""
        while not self.ended.is_set():
            sum(range(1_000))

    def _hold(self) -> None:
        """A lock that is mostly held, for as long as the fault is to cost."""
        while not self.ended.is_set():
            with self.lock:
                time.sleep(self.ms / 1e3)
            time.sleep(1e-4)

    def end(self) -> None:
        """Undo the fault."""
        self.ended.set()
        if self.thread is not None:
            self.thread.join()
        for hog in self.hogs:
            hog.kill()
            hog.wait()
        if self.tc is not None and self.tc.stdin is not None:
            self.tc.stdin.write("qdisc del dev lo root\n")
            self.tc.stdin.close()
            self.tc.wait()

    def _network(self, what: str, bits_per_second: int) -> None:
        assert self.tc is not None and self.tc.stdin is not None
        self.tc.stdin.write(f"qdisc {what} dev lo root tbf rate {bits_per_second}bit burst 1mb latency 1s\n")


def model() -> torch.nn.Module:
    layers: list[torch.nn.Module] = []
    for _ in range(LAYERS):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers)


def gradients(net: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Average gradients one after another if DDP does not."""
    for parameter in net.parameters():
        if parameter.grad is not None and parameter.grad.dim() > 1:
            yield parameter.grad


def waited_for_core() -> float:
    """For how long this thread could have run so far but had no core, seconds; 0 where the kernel does not tell."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def run_window(
    window: dict[str, Any], out: Path, net: torch.nn.Module, device: torch.device, ddp: bool
) -> tuple[list[float], float]:
    """Train and record; returns the duration of each recorded step and the mean wait for a core per step, seconds."""
    rank = dist.get_rank()
    trouble = Trouble(window, rank, BATCH if device.type == "cpu" else BATCH * ON_GPU)
    loader = torch.utils.data.DataLoader(
        Batches(WARMUP + ACTIVE + 1, trouble.loader_s, trouble.batch), batch_size=None, num_workers=0
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    dist.barrier()
    times, waits = [], []
    with rankscope.Profiler(
        out / window["name"], wait=0, warmup=WARMUP, active=ACTIVE, repeat=1, record_shapes=True, compression="none"
    ) as profiler:
        begun = time.perf_counter()
        for step, batch in enumerate(loader):
            trouble.before(step)
            loss = net(batch.to(device)).square().mean()
            loss.backward()
            if not ddp:
                for gradient in gradients(net):
                    dist.all_reduce(gradient)
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
            profiler.step()
            now = time.perf_counter()
            times.append(now - begun)
            waits.append(waited_for_core())
            begun = now
    trouble.end()
    dist.barrier()
    return times[WARMUP:-1], (waits[WARMUP + ACTIVE - 1] - waits[WARMUP - 1]) / ACTIVE


def main() -> None:
    out, plan = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    warnings.simplefilter("ignore")
    # Each rank on a core of its own, as far as there are enough.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["LOCAL_RANK"]) % len(cores)]})
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if plan.get("nccl"):
        share_device(rank := int(os.environ["RANK"]))
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device.type == "cpu" else "nccl")
    gc.collect()
    gc.freeze()
    net = model().to(device)
    trained: torch.nn.Module = DistributedDataParallel(net) if plan["ddp"] else net
    took, off_core = {}, {}
    for window in plan["windows"]:
        times, waited = run_window(window, out, trained, device, plan["ddp"])
        off_core[window["name"]] = [torch.zeros(1, device=device) for _ in range(dist.get_world_size())]
        dist.all_gather(off_core[window["name"]], torch.tensor([waited], device=device))
        # A fault's cost is that of a step which it strikes.
        struck = {"slow_collective": SLOW_STEPS, "stall": (STALLED_STEP,)}.get(window["kind"], range(len(times)))
        took[window["name"]] = statistics.median(times[step] for step in struck)
    if dist.get_rank() == 0:
        waits = {name: [float(each) for each in ranks] for name, ranks in off_core.items()}
        (out / "took.json").write_text(json.dumps({"step_s": took, "off_core_s": waits}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
