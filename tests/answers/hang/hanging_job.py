"""A small job that hangs at step 5, each time in another way. Rank 1 is the one at fault, where one is.

Run: ``hanging_job.py CASE RUN_DIRECTORY`` under torchrun, or with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The
backend is Gloo, or what ``HANGING_JOB_BACKEND`` says. With NCCL the host waits for the device in each step.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

import rankscope

FAULT_STEP = 5
FAR = 100_000
CASE, DIRECTORY = sys.argv[1:3]
RANK = int(os.environ["RANK"])
BACKEND = os.environ.get("HANGING_JOB_BACKEND", "gloo")
DEVICE = torch.device("cuda", RANK % torch.cuda.device_count()) if BACKEND == "nccl" else torch.device("cpu")


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return FAR

    def __getitem__(self, index):
        if CASE == "loader" and RANK == 1 and index == FAULT_STEP:
            time.sleep(FAR)
        return torch.ones(2)


def fault(groups):
    """What goes wrong in this case."""
    ones = torch.ones(4, device=DEVICE)
    if CASE == "sleep" and RANK == 1:
        time.sleep(FAR)
    elif CASE == "killed" and RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    elif CASE == "stopped" and RANK == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    elif CASE == "exception" and RANK == 1:
        try:
            raise ValueError("bad batch")
        except ValueError:
            dist.barrier()
    elif CASE == "branch":
        if RANK != 1:
            dist.all_reduce(ones)
        dist.barrier()
    elif CASE == "size":
        dist.all_reduce(torch.ones(8 if RANK == 1 else 4, device=DEVICE))
    elif CASE == "dtype":
        dist.all_reduce(torch.ones(4, dtype=torch.float64 if RANK == 1 else torch.float32, device=DEVICE))
    elif CASE == "order" and RANK < 2:
        for group in groups[:2] if RANK == 0 else groups[1::-1]:
            dist.all_reduce(ones, group=group)
    elif CASE == "cycle":
        # Groups 0-1, 1-2 and 2-0: each rank begins with its own and waits for the next one.
        for group in {0: (0, 2), 1: (1, 0), 2: (2, 1)}[RANK]:
            dist.all_reduce(ones, group=groups[group])
    elif CASE == "store" and RANK == 1:
        store = _get_default_store()
        store.set_timeout(timedelta(hours=1))
        store.get("a key that nobody sets")


def main():
    limits = {"timeout_s": 6.0, "factor": 3.0, "first_timeout_s": 15.0 if CASE == "no_store" else 120.0}
    with rankscope.HangWatch(DIRECTORY, **limits, heartbeat_s=0.5) as watch:
        if CASE == "no_store" and RANK == 1:
            # A port that takes the connection and never answers.
            listener = socket.create_server(("127.0.0.1", 0))
            os.environ["MASTER_PORT"] = str(listener.getsockname()[1])
            os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
        device = {}
        if BACKEND == "nccl":
            from tests.gpu.sharing import share_device

            share_device(RANK)
            torch.cuda.set_device(DEVICE)
            if not os.environ.get("HANGING_JOB_LAZY"):  # else NCCL makes a group's communicator at its first collective
                device["device_id"] = DEVICE
        dist.init_process_group(BACKEND, timeout=timedelta(hours=1), **device)
        pairs = [(0, 1), (0, 1), ()] if CASE == "order" else [(0, 1), (1, 2), (0, 2)]
        size = dist.get_world_size()
        groups = [dist.new_group(list(pair)) if pair and max(pair) < size else None for pair in pairs]
        data = iter(torch.utils.data.DataLoader(Data(), batch_size=1, num_workers=int(CASE == "loader")))
        for step in range(FAR):
            next(data)
            dist.all_reduce(torch.ones(4, device=DEVICE))
            if step == FAULT_STEP:
                fault(groups)
            if BACKEND == "nccl":
                torch.cuda.synchronize()
            watch.heartbeat()


if __name__ == "__main__":
    main()
