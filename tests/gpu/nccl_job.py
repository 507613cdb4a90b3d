"""A DDP job with NCCL whose rank 1 is late, in one of several ways; its ranks may share one device.

Run: ``nccl_job.py CASE RUN_DIRECTORY`` under torchrun.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from tests.gpu.sharing import share_device
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rankscope

CASE, DIRECTORY = sys.argv[1:3]
RANK = int(os.environ["RANK"])
DEVICE = torch.device("cuda", RANK % torch.cuda.device_count())
STEPS = 60
LATE_S = 0.06
LATE_CYCLES = 100_000_000  # 50 to 60 ms


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        time.sleep(LATE_S if CASE == "loading" and RANK == 1 else 0.0)
        return torch.ones(64)


class Slow(torch.autograd.Function):
    """Spends time on the device in the forward or the backward pass."""

    @staticmethod
    def forward(ctx, value):
        if CASE == "forward" and RANK == 1:
            torch.cuda._sleep(LATE_CYCLES)
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        if CASE == "backward" and RANK == 1:
            torch.cuda._sleep(LATE_CYCLES)
        return gradient


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
        self.last = nn.Linear(512, 8)

    def forward(self, batch):
        return self.last(Slow.apply(self.layers(batch)))


def main():
    share_device(RANK)
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl", device_id=DEVICE)
    torch.manual_seed(0)
    model = DistributedDataParallel(Model().to(DEVICE), device_ids=[DEVICE.index], bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with rankscope.Profiler(DIRECTORY, watch=True, wait=10_000, warmup=1, active=1, repeat=1) as profiler:
        for batch in torch.utils.data.DataLoader(Data(), batch_size=1):
            loss = model(batch.to(DEVICE)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if CASE == "reduced":
                # The loss is averaged: ranks wait outside of the backward pass.
                if RANK == 1:
                    torch.cuda._sleep(LATE_CYCLES)
                dist.all_reduce(loss.detach())
            loss.item()
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
